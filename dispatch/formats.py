"""The formats of tool calls that models write as text, and the search for one in a reply.

To add a format, define a class here and list it in `FORMATS`. Applications subclass `Format`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..messages import ToolCall
from ..messages.arguments import read_arguments
from ..messages.text import overlap
from ._body import ChoiceBody, CodeBody, NamedBody
from ._format import Body, CollectedBody, Format, Output
from ._json_body import JsonBody

__all__ = [
    "FORMATS",
    "BareJSON",
    "FencedCall",
    "FencedCode",
    "Hermes",
    "InternLMInterpreter",
    "InternLMPlugin",
    "Llama",
    "Mistral",
    "ReAct",
    "TextCall",
    "Think",
    "WrittenCall",
    "find_call",
]

# For `NamedBody`: the head of a call, and text that can no longer become a head.
_MISTRAL = re.compile(r"\s*+([^\s\[{]++)(?:\[CALL_ID\][^\s\[{]*+)?(?:\[ARGS\]|(?=\s*+\{))")
_NOT_MISTRAL = re.compile(r"\s*+(?:[\[{]|[^\s\[{]++\s++[^\s{])")
_REACT = re.compile(r"[ \t]*+([^\s\[{]++)\s*+Action Input:")
_NOT_REACT = re.compile(r"[ \t]*+(?:[\n\[{]|[^\s\[{]++(?:[\[{]|\s++[^\sA]))")

_ACTION = "<|action_start|>"
_FENCE = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)


class Hermes(Format):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, SmolLM."""

    open: str = "<tool_call>"
    close: str | None = "</tool_call>"

    def body(self, output: Output) -> Body:
        """Read the object as it arrives."""
        return JsonBody(output, self.close, self.open)


class Mistral(Format):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}`.

    In the second form `[ARGS]` is optional. `[CALL_ID]` and an id before it are dropped.
    """

    open = "[TOOL_CALLS]"

    def body(self, output: Output) -> Body:
        """Read a list of objects, or a name and an object, as they arrive."""
        return ChoiceBody(
            "[{",
            JsonBody(output, start=self.open),
            lambda: NamedBody(output, _MISTRAL, _NOT_MISTRAL, start=self.open),
        )


class Llama(Format):
    """`<|python_tag|>{"name": ..., "parameters": {...}}`; anything but an object is code."""

    open = "<|python_tag|>"

    def __init__(self, tool: str = "code_interpreter", argument: str = "code") -> None:
        self._tool = tool
        self._argument = argument

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Yield the code, which ends with the reply, as a call of the code tool."""
        yield self._tool, {self._argument: body}

    def body(self, output: Output) -> Body:
        """Read objects as they arrive, and code when it is complete."""
        return ChoiceBody(
            "{", JsonBody(output, start=self.open), lambda: CollectedBody(output, self, self.open)
        )


class InternLMPlugin(Format):
    """`<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

    open: str = "<|action_start|><|plugin|>"
    close: str | None = "<|action_end|>"

    def body(self, output: Output) -> Body:
        """Read the object as it arrives."""
        return JsonBody(output, self.close, _ACTION)


class _TextArgument:
    """The base of formats whose body is the only argument of a call of one tool."""

    _tool: str
    _argument: str

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Yield the unchanged text as the argument."""
        yield self._tool, {self._argument: body}

    def write(self, call: ToolCall) -> str:
        """Write the text between the marks."""
        own = cast("Format", self)
        return f"{own.open}{call.arguments.get(self._argument, call.text)}{own.close}"


class TextCall(_TextArgument, Format):
    """A call of `tool` whose only argument is the text between `begin` and `end`.

    `instruction` explains this format to a model.
    """

    def __init__(
        self, tool: str, begin: str, end: str, *, argument: str = "text", instruction: str = ""
    ) -> None:
        self.open: str = begin
        self.close: str | None = end
        self.tool: str | None = tool
        self._tool = tool
        self._argument = argument
        self.instruction = instruction


class FencedCall(Format):
    """A JSON object with `name` and `parameters` in a fence; any model can learn it."""

    open: str = "```json\n"
    close: str | None = "\n```"
    instruction = (
        "You have these tools:\n{tools}\n\nTo use one, write a JSON object with its name and"
        " parameters in this form, and end your message there:\n"
        '```json\n{"name": ..., "parameters": {...}}\n```'
    )

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Yield the object as a call."""
        call, error = read_arguments(body)
        if error is not None or not isinstance(call.get("name"), str):
            raise ValueError(error or "it has no name")
        yield call["name"], call.get("parameters", call.get("arguments", {}))

    def write(self, call: ToolCall) -> str:
        """Write the object in its fence."""
        written = {"name": call.name, "parameters": call.arguments}
        return f"{self.open}{json.dumps(written, ensure_ascii=False)}{self.close}"


class InternLMInterpreter(_TextArgument, Format):
    """`<|action_start|><|interpreter|>code<|action_end|>`, fenced or not: code for `tool`."""

    open: str = "<|action_start|><|interpreter|>"
    close: str | None = "<|action_end|>"

    def __init__(self, tool: str = "interpreter", argument: str = "code") -> None:
        self._tool = tool
        self._argument = argument

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Yield the code as the argument, without its fence if it has one."""
        fenced = _FENCE.fullmatch(body)
        return super().read(fenced[1] if fenced else body.strip())

    def body(self, output: Output) -> Body:
        """Read the code when it is complete."""
        return CollectedBody(output, self, _ACTION)


class FencedCode(_TextArgument, Format):
    """A fenced block of code at the start of a line, which becomes a call of `tool`."""

    close: str | None = "\n```"
    at_line_start = True

    def __init__(
        self, language: str = "python", tool: str = "python", argument: str = "code"
    ) -> None:
        self.open: str = f"```{language}\n"
        self.instruction: str = (
            f"To run {language} code, write it in a block of its own, and end your message there:\n"
            f"```{language}\n...\n```"
        )
        self.tool: str | None = tool
        self._tool = tool
        self._argument = argument

    def body(self, output: Output) -> Body:
        """Read the code as it arrives, up to a fence at the start of a line."""
        return CodeBody(output, self._tool, self._argument, "\n```")


class ReAct(Format):
    """`Action: name`, then `Action Input: {...}`; an `Observation:` after it is dropped."""

    open = "Action:"
    at_line_start = True
    instruction = (
        "You can use these tools:\n{tools}\n\nTo use one, write two lines in this form, and end"
        " your message there:\nAction: NAME\nAction Input: ARGUMENTS AS A JSON OBJECT\n"
        "The next message then begins with 'Observation:' and holds the result."
    )

    def body(self, output: Output) -> Body:
        """Read the name, then the object as it arrives."""
        return NamedBody(output, _REACT, _NOT_REACT, "Observation:", "\nAction:")

    def write(self, call: ToolCall) -> str:
        """Write the name, then the object."""
        return f"Action: {call.name}\nAction Input: {call.text}"


class BareJSON(Format):
    """A reply that begins with `{"name": ..., "arguments": {...}}`, or a list of these.

    It has no marker, so other JSON is held back until it is complete or cannot be a call.
    """

    open = ""

    def body(self, output: Output) -> Body:
        """Read the objects as they arrive."""
        return JsonBody(output, bare=True)


class Think(Format):
    """`<think>...</think>`: reasoning, which goes to its own branch and field."""

    open: str = "<think>"
    close: str | None = "</think>"
    branch: str | None = "reasoning"


FORMATS: Mapping[str, Callable[[], Format]] = {
    "hermes": Hermes,
    "mistral": Mistral,
    "llama": Llama,
    "internlm-plugin": InternLMPlugin,
    "internlm-interpreter": InternLMInterpreter,
    "fenced-code": FencedCode,
    "react": ReAct,
    "bare-json": BareJSON,
    "think": Think,
}
"""The formats by the names that the command line accepts."""


class WrittenCall(NamedTuple):
    """The first call of a complete reply: the text before it, its text, name and arguments.

    For a faulty call, `name` is "" and `arguments` is its raw text.
    """

    before: str
    text: str
    name: str
    arguments: str


def find_call(text: str, formats: Sequence[Format], *, stopped: bool = False) -> WrittenCall | None:
    """Return the first call in a complete reply, None if it has none.

    If formats have the same marker, the first one counts. A missing or incomplete end mark is
    completed, because servers remove stop words from the reply. With `stopped` the reply was cut
    off, and a call without any part of its end mark is not completed.
    """
    found = [(marker, each) for each in formats for marker in re.finditer(_marker_at(each), text)]
    end = 0  # the end of the last body without a call, such as reasoning: it hides its markers
    for marker, each in sorted(found, key=lambda pair: pair[0].start()):
        if marker.start() < end:
            continue
        rest, close = text[marker.end() :], each.close or ""
        present = overlap(rest, close)
        # Of a stopped reply, only the white space at the end of the mark may be missing.
        if close not in rest and (not stopped or 0 < len(close.rstrip()) <= present):
            rest += close[present:]
        call = _FirstCall()
        body = each.body(call)
        after = body.feed(rest)
        if after is None:
            after = body.end(stopped=stopped)
        if call.count:
            written = marker[0] + rest.removesuffix(after)
            return WrittenCall(text[: marker.start()], written, call.name, call.arguments)
        if not body.void:
            end = len(text) - len(after)
    return None


def _marker_at(format: Format) -> str:  # noqa: A002 - the field's term
    place = r"(?m:^)" if format.at_line_start else "" if format.open else r"\A"
    return place + re.escape(format.open)


class _FirstCall:
    """An `Output` that stores the first call of a body."""

    def __init__(self) -> None:
        self.count = 0
        self.name = self.arguments = ""

    def show(self, text: str) -> None:
        """Drop text."""

    def put(self, branch: str, text: str) -> None:
        """Drop text for a branch."""

    def new_call(self) -> int:
        """Begin a call."""
        self.count += 1
        return self.count - 1

    def write(self, index: int, arguments: str = "", name: str | None = None) -> None:
        """Store the pieces of the first call."""
        if index == 0:
            self.name += name or ""
            self.arguments += arguments
