"""The fields of OpenAI's Responses in the names of its chat completions, which a model knows."""

from __future__ import annotations

from typing import Any

from ..messages import Message
from ._asking import take_object
from ._http import Refusal

__all__ = ["CHAT_NAMES", "ECHOED", "read_instructions", "take_stream_options", "translate"]

# How the wires call what is called otherwise here.
CHAT_NAMES = {"max_tokens": "max_completion_tokens"}
RESPONSE_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning",
    "response_format": "text",
    "verbosity": "text",
}
# What a response says of its request again.
ECHOED = (
    *("instructions", "max_output_tokens", "parallel_tool_calls", "reasoning", "temperature"),
    *("text", "tool_choice", "tools", "top_p"),
)


def translate(body: dict[str, Any]) -> dict[str, str]:
    """Rename the fields of a request for a response; return what they were called."""
    if body.pop("previous_response_id", None) is not None:
        text = "previous_response_id: no such response is kept to go on from; send what was said"
        raise Refusal(400, text, field="previous_response_id")
    for name in RESPONSE_NAMES:
        if body.get(name) is not None:
            raise Refusal(400, f"{name} is not supported here", field=name)
    if (most := body.pop("max_output_tokens", None)) is not None:
        body["max_tokens"] = most
    _take_include(body)
    reasoning = take_object(body, "reasoning")
    body["reasoning_effort"] = reasoning.pop("effort", None)
    if reasoning.get("summary") == "auto":  # a response has what the model reasons as it is
        del reasoning["summary"]
    _require_nothing(reasoning, "reasoning")
    text = take_object(body, "text")
    body["verbosity"] = text.pop("verbosity", None)
    body["response_format"] = _format(take_object(text, "format"))
    _require_nothing(text, "text")
    match body.get("tool_choice"):
        case {"type": "function", "name": str(name)}:
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"type": kind}:
            text = f"tool_choice: {kind!r:.100} is not supported here"
            raise Refusal(400, text, field="tool_choice")
        case _:
            pass
    return RESPONSE_NAMES


def _take_include(body: dict[str, Any]) -> None:
    """Take what a response is to include: the data of a provider, which it has anyway."""
    found: Any = body.pop("include", None)
    if found not in (None, [], ["reasoning.encrypted_content"]):
        raise Refusal(400, f"include: {found!r:.100} is not supported here", field="include")


def take_stream_options(body: dict[str, Any]) -> dict[str, Any]:
    """Take what is asked of a stream out of the body; padding against eavesdroppers is not had."""
    options = take_object(body, "stream_options")
    if options.pop("include_obfuscation", None):
        raise Refusal(
            400, "stream_options.include_obfuscation is not supported here", field="stream_options"
        )
    _require_nothing({n: v for n, v in options.items() if n != "include_usage"}, "stream_options")
    return options


def read_instructions(said: object) -> list[Message]:
    """Return the instructions of a response as what a system says."""
    if not isinstance(said, str):
        raise Refusal(400, "instructions is a text", field="instructions")
    return [Message(role="system", content=said)]


def _format(wanted: dict[str, Any]) -> dict[str, Any] | None:
    kind = wanted.get("type")
    if kind != "json_schema":
        return wanted or None
    return {"type": kind, kind: {name: value for name, value in wanted.items() if name != "type"}}


def _require_nothing(rest: dict[str, Any], name: str) -> None:
    for each, value in rest.items():
        if value is not None:
            raise Refusal(400, f"{name}.{each:.100} is not supported here", field=name)
