"""Tool calls as a vLLM model writes them: marked in its text, under a grammar.

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>

This is how Qwen, Hermes and others were taught to call; a model taught otherwise, or not at all,
is told of it and cannot write a call differently. The grammar fixes every character but those of
the arguments, so that a call is read back by comparing strings, as it arrives.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ..commander.errors import ConfigurationError
from ..messages import Delta, ToolCallDelta, ToolSchema
from ..messages.text import overlap
from ._prompt import named_tool

__all__ = ["MARK", "Reader", "instruction", "marked_call", "structural_tag"]

MARK = "<tool_call>"
_END = "}\n</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"


def structural_tag(tools: Sequence[ToolSchema], tool_choice: Any, *, parallel: bool) -> str:
    """Write the grammar of a reply, in xgrammar's JSON: text and calls, or calls alone.

    Raises `ConfigurationError` for a `tool_choice` that is none.
    """
    if isinstance(tool_choice, Mapping):
        choice = cast("Mapping[str, Any]", tool_choice)
        tools, parallel = [named_tool(tools, choice)], False
    elif tool_choice not in {"auto", "required"}:
        raise ConfigurationError(
            f"tool_choice {tool_choice!r}: expected 'auto', 'none', 'required' or a function"
        )
    tags = [
        {
            "type": "tag",
            "begin": _begin(tool.name),
            "content": {"type": "json_schema", "json_schema": dict(tool.parameters)},
            "end": _END,
        }
        for tool in tools
    ]
    calls = {"tags": tags, "stop_after_first": not parallel}
    if tool_choice == "auto":
        reply = {"type": "triggered_tags", "triggers": [MARK], **calls}
    else:
        reply = {"type": "tags_with_separator", "separator": "\n", "at_least_one": True, **calls}
    return json.dumps({"type": "structural_tag", "format": reply})


def _begin(name: str) -> str:
    return f'{MARK}\n{{"name": {json.dumps(name)}, "arguments": '


def marked_call(name: str, arguments: str) -> str:
    """Write a call as the model is to write it."""
    return _begin(name) + arguments + _END


def instruction(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tell a model whose chat template knows no tools which there are and how to call one."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"You may call functions to help with the user's request:\n<tools>\n{listed}\n</tools>\n"
        f'To call one, write:\n{MARK}\n{{"name": <name>, "arguments": <object>{_END}'
    )


class Reader:
    """Takes the model's text apart as it arrives: text, reasoning, tool calls.

    What comes out, put together, is the same however the text is cut; at most the beginning of a
    mark is held back. Reasoning is what stands in `<think>` at the head of the reply, or before
    `</think>` where the prompt has opened it (`thinking`). `calls` counts the calls so far.
    """

    def __init__(self, tools: Sequence[ToolSchema], *, thinking: bool = False) -> None:
        self.calls = 0
        self._names = {_begin(tool.name): tool.name for tool in tools}
        self._held = ""
        self._state = self._thinking if thinking else self._head

    def read(self, text: str) -> Iterator[Delta]:
        """Read some more."""
        self._held += text
        state = None
        while self._held and state != self._state:
            state = self._state
            yield from state()

    def end(self) -> Iterator[Delta]:
        """Give what was held back in vain, since the reply has ended; half a mark is dropped."""
        if self._held and self._state in {self._head, self._text}:
            yield Delta(self._held)
        elif self._held and self._state == self._thinking:
            yield Delta(reasoning=self._held)
        self._held = ""

    # The states. Each takes from `_held` what it can and sets the next if it is at its end.

    def _head(self) -> Iterator[Delta]:
        start = self._held.lstrip()
        if start.startswith(_THINK):
            self._held, self._state = start.removeprefix(_THINK), self._thinking
        elif not _THINK.startswith(start):
            self._state = self._text
        yield from ()

    def _thinking(self) -> Iterator[Delta]:
        thought = self._until(_THOUGHT, self._between)
        if thought:
            yield Delta(reasoning=thought)

    def _between(self) -> Iterator[Delta]:
        """Pass over the line breaks that set calls and reasoning apart from what follows."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = self._text
        yield from ()

    def _text(self) -> Iterator[Delta]:
        if self._names:
            text = self._until(MARK, self._name)
        else:
            text, self._held = self._held, ""
        if text:
            yield Delta(text)

    def _name(self) -> Iterator[Delta]:
        for begin, name in self._names.items():
            rest = begin.removeprefix(MARK)
            if self._held.startswith(rest):
                self._held, self._state = self._held.removeprefix(rest), self._arguments
                call_id = f"call_{uuid.uuid4().hex[:24]}"
                yield Delta(tool_calls=(ToolCallDelta(self.calls, call_id, name),))
                self.calls += 1
                return

    def _arguments(self) -> Iterator[Delta]:
        # A line break in a JSON string is escaped, so the end mark cannot stand inside one.
        index = self.calls - 1
        arguments = self._until(_END, self._between)
        if arguments:
            yield Delta(tool_calls=(ToolCallDelta(index, arguments=arguments),))

    def _until(self, mark: str, then: Any) -> str:
        """Take what stands before `mark`, and the mark if it is there: then `then` is next."""
        before, found, after = self._held.partition(mark)
        if found:
            self._held, self._state = after, then
            return before
        whole = len(before) - overlap(before, mark)
        self._held = before[whole:]
        return before[:whole]
