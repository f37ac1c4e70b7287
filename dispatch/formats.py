"""The ways in which models write tool calls as text, one small class each.

A further one is a class here, with a line in `FORMATS`; in an application, a class of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..messages import ToolCall
from ._body import ChoiceBody, CodeBody, NamedBody
from ._format import Body, CollectedBody, Format, Output
from ._json_body import JsonBody

__all__ = [
    "FORMATS",
    "BareJSON",
    "FencedCode",
    "Hermes",
    "InternLMInterpreter",
    "InternLMPlugin",
    "Llama",
    "Mistral",
    "ReAct",
    "Think",
]

# The heads of calls that begin with a name, and what can no longer become one.
_MISTRAL = re.compile(r"\s*+([^\s\[{]++)(?:\[CALL_ID\][^\s\[{]*+)?(?:\[ARGS\]|(?=\s*+\{))")
_NOT_MISTRAL = re.compile(r"\s*+(?:[\[{]|[^\s\[{]++\s++[^\s{])")
_REACT = re.compile(r"[ \t]*+([^\s\[{]++)\s*+Action Input:")
_NOT_REACT = re.compile(r"[ \t]*+(?:[\n\[{]|[^\s\[{]++(?:[\[{]|\s++[^\sA]))")

_ACTION = "<|action_start|>"
_FENCE = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)


class Hermes(Format):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen, SmolLM."""

    open, close = "<tool_call>", "</tool_call>"

    def body(self, output: Output) -> Body:
        """Read the object as it arrives."""
        return JsonBody(output, self.close, self.open)


class Mistral(Format):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}`.

    The latter also without `[ARGS]`, or with `[CALL_ID]` and an id, which is dropped, before it.
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
    """`<|python_tag|>{"name": ..., "parameters": {...}}`; what is no object is code for `tool`."""

    open = "<|python_tag|>"

    def __init__(self, tool: str = "code_interpreter", argument: str = "code") -> None:
        self._tool = tool
        self._argument = argument

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Take the code, which ends with the reply."""
        yield self._tool, {self._argument: body}

    def body(self, output: Output) -> Body:
        """Read objects as they arrive, code when it is whole."""
        return ChoiceBody(
            "{", JsonBody(output, start=self.open), lambda: CollectedBody(output, self, self.open)
        )


class InternLMPlugin(Format):
    """`<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

    open, close = "<|action_start|><|plugin|>", "<|action_end|>"

    def body(self, output: Output) -> Body:
        """Read the object as it arrives."""
        return JsonBody(output, self.close, _ACTION)


class InternLMInterpreter(Format):
    """`<|action_start|><|interpreter|>code<|action_end|>`, fenced or not: code for `tool`."""

    open, close = "<|action_start|><|interpreter|>", "<|action_end|>"

    def __init__(self, tool: str = "interpreter", argument: str = "code") -> None:
        self._tool = tool
        self._argument = argument

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Take the code out of its fence, if it has one."""
        fenced = _FENCE.fullmatch(body)
        yield self._tool, {self._argument: fenced[1] if fenced else body.strip()}

    def body(self, output: Output) -> Body:
        """Read the code when it is whole."""
        return CollectedBody(output, self, _ACTION)

    def write(self, call: ToolCall) -> str:
        """Write the code between the marks."""
        return f"{self.open}{call.arguments.get(self._argument, call.text)}{self.close}"


class FencedCode(Format):
    """A fenced block of code at the start of a line, which is code for `tool`."""

    close = "\n```"
    at_line_start = True

    def __init__(
        self, language: str = "python", tool: str = "python", argument: str = "code"
    ) -> None:
        self.open = f"```{language}\n"
        self.instruction = (
            f"To run {language} code, write it in a block of its own, and end your message there:\n"
            f"```{language}\n...\n```"
        )
        self.tool = self._tool = tool
        self._argument = argument

    def body(self, output: Output) -> Body:
        """Read the code as it arrives, up to a fence at the start of a line."""
        return CodeBody(output, self._tool, self._argument, "\n```")

    def write(self, call: ToolCall) -> str:
        """Write the code between fences."""
        return f"{self.open}{call.arguments.get(self._argument, call.text)}\n```"


class ReAct(Format):
    """`Action: name`, then `Action Input: {...}`; `Observation:` after it is dropped."""

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

    Nothing marks it, so other JSON is held back until it is seen to be none, or is whole.
    """

    open = ""

    def body(self, output: Output) -> Body:
        """Read the objects as they arrive."""
        return JsonBody(output, bare=True)


class Think(Format):
    """`<think>...</think>`: reasoning, which goes to its own branch and field."""

    open, close = "<think>", "</think>"
    branch = "reasoning"


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
"""Each by the name that the terminal takes."""
