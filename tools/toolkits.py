"""Toolkits: tools that share state, lists of tools, and the import of an optional package.

All packages combine several tools with `flatten` or `by_name`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from importlib import import_module
from importlib.util import resolve_name
from types import ModuleType
from typing import Any, Self, TypeAlias, cast

import anyio.to_thread

from ..commander.errors import ConfigurationError, MissingExtra
from ..commander.kinds import require
from ._effect import EffectKind
from ._tool import AnyTool, Tool
from .sessions import PerSession, close_all

__all__ = ["ToolLike", "Toolkit", "by_name", "flatten", "import_extra"]


class DuplicateToolName(ConfigurationError, ValueError):
    """Two tools have the same name. The text gives the origin of both."""


class Toolkit:
    """An object whose `@tool` methods a model may call; they share its state.

        class Library(Toolkit):
            def __init__(self) -> None:
                self.books = PerSession(list[str])

            @tool
            def add_book(self, title: str) -> str:
                self.books.get().append(title)
                return "added"

    State in a `PerSession` exists once for each session. Inside `async with`, all sessions share
    one state, which is closed at the end of the block. With `approve` every call waits for a
    person's approval. `effect` is the default for tools that declare none: see `Tool`.
    """

    approve: bool = False
    effect: EffectKind | None = None
    _blocks = 0  # how many `async with` blocks are open

    @property
    def name(self) -> str:
        """The name of the class, unless a subclass overrides it."""
        return type(self).__name__

    @property
    def tools(self) -> list[AnyTool]:
        """The tools, bound to this object, in the order of their definition."""
        return flatten(self.methods.values())

    @property
    def methods(self) -> dict[str, AnyTool]:
        """The tools by the names of their methods; a tool's own name may differ."""
        names = dict.fromkeys(name for cls in reversed(type(self).__mro__) for name in vars(cls))
        bound_tools: dict[str, AnyTool] = {}
        for name in names:
            attribute: Any = inspect.getattr_static(self, name)
            function = getattr(attribute, "__func__", None)
            if isinstance(attribute, Tool):
                bound_tools[name] = getattr(self, name)
            elif isinstance(attribute, staticmethod) and isinstance(function, Tool):
                bound_tools[name] = copy(cast("AnyTool", function))
            elif isinstance(attribute, classmethod) and isinstance(function, Tool):
                # From Python 3.13 on, `getattr` binds the tool a second time.
                bound_tools[name] = cast("AnyTool", function).__get__(type(self))
        for bound in bound_tools.values():
            bound.approve = bound.approve or self.approve
            if not bound.read_only and bound.reconcile is None:
                bound.effect = bound.effect or self.effect
        return bound_tools

    async def aclose(self) -> None:
        """Close the state of the tools in all sessions. Twice is harmless.

        A subclass that closes more must also call this.
        """
        await close_all(pair for each in self._states() for pair in each.open_states())

    async def __aenter__(self) -> Self:
        self._enter(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._enter(-1)
        if not self._blocks:
            await self.aclose()

    def _enter(self, blocks: int) -> None:
        # A subclass may override `__aenter__` without calling this class, so `blocks` may be less
        # than 0.
        self._blocks = max(0, self._blocks + blocks)
        for each in self._states():
            each.shared = self._blocks > 0

    def _states(self) -> list[PerSession[Any]]:
        return [
            cast("PerSession[Any]", each)
            for each in vars(self).values()
            if isinstance(each, PerSession)
        ]


ToolLike: TypeAlias = AnyTool | Toolkit | Callable[..., Any]
"""A tool, a toolkit, or a plain function, which becomes a tool as by `@tool`."""


def flatten(items: Iterable[ToolLike]) -> list[AnyTool]:
    """Return all tools, also those of toolkits and functions; raise if two have the same name."""
    require(items, Iterable, "tools must be a list of tools, functions and toolkits")
    return list(by_name(tool for item in items for tool in _tools_of(item)).values())


def _tools_of(item: ToolLike) -> list[AnyTool]:
    if isinstance(item, Toolkit):
        return item.tools
    # No other callables: a class or an agent in the list is a mistake.
    if inspect.isfunction(item) or inspect.ismethod(item):
        return [Tool(item)]
    return [cast("AnyTool", item)]


def by_name(
    tools: Iterable[AnyTool], known: Mapping[str, AnyTool] | None = None
) -> dict[str, AnyTool]:
    """Return `known` and `tools` by name; raise `ConfigurationError` if two have the same name.

    Calls find their tool by name alone: a second tool of that name would replace the first, which
    might require approval.
    """
    tools_by_name = dict(known or {})
    for tool in tools:
        # Any object with the attributes of a `Tool` can be described. Agents have names, too.
        if not isinstance(getattr(tool, "name", None), str) or hasattr(tool, "as_tool"):
            raise TypeError(_not_a_tool(tool))
        if (other := tools_by_name.get(tool.name)) is not None:
            raise DuplicateToolName(
                f"there are two tools called {tool.name!r}, from {other.source} and from"
                f" {tool.source}; give one another name="
            )
        tools_by_name[tool.name] = tool
    return tools_by_name


def _not_a_tool(given: object) -> str:
    if not isinstance(given, type) and callable(getattr(given, "as_tool", None)):
        name = getattr(given, "name", None) or type(given).__name__
        return f"{name} is not a tool; use its as_tool()"
    return f"{given!r:.200} is not a tool; pass a function, or use @tool"


async def import_extra(path: str, what: str, extra: str) -> ModuleType:
    """Import a module in a thread; raise `MissingExtra` if the import fails.

    `path` is absolute, or relative to this package (`._kernel`). `what` is the feature in the
    error.
    """
    name = resolve_name(path, __package__)
    if (module := sys.modules.get(name)) is not None:
        return module
    try:
        return await anyio.to_thread.run_sync(import_module, name)
    except ImportError as error:
        raise MissingExtra(what, extra) from error
