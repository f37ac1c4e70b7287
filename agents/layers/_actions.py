"""Parsers for models that write their calls as text: what they think, and what they would do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, cast

from ._parsers import Parser

__all__ = ["InterpreterParser", "MixedToolParser", "PluginParser", "ToolAction", "ToolParser"]


CUT = "the reply was too long and was cut off before the action's end"


class ToolAction(TypedDict):
    """What a model has written: a thought, and perhaps an action after it.

    `status` is "none" if there is no action (then `tool_type` and `action` are None), "invalid" if
    it cannot be used (then `action` is its text, and `error` says why), else "valid".
    """

    tool_type: str | None
    thought: str
    action: Any
    status: Literal["none", "valid", "invalid"]
    error: str | None


def no_action(text: str) -> ToolAction:
    """Return what a text without a call means."""
    return ToolAction(tool_type=None, thought=text, action=None, status="none", error=None)


class ToolParser(Parser[ToolAction]):
    r"""Finds an action between `begin` and `end`: everything before it is the thought.

        ToolParser("code", begin="```python\n", end="\n```\n")

    An `end` that is missing, or of which there is only a part, was a stop word; what stands after
    it is no part of the reply. `validate` makes something of the action's text, and may raise.
    `template` is the instruction, with `{begin}` and `{end}` where they go.
    """

    def __init__(
        self,
        tool_type: str,
        begin: str = "<tool>\n",
        end: str = "</tool>\n",
        validate: Callable[[str], Any] = str,
        *,
        template: str = "",
    ) -> None:
        self.tool_type = tool_type
        self.begin = begin
        self.end = end
        self.validate = validate
        self.template = template

    def instruction(self) -> str:
        """Return the template with the marks in it."""
        return self.template.replace("{begin}", self.begin).replace("{end}", self.end)

    def parse(self, text: str) -> ToolAction:
        """Find the action; nothing that a model writes is an error."""
        thought, begin, rest = text.partition(self.begin)
        if not begin:
            return no_action(text)
        action = ToolAction(
            tool_type=self.tool_type,
            thought=thought,
            action=self._until_end(rest),
            status="valid",
            error=None,
        )
        try:
            action["action"] = self.validate(action["action"])
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the model wrote it
            action["status"], action["error"] = "invalid", str(error) or repr(error)
        return action

    def parse_cut(self, text: str) -> ToolAction:
        """Find the action; half of one is "invalid", so that nobody runs it."""
        action = self.parse(text)
        if action["status"] == "valid" and self.end.rstrip() not in text.partition(self.begin)[2]:
            action["status"], action["error"] = "invalid", CUT
        return action

    def whole(self, text: str) -> str:
        """Return the reply up to the end of its action, with the mark that may have been cut."""
        thought, begin, rest = text.partition(self.begin)
        return f"{thought}{begin}{self._until_end(rest)}{self.end}" if begin else text

    def _until_end(self, rest: str) -> str:
        action, end, _ = rest.partition(self.end)
        if end:
            return action
        parts = (size for size in range(len(self.end) - 1, 0, -1) if rest.endswith(self.end[:size]))
        return rest[: len(rest) - next(parts, 0)]


def _plugin_call(text: str) -> dict[str, Any]:
    call: object = json.loads(text)
    if not isinstance(call, dict) or "name" not in call:
        raise ValueError("a JSON object with 'name' and 'parameters' was expected")
    return cast("dict[str, Any]", call)


class PluginParser(ToolParser):
    """Finds a JSON object with `name` and `parameters`, which executors take as it is."""

    def __init__(
        self,
        tool_type: str = "plugin",
        begin: str = "```json\n",
        end: str = "\n```\n",
        validate: Callable[[str], Any] = _plugin_call,
        *,
        template: str = "To use a tool, write a JSON object with its name and parameters in this "
        'form, and end your message there:\n{begin}{"name": ..., "parameters": {...}}{end}',
    ) -> None:
        super().__init__(tool_type, begin, end, validate, template=template)


class InterpreterParser(ToolParser):
    """Finds Python code."""

    def __init__(
        self,
        tool_type: str = "interpreter",
        begin: str = "```python\n",
        end: str = "\n```\n",
        validate: Callable[[str], Any] = str,
        *,
        template: str = "To run Python code, write it in this form, and end your message there:\n"
        "{begin}...{end}",
    ) -> None:
        super().__init__(tool_type, begin, end, validate, template=template)


class MixedToolParser(Parser[ToolAction]):
    """Finds the action of whichever parser's `begin` stands first."""

    def __init__(self, parsers: Iterable[ToolParser], *, template: str = "") -> None:
        self.parsers: Mapping[str, ToolParser] = {parser.tool_type: parser for parser in parsers}
        self.template = template

    def instruction(self) -> str:
        """Return the template and the parsers' instructions."""
        parts = [self.template, *(parser.instruction() for parser in self.parsers.values())]
        return "\n\n".join(part for part in parts if part)

    def parse(self, text: str) -> ToolAction:
        """Let the parser of the first action read it."""
        parser = self._first(text)
        return no_action(text) if parser is None else parser.parse(text)

    def parse_cut(self, text: str) -> ToolAction:
        """Let the parser of the first action read it."""
        parser = self._first(text)
        return no_action(text) if parser is None else parser.parse_cut(text)

    def whole(self, text: str) -> str:
        """Let the parser of the first action do it."""
        parser = self._first(text)
        return text if parser is None else parser.whole(text)

    def _first(self, text: str) -> ToolParser | None:
        found = [parser for parser in self.parsers.values() if parser.begin in text]
        return min(found, key=lambda parser: text.index(parser.begin), default=None)
