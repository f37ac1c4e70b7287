"""Functions that see messages pass and may change them, and that can be removed again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeAlias

from ._message import AgentMessage

__all__ = ["Hook", "HookHandle", "Hooks"]

Hook: TypeAlias = Callable[
    [Any, AgentMessage], Awaitable[AgentMessage | None] | AgentMessage | None
]
"""Takes the owner and a message; returns another message in its place, or None to leave it."""


class Hooks:
    """Hooks for one moment, run in the order in which they were added."""

    def __init__(self) -> None:
        self._hooks: list[HookHandle] = []

    def add(self, hook: Hook) -> HookHandle:
        """Add a hook; the handle removes it. The same function may be added twice."""
        handle = HookHandle(hook, self._hooks)
        self._hooks.append(handle)
        return handle

    async def run(self, owner: object, message: AgentMessage) -> AgentMessage:
        """Pass `message` through all hooks that stand when this is called."""
        for handle in tuple(self._hooks):
            given = handle.hook(owner, message)
            message = (await given if isawaitable(given) else given) or message
        return message


@dataclass(eq=False, slots=True)
class HookHandle:
    """Stands for one added hook."""

    hook: Hook
    _hooks: list[HookHandle] = field(repr=False)

    def remove(self) -> None:
        """Remove the hook; twice is harmless."""
        if self in self._hooks:
            self._hooks.remove(self)
