"""Actions: calls that are found in what a model has written, and the steps towards an answer.

A thin layer over the formats of the fork, for agents that decide themselves what becomes of a
call. An agent that shall just run it takes `formats=`, and needs nothing of this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ...commander.kinds import require
from ...dispatch import Format
from ...messages import Message, ToolCall
from ...messages.arguments import read_arguments
from ...messages.text import overlap
from ...tools import AnyTool, Toolkit, describe
from ._message import TOOLS, AgentMessage
from ._parsers import Parser

__all__ = [
    "AgentStep",
    "FencedCall",
    "TextCall",
    "ToolAction",
    "ToolParser",
    "check_formats",
    "list_steps",
]

CUT = "the reply was too long and was cut off before the action's end"


class ToolAction(TypedDict):
    """What a model has written: a thought, and perhaps an action after it.

    `action` is a mapping with `name` and `parameters`, as executors take it; `tool_type` is that
    name. `status` is "none" if there is no action (then both are None), "invalid" if it cannot be
    used (`error` says why, and `action` may be its mere text), else "valid".
    """

    tool_type: str | None
    thought: str
    action: Any
    status: Literal["none", "valid", "invalid"]
    error: str | None


_SAVED = TypeAdapter(ToolAction)


class TextCall(Format):
    """A call of `tool` whose only argument is the text between `begin` and `end`.

    `instruction` tells a model of this form.
    """

    def __init__(
        self, tool: str, begin: str, end: str, *, argument: str = "text", instruction: str = ""
    ) -> None:
        self.open, self.close = begin, end
        self.tool = self._tool = tool
        self._argument = argument
        self.instruction = instruction

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Take the text as it is."""
        yield self._tool, {self._argument: body}

    def write(self, call: ToolCall) -> str:
        """Write the text between the marks."""
        return f"{self.open}{call.arguments.get(self._argument, call.text)}{self.close}"


class FencedCall(Format):
    """A JSON object with `name` and `parameters` in a fence, which any model can write."""

    open, close = "```json\n", "\n```"
    instruction = (
        "You have these tools:\n{tools}\n\nTo use one, write a JSON object with its name and"
        " parameters in this form, and end your message there:\n"
        '```json\n{"name": ..., "parameters": {...}}\n```'
    )

    def read(self, body: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Take the object."""
        call, error = read_arguments(body)
        if error is not None or not isinstance(call.get("name"), str):
            raise ValueError(error or "it has no name")
        yield call["name"], call.get("parameters", call.get("arguments", {}))

    def write(self, call: ToolCall) -> str:
        """Write the object in its fence."""
        written = {"name": call.name, "parameters": call.arguments}
        return f"{self.open}{json.dumps(written, ensure_ascii=False)}{self.close}"


class ToolParser(Parser[ToolAction]):
    """Finds the first action that one of `formats` reads; what stands before it is the thought.

        ToolParser(InternLMPlugin(), InternLMInterpreter())

    An end mark that is missing, or of which there is only a part, was a stop word; what stands
    after the action is no part of the reply. `validate` takes the action's arguments, returns
    those to use, and may raise. The instruction is `template`, then those of the formats, with
    `tools` where these have `{tools}`.
    """

    def __init__(
        self,
        *formats: Format,
        validate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        tools: Iterable[AnyTool | Toolkit] = (),
        template: str = "",
    ) -> None:
        check_formats(formats)
        self.formats = formats
        self.validate = validate
        self.tools = list(tools)
        self.template = template
        self._markers: list[tuple[re.Pattern[str], Format]] = []
        for each in formats:  # one without a marker may begin the reply
            place = r"(?m:^)" if each.at_line_start else "" if each.open else r"\A"
            self._markers.append((re.compile(place + re.escape(each.open)), each))

    def instruction(self) -> str:
        """Return the template and the formats' instructions."""
        tools = describe(self.tools, "list")
        parts = [self.template, *(each.instruction for each in self.formats)]
        return "\n\n".join(part.replace("{tools}", tools) for part in parts if part)

    def parse(self, text: str) -> ToolAction:
        """Find the action; nothing that a model writes is an error."""
        return self._parse(text, cut=False)

    def parse_cut(self, text: str) -> ToolAction:
        """Find the action; half of one is "invalid", so that nobody runs it."""
        return self._parse(text, cut=True)

    def restore(self, saved: Any) -> ToolAction:
        """Return a saved action."""
        return _SAVED.validate_python(saved)

    def whole(self, text: str) -> str:
        """Return the reply up to the end of its action, with the mark that may have been cut."""
        found = self._find(text, cut=False)
        return text if found is None else found.thought + found.written

    def _parse(self, text: str, *, cut: bool) -> ToolAction:
        found = self._find(text, cut=cut)
        if found is None:
            return ToolAction(tool_type=None, thought=text, action=None, status="none", error=None)
        name, raw = found.call.name, found.call.arguments
        arguments, error = read_arguments(raw)
        action: Any = {"name": name, "parameters": arguments} if name and error is None else raw
        if action is raw:
            error = CUT if cut else error or "it has no name"
        else:
            try:
                action["parameters"] = self.validate(arguments)
            except Exception as fault:  # noqa: BLE001 - whatever is wrong, the model wrote it
                error = str(fault) or repr(fault)
        return ToolAction(
            tool_type=name or None,
            thought=found.thought,
            action=action,
            status="valid" if error is None else "invalid",
            error=error,
        )

    def _find(self, text: str, *, cut: bool) -> _Found | None:
        """Let the format of each marker, the first one first, read what follows it."""
        found = [(marker, each) for find, each in self._markers for marker in find.finditer(text)]
        end = 0  # of what was no call, such as reasoning: what stands in it is none either
        for marker, each in sorted(found, key=lambda pair: pair[0].start()):
            if marker.start() < end:
                continue
            rest, close = text[marker.end() :], each.close or ""
            there = overlap(rest, close)
            # White space at the end of a mark may be missing, but not all of the mark.
            if close not in rest and (not cut or 0 < len(close.rstrip()) <= there):
                rest += close[there:]
            call = _FirstCall()
            body = each.body(call)
            after = body.feed(rest)
            if after is None:
                after = body.end(stopped=cut)
            if call.begun:
                written = marker[0] + rest.removesuffix(after)
                return _Found(text[: marker.start()], call, written)
            if not body.void:
                end = len(text) - len(after)
        return None


def check_formats(formats: Sequence[Format] | None) -> None:
    """Raise a `TypeError` for what is no list of formats; None is one."""
    require(formats, Sequence | None, "formats must be a list of Formats, or None")
    for each in formats or ():
        require(each, Format, "formats must be a list of Formats, each")


class _FirstCall:
    """An output that keeps the first call of a body."""

    def __init__(self) -> None:
        self.begun = 0
        self.name = self.arguments = ""

    def show(self, text: str) -> None:
        """Text is no call."""

    def put(self, branch: str, text: str) -> None:
        """Nor is text for a branch."""

    def new_call(self) -> int:
        """Begin a call."""
        self.begun += 1
        return self.begun - 1

    def write(self, index: int, arguments: str = "", name: str | None = None) -> None:
        """Keep what belongs to the first one."""
        if index == 0:
            self.name += name or ""
            self.arguments += arguments


class _Found(NamedTuple):
    thought: str
    call: _FirstCall
    written: str


# --- steps


class AgentStep(TypedDict):
    """A thought, a call, or a call's result; `name` is the tool's."""

    kind: Literal["thought", "call", "result"]
    content: Any
    name: str | None


def list_steps(messages: Iterable[AgentMessage], name: str) -> list[AgentStep]:
    """Return the steps that the memory of the agent called `name` tells of."""
    steps: list[AgentStep] = []

    def add(kind: Literal["thought", "call", "result"], content: Any, tool: str | None) -> None:
        if content or kind != "thought":
            steps.append(AgentStep(kind=kind, content=content, name=tool))

    tool: str | None = None  # that was called last
    for message in messages:
        formatted: object = message.formatted
        if message.type == "tool_result":
            add("result", message.content, tool)
        elif message.sender != name:
            continue
        elif message.type == TOOLS:
            for part in cast("list[Message]", formatted):
                add("result" if part.role == "tool" else "thought", part.content, part.name)
                for call in part.tool_calls:
                    add("call", call.arguments, call.name)
        elif (
            isinstance(formatted, Mapping)
            and frozenset(cast("Mapping[str, Any]", formatted)) == ToolAction.__required_keys__
        ):
            found = cast("ToolAction", formatted)
            add("thought", found["thought"], None)
            if found["status"] != "none":
                action, tool = found["action"], found["tool_type"]
                fields = cast("Mapping[str, Any]", action if isinstance(action, Mapping) else {})
                add("call", fields.get("parameters", action), tool)
        else:
            add("thought", message.content, None)
    return steps
