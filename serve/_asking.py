"""What a request asks: of which thing, with which words, fields and options; what is refused (S17).

Nothing that is not honoured is passed over in silence, and a request chooses nothing that the
server has not offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ..commander.errors import ConfigurationError
from ..messages import Message
from ._http import Refusal
from ._run import OnLeave, Run
from ._served import BadQuestion, Question

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["read_input", "read_messages", "start", "take_object"]

# Fields that change nothing of an answer here, and harm nobody: clients send them unasked.
IGNORED = {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"}
# Fields whose usual value asks for nothing; any other is refused.
USUAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "truncation": ("disabled",),
    "include": ([],),
    "text": ({"format": {"type": "text"}}, {}),
    "response_format": ({"type": "text"},),
}


def start(
    server: Server, user: str, body: dict[str, Any], messages: list[Message], leave: OnLeave
) -> Run:
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
    question = Question(messages, fields, options)
    try:
        return server.runs.start(served, question, user, leave)
    except BadQuestion as bad:
        raise Refusal(400, bad.text, field=bad.field) from None
    except ConfigurationError as error:
        raise Refusal(400, f"{error}") from None


def take_object(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Take an object out of the body, an empty one where there is none."""
    found: Any = body.pop(name, None)
    if not isinstance(found, dict | None):
        raise Refusal(400, f"{name} is an object", field=name)
    return cast("dict[str, Any]", found or {})


def read_messages(said: Any) -> list[Message]:
    """Read messages; refuse what is none, and roles that are not a client's to play."""
    if not isinstance(said, list) or not said:
        raise Refusal(400, "messages is a list with at least one message", field="messages")
    messages: list[Message] = []
    for place, each in enumerate(cast("list[Any]", said)):
        field = f"messages[{place}]"
        if not isinstance(each, dict):
            raise Refusal(400, "a message is an object", field=field)
        fields = cast("dict[str, Any]", each)
        role, content = fields.get("role"), fields.get("content")
        if role not in ("user", "assistant", "system", "developer"):
            raise Refusal(400, f"the role {role!r:.100} is not supported here", field=field)
        try:
            messages.append(Message(role=role, content=_text(content, field)))
        except ValidationError:
            raise Refusal(400, "this is no message", field=field) from None
    if messages[-1].role != "user":
        raise Refusal(400, "the last message is the user's", field="messages")
    return messages


def _text(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal(400, "content is a text or a list of parts", field=field)
    texts: list[str] = []
    for part in cast("list[Any]", content):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        kind, text = fields.get("type"), fields.get("text")
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise Refusal(400, f"parts of type {kind!r:.100} are not supported here", field=field)
        texts.append(text)
    return "".join(texts)


def read_input(body: dict[str, Any]) -> list[Message]:
    """Take `input` out of the body: a text of the user's, or a list of messages."""
    said = body.pop("input", None)
    return read_messages([{"role": "user", "content": said}] if isinstance(said, str) else said)
