"""Read a request's fields and messages, and start its run.

The server refuses each field that it does not support, instead of ignoring it. A request cannot
choose anything that the server has not offered.
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
from ._model_options import requested_fields
from ._openai_chat import chat_completion
from ._run import OnLeave, Run
from ._run_log import EntriesExpired
from ._runs import Busy, Runs
from ._served_model import InvalidInput, RunInput

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["read_input", "read_messages", "start", "take_flag", "take_object"]

NO_MESSAGES = "{} must be a list with at least one message"
# Messages that are read in one step of the event loop: a millisecond's work.
MESSAGES_PER_STEP = 64
# The limit of tool calls in one message: a journal stores them in one step of the event loop. Model
# providers allow 128.
MAX_MESSAGE_CALLS = 256

# Fields of a message of the chat wire that the server reads.
MESSAGE_FIELDS = (
    *("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "provider_items"),
)
# Fields of an item of the Responses wire that the server reads, by its type.
ITEM_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
# Fields of parts with an image or a file.
PART_FIELDS: dict[str, dict[str, str]] = {
    "image_url": {"url": "url", "detail": "detail"},
    "file": {"file_data": "file_data", "filename": "filename"},
    "input_audio": {"data": "data", "format": "format"},
}
# Fields that servers and clients add to an answer, and that clients then send back. They have no
# meaning for a model, so the server ignores them. A test sends back the messages of the official
# clients and of litellm.
RETURNED_FIELDS = {
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
    can_ask: bool = False,
    names: Mapping[str, str] = MappingProxyType({}),
    echo: Mapping[str, Any] = MappingProxyType({}),
) -> Run:
    """Start the run of a request; return when the journal has stored its input.

    `body` are the fields that the wire has not taken out. `names` maps names of fields to the
    wire's names, for error messages. `Run` describes `traced`, `can_ask` and `echo`. Raises
    `Refusal` and `Busy`.
    """
    model: Any = body.pop("model", None)
    known = ", ".join(server.served)
    if not isinstance(model, str):
        text = "model must be a text" if model is not None else "the request must name a model"
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
        text = f"a request must have at most {server.max_messages} tools, not {len(tools)}"
        raise Refusal(413, text, field="tools")
    options = dict(requested_fields(body))
    run_input = RunInput(messages, fields, options, [*map(_tool, tools)])
    runs = server.runs
    await _restore_items(runs, user, served.name, messages)
    try:
        run = runs.start(served, run_input, user, leave, traced=traced, can_ask=can_ask, echo=echo)
    except Busy:
        raise
    except InvalidInput as bad:
        name = None if bad.field is None else names.get(bad.field, bad.field)
        raise Refusal(400, f"{name}: {bad.text}" if name else bad.text, field=name) from None
    except Exception as error:  # noqa: BLE001 - the user's code failed to make the node
        about = f"a run of {served.name} could not start"
        raise refuse_failure("The run", about, error) from None
    # The client may reconnect with the run's id, so it must not learn the id before a restart can
    # find the run.
    if not await run.until_accepted():
        if runs.closing:
            raise Busy(closing=True)
        text = f"The server cannot store this run (id {run.id}). See the server log."
        raise Refusal(503, text, headers={**NO_RETRY, REQUEST_ID: run.id})
    return run


def _tool(tool: Any) -> Any:
    """Return a tool in the form of the chat wire; that of the Responses wire is flat."""
    fields = cast("dict[str, Any]", tool) if isinstance(tool, dict) else {}
    if fields.get("type") != "function":
        raise Refusal(400, "tools must be functions", field="tools")
    if "function" in fields:
        return fields
    return {"type": "function", "function": {n: v for n, v in fields.items() if n != "type"}}


def take_flag(body: dict[str, Any], name: str, *, default: bool = False) -> bool:
    """Remove a field that is true or false from the body; return its value."""
    found: Any = body.pop(name, None)
    if not isinstance(found, bool | None):
        raise Refusal(400, f"{name} must be true or false", field=name)
    return default if found is None else found


def take_object(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove a field that is an object from the body; return the object, or an empty one."""
    found: Any = body.pop(name, None)
    if not isinstance(found, dict | None):
        raise Refusal(400, f"{name} must be an object", field=name)
    return cast("dict[str, Any]", found or {})


async def read_messages(server: Server, content: Any, name: str = "messages") -> list[Message]:
    """Read messages of the chat wire, or items of the Responses wire, from the field `name`.

    Other tasks run in between, so that a long conversation does not block the event loop.
    """
    if not isinstance(content, list) or not content:
        raise Refusal(400, NO_MESSAGES.format(name), field=name)
    _require_few(server, cast("list[Any]", content), name)
    messages: list[Message] = []
    # Items of a reply whose message and calls follow: on the Responses wire its reasoning is first.
    sealed: list[ProviderItem] = []
    for place, each in enumerate(cast("list[Any]", content)):
        if place % MESSAGES_PER_STEP == MESSAGES_PER_STEP - 1:
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
            # Only errors of images and files help a client.
            text = f": {why['msg']}" if why["loc"] in (("url",), ("name",), ("detail",)) else ""
            raise Refusal(400, f"this is not a valid message{text:.500}", field=field) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Refusal(400, "this is not a valid message", field=field) from None
        if message.role == "user" and fields.get("content") in (None, []):
            raise Refusal(400, "a user's message must have content", field=field)
        if message.role == "tool" and not message.tool_call_id:
            raise Refusal(
                400, "tool_call_id must name the call that the message answers", field=field
            )
        before = messages[-1] if messages else None
        if item.get("type") == "function_call" and before and before.role == "assistant":
            before.tool_calls += message.tool_calls  # one reply may have text and several calls
            message = before
        else:
            messages.append(message)
            if message.role == "assistant":
                message.provider_items += sealed
            sealed = []
        if len(message.tool_calls) > MAX_MESSAGE_CALLS:
            text = f"a message must have at most {MAX_MESSAGE_CALLS} tool calls"
            raise Refusal(413, text, field=field)
    if not messages or messages[-1].role not in ("user", "tool"):
        raise Refusal(400, "the last message must be from the user or a tool", field=name)
    return messages


def _unsealed(content: object) -> list[ProviderItem]:
    """Return the provider items that a response of this server has as `encrypted_content`.

    The content of another server's response cannot be read, and gives none.
    """
    try:
        found: Any = json.loads(content) if isinstance(content, str) else []
        return [ProviderItem.model_validate(each) for each in found]
    except (TypeError, ValueError, RecursionError):
        return []


def _require_few(server: Server, messages: list[Any], name: str) -> None:
    """Refuse too many messages, and too many parts and calls in them, before reading any."""
    most = server.max_messages
    inside = 0
    for each in messages:
        item = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        for name_inside in ("content", "tool_calls"):
            if isinstance(found := item.get(name_inside), list):
                inside += len(cast("list[Any]", found))
    for number, things in (
        (len(messages), "messages"),
        (inside, "parts and tool calls in its messages"),
    ):
        if number > most:
            text = f"a request must have at most {most} {things}, not {number}"
            raise Refusal(413, text, field=name)


def _item(item: dict[str, Any], field: str) -> dict[str, Any] | None:
    """Return an item of either wire as a message of the chat wire; None for one to ignore."""
    kind = item.get("type")
    if kind == "mcp_call":  # a call that ran here: an agent does not believe a client's copy
        return None
    names = MESSAGE_FIELDS if kind is None else None
    if isinstance(kind, str):
        names = ITEM_FIELDS.get(kind)
    if names is None:
        raise Refusal(400, f"items of type {kind!r:.100} are not supported here", field=field)
    fields = {name: value for name, value in item.items() if name in names}
    known = {*names, *RETURNED_FIELDS}
    others = (name for name, value in item.items() if name not in known and _has_content(value))
    if (unknown := next(others, None)) is not None:
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
            raise Refusal(400, "only an assistant's message may have a refusal", field=field)
        message["refusal"] = "".join(refusals)
        message["content"] = [each for each in parts if each["type"] != "refusal"] or None


def _has_content(value: Any) -> bool:
    """Return whether a value is not empty: clients also send fields that are null or empty."""
    if isinstance(value, dict):
        return any(map(_has_content, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_has_content, cast("list[Any]", value)))
    return bool(value)


def _part(part: Any, field: str) -> dict[str, Any]:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    match fields.get("type"):
        case "text" | "input_text" | "output_text":
            return {"type": "text", "text": fields.get("text")}
        case "refusal" if isinstance(fields.get("refusal"), str):
            return {"type": "refusal", "refusal": fields["refusal"]}
        case "image_url" | "file" | "input_audio" as kind if isinstance(fields.get(kind), dict):
            return {"type": kind, kind: _rename(PART_FIELDS[kind], fields[kind], field)}
        case "input_image":
            found = _rename({"image_url": "url", "detail": "detail"}, fields, field)
            return {"type": "image_url", "image_url": found}
        case "input_file":
            names = {"file_data": "file_data", "filename": "filename"}
            return {"type": "file", "file": _rename(names, fields, field)}
        case kind:
            raise Refusal(400, f"parts of type {kind!r:.100} are not supported here", field=field)


def _rename(names: Mapping[str, str], fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return the fields of a part by their names on the chat wire; refuse all others.

    Other fields are addresses and ids of files. The server fetches and stores no files, so a
    request must contain the bytes.
    """
    neutral = {"type": fields.get("type"), "detail": "auto"}
    for name, value in fields.items():
        if name not in names and value is not None and value != neutral.get(name):
            raise Refusal(
                400, f"{name!r:.100} of a part of a message is not supported here", field=field
            )
    renamed = {new: fields[name] for name, new in names.items() if fields.get(name) is not None}
    if not all(isinstance(value, str) for value in renamed.values()):
        raise Refusal(400, "this is not a valid part of a message", field=field)
    return renamed


async def read_input(server: Server, body: dict[str, Any]) -> list[Message]:
    """Remove `input` from the body: the user's text, or a list of messages.

    It may be missing if the body has `fields`: jobs and handlers need no message.
    """
    content = body.pop("input", None)
    if content is None and body.get("fields") is not None:
        return []
    if isinstance(content, str):
        content = [{"role": "user", "content": content}]
    return await read_messages(server, content, "input")


# --- provider items


async def _restore_items(runs: Runs, owner: str, served: str, messages: Iterable[Message]) -> None:
    """Add provider items to replies with tool calls, if the client has dropped them.

    Many clients of chat completions send a message back without fields that they do not know, but
    providers need these items with the reply that called tools. The provider's id of a call
    identifies the run, as long as the server stores it. The reply must have the same text and
    calls. The run then stays for another `keep` seconds.
    """
    for message in messages:
        if not message.tool_calls or message.provider_items:
            continue
        for run in runs.with_first_call(owner, served, message.tool_calls[0].id):
            await asyncio.sleep(0)  # a request may have many such messages
            reply = _reply_of(run)
            if reply is not None and _contents(reply) == _contents(message):
                message.provider_items[:] = reply.provider_items
                runs.renew(run)
                break


def _reply_of(run: Run) -> Message | None:
    """Return the complete message of a run, with its items; None if entries have expired."""
    try:
        completion = chat_completion("", "", 0, run.log.entries())
    except EntriesExpired:
        return None
    return Message.from_wire(completion["choices"][0]["message"])


def _contents(message: Message) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the parts of a reply that all clients send back."""
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return message.content or "", calls
