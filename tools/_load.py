"""Tools by name: `python`, `web`, `mcp:COMMAND_OR_URL`, `module:name`, and what packages add.

A source is a function of the text after the colon ("" without one) that makes a `Toolkit`. Those of
other people's packages are their entry points in the group `anabranch.tools`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias, cast

from ..commander.errors import ConfigurationError
from ..commander.plugins import find_plugin
from ._mcp import McpServer
from ._python import PythonKernel
from ._tool import AnyTool, Tool
from ._web import WebBrowser
from .toolkits import Toolkit, flatten

__all__ = ["load_tools", "open_tools"]

Source: TypeAlias = Callable[[str], Toolkit]

GROUP = "anabranch.tools"
# What stands between commas; those inside quotes belong to it.
PIECE = re.compile(r"""(?:'[^']*'|"[^"]*"|[^,])+""")


@asynccontextmanager
async def open_tools(*specs: str) -> AsyncGenerator[list[AnyTool]]:
    """Open the tools that `specs` name, for the length of the block.

    Each is a list with commas: `python`, `web`, `mcp:COMMAND_OR_URL`, a source of an installed
    package (`NAME` or `NAME:TEXT`), or what `load_tools` takes. Every call of Python and of an MCP
    server's tools waits for a person's yes. A comma inside quotes does not count. Raises
    `ConfigurationError`, which says what went wrong, also if two tools have the same name.
    """
    async with AsyncExitStack() as stack:
        tools: list[AnyTool] = []
        for name in (name for spec in specs for name in _split(spec)):
            if (source := _find_source(name)) is None:
                tools += load_tools(name)
                continue
            if not callable(source):
                made = type(source).__name__
                raise ConfigurationError(f"{name!r} is {made}, and cannot be called")
            text = name.partition(":")[2].strip()
            kit = source(text)
            if not isinstance(kit, Toolkit):  # pyright: ignore[reportUnnecessaryIsInstance] - a package's
                raise ConfigurationError(f"{name!r} made {type(kit).__name__}, not a Toolkit")
            opened = (await stack.enter_async_context(kit)).tools
            if text and source not in SOURCES.values():  # those say themselves what they opened
                for each in opened:
                    each.spec = name.strip()
            tools += opened
        yield flatten(tools)


def _split(spec: str) -> list[str]:
    """Cut at the commas; a bare name after `module:name` is of the same module."""
    names: list[str] = []
    for piece in map(str.strip, PIECE.findall(spec)):
        of_module = names and ":" in names[-1] and _find_source(names[-1]) is None
        if of_module and ":" not in piece and _find_source(piece) is None:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    return names


def _find_source(name: str) -> Source | None:
    """Return the source before the colon of `name`, if it is one; else it is a module's name."""
    source = name.partition(":")[0].strip()
    return SOURCES.get(source) or find_plugin(GROUP, source)


def _open_python(text: str) -> Toolkit:
    if text:
        raise ConfigurationError(f"`python` takes nothing after a colon, not {text!r}")
    return PythonKernel(approve=True)


SOURCES: Mapping[str, Source] = {
    "mcp": lambda server: McpServer(server, approve=True),
    "python": _open_python,
    "web": lambda engine: WebBrowser(engine or None),
}


def load_tools(spec: str) -> list[AnyTool]:
    """Import the tools that `spec` names: `module:name`, `module:a,b` or `module` for all.

    A name may stand for a tool, a plain function, or a list of either; modules in the working
    directory are found as well. Raises `ConfigurationError`, which says what went wrong.
    """
    module_name, _, names = spec.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"tools module {module_name!r} does not import: {fault}"
        ) from error
    finally:
        sys.path.remove(here)
    tools: dict[str, AnyTool] = {
        name: value for name, value in vars(module).items() if isinstance(value, Tool)
    }
    if not names:
        if not tools:
            raise ConfigurationError(
                f"module {module_name!r} has no tools: mark functions with @tool"
            )
        return list(tools.values())
    found: list[AnyTool] = []
    for name in map(str.strip, names.split(",")):
        try:
            value: Any = getattr(module, name)
        except AttributeError:
            offer = f"; its tools are {', '.join(tools)}" if tools else ""
            raise ConfigurationError(f"module {module_name!r} has no {name!r}{offer}") from None
        for each in cast("list[Any]", value) if isinstance(value, (list, tuple)) else [value]:
            try:
                found.append(cast("AnyTool", each) if isinstance(each, Tool) else Tool(each))
            except TypeError as error:
                raise ConfigurationError(
                    f"{module_name}:{name} cannot be a tool: {error}"
                ) from error
    return found
