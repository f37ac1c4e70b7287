"""Tool calls that a model writes into its text, read by `ToolParser`, and the steps of an agent.

`ToolParser` is for agents that handle such calls themselves. An agent that only runs them takes
`formats=`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ...commander.kinds import require
from ...dispatch import Format
from ...dispatch.formats import find_call
from ...messages import Message
from ...messages.arguments import read_arguments
from ...tools import ToolLike, describe
from ._message import TOOLS, AgentMessage
from ._parsers import Parser

__all__ = [
    "AgentStep",
    "ToolAction",
    "ToolParser",
    "check_formats",
    "list_steps",
]

INCOMPLETE_ACTION = "the reply was too long and was cut off before the action's end"


class ToolAction(TypedDict):
    """A parsed reply: a thought, and perhaps an action after it.

    `action` is a mapping with `name` and `parameters`, as executors take it. `tool_type` is that
    name. `status` is "none" without an action (then both are None), "invalid" if the action cannot
    be used, else "valid". For an invalid action `error` gives the reason, and `action` may be its
    raw text.
    """

    tool_type: str | None
    thought: str
    action: Any
    status: Literal["none", "valid", "invalid"]
    error: str | None


_SAVED_ACTION = TypeAdapter(ToolAction)


class ToolParser(Parser[ToolAction]):
    """Finds the first action that one of `formats` reads. The text before it is the thought.

        ToolParser(InternLMPlugin(), InternLMInterpreter())

    A stop word may have cut the end mark of the action or a part of it. Text after the action is
    ignored. `validate` takes the action's arguments, returns the arguments to use, and may raise.
    The instruction is `template`, then those of the formats. `{tools}` in it stands for the list of
    `tools`.
    """

    def __init__(
        self,
        *formats: Format,
        validate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        tools: Iterable[ToolLike] = (),
        template: str = "",
    ) -> None:
        check_formats(formats)
        self.formats = formats
        self.validate = validate
        self.tools: list[ToolLike] = list(tools)
        self.template = template

    def instruction(self) -> str:
        """Return the template and the formats' instructions."""
        tools = describe(self.tools, "list")
        parts = [self.template, *(each.instruction for each in self.formats)]
        return "\n\n".join(part.replace("{tools}", tools) for part in parts if part)

    def parse(self, text: str) -> ToolAction:
        """Find the action. No text of a model is an error."""
        return self._parse(text, cut=False)

    def parse_cut(self, text: str) -> ToolAction:
        """Find the action. An incomplete one is "invalid", so that no executor runs it."""
        return self._parse(text, cut=True)

    def restore(self, saved: Any) -> ToolAction:
        """Return a saved action."""
        return _SAVED_ACTION.validate_python(saved)

    def complete(self, text: str) -> str:
        """Return the reply up to the end of its action, with the complete end mark."""
        call = find_call(text, self.formats)
        return text if call is None else call.before + call.text

    def _parse(self, text: str, *, cut: bool) -> ToolAction:
        call = find_call(text, self.formats, stopped=cut)
        if call is None:
            return ToolAction(tool_type=None, thought=text, action=None, status="none", error=None)
        name, raw = call.name, call.arguments
        arguments, error = read_arguments(raw)
        action: Any = {"name": name, "parameters": arguments} if name and error is None else raw
        if action is raw:
            error = INCOMPLETE_ACTION if cut else error or "it has no name"
        else:
            try:
                action["parameters"] = self.validate(arguments)
            except Exception as fault:  # noqa: BLE001 - the model wrote the arguments, so it reads the error
                error = str(fault) or repr(fault)
        return ToolAction(
            tool_type=name or None,
            thought=call.before,
            action=action,
            status="valid" if error is None else "invalid",
            error=error,
        )


def check_formats(formats: Sequence[Format] | None) -> None:
    """Raise a `TypeError` unless `formats` is None or a list of formats."""
    require(formats, Sequence | None, "formats must be a list of Formats, or None")
    for each in formats or ():
        require(each, Format, "each of formats must be a Format")


# --- steps


class AgentStep(TypedDict):
    """A thought, a call, or the result of a call. `name` is the tool's."""

    kind: Literal["thought", "call", "result"]
    content: Any
    name: str | None


def list_steps(messages: Iterable[AgentMessage], name: str) -> list[AgentStep]:
    """Return the steps in the memory of the agent called `name`."""
    steps: list[AgentStep] = []

    def add(kind: Literal["thought", "call", "result"], content: Any, tool: str | None) -> None:
        if content or kind != "thought":
            steps.append(AgentStep(kind=kind, content=content, name=tool))

    tool: str | None = None  # the tool of the last call, for its result
    for message in messages:
        output: object = message.output
        if message.type == "tool_result":
            add("result", message.content, tool)
        elif message.sender != name:
            continue
        elif message.type == TOOLS:
            for part in cast("list[Message]", output):
                add("result" if part.role == "tool" else "thought", part.content, part.name)
                for call in part.tool_calls:
                    add("call", call.arguments, call.name)
        elif (
            isinstance(output, Mapping)
            and frozenset(cast("Mapping[str, Any]", output)) == ToolAction.__required_keys__
        ):
            parsed = cast("ToolAction", output)
            add("thought", parsed["thought"], None)
            if parsed["status"] != "none":
                action, tool = parsed["action"], parsed["tool_type"]
                fields = cast("Mapping[str, Any]", action if isinstance(action, Mapping) else {})
                add("call", fields.get("parameters", action), tool)
        else:
            add("thought", message.content, None)
    return steps
