"""The chat-completions wire: chunks become deltas, responses messages, requests a body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from ..commander._errors import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BadResponse,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
)
from ._delta import Delta, ToolCallDelta
from ._message import Message, Usage, content_parts, content_text
from ._request import Request

__all__ = ["delta_from_chunk", "error_from_wire", "message_from_response", "request_body"]

_NOT_THE_PROTOCOL = (AttributeError, IndexError, KeyError, TypeError, ValueError)


def delta_from_chunk(chunk: Mapping[str, Any]) -> Delta | None:
    """Turn one chunk of a streamed reply into a delta, or None if it says nothing.

    Raises `BadResponse` for what is not the protocol, several choices included, and what
    `error_from_wire` makes of an error object inside the stream.
    """
    try:
        choices = chunk.get("choices")
        if not choices:
            return _delta_without_choice(chunk)
        choice = choices[0]
        if len(choices) > 1 or choice.get("index"):
            raise BadResponse("the reply has several choices; ask for one (n=1)")
        return _delta_from_choice(chunk, choice)
    except _NOT_THE_PROTOCOL as error:
        raise BadResponse(f"not a chat-completions chunk: {_excerpt(chunk)}") from error


def _delta_from_choice(chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> Delta | None:
    piece: Mapping[str, Any] = choice.get("delta") or choice.get("message") or {}
    finish_reason = choice.get("finish_reason") or None
    usage = chunk.get("usage")
    text = piece.get("content") or ""
    if text and len(piece) == 1 and not finish_reason and not usage and type(text) is str:
        return Delta(text)  # by far the most frequent chunk
    if finish_reason == "error":
        raise error_from_wire(_error(chunk) or "the server ended the reply by an unnamed error")
    delta = Delta(
        text if type(text) is str else content_text(text) or "",
        piece.get("reasoning_content") or piece.get("reasoning") or "",
        piece.get("refusal") or "",
        _calls(piece),
        _usage(chunk) if usage or finish_reason else None,
        finish_reason,
    )
    return delta if _says_something(delta) else None


def _says_something(delta: Delta) -> bool:
    return bool(
        delta.text
        or delta.tool_calls
        or delta.reasoning
        or delta.finish_reason
        or delta.usage
        or delta.refusal
    )


def _delta_without_choice(chunk: Mapping[str, Any]) -> Delta | None:
    if error := _error(chunk):
        raise error_from_wire(error)
    usage = _usage(chunk)
    return None if usage is None else Delta(usage=usage)


def _error(told: Mapping[str, Any]) -> object:
    """Return the error object that a server sent in the place of a reply, or nothing."""
    return told.get("error") or (told if told.get("object") == "error" else None)


def _usage(chunk: Mapping[str, Any]) -> Usage | None:
    extension: Mapping[str, Any] = chunk.get("x_groq") or {}
    usage = chunk.get("usage") or extension.get("usage")
    return Usage.from_wire(usage) if usage else None


def _calls(piece: Mapping[str, Any]) -> Sequence[ToolCallDelta]:
    if calls := piece.get("tool_calls"):
        return [_call(call) for call in calls]
    if legacy := piece.get("function_call"):
        name = legacy.get("name") or None
        arguments = _arguments(legacy.get("arguments"))
        return (ToolCallDelta(0, "call_0" if name else None, name, arguments),)
    return ()


def _call(call: Mapping[str, Any]) -> ToolCallDelta:
    function: Mapping[str, Any] = call.get("function") or {}
    index = call.get("index")
    return ToolCallDelta(
        -1 if index is None else index,
        call.get("id") or None,
        function.get("name") or None,
        _arguments(function.get("arguments")),
    )


def _arguments(arguments: object) -> str:
    if type(arguments) is str:
        return arguments
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def error_from_wire(error: object, status: int | None = None) -> BackendError:
    """Make the error that an `error` object stands for; `status` is the HTTP status, if any.

    The object's own `code` or `status` counts where there is no HTTP status, as inside a stream.
    """
    fields = cast("Mapping[str, Any]", error if isinstance(error, Mapping) else {"message": error})
    message = str(fields.get("message") or fields)
    code = fields.get("code") or fields.get("type") or ""
    if status is None and str(code or fields.get("status")).isdigit():
        status = int(code or fields["status"])
    if code == "context_length_exceeded" or "maximum context length" in message:
        return ContextTooLong(message, status=status)
    if status == 429 or code in {"rate_limit_exceeded", "insufficient_quota"}:
        return RateLimited(message)
    if status in {401, 403} or code == "invalid_api_key":
        return AuthenticationError(message, status=status)
    if status == 404 or code == "model_not_found":
        return ModelNotFound(message, status=status)
    if status is not None and status < 500:
        return BackendError(message, status=status)
    return BackendUnavailable(message, status=status)


def message_from_response(response: Mapping[str, Any]) -> Message:
    """Turn the whole response of a request that did not stream into its message.

    Raises as `delta_from_chunk` does.
    """
    if error := _error(response):
        raise error_from_wire(error)
    try:
        (choice,) = response["choices"]
        message = Message.from_wire({"role": "assistant"} | choice["message"])
        message.finish_reason = choice.get("finish_reason")
        message.usage = _usage(response)
    except _NOT_THE_PROTOCOL as fault:
        raise BadResponse(f"not a response with one choice: {_excerpt(response)}") from fault
    return message


def request_body(
    model: str,
    request: Request,
    default_options: Mapping[str, Any] | None = None,
    stream: bool = True,
) -> dict[str, Any]:
    """Write the JSON body of a request.

    The request's options win over the defaults; an option that is None is left out. Options that
    servers refuse without tools are left out where there are none. The option `tool_images` is
    ours: with it the model also sees the images that tools gave, as a message of the user's after
    their results, since the wire allows none in a tool message.
    """
    options = {**(default_options or {}), **request.options}
    messages = [message.to_wire() for message in request.messages]
    if options.pop("tool_images", False):
        messages = list(_with_tool_images(request.messages))
    body: dict[str, Any] = {"model": model, "messages": messages}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= options
    if request.tools:
        body["tools"] = [_tool_to_wire(tool) for tool in request.tools]
    else:
        body |= {"tool_choice": None, "parallel_tool_calls": None}
    return {key: value for key, value in body.items() if value is not None}


def _with_tool_images(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for tools, group in groupby(messages, lambda message: message.role == "tool"):
        run = list(group)
        yield from (message.to_wire() for message in run)
        if tools and (images := [url for message in run for url in message.images]):
            said = "The images that the tools gave, in order:"
            yield {"role": "user", "content": content_parts(said, images)}


def _tool_to_wire(tool: Any) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
