"""Hooks: removable functions that see an agent's messages and may change them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import getattr_static, isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ...commander import actor_of, parent_here
from ...commander.errors import ConfigurationError
from ...commander.kinds import require
from ...messages import ToolCall
from ...messages.options import nearest
from ...tools import AnyTool, Illustrated, InvalidArguments, Tool
from ._memory import SessionId, TemporarySession
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

Hook: TypeAlias = Callable[[Any, AgentMessage, SessionId | None], Changed]
"""Takes the owner, a message and the session; returns a message in its place, or None.

The session of a call without one is that of the call around it, None if that has none.
"""


class Hooks:
    """The hooks for one moment, in the order in which they were added. Falsy if empty."""

    def __init__(self) -> None:
        self._hooks: list[HookHandle] = []

    def add(self, hook: Hook) -> HookHandle:
        """Add a hook; the handle removes it. The same function may be added twice."""
        handle = HookHandle(hook, self._hooks)
        self._hooks.append(handle)
        return handle

    async def run(
        self, owner: object, message: AgentMessage, session_id: SessionId | None
    ) -> AgentMessage:
        """Pass `message` through all hooks that are present now, and return the result.

        The hooks get a copy, because a retry passes the original `message` through them again.
        """
        shown = session_id
        if self._hooks:
            if isinstance(session_id, TemporarySession):
                here = parent_here()
                actor = None if here is None else actor_of(here)
                shown = None if actor is None else actor.session_id
            try:
                message = message.model_copy(deep=True)
            except Exception:  # noqa: BLE001 - it holds something that cannot be copied
                message = copy_message(message)
        for handle in tuple(self._hooks):
            changed = handle.hook(owner, message, shown)
            changed = await changed if isawaitable(changed) else changed
            if changed is not None:
                rule = f"a hook ({handle.hook!r:.100}) must return an AgentMessage or None"
                require(changed, AgentMessage, rule)
                message = changed
        return message

    def __len__(self) -> int:
        return len(self._hooks)


@dataclass(eq=False, slots=True)
class HookHandle:
    """Removes one added hook."""

    hook: Hook
    _hooks: list[HookHandle] = field(repr=False)

    def remove(self) -> None:
        """Remove the hook; twice is harmless."""
        if self in self._hooks:
            self._hooks.remove(self)


class AgentHook:
    """Four hooks in one object, for `Agent(hooks=[...])`. A subclass writes some of them.

        class Signature(AgentHook):
            async def after_agent(self, agent, message, session_id):
                return message.model_copy(update={"content": f"{message.text} -- {agent.name}"})

    An object of any class with some of these methods works too.

    Each may be plain or async, and returns a message that replaces its argument, or None. It may
    also change its argument in place. That is a copy for this agent and attempt, so other agents
    and later attempts get the original. A hook that raises fails the agent's call. If an action
    hook raises, the tool call fails instead.

    `session_id` is the session of the call. A call without one has that of the call around it, as
    an agent that is a tool or took over a conversation. It is None if that has none.
    """

    def before_agent(
        self, agent: Any, message: AgentMessage, session_id: SessionId | None
    ) -> Changed:
        """See each received message, before the agent remembers it."""
        return None

    def after_agent(
        self, agent: Any, message: AgentMessage, session_id: SessionId | None
    ) -> Changed:
        """See the agent's answer, after the agent remembers it."""
        return None

    def before_action(
        self, agent: Any, message: AgentMessage, session_id: SessionId | None
    ) -> Changed:
        """See a tool call, the `ToolCall` in `message.output`."""
        return None

    def after_action(
        self, agent: Any, message: AgentMessage, session_id: SessionId | None
    ) -> Changed:
        """See a tool's result, the text in `message.content`."""
        return None


HOOK_NAMES: tuple[Moment, ...] = get_args(Moment)


def methods_of(hook: object) -> dict[Moment, Hook]:
    """Return those of the four methods that an object has.

    Raises `ConfigurationError` if it has none. Also if it has a method with a similar name, or one
    that begins with "before" or "after": this is probably a typo, and it would never be called.
    """
    for name in dir(hook):
        if name in HOOK_NAMES or name.startswith("_") or not callable(getattr_static(hook, name)):
            continue
        guess = nearest(name, HOOK_NAMES, 0.8)
        if guess or name.startswith(("before", "after")):
            hint = f": did you mean {guess!r}?" if guess else f". There are {', '.join(HOOK_NAMES)}"
            raise ConfigurationError(f"an agent has no hook {type(hook).__name__}.{name}{hint}")
    methods: dict[Moment, Hook] = {
        moment: getattr(hook, moment) for moment in HOOK_NAMES if hasattr(hook, moment)
    }
    if not methods:
        raise ConfigurationError(f"{hook!r:.200} has none of the methods {', '.join(HOOK_NAMES)}")
    return methods


@dataclass(frozen=True, slots=True)
class AgentHookHandle:
    """Removes the hooks of one added object."""

    _handles: list[HookHandle] = field(repr=False)

    def remove(self) -> None:
        """Remove its hooks; twice is harmless."""
        for handle in self._handles:
            handle.remove()


class HookedTool(Tool[..., Any]):
    """A tool for an agent's model, with the agent's hooks around it."""

    inner: AnyTool
    agent: Agent[Any]
    session_id: SessionId
    before: Hooks
    after: Hooks

    @classmethod
    def around(
        cls, tool: AnyTool, agent: Agent[Any], session_id: SessionId, before: Hooks, after: Hooks
    ) -> AnyTool:
        """Put hooks around a tool of any kind."""
        hooked = object.__new__(cls)
        hooked.__dict__.update(tool.__dict__)
        hooked.inner, hooked.agent, hooked.session_id = tool, agent, session_id
        hooked.before, hooked.after = before, after
        return hooked

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters of the inner tool."""
        return self.inner.parameters

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments with the inner tool."""
        return self.inner.check(arguments)

    async def prepare(self, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], AnyTool]:
        """Run the `before_action` hooks; return the arguments and the tool to call with them.

        A person's approval is for these arguments, and the tool runs with them.
        """
        call = ToolCall(id="", name=self.name, arguments=dict(arguments))
        message = AgentMessage(
            content=call.text, output=call, sender=self.agent.name, receiver=self.name
        )
        message = await self.before.run(self.agent, message, self.session_id)
        if not isinstance(message.output, ToolCall):
            raise InvalidArguments(
                f"a hook must leave a ToolCall in `output`, not {message.output!r:.200}"
            )
        tool = HookedTool.around(self.inner, self.agent, self.session_id, Hooks(), self.after)
        return message.output.arguments, tool

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
        """Run the `after_action` hooks on a result, and return their result."""
        answer = AgentMessage(
            content=text, sender=self.name, receiver=self.agent.name, type="tool_result"
        )
        content = (await self.after.run(self.agent, answer, self.session_id)).content
        if not isinstance(text, Illustrated):
            return content
        return Illustrated(str(content), text.parts, text.files)
