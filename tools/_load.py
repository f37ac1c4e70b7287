"""Find tools by name: `python`, `web`, `mcp:COMMAND_OR_URL`, `module:name` or `module`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any, cast

from ..commander.errors import ConfigurationError
from ._mcp import McpServer
from ._python import PythonKernel
from ._tool import AnyTool, Tool
from ._web import WebBrowser
from .toolkits import Toolkit, flatten

__all__ = ["load_tools", "open_tools"]

# What stands between commas; those inside quotes belong to it.
PIECE = re.compile(r"""(?:'[^']*'|"[^"]*"|[^,])+""")


@asynccontextmanager
async def open_tools(*specs: str) -> AsyncGenerator[list[AnyTool]]:
    """Open the tools that `specs` name, for the length of the block.

    Each is a list with commas: `python`, `web`, `mcp:COMMAND_OR_URL`, or what `load_tools` takes.
    Every call of Python and of an MCP server's tools waits for a person's yes. A comma inside
    quotes does not count. Raises `ConfigurationError`, which says what went wrong, also if two
    tools have the same name.
    """
    async with AsyncExitStack() as stack:
        tools: list[AnyTool] = []
        for spec in specs:
            for name in _split(spec):
                tools += await _open(name, stack)
        yield flatten(tools)


async def _open(name: str, stack: AsyncExitStack) -> list[AnyTool]:
    if name.startswith("mcp:"):
        server = McpServer(name.removeprefix("mcp:").strip(), approve=True)
        return (await stack.enter_async_context(server)).tools
    if name in KITS:
        kit = await stack.enter_async_context(KITS[name]())
        return kit.tools
    return load_tools(name)


def _kernel() -> Toolkit:
    return PythonKernel(approve=True)


KITS = {"python": _kernel, "web": WebBrowser}


def _split(spec: str) -> list[str]:
    """Cut at the commas; a bare name after `module:name` is of the same module."""
    pieces = [piece.strip() for piece in PIECE.findall(spec)]
    names: list[str] = []
    for piece in pieces:
        of_module = names and ":" in names[-1] and not names[-1].startswith("mcp:")
        if of_module and ":" not in piece and piece not in KITS:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    return names


def load_tools(spec: str) -> list[AnyTool]:
    """Import the tools that `spec` names: `module:name`, `module:a,b` or `module` for all.

    A name may stand for a tool, a plain function, or a list of either; modules in the working
    directory are found as well. Raises `ConfigurationError`, which says what went wrong.
    """
    module_name, _, names = spec.partition(":")
    module = _import(module_name)
    if not names:
        return _all(module)
    return [found for name in names.split(",") for found in _named(module, name.strip())]


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"tools module {name!r} does not import: {fault}") from error
    finally:
        sys.path.remove(here)


def _all(module: ModuleType) -> list[AnyTool]:
    if tools := _tools(module):
        return list(tools.values())
    raise ConfigurationError(f"module {module.__name__!r} has no tools: mark functions with @tool")


def _named(module: ModuleType, name: str) -> list[AnyTool]:
    try:
        value = getattr(module, name)
    except AttributeError:
        raise ConfigurationError(
            f"module {module.__name__!r} has no {name!r}{_offer(module)}"
        ) from None
    return [_made(one, f"{module.__name__}:{name}") for one in _each(value)]


def _each(value: Any) -> Iterable[Any]:
    return cast("Iterable[Any]", value) if isinstance(value, (list, tuple)) else [value]


def _made(value: Any, spec: str) -> AnyTool:
    try:
        return cast("AnyTool", value) if isinstance(value, Tool) else Tool(value)
    except TypeError as error:
        raise ConfigurationError(f"{spec} cannot be a tool: {error}") from error


def _tools(module: ModuleType) -> dict[str, AnyTool]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Tool)}


def _offer(module: ModuleType) -> str:
    tools = _tools(module)
    return f"; its tools are {', '.join(tools)}" if tools else ""
