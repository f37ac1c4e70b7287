"""Tools that belong together: the `@tool` methods of one object, and lists of tools.

Whatever takes several tools, in any room, puts them together with `flatten` or `by_name`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, Self, cast

from ..commander.errors import ConfigurationError
from ..commander.kinds import require
from ._effect import EffectKind
from ._tool import AnyTool, Tool
from .sessions import PerSession, close_all

__all__ = ["Toolkit", "by_name", "flatten"]


class SameName(ConfigurationError, ValueError):
    """Two tools have one name. It says where both come from."""


class Toolkit:
    """An object whose `@tool` methods a model may call; they share its state.

    What it keeps in a `PerSession` each session has for itself, unless this is entered with
    `async with`: then it is of the block, shared by all, and closed at its end. With `approve`
    every call of its tools waits for a person's yes. `effect` says what a durable run does with a
    call whose end is not known, for those of its tools that do not say it: see `Tool`.
    """

    approve: bool = False
    effect: EffectKind | None = None
    _blocks = 0  # that it is entered in

    @property
    def name(self) -> str:
        """The name of its class, unless a subclass gives another."""
        return type(self).__name__

    @property
    def tools(self) -> list[AnyTool]:
        """The tools, bound to this object, in the order in which they are written."""
        return flatten(self.methods.values())

    @property
    def methods(self) -> dict[str, AnyTool]:
        """The tools by the names of their methods, which may differ from what a model reads."""
        names = dict.fromkeys(name for cls in reversed(type(self).__mro__) for name in vars(cls))
        made: dict[str, AnyTool] = {}
        for name in names:
            written: Any = inspect.getattr_static(self, name)
            inner = getattr(written, "__func__", None)
            if isinstance(written, Tool):
                made[name] = getattr(self, name)
            elif isinstance(written, staticmethod) and isinstance(inner, Tool):
                made[name] = copy(cast("AnyTool", inner))
            elif isinstance(written, classmethod) and isinstance(inner, Tool):
                # `getattr` returns a method of the tool from Python 3.13 on.
                made[name] = cast("AnyTool", inner).__get__(type(self))
        for bound in made.values():
            bound.approve = bound.approve or self.approve
            if not bound.read_only and bound.reconcile is None:
                bound.effect = bound.effect or self.effect
        return made

    async def aclose(self) -> None:
        """Close what the tools hold open, in all sessions; twice is harmless.

        A subclass that has more to close also calls this one.
        """
        await close_all(pair for each in self._states() for pair in each.held())

    async def __aenter__(self) -> Self:
        self._enter(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._enter(-1)
        if not self._blocks:
            await self.aclose()

    def _enter(self, blocks: int) -> None:
        # A subclass may have an `__aenter__` that does not come here.
        self._blocks = max(0, self._blocks + blocks)
        for each in self._states():
            each.shared = self._blocks > 0

    def _states(self) -> list[PerSession[Any]]:
        return [
            cast("PerSession[Any]", each)
            for each in vars(self).values()
            if isinstance(each, PerSession)
        ]


def flatten(items: Iterable[AnyTool | Toolkit]) -> list[AnyTool]:
    """Return all tools, those of the toolkits in their place; refuse two of one name."""
    require(items, Iterable, "tools must be a list of tools and toolkits")
    tools = (
        tool for item in items for tool in (item.tools if isinstance(item, Toolkit) else [item])
    )
    return list(by_name(tools).values())


def by_name(
    tools: Iterable[AnyTool], known: Mapping[str, AnyTool] | None = None
) -> dict[str, AnyTool]:
    """Return `known` and `tools` by name; raise `ConfigurationError` if two have the same.

    A call is found by its tool's name alone: the second of two would take the place of the first,
    which might have asked a person.
    """
    found = dict(known or {})
    for tool in tools:
        if not isinstance(getattr(tool, "name", None), str):  # a plain function, a class
            raise TypeError(
                f"{tool!r:.200} is no tool: make one of a function, by @tool or Tool(...)"
            )
        if (other := found.get(tool.name)) is not None:
            raise SameName(
                f"there are two tools called {tool.name!r}, from {other.source} and from"
                f" {tool.source}: give one another name="
            )
        found[tool.name] = tool
    return found
