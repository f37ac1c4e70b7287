"""Tools by name: `python`, `web`, `mcp:COMMAND_OR_URL`, `module:name`, and those of packages.

A source is a function that takes the text after the colon ("" without one) and returns a `Toolkit`.
Installed packages add sources as entry points in the group `anabranch.tools`.
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

ENTRY_POINT_GROUP = "anabranch.tools"
# Matches one name between commas. Commas inside quotes belong to the name.
SPEC_NAME = re.compile(r"""(?:'[^']*'|"[^"]*"|[^,])+""")


@asynccontextmanager
async def open_tools(*specs: str) -> AsyncGenerator[list[AnyTool]]:
    """Open the tools that `specs` name, for the length of the block.

    Each spec is a list with commas: `python`, `web`, `mcp:COMMAND_OR_URL`, a source of an installed
    package (`NAME` or `NAME:TEXT`), or a spec of `load_tools`. Commas inside quotes do not
    separate. Calls of Python and of MCP tools wait for a person's approval. Raises
    `ConfigurationError` if a source fails or two tools have the same name.

        async with open_tools("web,mcp:uvx mcp-server-git") as tools:
            await run(ChatJob(backend, conversation, tools))
    """
    async with AsyncExitStack() as stack:
        tools: list[AnyTool] = []
        for name in (name for spec in specs for name in _split(spec)):
            if (source := _find_source(name)) is None:
                tools += load_tools(name)
                continue
            if not callable(source):
                made = type(source).__name__
                raise ConfigurationError(f"the entry point {name!r} must be a function, not {made}")
            text = name.partition(":")[2].strip()
            kit = source(text)
            if not isinstance(kit, Toolkit):  # pyright: ignore[reportUnnecessaryIsInstance] - any package's
                raise ConfigurationError(
                    f"{name!r} must return a Toolkit, not {type(kit).__name__}"
                )
            opened = (await stack.enter_async_context(kit)).tools
            # Built-in toolkits describe their origin themselves.
            if text and source not in BUILT_IN_SOURCES.values():
                for each in opened:
                    each.spec = name.strip()
            tools += opened
        yield flatten(tools)


def _split(spec: str) -> list[str]:
    """Split at the commas; a bare name after `module:name` belongs to the same module."""
    names: list[str] = []
    for piece in map(str.strip, SPEC_NAME.findall(spec)):
        is_module = names and ":" in names[-1] and _find_source(names[-1]) is None
        if is_module and ":" not in piece and _find_source(piece) is None:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    return names


def _find_source(name: str) -> Source | None:
    """Return the source before the colon of `name`; None if that names a module."""
    source = name.partition(":")[0].strip()
    return BUILT_IN_SOURCES.get(source) or find_plugin(ENTRY_POINT_GROUP, source)


def _open_python(text: str) -> Toolkit:
    if text:
        raise ConfigurationError(f"`python` must have no text after a colon, not {text!r}")
    return PythonKernel(approve=True)


BUILT_IN_SOURCES: Mapping[str, Source] = {
    "mcp": lambda server: McpServer(server, approve=True),
    "python": _open_python,
    "web": lambda engine: WebBrowser(engine or None),
}


def load_tools(spec: str) -> list[AnyTool]:
    """Import the tools that `spec` names: `module:name`, `module:a,b` or `module` for all.

    A name may refer to a tool, a plain function, or a list of either. Modules in the working
    directory are found too. Raises `ConfigurationError` if the module or a name cannot be used.

        tools = load_tools("my_tools:add,subtract")
    """
    module_name, _, names = spec.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"cannot import the tools module {module_name!r}: {fault}"
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
    tools_found: list[AnyTool] = []
    for name in map(str.strip, names.split(",")):
        try:
            value: Any = getattr(module, name)
        except AttributeError:
            offer = f"; its tools are {', '.join(tools)}" if tools else ""
            raise ConfigurationError(f"module {module_name!r} has no {name!r}{offer}") from None
        for each in cast("list[Any]", value) if isinstance(value, (list, tuple)) else [value]:
            try:
                tools_found.append(cast("AnyTool", each) if isinstance(each, Tool) else Tool(each))
            except TypeError as error:
                raise ConfigurationError(
                    f"{module_name}:{name} cannot be a tool: {error}"
                ) from error
    return tools_found
