"""Hooks: functions that see messages pass and may change them, and that can be removed again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import getattr_static, isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ...commander.errors import ConfigurationError
from ...commander.kinds import require
from ...messages import ToolCall
from ...messages.options import nearest
from ...tools import AnyTool, Illustrated, InvalidArguments, Tool
from ._memory import SessionId
from ._message import AgentMessage, copy_message

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = [
    "AgentHook",
    "AgentHookHandle",
    "Hook",
    "HookHandle",
    "HookedTool",
    "Hooks",
    "Moment",
    "methods_of",
]

Moment: TypeAlias = Literal["before_agent", "after_agent", "before_action", "after_action"]

Changed: TypeAlias = Awaitable[AgentMessage | None] | AgentMessage | None

Hook: TypeAlias = Callable[[Any, AgentMessage, SessionId], Changed]
"""Takes the owner, a message and the session; returns a message in its place, or None."""


KINDS = "an AgentMessage or None"


class Hooks:
    """Hooks for one moment, run in the order in which they were added; false if there are none."""

    def __init__(self) -> None:
        self._hooks: list[HookHandle] = []

    def add(self, hook: Hook) -> HookHandle:
        """Add a hook; the handle removes it. The same function may be added twice."""
        handle = HookHandle(hook, self._hooks)
        self._hooks.append(handle)
        return handle

    async def run(
        self, owner: object, message: AgentMessage, session_id: SessionId
    ) -> AgentMessage:
        """Pass `message` through all hooks that stand when this is called.

        They get a copy, so that what is given here is as before when it is passed again.
        """
        if self._hooks:
            try:
                message = message.model_copy(deep=True)
            except Exception:  # noqa: BLE001 - it holds something that cannot be copied
                message = copy_message(message)
        for handle in tuple(self._hooks):
            changed = handle.hook(owner, message, session_id)
            changed = await changed if isawaitable(changed) else changed
            if changed is not None:
                require(changed, AgentMessage, f"a hook ({handle.hook!r:.100}) must return {KINDS}")
                message = changed
        return message

    def __len__(self) -> int:
        return len(self._hooks)


@dataclass(eq=False, slots=True)
class HookHandle:
    """Stands for one added hook."""

    hook: Hook
    _hooks: list[HookHandle] = field(repr=False)

    def remove(self) -> None:
        """Remove the hook; twice is harmless."""
        if self in self._hooks:
            self._hooks.remove(self)


class AgentHook:
    """Four hooks in one object, for `Agent(hooks=[...])`; a subclass writes those it needs.

    An object of any class with some of these methods is such a hook too.

    Each may be plain or async, and returns another message to put in the place of the one it was
    given, or None. The message is the hook's own to change: what it does to it is seen as well,
    but by no other agent, and not again when a call is retried. One that raises fails the agent's
    call; around a tool, it becomes the tool's failure.
    """

    def before_agent(self, agent: Any, message: AgentMessage, session_id: SessionId) -> Changed:
        """See each message that comes to the agent, before it is remembered."""
        return None

    def after_agent(self, agent: Any, message: AgentMessage, session_id: SessionId) -> Changed:
        """See the agent's answer, after it was remembered."""
        return None

    def before_action(self, agent: Any, message: AgentMessage, session_id: SessionId) -> Changed:
        """See a call of a tool; `message.formatted` is the `ToolCall`."""
        return None

    def after_action(self, agent: Any, message: AgentMessage, session_id: SessionId) -> Changed:
        """See what a tool gave; `message.content` is its text."""
        return None


MOMENTS: tuple[Moment, ...] = get_args(Moment)


def methods_of(hook: object) -> dict[Moment, Hook]:
    """Return those of the four methods that an object has.

    Raises `ConfigurationError` if it has none, or one whose name is nearly one of the four or
    begins as they do: it would never be called.
    """
    for name in dir(hook):
        if name in MOMENTS or name.startswith("_") or not callable(getattr_static(hook, name)):
            continue
        near = nearest(name, MOMENTS, 0.8)
        if near or name.startswith(("before", "after")):
            hint = f": did you mean {near!r}?" if near else f". There are {', '.join(MOMENTS)}"
            raise ConfigurationError(f"{type(hook).__name__}.{name} is no hook of an agent{hint}")
    found: dict[Moment, Hook] = {
        moment: getattr(hook, moment) for moment in MOMENTS if hasattr(hook, moment)
    }
    if not found:
        raise ConfigurationError(f"{hook!r:.200} has none of the methods {', '.join(MOMENTS)}")
    return found


@dataclass(frozen=True, slots=True)
class AgentHookHandle:
    """Stands for an added object with hooks."""

    _handles: list[HookHandle] = field(repr=False)

    def remove(self) -> None:
        """Remove its hooks; twice is harmless."""
        for handle in self._handles:
            handle.remove()


class HookedTool(Tool[..., Any]):
    """A tool as an agent's model calls it: through the agent's hooks."""

    inner: AnyTool
    agent: Agent[Any]
    session_id: SessionId
    before: Hooks
    after: Hooks

    @classmethod
    def around(
        cls, tool: AnyTool, agent: Agent[Any], session_id: SessionId, before: Hooks, after: Hooks
    ) -> AnyTool:
        """Put hooks around a tool, of whatever kind it is."""
        hooked = object.__new__(cls)
        hooked.__dict__.update(tool.__dict__)
        hooked.inner, hooked.agent, hooked.session_id = tool, agent, session_id
        hooked.before, hooked.after = before, after
        return hooked

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The inner tool's."""
        return self.inner.parameters

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Let the inner tool check."""
        return self.inner.check(arguments)

    async def prepare(self, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], AnyTool]:
        """Return what the hooks before make of a call: what a person is asked about, and runs."""
        call = ToolCall(id="", name=self.name, arguments=dict(arguments))
        sent = AgentMessage(
            content=call.text, formatted=call, sender=self.agent.name, receiver=self.name
        )
        sent = await self.before.run(self.agent, sent, self.session_id)
        if not isinstance(sent.formatted, ToolCall):
            raise InvalidArguments(f"a hook made no tool call of this: {sent.formatted!r:.200}")
        tool = HookedTool.around(self.inner, self.agent, self.session_id, Hooks(), self.after)
        return sent.formatted.arguments, tool

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """Run the inner tool between the hooks."""
        if self.before:
            arguments, tool = await self.prepare(arguments)
            return await tool.run(arguments)
        return await self.finish(await self.inner.run(arguments))

    @property
    def bare(self) -> AnyTool:
        """The inner tool."""
        return self.inner.bare

    async def finish(self, text: str) -> str:
        """Let the hooks after the call see what it gave."""
        answer = AgentMessage(
            content=text, sender=self.name, receiver=self.agent.name, type="tool_result"
        )
        shown = (await self.after.run(self.agent, answer, self.session_id)).content
        if not isinstance(text, Illustrated):
            return shown
        return Illustrated(str(shown), text.parts, text.files)
