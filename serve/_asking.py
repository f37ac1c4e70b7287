"""What a request asks: of which thing, with which words, fields and options; what is refused (S17).

Nothing that is not honoured is passed over in silence, and a request chooses nothing that the
server has not offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..commander.errors import ConfigurationError
from ..messages import Message
from ._http import Refusal
from ._run import OnLeave, Run
from ._served import BadQuestion, Question

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["read_input", "read_messages", "start", "take_object"]

# Fields of a message of the chat wire that are read.
MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal")
# Fields that change nothing of an answer here, and harm nobody: clients send them unasked.
IGNORED = {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"}
# Fields whose usual value asks for nothing; any other is refused.
USUAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "include": ([],),
    "text": ({"format": {"type": "text"}}, {}),
    "response_format": ({"type": "text"},),
}


def start(
    server: Server,
    user: str,
    body: dict[str, Any],
    messages: list[Message],
    leave: OnLeave,
    *,
    traced: bool = False,
) -> Run:
    """Begin the run that a body asks for, without the fields that were taken out of it."""
    model = body.pop("model", None)
    served = server.served.get(model) if isinstance(model, str) else None
    if served is None:
        names = ", ".join(server.served)
        raise Refusal(
            404, f"there is no model {model!r:.200}; there are: {names}", code="model_not_found"
        )
    fields = take_object(body, "fields")
    options: dict[str, Any] = {}
    for name, value in body.items():
        if name in IGNORED or value is None or value in USUAL.get(name, ()):
            continue
        if name in USUAL:
            raise Refusal(400, f"{name} is not supported here", field=name)
        options["max_tokens" if name == "max_completion_tokens" else name] = value
    tools: Any = options.pop("tools", None) or []
    if not isinstance(tools, list):
        raise Refusal(400, "tools is a list", field="tools")
    question = Question(messages, fields, options, [*map(_tool, cast("list[Any]", tools))])
    try:
        return server.runs.start(served, question, user, leave, traced=traced)
    except BadQuestion as bad:
        raise Refusal(400, bad.text, field=bad.field) from None
    except ConfigurationError as error:
        raise Refusal(400, f"{error}") from None


def _tool(tool: Any) -> Any:
    """Return a tool as the chat wire has it."""
    fields = cast("dict[str, Any]", tool) if isinstance(tool, dict) else {}
    if fields.get("type") != "function":
        raise Refusal(400, "tools are functions here", field="tools")
    if "function" in fields:
        return fields
    return {"type": "function", "function": {n: v for n, v in fields.items() if n != "type"}}


def take_object(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Take an object out of the body, an empty one where there is none."""
    found: Any = body.pop(name, None)
    if not isinstance(found, dict | None):
        raise Refusal(400, f"{name} is an object", field=name)
    return cast("dict[str, Any]", found or {})


def read_messages(said: Any) -> list[Message]:
    """Read messages of the chat wire; parts of the Responses wire that are texts are read too."""
    if not isinstance(said, list) or not said:
        raise Refusal(400, "messages is a list with at least one message", field="messages")
    messages: list[Message] = []
    for place, each in enumerate(cast("list[Any]", said)):
        field = f"messages[{place}]"
        if not isinstance(each, dict):
            raise Refusal(400, "a message is an object", field=field)
        fields = _item(cast("dict[str, Any]", each), field)
        if isinstance(parts := fields.get("content"), list):
            fields["content"] = [_part(part, field) for part in cast("list[Any]", parts)]
        try:
            messages.append(Message.from_wire(fields))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Refusal(400, "this is no message", field=field) from None
    if messages[-1].role not in ("user", "tool"):
        raise Refusal(400, "the last message is the user's", field="messages")
    return messages


def _item(fields: dict[str, Any], field: str) -> dict[str, Any]:
    """Return an item of the Responses wire as a message of the chat wire."""
    match fields.get("type", "message"):
        case "message":
            return {name: value for name, value in fields.items() if name in MESSAGE}
        case "function_call":
            called = {"name": fields.get("name"), "arguments": fields.get("arguments")}
            call = {"id": fields.get("call_id"), "type": "function", "function": called}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            answers = {"tool_call_id": fields.get("call_id"), "content": fields.get("output")}
            return {"role": "tool", **answers}
        case kind:
            raise Refusal(400, f"items of type {kind!r:.100} are not supported here", field=field)


def _part(part: Any, field: str) -> dict[str, Any]:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    match fields.get("type"):
        case "text" | "input_text" | "output_text":
            return {"type": "text", "text": fields.get("text")}
        case "image_url":
            return fields
        case "input_image" if isinstance(fields.get("image_url"), str):
            return {"type": "image_url", "image_url": {"url": fields["image_url"]}}
        case kind:
            raise Refusal(400, f"parts of type {kind!r:.100} are not supported here", field=field)


def read_input(body: dict[str, Any]) -> list[Message]:
    """Take `input` out of the body: a text of the user's, or a list of messages."""
    said = body.pop("input", None)
    return read_messages([{"role": "user", "content": said}] if isinstance(said, str) else said)
