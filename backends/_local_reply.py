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
from typing import Any, TypeAlias

from ..messages import Delta, Message, Request, ToolCallDelta, ToolSchema, Usage, Working
from ._local_choice import choose, get_ready
from ._local_model import Model
from ._local_options import Options
from ._prompt import Chat, named_tool, plain_chat

__all__ = ["SMALL_MANNER", "Deltas", "Manner", "read_ahead", "reply"]

Deltas: TypeAlias = Generator[Delta | Working | None, None, None]

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


# How the small model is spoken to: what was found, by trying, to make it answer at all well.
# Without a system message it takes that of its own template, and answers questions about France in
# French. Without examples it goes round in circles, and tells of a tool's result what it likes.
SMALL_MANNER = Manner(
    system="You are a knowledgeable assistant who gives short, correct answers in English.",
    exchanges=(
        ("What is the capital of Norway?", "The capital of Norway is Oslo."),
        (
            "Who invented the telephone?",
            "The telephone was invented by Alexander Graham Bell in 1876.",
        ),
        ("How many months are in a year?", "A year has twelve months."),
    ),
    found=(
        (
            "Is the museum open today?",
            "closed on Mondays; today is Monday",
            "The museum is closed today, because it is Monday.",
        ),
        (
            "How much is the ticket to Lyon?",
            "adult 49 euros, child 25 euros",
            "A ticket to Lyon costs 49 euros for an adult and 25 euros for a child.",
        ),
        (
            "When does the next bus leave?",
            "line 12 at 14:05, line 7 at 14:20",
            "The next bus is line 12, which leaves at 14:05.",
        ),
        (
            "Find the file report.pdf.",
            "Error: no such file",
            "I could not find it: there is no such file.",
        ),
    ),
    longest=120,
)


def reply(model: Model, request: Request, options: Options, manner: Manner) -> Deltas:
    """Answer `request`, delta by delta; None where there is nothing yet but it may be stopped."""
    tool, cost = None, Usage()
    choice, messages = options.tool_choice, request.messages
    if isinstance(choice, Mapping):
        tool = named_tool(request.tools, choice)
    elif request.tools and choice != "none":
        must = choice == "required"
        if must or not (messages and messages[-1].role == "tool"):  # else it is answered in text
            question = _question(messages)
            tool, cost = yield from choose(model, question, request.tools, must=must)
    if tool is None:
        chat, sampling = _chat(messages, manner), options.sampling
    else:
        chat = _fill_in(tool, _question(messages))
        schema = json.dumps(_bounded(tool.parameters, manner.longest))
        sampling = replace(options.sampling, schema=schema, stop=())
        yield Delta(tool_calls=(ToolCallDelta(0, f"call_{uuid.uuid4().hex[:24]}", tool.name),))
    yield from model.read(chat)
    for text, finish_reason, usage in model.generate(chat, sampling):
        if text and tool is None:
            yield Delta(text=text)
        elif text:
            yield Delta(tool_calls=(ToolCallDelta(0, arguments=text),))
        if finish_reason:
            if tool is not None and finish_reason == "stop":
                finish_reason = "tool_calls"
            yield Delta(usage=cost + (usage or Usage()), finish_reason=finish_reason, done=True)


def read_ahead(model: Model, request: Request, options: Options, manner: Manner) -> Deltas:
    """Read what a request begins with that goes on as `request` does, the likeliest first."""
    tools = () if options.tool_choice == "none" else request.tools
    question = Message(role="user", content="")
    if tools and not isinstance(options.tool_choice, Mapping):
        yield from get_ready(model, tools)
    yield from model.read(_chat([*request.messages, question], manner), whole=True)
    if tools:
        yield from model.read(_fill_in(tools[0], ""), whole=True)
        result = Message(role="tool", tool_call_id="", content="")
        yield from model.read(_chat([question, result], manner), whole=True)


def _chat(messages: Sequence[Message], manner: Manner) -> Chat:
    """Write a conversation with the system message and the examples that a model needs."""
    if not (manner.found and messages and messages[-1].role == "tool"):
        beginning: Chat = []
        if not any(message.role in {"system", "developer"} for message in messages):
            beginning += [{"role": "system", "content": manner.system}] if manner.system else []
            beginning += _examples(manner.exchanges)
        return beginning + plain_chat(messages)
    # The results of the tools called since the last question.
    asked = max((n for n, message in enumerate(messages) if message.role == "user"), default=0)
    results = [message.content or "" for message in messages[asked:] if message.role == "tool"]
    question = f"Question: {_question(messages)}\nFound: " + "\n".join(results)
    found = [(f"Question: {asks}\nFound: {result}", says) for asks, result, says in manner.found]
    return [
        {"role": "system", "content": "Answer the question in one sentence with what was found."},
        *_examples(found),
        {"role": "user", "content": question},
    ]


def _examples(exchanges: Iterable[tuple[str, str]]) -> Chat:
    chat: Chat = []
    for request, answer in exchanges:
        chat.append({"role": "user", "content": request})
        chat.append({"role": "assistant", "content": answer})
    return chat


def _question(messages: Sequence[Message]) -> str:
    return next((m.whole_text or "" for m in reversed(messages) if m.role == "user"), "")


def _fill_in(tool: ToolSchema, question: str) -> Chat:
    """Show how arguments are written, then the tool and the request.

    The descriptions stay out: the model copies from them.
    """
    fields: list[str] = []
    properties: Mapping[str, Mapping[str, Any] | bool] = tool.parameters.get("properties", {})
    for name, of in properties.items():
        if isinstance(of, bool):  # a schema too: true takes anything
            kind = "any"
        elif "enum" in of:
            kind = " or ".join(json.dumps(value) for value in of["enum"])
        else:
            kind = str(of.get("type", "any"))
        fields.append(f'"{name}": {kind}')
    outline = f"{tool.name} {{{', '.join(fields)}}}"
    return [
        {"role": "system", "content": "Write the arguments of the tool for the request, as JSON."},
        *_examples([(f"Tool: {about}\nRequest: {asks}", says) for about, asks, says in _FILL_IN]),
        {"role": "user", "content": f"Tool: {outline}\nRequest: {question}"},
    ]


def _bounded(parameters: Mapping[str, Any], longest: int | None) -> dict[str, Any]:
    """Return the schema of a tool's arguments with each free string no longer than `longest`."""
    limited: dict[str, Mapping[str, Any] | bool] = dict(parameters.get("properties", {}))
    for name, of in limited.items():
        if longest is None or isinstance(of, bool) or of.get("type") != "string":
            continue
        if not of.keys() & {"enum", "pattern", "format"}:
            limited[name] = {"maxLength": longest, **of}
    return {**parameters, "properties": limited, "x-guidance": _SPACES}
