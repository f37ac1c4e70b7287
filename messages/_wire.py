"""Convert between the chat-completions protocol and Anabranch's deltas, messages and requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from ..commander.errors import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BadResponse,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
)
from ._item import CALL_FIELD, MESSAGE_FIELDS, ProviderItem, join_pieces
from ._message import (
    Delta,
    Message,
    ToolCallDelta,
    Usage,
    content_reasoning,
    content_text,
)
from ._request import Request
from .arguments import arguments_text
from .text import encodable, quote

__all__ = [
    "ChunkReader",
    "delta_from_chunk",
    "error_from_wire",
    "message_from_response",
    "request_body",
]

# A valid id or model name. Any other value may contain text from the conversation.
_NAME = re.compile(r"[!-~]{1,200}")


class ChunkReader:
    """A reader that turns the chunks of one streamed reply into deltas.

    Some servers send the complete message at the end, or the message so far with each chunk. The
    reader drops the parts that earlier deltas or messages contained.

    With a `provider`, the deltas also contain the items that this provider requires in later
    requests. `on_names` is called at most once, with the id and the model of the reply from the
    first chunk that has one of them.
    """

    __slots__ = ("_content", "_fields", "_has_output", "_on_names", "_provider", "_reasoning")

    def __init__(
        self,
        provider: str = "",
        on_names: Callable[[str | None, str | None], object] | None = None,
    ) -> None:
        self._provider = provider
        self._on_names = on_names
        self._fields: dict[str, list[Any]] = {}  # of the message, since the last item
        self._has_output = False
        # Of the complete messages so far, None if none was used.
        self._content: str | None = None
        self._reasoning = ""

    def read(self, chunk: Mapping[str, Any]) -> Delta | None:
        """Turn a chunk of parsed JSON into a delta; return None if it adds nothing.

        Raises `BadResponse` for a chunk that breaks the protocol or has several choices, and the
        error of `error_from_wire` for an error object, even if the chunk also has a choice.
        """
        if self._on_names is not None:
            self._read_names(chunk)
        may_fail = "error" in chunk or "x_groq" in chunk or chunk.get("object") == "error"
        if may_fail and (error := _error(chunk)):
            raise error_from_wire(error)
        choices: Any = chunk.get("choices")
        if choices.__class__ is not list:  # a call of `_list` for each chunk would cost more
            choices = _list(chunk, "choices")
        if not choices:
            if error := _error_alone(chunk):
                raise error_from_wire(error)
            usage = _usage(chunk)
            return None if usage is None else Delta(usage=usage)
        choice = _the_choice(choices)
        piece = _object(choice, "delta") or self._rest(_object(choice, "message"))
        finish_reason = choice.get("finish_reason")
        usage = chunk.get("usage")
        text = piece.get("content")
        if text and len(piece) == 1 and not finish_reason and not usage and type(text) is str:
            self._has_output = True
            return Delta(text)  # by far the most frequent chunk
        thought = ""
        if text is not None and not isinstance(text, str):
            try:
                text, thought = (
                    (str(text), "")
                    if _is_number(text)
                    else (content_text(text), content_reasoning(text))
                )
            except (AttributeError, KeyError, TypeError):
                raise _unexpected("content", "a text or a list of parts", text) from None
        has_calls = "tool_calls" in piece or "function_call" in piece
        delta = Delta(
            text or "",
            _text(piece, "reasoning_content") or _text(piece, "reasoning") or thought,
            _text(piece, "refusal"),
            self._calls(piece) if has_calls else (),
            _usage(chunk) if usage or finish_reason else None,
            _finish(choice) if finish_reason else None,
        )
        if self._provider:
            for name in piece:  # usually one or two fields
                if name in MESSAGE_FIELDS and type(value := piece[name]) in (str, list, dict):
                    self._fields.setdefault(name, []).append(value)
            if self._fields and (delta.tool_calls or finish_reason):
                delta.items = self._items()
        if delta.text or delta.tool_calls or delta.reasoning or delta.refusal:
            self._has_output = True
            return delta
        return delta if delta.finish_reason or delta.usage or delta.items else None

    def end(self) -> Delta:
        """Return the delta for the end mark of the stream."""
        return Delta(done=True, items=self._items() if self._fields else ())

    def _read_names(self, chunk: Mapping[str, Any]) -> None:
        names = [
            name if isinstance(name, str) and _NAME.fullmatch(name) else None
            for name in (chunk.get("id"), chunk.get("model"))
        ]
        if self._on_names is not None and any(names):  # Azure's first chunk has empty names
            self._on_names(*names)
        if self._has_output or any(names):
            self._on_names = None

    def _rest(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of a complete message that earlier deltas and messages lack."""
        if not message or (self._content is None and self._has_output):
            return {}
        said = self._content or ""
        rest = dict(message)
        if isinstance(content := message.get("content"), str):
            rest["content"] = content.removeprefix(said)
            said += rest["content"]
        self._content = said
        for key in "reasoning_content", "reasoning":
            if isinstance(reasoning := message.get(key), str):
                rest[key] = reasoning.removeprefix(self._reasoning)
                self._reasoning += rest[key]
                break
        return rest

    def _calls(self, piece: Mapping[str, Any]) -> Sequence[ToolCallDelta]:
        calls: list[ToolCallDelta] = []
        for call in _list(piece, "tool_calls"):
            if not isinstance(call, dict):
                raise _unexpected("a tool call", "an object", call)
            fields = cast("dict[str, Any]", call)
            function = _object(fields, "function")
            index = fields.get("index")
            place = index if type(index) is int else _place(index, "a tool call's index")
            name = _text(function, "name") or None
            call = ToolCallDelta(place, _text(fields, "id") or None, name, _arguments(function))
            if self._provider and (more := fields.get(CALL_FIELD)):
                call.item = _item(self._provider, {CALL_FIELD: more})
            if call.id or call.name or call.arguments or call.item:  # skip an empty call
                calls.append(call)
        if not calls and (legacy := _object(piece, "function_call")):
            name = _text(legacy, "name") or None
            return (ToolCallDelta(0, "call_0" if name else None, name, _arguments(legacy)),)
        return calls

    def _items(self) -> Sequence[ProviderItem]:
        """Join the fields received since the last call to an item."""
        joined = {name: join_pieces(values) for name, values in self._fields.items()}
        self._fields = {}
        return (_item(self._provider, joined),)


def delta_from_chunk(chunk: Mapping[str, Any]) -> Delta | None:
    """Turn a single chunk into a delta, as `ChunkReader.read` does."""
    return ChunkReader().read(chunk)


def _item(provider: str, fields: dict[str, Any]) -> ProviderItem:
    try:
        return ProviderItem.of(provider, fields)
    except ValueError:
        raise _unexpected(next(iter(fields)), "JSON", fields) from None


def _the_choice(choices: Sequence[Any]) -> Mapping[str, Any]:
    choice = choices[0]
    if not isinstance(choice, dict):
        raise _unexpected("a choice", "an object", choice)
    fields = cast("dict[str, Any]", choice)
    index = fields.get("index") or 0
    if (index if type(index) is int else _place(index, "a choice's index")) or len(choices) > 1:
        raise BadResponse("the reply has several choices; ask for one (n=1)")
    if "error" in fields and (error := _error(fields)):
        raise error_from_wire(error)
    if (reason := fields.get("finish_reason")) in ("error", "network_error"):
        raise error_from_wire("the server ended the reply by an unnamed error")
    if reason == "abort":  # vLLM and SGLang, when they shut down, sleep or drop a request
        raise error_from_wire("the server aborted the reply")
    return fields


def _error(told: Mapping[str, Any]) -> object:
    """Return the error in a chunk, or None; an empty error object counts as none.

    Groq reports the reason for an early stop in a separate field next to the choices.
    """
    error: object = told.get("error")
    if not error and isinstance(extension := told.get("x_groq"), dict):
        error = cast("dict[str, Any]", extension).get("error")
    if not error:
        return told if told.get("object") == "error" else None
    if isinstance(error, dict) and not any(cast("dict[str, Any]", error).values()):
        return None
    return cast("object", error)


def _error_alone(chunk: Mapping[str, Any]) -> object:
    """Return the error in a chunk without choices, or None.

    Web frameworks use the key `detail`; on some servers the chunk itself is the error object.
    """
    told: object = chunk.get("detail")
    if isinstance(told, list):
        return {"message": cast("object", told), "code": 422}
    told = told or chunk.get("errors")
    if isinstance(told, list):
        told = next(iter(cast("list[object]", told)), None)
    if told:
        return told
    return chunk if isinstance(chunk.get("message"), str) and not chunk.get("id") else None


def _usage(chunk: Mapping[str, Any]) -> Usage | None:
    """Return the readable part of a usage object. Invalid usage must not fail a valid reply."""
    usage = chunk.get("usage")
    if not usage and isinstance(extension := chunk.get("x_groq"), dict):
        usage = cast("dict[str, Any]", extension).get("usage")
    if not usage or not isinstance(usage, dict):
        return None
    return Usage.from_wire(cast("dict[str, Any]", usage))


def _arguments(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    if type(arguments) is str:
        return arguments
    try:
        return arguments_text(arguments)
    except ValueError:
        raise _unexpected("arguments", "a text or an object", arguments) from None


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    if _is_number(value):
        return str(value)
    raise _unexpected(key, "a text", value)


def _finish(choice: Mapping[str, Any]) -> str | None:
    reason = _text(choice, "finish_reason")
    return reason if reason != "null" else None  # KoboldCpp sends the text "null"


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _place(value: object, what: str) -> int:
    """Convert an index that is not an `int`: another form of number, or -1 for none."""
    if value is None or value == "":
        return -1
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 10 and value.isascii() and value.isdigit():
        return int(value)
    raise _unexpected(what, "a number", value)


def _object(fields: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = fields.get(key)
    if value is None or isinstance(value, dict):
        return cast("dict[str, Any]", value or {})
    raise _unexpected(key, "an object", value)


def _list(fields: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = fields.get(key)
    if value is None or isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value or ())
    raise _unexpected(key, "a list", value)


def _unexpected(what: str, expected: str, value: object) -> BadResponse:
    return BadResponse(
        f"not the chat-completions wire: {what} should be {expected}: {quote(value)}"
    )


def error_from_wire(error: object, status: int | None = None) -> BackendError:
    """Return the exception for an `error` object; `status` is the HTTP status, if any.

    Without an HTTP status, as inside a stream, the object's `code`, `type` or `status` decides. The
    result is a `BackendError` for any object, even an invalid one.
    """
    fields = cast("Mapping[str, Any]", error if isinstance(error, Mapping) else {"message": error})
    message = _message_of(fields)
    told: list[Any] = [fields.get(key) for key in ("code", "type", "status")]
    if isinstance(more := fields.get("metadata"), Mapping):  # OpenRouter's
        told.append(cast("Mapping[str, Any]", more).get("error_type"))
    words = [str(each).lower() for each in told if each and isinstance(each, (int, str))]
    if status is None:
        status = next(filter(None, map(_status, words)), None)
    if status is None and message.startswith("Unexpected endpoint"):  # LM Studio, at status 200
        status = 404
    if not _CONTEXT_WORDS.isdisjoint(words) or (
        status in _MAY_BE_TOO_LONG and _TOO_LONG.search(message)
    ):
        return ContextTooLong(message, status=status)
    if "insufficient_quota" in words:  # the account must be topped up, so waiting does not help
        return BackendError(message, status=status)
    if status == 429 or "rate_limit_exceeded" in words[:1]:
        return RateLimited(message)
    if status in {401, 403} or "invalid_api_key" in words[:1]:
        return AuthenticationError(message, status=status)
    if status == 404 or "model_not_found" in words[:1]:
        return ModelNotFound(message, status=status)
    if status is not None and status < 500:
        return BackendError(message, status=status)
    return BackendUnavailable(message, status=status)


def _message_of(fields: Mapping[str, Any]) -> str:
    """Return the message of an error object, which may be nested."""
    told: Any = fields
    for _ in range(4):
        inner = cast("Mapping[str, Any]", told)
        found = next((inner[key] for key in _MESSAGES if inner.get(key)), None)
        if not isinstance(found, Mapping):
            return encodable(found) if isinstance(found, str) else quote(found or fields)
        told = cast("Any", found)
    return quote(fields)


def _status(word: str) -> int | None:
    """Return the HTTP status of an error's code or name; None if it has none."""
    if len(word) == 3 and word.isascii() and word.isdigit():
        return int(word)
    return _STATUSES.get(word.removesuffix("error").strip("_ ").replace("_", ""))


_MESSAGES = ("message", "error", "detail", "msg", "error_msg")
_CONTEXT_WORDS = frozenset({"context_length_exceeded", "exceed_context_size_error"})
# Servers' names of errors, in lower case, without underscores and without "error" at the end.
_STATUSES = {
    **dict.fromkeys(("invalidrequest", "badrequest", "invalidargument", "validation"), 400),
    **dict.fromkeys(("failedprecondition", "contentfilter", "contentpolicyviolation"), 400),
    **dict.fromkeys(("toolusefailed", "jsonvalidatefailed", "notimplemented"), 400),
    **dict.fromkeys(("authentication", "unauthenticated", "unauthorized", "invalidapikey"), 401),
    **dict.fromkeys(("insufficientbalance", "paymentrequired", "insufficientcredits"), 402),
    **dict.fromkeys(("permission", "permissiondenied", "forbidden"), 403),
    **dict.fromkeys(("notfound", "modelnotfound"), 404),
    **dict.fromkeys(("ratelimit", "ratelimitexceeded", "resourceexhausted"), 429),
    **dict.fromkeys(("insufficientquota", "toomanyrequests"), 429),
}
_MAY_BE_TOO_LONG = (None, 400, 413, 422, 500)
_TOO_LONG = re.compile(
    r"context[ _](length|size|window|limit)|reduce the length|too many tokens"
    # Not "max_tokens=9 cannot be greater than max_model_len=4": no prompt is short enough for it.
    r"|(?<!greater than )max_model_len"
    r"|maximum (context|model|prompt|input)|context overflow|exceed_context_size"
    r"|\b(prompt|input|request|context|conversation|message)s?( text)? ((is|are|was) )?"
    r"too (long|large)"
    r"|token count\b.{0,40}exceeds|tokens \+ `max_new_tokens`",
    re.IGNORECASE,
)


def message_from_response(response: Mapping[str, Any]) -> Message:
    """Turn the response of a request without streaming into a message.

    Raises as `ChunkReader.read` does.
    """
    if error := _error(response):
        raise error_from_wire(error)
    choices = _list(response, "choices")
    choice: Mapping[str, Any] = _the_choice(choices) if choices else {}
    said = _object(choice, "message")
    if not said:
        raise _unexpected("a response", "an object with one choice and its message", response)
    try:
        message = Message.from_wire({"role": "assistant", **said, "provider_items": None})
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        raise _unexpected("message", "a message", said) from fault
    message.finish_reason = encodable(_text(choice, "finish_reason")) or None
    message.usage = _usage(response)
    return message


def request_body(
    model: str,
    request: Request,
    default_options: Mapping[str, Any] | None = None,
    stream: bool = True,
    provider: str | None = None,
) -> dict[str, Any]:
    """Return the JSON body of a request, with only the provider items of `provider`.

    The request's options override the defaults; options that are None are omitted. A request
    without tools omits the options that servers accept only with tools. The option `tool_images` is
    Anabranch's: it sends images from tools in a user message after the results, since the protocol
    allows no images in tool messages.
    """
    options = {**(default_options or {}), **request.options}
    messages = [message.to_wire(provider) for message in request.messages]
    if options.pop("tool_images", False):
        messages.clear()
        for tools, group in groupby(request.messages, lambda message: message.role == "tool"):
            run = list(group)
            messages += [message.to_wire(provider) for message in run]
            if tools and (parts := [part for message in run for part in message.parts]):
                said = "The images that the tools gave, in order:"
                messages.append(Message(role="user", content=said, parts=parts).to_wire())
    needed = {"model": model, "messages": messages}
    body: dict[str, Any] = {}
    if stream:
        body = {"stream": True, "stream_options": {"include_usage": True}}
    body |= options
    if stream and isinstance(asked := body["stream_options"], Mapping):
        body["stream_options"] = {"include_usage": True, **asked}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                    **({"strict": True} if getattr(tool, "strict", None) is True else {}),
                },
            }
            for tool in request.tools
        ]
    else:
        body |= {"tool_choice": None, "parallel_tool_calls": None}
    return needed | {key: value for key, value in body.items() if value is not None}
