"""Answering a request with a local model: plain text, or a tool call under a grammar.

The model has no template for tools. So a call is made in two steps: a tool is chosen, or none
(`_local_choice`), then its arguments are written under its JSON schema. A plain answer is given
without a word about tools, as good as if there were none. What comes out are the deltas that a
hosted model would send.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..commander.errors import ConfigurationError
from ..messages import Delta, Message, Request, ToolCallDelta, ToolSchema, Usage
from ._local_choice import choose
from ._local_model import Chat, Model, Piece, Sampling
from ._local_options import Options

__all__ = ["Manner", "reply"]

Deltas = Generator[Delta | None, None, None]

# Worked examples of filling in, about other tools than anybody is likely to offer.
_FILL_IN = (
    (
        'translate {"text": string, "language": string}',
        "How do you say good morning in Spanish?",
        '{"text": "good morning", "language": "Spanish"}',
    ),
    (
        'plot {"formula": string}',
        "Draw the curve of x squared minus 3 for me, please.",
        '{"formula": "x**2 - 3"}',
    ),
    (
        'find_hotel {"city": string, "stars": integer}',
        "Is there a four star hotel in Kyoto?",
        '{"city": "Kyoto", "stars": 4}',
    ),
    (
        'plot {"formula": string}',
        "What does 2 times x divided by 7 look like?",
        '{"formula": "2 * x / 7"}',
    ),
)
# The spaces of the examples: free ones let the model wander off in them.
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class Manner:
    """What a model needs beyond the request.

    `system` is said, and `exchanges` are shown, if the conversation has no system message. With
    `found`, examples of a question, a tool's result and an answer, a result is put to the model
    with its question alone: a weak one makes up its own else. `longest` bounds, in characters,
    each string argument that its schema leaves unbounded: a weak model may never end one.
    """

    system: str = ""
    exchanges: tuple[tuple[str, str], ...] = ()
    found: tuple[tuple[str, str, str], ...] = ()
    longest: int | None = None


def reply(model: Model, request: Request, options: Options, manner: Manner) -> Deltas:
    """Answer `request`, delta by delta; None where there is nothing yet but it may be stopped."""
    tool, cost = yield from _pick(model, request, options.tool_choice)
    if tool is None:
        chat = _chat(request.messages, manner)
        yield from _speak(model, chat, options.sampling, cost)
    else:
        schema = json.dumps(_bounded(tool.parameters, manner.longest))
        chat = _fill_in(tool, _question(request.messages))
        sampling = replace(options.sampling, schema=schema, stop=())
        yield from _call(model, tool.name, chat, sampling, cost)


def _pick(
    model: Model, request: Request, tool_choice: str | Mapping[str, Any]
) -> Generator[None, None, tuple[ToolSchema | None, Usage]]:
    """Obey `tool_choice`; under `auto`, a tool's result is always answered in text."""
    if isinstance(tool_choice, Mapping):
        return _named(request.tools, tool_choice), Usage()
    must = tool_choice == "required"
    answered = bool(request.messages) and request.messages[-1].role == "tool"
    if not request.tools or tool_choice == "none" or (answered and not must):
        return None, Usage()
    question = _question(request.messages)
    return (yield from choose(model, question, request.tools, must=must))


def _named(tools: Sequence[ToolSchema], tool_choice: Mapping[str, Any]) -> ToolSchema:
    name = tool_choice.get("function", {}).get("name")
    for tool in tools:
        if tool.name == name:
            return tool
    raise ConfigurationError(f"tool_choice names {name!r}, which is not among the request's tools")


def _speak(model: Model, chat: Chat, sampling: Sampling, cost: Usage) -> Deltas:
    for piece in model.generate(chat, sampling):
        if piece.text:
            yield Delta(text=piece.text)
        if piece.finish_reason:
            yield _end(piece, cost, piece.finish_reason)


def _call(model: Model, name: str, chat: Chat, sampling: Sampling, cost: Usage) -> Deltas:
    yield Delta(tool_calls=(ToolCallDelta(0, f"call_{uuid.uuid4().hex[:24]}", name),))
    for piece in model.generate(chat, sampling):
        if piece.text:
            yield Delta(tool_calls=(ToolCallDelta(0, arguments=piece.text),))
        if piece.finish_reason:
            reason = "tool_calls" if piece.finish_reason == "stop" else piece.finish_reason
            yield _end(piece, cost, reason)


def _end(piece: Piece, cost: Usage, reason: str) -> Delta:
    return Delta(usage=cost + (piece.usage or Usage()), finish_reason=reason, done=True)


def _chat(messages: Sequence[Message], manner: Manner) -> Chat:
    if manner.found and messages and messages[-1].role == "tool":
        return _with_results(messages, manner.found)
    beginning: Chat = []
    if not any(message.role in {"system", "developer"} for message in messages):
        beginning += [{"role": "system", "content": manner.system}] if manner.system else []
        beginning += _shown(manner.exchanges)
    return beginning + _conversation(messages)


def _conversation(messages: Sequence[Message]) -> Chat:
    """Write a conversation as the roles that every model knows, each two neighbours different.

    A tool's result joins the user's question, and the call between them is left out.
    """
    chat: Chat = []
    for message in messages:
        role, text = _line(message)
        if chat and chat[-1]["role"] == role:
            chat[-1]["content"] += f"\n{text}"
        elif text or not message.tool_calls:
            chat.append({"role": role, "content": text})
    return chat


def _line(message: Message) -> tuple[str, str]:
    text = message.content or ""
    if message.role == "tool":
        return "user", f"The tool's result: {text}"
    return "system" if message.role == "developer" else message.role, text


def _with_results(messages: Sequence[Message], examples: Sequence[tuple[str, str, str]]) -> Chat:
    """Put the results of the tools called since the last question to the model, with examples."""
    asked = max((n for n, message in enumerate(messages) if message.role == "user"), default=0)
    results = [message.content or "" for message in messages[asked:] if message.role == "tool"]
    question = f"Question: {_question(messages)}\nFound: " + "\n".join(results)
    return [
        {"role": "system", "content": "Answer the question in one sentence with what was found."},
        *_shown([(f"Question: {asks}\nFound: {result}", says) for asks, result, says in examples]),
        {"role": "user", "content": question},
    ]


def _shown(exchanges: Iterable[tuple[str, str]]) -> Chat:
    chat: Chat = []
    for request, answer in exchanges:
        chat.append({"role": "user", "content": request})
        chat.append({"role": "assistant", "content": answer})
    return chat


def _question(messages: Sequence[Message]) -> str:
    return next((m.content or "" for m in reversed(messages) if m.role == "user"), "")


def _fill_in(tool: ToolSchema, question: str) -> Chat:
    """Show how arguments are written, then the tool and the request.

    The descriptions stay out: the model copies from them.
    """
    outline = f"{tool.name} {_outline(tool.parameters)}"
    return [
        {"role": "system", "content": "Write the arguments of the tool for the request, as JSON."},
        *_shown([(f"Tool: {about}\nRequest: {asks}", says) for about, asks, says in _FILL_IN]),
        {"role": "user", "content": f"Tool: {outline}\nRequest: {question}"},
    ]


def _outline(parameters: Mapping[str, Any]) -> str:
    properties: Mapping[str, Any] = parameters.get("properties", {})
    return "{" + ", ".join(f'"{name}": {_kind(of)}' for name, of in properties.items()) + "}"


def _kind(of: Mapping[str, Any] | bool) -> str:
    if isinstance(of, bool):  # a schema too: true takes anything
        return "any"
    if "enum" in of:
        return " or ".join(json.dumps(value) for value in of["enum"])
    return str(of.get("type", "any"))


def _bounded(parameters: Mapping[str, Any], longest: int | None) -> dict[str, Any]:
    properties: Mapping[str, Mapping[str, Any] | bool] = parameters.get("properties", {})
    limited = {name: _limited(of, longest) for name, of in properties.items()}
    return {**parameters, "properties": limited, "x-guidance": _SPACES}


def _limited(of: Mapping[str, Any] | bool, longest: int | None) -> Mapping[str, Any] | bool:
    if (
        longest is None
        or isinstance(of, bool)
        or of.get("type") != "string"
        or of.keys() & {"enum", "pattern", "format"}
    ):
        return of
    return {"maxLength": longest, **of}
