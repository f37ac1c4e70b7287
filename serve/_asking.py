"""What a request asks: of which thing, with which words, fields and options; what is refused (S17).

Nothing that is not honoured is passed over in silence, and a request chooses nothing that the
server has not offered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ..messages import Message, ProviderItem
from ._http import NO_RETRY, REQUEST_ID, Refusal, refuse_failure
from ._log import EntriesExpired
from ._openai_chat import chat_completion
from ._options import asked_for
from ._run import OnLeave, Run
from ._runs import Busy, Runs
from ._served import BadQuestion, Question

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["read_input", "read_messages", "start", "take_flag", "take_object"]

NO_MESSAGES = "{} is a list with at least one message"
# How many messages are read between two turns of the event loop: a millisecond's work.
SLICE = 64
# Tool calls in one message, which a journal stores in one step of the event loop; model providers
# allow 128.
MAX_CALLS = 256

# Fields of a message of the chat wire that are read, and those of an item of the Responses wire.
MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "provider_items")
ITEM = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
# Fields of a part that holds an image or a file.
PARTS: dict[str, dict[str, str]] = {
    "image_url": {"url": "url", "detail": "detail"},
    "file": {"file_data": "file_data", "filename": "filename"},
    "input_audio": {"data": "data", "format": "format"},
}
# What servers and clients add to an answer, and clients send back: it says nothing to a model.
# A test sends back what the official clients and litellm make of answers.
ECHOED = {
    *("type", "id", "status", "phase", "annotations", "audio", "reasoning", "reasoning_content"),
    *("parsed", "parsed_arguments", "provider_specific_fields"),
    *("reasoning_details", "thinking_blocks"),
}


async def start(
    server: Server,
    user: str,
    body: dict[str, Any],
    messages: list[Message],
    leave: OnLeave,
    *,
    traced: bool = False,
    asks: bool = False,
    names: Mapping[str, str] = MappingProxyType({}),
    echo: Mapping[str, Any] = MappingProxyType({}),
) -> Run:
    """Begin the run that a body asks for, without the fields that were taken out of it.

    `names` are those of the wire for fields that are called otherwise here; `traced` and `asks` are
    as `Run` has them.
    """
    model: Any = body.pop("model", None)
    known = ", ".join(server.served)
    if not isinstance(model, str):
        text = "model is a text" if model is not None else "the request names no model"
        raise Refusal(400, f"{text}; there are: {known}", field="model")
    served = server.served.get(model)
    if served is None:
        text = f"there is no model {model!r:.200}; there are: {known}"
        raise Refusal(404, text, code="model_not_found", field="model")
    if served.needs_text and not messages:
        raise Refusal(400, NO_MESSAGES.format("input"), field="input")
    fields = take_object(body, "fields")
    found: Any = body.pop("tools", None)
    if not isinstance(found, list | None):
        raise Refusal(400, "tools must be a list", field="tools")
    tools = cast("list[Any]", found or [])
    if len(tools) > server.max_messages:
        text = f"a request has at most {server.max_messages} tools, not {len(tools)}"
        raise Refusal(413, text, field="tools")
    asked = dict(asked_for(body))
    question = Question(messages, fields, asked, [*map(_tool, tools)])
    runs = server.runs
    await _return_items(runs, user, served.name, messages)
    try:
        run = runs.start(served, question, user, leave, traced=traced, asks=asks, echo=echo)
    except Busy:
        raise
    except BadQuestion as bad:
        name = None if bad.field is None else names.get(bad.field, bad.field)
        raise Refusal(400, f"{name}: {bad.text}" if name else bad.text, field=name) from None
    except Exception as error:  # noqa: BLE001 - what is served cannot even begin
        raise refuse_failure("the run", f"a run of {served.name} could not begin", error) from None
    if not await run.until_accepted():
        if runs.closing:
            raise Busy(closing=True)
        text = f"the server cannot keep this run (id {run.id}); see the server log"
        raise Refusal(503, text, headers={**NO_RETRY, REQUEST_ID: run.id})
    return run


def _tool(tool: Any) -> Any:
    """Return a tool as the chat wire has it."""
    fields = cast("dict[str, Any]", tool) if isinstance(tool, dict) else {}
    if fields.get("type") != "function":
        raise Refusal(400, "tools must be functions", field="tools")
    if "function" in fields:
        return fields
    return {"type": "function", "function": {n: v for n, v in fields.items() if n != "type"}}


def take_flag(body: dict[str, Any], name: str, *, usual: bool = False) -> bool:
    """Take true or false out of the body, `usual` where there is neither."""
    found: Any = body.pop(name, None)
    if not isinstance(found, bool | None):
        raise Refusal(400, f"{name} must be true or false", field=name)
    return usual if found is None else found


def take_object(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Take an object out of the body, an empty one where there is none."""
    found: Any = body.pop(name, None)
    if not isinstance(found, dict | None):
        raise Refusal(400, f"{name} must be an object", field=name)
    return cast("dict[str, Any]", found or {})


async def read_messages(server: Server, said: Any, name: str = "messages") -> list[Message]:
    """Read messages of the chat wire, or items of the Responses wire; `name` is their field's.

    Other tasks run between two slices, so that a long conversation does not hold up the rest.
    """
    if not isinstance(said, list) or not said:
        raise Refusal(400, NO_MESSAGES.format(name), field=name)
    _require_few(server, cast("list[Any]", said), name)
    messages: list[Message] = []
    sealed: list[ProviderItem] = []  # of the reply whose other items follow
    for place, each in enumerate(cast("list[Any]", said)):
        if place % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        field = f"{name}[{place}]"
        if not isinstance(each, dict):
            raise Refusal(400, "a message must be an object", field=field)
        item = cast("dict[str, Any]", each)
        if item.get("type") == "reasoning":
            answered = bool(messages) and messages[-1].role == "assistant"
            of_reply = messages[-1].provider_items if answered else sealed
            of_reply += _unsealed(item.get("encrypted_content"))
            continue
        fields = _item(item, field)
        if fields is None:
            continue
        if isinstance(parts := fields.get("content"), list):
            fields["content"] = [_part(part, field) for part in cast("list[Any]", parts)]
            _take_refusal(fields, field)
        try:
            message = Message.from_wire(fields)
        except ValidationError as error:
            why = error.errors(include_url=False, include_input=False)[0]
            # Of an image or a file it is said what is wrong with it.
            text = f": {why['msg']}" if why["loc"] in (("url",), ("name",), ("detail",)) else ""
            raise Refusal(400, f"this is no message{text:.500}", field=field) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Refusal(400, "this is no message", field=field) from None
        if message.role == "user" and fields.get("content") in (None, []):
            raise Refusal(400, "a user's message needs a content", field=field)
        if message.role == "tool" and not message.tool_call_id:
            raise Refusal(
                400, "tool_call_id must name the call that the message answers", field=field
            )
        before = messages[-1] if messages else None
        if item.get("type") == "function_call" and before and before.role == "assistant":
            before.tool_calls += message.tool_calls  # one reply may have said and called several
            message = before
        else:
            messages.append(message)
            if message.role == "assistant":
                message.provider_items += sealed
            sealed = []
        if len(message.tool_calls) > MAX_CALLS:
            text = f"a message must have at most {MAX_CALLS} tool calls"
            raise Refusal(413, text, field=field)
    if not messages or messages[-1].role not in ("user", "tool"):
        raise Refusal(400, "the last message must be the user's or a tool's", field=name)
    return messages


def _unsealed(content: object) -> list[ProviderItem]:
    """Return what a reply of this server had sealed; nothing for what another one has."""
    try:
        found: Any = json.loads(content) if isinstance(content, str) else []
        return [ProviderItem.model_validate(each) for each in found]
    except (TypeError, ValueError, RecursionError):
        return []


def _require_few(server: Server, said: list[Any], name: str) -> None:
    """Refuse more messages than a request may have, or more parts and calls inside them."""
    most = server.max_messages
    inside = 0
    for each in said:
        item = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        for name_inside in ("content", "tool_calls"):
            if isinstance(found := item.get(name_inside), list):
                inside += len(cast("list[Any]", found))
    if len(said) > most:
        raise Refusal(413, f"a request has at most {most} messages, not {len(said)}", field=name)
    if inside > most:
        what = "parts and tool calls in its messages"
        raise Refusal(413, f"a request has at most {most} {what}, not {inside}", field=name)


def _item(item: dict[str, Any], field: str) -> dict[str, Any] | None:
    """Return an item of either wire as a message of the chat wire, None for one to pass over."""
    kind = item.get("type")
    if kind == "mcp_call":  # a call that ran here: an agent does not take that from a client
        return None
    read = MESSAGE if kind is None else ITEM.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise Refusal(400, f"items of type {kind!r:.100} are not supported here", field=field)
    fields = {name: value for name, value in item.items() if name in read}
    known = {*read, *ECHOED}
    more = (name for name, value in item.items() if name not in known and _says_anything(value))
    if (unknown := next(more, None)) is not None:
        raise Refusal(400, f"{unknown!r:.100} of a message is not supported here", field=field)
    if kind == "function_call":
        called = {"name": fields.get("name"), "arguments": fields.get("arguments")}
        call = {"id": fields.get("call_id"), "type": "function", "function": called}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        answers = {"tool_call_id": fields.get("call_id"), "content": fields.get("output")}
        return {"role": "tool", **answers}
    return fields


def _take_refusal(message: dict[str, Any], field: str) -> None:
    """Move a refusal among the parts of an assistant's message into its own field."""
    parts: list[dict[str, Any]] = message["content"]
    if refusals := [each["refusal"] for each in parts if each["type"] == "refusal"]:
        if message.get("role") != "assistant":
            raise Refusal(400, "only an assistant's message may refuse", field=field)
        message["refusal"] = "".join(refusals)
        message["content"] = [each for each in parts if each["type"] != "refusal"] or None


def _says_anything(value: Any) -> bool:
    """Whether a field asks for anything: clients write out fields that are null or empty."""
    if isinstance(value, dict):
        return any(map(_says_anything, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_says_anything, cast("list[Any]", value)))
    return bool(value)


def _part(part: Any, field: str) -> dict[str, Any]:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    match fields.get("type"):
        case "text" | "input_text" | "output_text":
            return {"type": "text", "text": fields.get("text")}
        case "refusal" if isinstance(fields.get("refusal"), str):
            return {"type": "refusal", "refusal": fields["refusal"]}
        case "image_url" | "file" | "input_audio" as kind if isinstance(fields.get(kind), dict):
            return {"type": kind, kind: _only(PARTS[kind], fields[kind], field)}
        case "input_image":
            found = _only({"image_url": "url", "detail": "detail"}, fields, field)
            return {"type": "image_url", "image_url": found}
        case "input_file":
            names = {"file_data": "file_data", "filename": "filename"}
            return {"type": "file", "file": _only(names, fields, field)}
        case kind:
            raise Refusal(400, f"parts of type {kind!r:.100} are not supported here", field=field)


def _only(names: Mapping[str, str], fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the fields of a part that are read, by their names on the chat wire.

    Nothing is fetched here and nothing was uploaded, so bytes come in the request itself.
    """
    usual = {"type": fields.get("type"), "detail": "auto"}
    for name, value in fields.items():
        if name not in names and value is not None and value != usual.get(name):
            raise Refusal(
                400, f"{name!r:.100} of a part of a message is not supported here", field=field
            )
    found = {own: fields[name] for name, own in names.items() if fields.get(name) is not None}
    if not all(isinstance(value, str) for value in found.values()):
        raise Refusal(400, "this is no part of a message", field=field)
    return found


async def read_input(server: Server, body: dict[str, Any]) -> list[Message]:
    """Take `input` out of the body: the user's text, or a list of messages.

    It may be missing where there are `fields`, which a job or a handler may take alone.
    """
    said = body.pop("input", None)
    if said is None and body.get("fields") is not None:
        return []
    if isinstance(said, str):
        said = [{"role": "user", "content": said}]
    return await read_messages(server, said, "input")


# --- provider items


async def _return_items(runs: Runs, owner: str, served: str, messages: Iterable[Message]) -> None:
    """Add to replies with calls the provider items that their client has dropped.

    Many clients of chat completions send a message back without fields that they do not know, and
    providers need such items with the reply that called tools. The id of a call is the provider's
    own, so it finds the run, as long as the server stores that. The reply must have the same text
    and calls. The run is stored for `keep` seconds from now on.
    """
    for message in messages:
        if not message.tool_calls or message.provider_items:
            continue
        for run in runs.calling(owner, served, message.tool_calls[0].id):
            await asyncio.sleep(0)  # a request may have many such messages
            reply = _reply_of(run)
            if reply is not None and _contents(reply) == _contents(message):
                message.provider_items[:] = reply.provider_items
                runs.renew(run)
                break


def _reply_of(run: Run) -> Message | None:
    """Return the complete message of a run, with its items."""
    try:
        made = chat_completion("", "", 0, run.log.entries())
    except EntriesExpired:
        return None
    return Message.from_wire(made["choices"][0]["message"])


def _contents(message: Message) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the parts of a reply that all clients send back."""
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return message.content or "", calls
