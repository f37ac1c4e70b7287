"""Answer a request with a local model: plain text, or a tool call under a grammar.

The model's template cannot describe tools. So a call takes two steps: choose a tool or none
(`_local_choice`), then write its arguments under its JSON schema. A plain answer never mentions
tools, so it is as good as without them. The deltas look like those of a hosted model.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..messages import Delta, Message, ProgressEvent, Request, ToolCallDelta, ToolSchema, Usage
from ._local_choice import choose, get_ready
from ._local_model import Model
from ._local_options import Options
from ._request_fit import Chat, named_tool, plain_chat

__all__ = ["SMALL_MODEL_STYLE", "Deltas", "PromptStyle", "read_ahead", "reply"]

Deltas: TypeAlias = Generator[Delta | ProgressEvent | None, None, None]

# Examples of arguments, for tools that users are unlikely to have.
_ARGUMENT_EXAMPLES = (
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
# The spacing of the examples. With free spacing the model writes spaces without end.
_JSON_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """The texts that a weak model needs in its prompts, in addition to the request.

    A conversation without a system message gets `system` and `exchanges`. Each of
    `result_examples` is a question, a tool's result and the answer. With them, the prompt after a
    tool call has only these examples, the last question and the results: with the complete
    conversation a weak model invents results. `max_chars` limits each string argument that has no
    limit in its schema, because a weak model may never end one.
    """

    system: str = ""
    exchanges: tuple[tuple[str, str], ...] = ()
    result_examples: tuple[tuple[str, str, str], ...] = ()
    max_chars: int | None = None


# The style that made the small model answer well, found by trials. Without a system message its
# template adds another one, and it answers questions about France in French. Without examples it
# repeats itself and ignores a tool's result.
SMALL_MODEL_STYLE = PromptStyle(
    system="You are a knowledgeable assistant who gives short, correct answers in English.",
    exchanges=(
        ("What is the capital of Norway?", "The capital of Norway is Oslo."),
        (
            "Who invented the telephone?",
            "The telephone was invented by Alexander Graham Bell in 1876.",
        ),
        ("How many months are in a year?", "A year has twelve months."),
    ),
    result_examples=(
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
    max_chars=120,
)


def reply(model: Model, request: Request, options: Options, style: PromptStyle) -> Deltas:
    """Yield the deltas of the answer, and None where the caller may close it between deltas."""
    tool, cost = None, Usage()
    choice, messages = options.tool_choice, request.messages
    if isinstance(choice, Mapping):
        tool = named_tool(request.tools, choice)
    elif request.tools and choice != "none":
        must = choice == "required"
        # a tool's result is answered in text
        if must or not (messages and messages[-1].role == "tool"):
            question = _last_question(messages)
            tool, cost = yield from choose(model, question, request.tools, must=must)
    if tool is None:
        chat, sampling = _chat(messages, style), options.sampling
    else:
        chat = _argument_prompt(tool, _last_question(messages))
        schema = json.dumps(_bound_strings(tool.parameters, style.max_chars))
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


def read_ahead(model: Model, request: Request, options: Options, style: PromptStyle) -> Deltas:
    """Read the prompts that may begin the next request, the likeliest first."""
    tools = () if options.tool_choice == "none" else request.tools
    question = Message(role="user", content="")
    if tools and not isinstance(options.tool_choice, Mapping):
        yield from get_ready(model, tools)
    yield from model.read(_chat([*request.messages, question], style), whole=True)
    if tools:
        yield from model.read(_argument_prompt(tools[0], ""), whole=True)
        result = Message(role="tool", tool_call_id="", content="")
        yield from model.read(_chat([question, result], style), whole=True)


def _chat(messages: Sequence[Message], style: PromptStyle) -> Chat:
    """Return the prompt for a conversation, with the style's system message and examples."""
    if not (style.result_examples and messages and messages[-1].role == "tool"):
        beginning: Chat = []
        if not any(message.role in {"system", "developer"} for message in messages):
            beginning += [{"role": "system", "content": style.system}] if style.system else []
            beginning += _example_messages(style.exchanges)
        return beginning + plain_chat(messages)
    # The results of the tools since the last question.
    asked = max((n for n, message in enumerate(messages) if message.role == "user"), default=0)
    results = [message.content or "" for message in messages[asked:] if message.role == "tool"]
    question = f"Question: {_last_question(messages)}\nFound: " + "\n".join(results)
    result_examples = [
        (f"Question: {asks}\nFound: {result}", says) for asks, result, says in style.result_examples
    ]
    return [
        {"role": "system", "content": "Answer the question in one sentence with what was found."},
        *_example_messages(result_examples),
        {"role": "user", "content": question},
    ]


def _example_messages(exchanges: Iterable[tuple[str, str]]) -> Chat:
    chat: Chat = []
    for request, answer in exchanges:
        chat.append({"role": "user", "content": request})
        chat.append({"role": "assistant", "content": answer})
    return chat


def _last_question(messages: Sequence[Message]) -> str:
    return next((m.whole_text or "" for m in reversed(messages) if m.role == "user"), "")


def _argument_prompt(tool: ToolSchema, question: str) -> Chat:
    """Return the prompt for the arguments of a tool.

    It leaves out the descriptions, because the model copies from them.
    """
    fields: list[str] = []
    properties: Mapping[str, Mapping[str, Any] | bool] = tool.parameters.get("properties", {})
    for name, of in properties.items():
        if isinstance(of, bool):  # `true` is a schema that accepts anything
            kind = "any"
        elif "enum" in of:
            kind = " or ".join(json.dumps(value) for value in of["enum"])
        else:
            kind = str(of.get("type", "any"))
        fields.append(f'"{name}": {kind}')
    outline = f"{tool.name} {{{', '.join(fields)}}}"
    return [
        {"role": "system", "content": "Write the arguments of the tool for the request, as JSON."},
        *_example_messages(
            [(f"Tool: {about}\nRequest: {asks}", says) for about, asks, says in _ARGUMENT_EXAMPLES]
        ),
        {"role": "user", "content": f"Tool: {outline}\nRequest: {question}"},
    ]


def _bound_strings(parameters: Mapping[str, Any], max_chars: int | None) -> dict[str, Any]:
    """Return the schema of a tool's arguments with a limit for each free string."""
    limited: dict[str, Mapping[str, Any] | bool] = dict(parameters.get("properties", {}))
    for name, of in limited.items():
        if max_chars is None or isinstance(of, bool) or of.get("type") != "string":
            continue
        if not of.keys() & {"enum", "pattern", "format"}:
            limited[name] = {"maxLength": max_chars, **of}
    return {**parameters, "properties": limited, "x-guidance": _JSON_SPACING}
