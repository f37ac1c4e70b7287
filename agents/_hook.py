"""Hooks of agents: what sees, and may change, the messages that come, go, and call tools."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..messages import ToolCall
from ..tools import AnyTool, Illustrated, InvalidArguments, Tool
from ._message import AgentMessage
from ._message_hooks import Hook, HookHandle, Hooks

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["AgentHook", "AgentHookHandle", "hooked", "text_action"]

Given: TypeAlias = Awaitable[AgentMessage | None] | AgentMessage | None


class AgentHook:
    """Four hooks in one object, for `Agent(hooks=[...])`; a subclass writes those it needs.

    Each may be plain or async, and returns another message to put in the place of the one it was
    given, or None. What it does to the given message itself is seen as well, but by no other
    agent. One that raises fails the agent's call; around a tool, it becomes the tool's failure.
    """

    def before_agent(self, agent: Any, message: AgentMessage) -> Given:
        """See each message that comes to the agent, before it is remembered."""
        return None

    def after_agent(self, agent: Any, message: AgentMessage) -> Given:
        """See the agent's answer, after it was remembered."""
        return None

    def before_action(self, agent: Any, message: AgentMessage) -> Given:
        """See a call of a tool; `message.formatted` is the `ToolCall`."""
        return None

    def after_action(self, agent: Any, message: AgentMessage) -> Given:
        """See what a tool gave; `message.content` is its text."""
        return None


@dataclass(frozen=True, slots=True)
class AgentHookHandle:
    """Stands for an added object with hooks."""

    _handles: list[HookHandle] = field(repr=False)

    def remove(self) -> None:
        """Remove its hooks; twice is harmless."""
        for handle in self._handles:
            handle.remove()


def text_action(tool: str = "python", argument: str = "code") -> Hook:
    """Make a `before_action` hook for an executor that is given a parsed text, such as code.

    The text, which is the `action` of the message's `formatted`, becomes a call of `tool`. A
    message whose action is something else stays as it is; one that cannot be used is refused with
    what is wrong with it, `InvalidArguments`.
    """

    def call(executor: Any, message: AgentMessage) -> AgentMessage | None:
        formatted: object = message.formatted
        if not isinstance(formatted, Mapping):
            return None
        parsed = cast("Mapping[str, Any]", formatted)
        if parsed.get("status") == "invalid":
            raise InvalidArguments(parsed.get("error") or "the action cannot be used")
        if not isinstance(action := parsed.get("action"), str):
            return None
        call = {"name": tool, "parameters": {argument: action}}
        return message.model_copy(update={"formatted": call})

    return call


def hooked(
    agent: Agent[Any], tools: Sequence[AnyTool], before: Hooks, after: Hooks
) -> Sequence[AnyTool]:
    """Return the tools with an agent's hooks around each call; as they are if it has none."""
    if not (before._hooks or after._hooks):
        return tools
    return [_wrapped(agent, tool, before, after) for tool in tools]


def _wrapped(agent: Agent[Any], tool: AnyTool, before: Hooks, after: Hooks) -> AnyTool:
    hooked = object.__new__(_Hooked)
    hooked.__dict__.update(tool.__dict__)
    hooked.inner, hooked.agent = tool, agent
    hooked.before, hooked.after = before, after
    return hooked


class _Hooked(Tool[..., Any]):
    inner: AnyTool
    agent: Agent[Any]
    before: Hooks
    after: Hooks

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.inner.parameters

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.inner.check(arguments)

    async def _prepared(self, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], AnyTool]:
        call = ToolCall(id="", name=self.name, arguments=dict(arguments))
        sent = AgentMessage(
            content=call.text, formatted=call, sender=self.agent.name, receiver=self.name
        )
        sent = await self.before.run(self.agent, sent)
        if not isinstance(sent.formatted, ToolCall):
            raise InvalidArguments(f"a hook made no tool call of this: {sent.formatted!r:.200}")
        return sent.formatted.arguments, _wrapped(self.agent, self.inner, Hooks(), self.after)

    async def run(self, arguments: Mapping[str, Any]) -> str:
        if self.before._hooks:
            arguments, tool = await self._prepared(arguments)
            return await tool.run(arguments)
        given = await self.inner.run(arguments)
        answer = AgentMessage(
            content=given, sender=self.name, receiver=self.agent.name, type="tool_result"
        )
        text = (await self.after.run(self.agent, answer)).content
        return Illustrated(str(text), given.images) if isinstance(given, Illustrated) else text
