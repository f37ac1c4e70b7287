"""Find tools by name: `module:name`, or `module` for every tool in it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, cast

from ..commander._errors import ConfigurationError
from ._tool import AnyTool, Tool

__all__ = ["load_tools"]


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
