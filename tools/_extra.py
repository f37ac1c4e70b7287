"""Import what an extra brings, where it is first used, without holding up the loop."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import resolve_name
from types import ModuleType

import anyio.to_thread

from ..commander.errors import MissingExtra

__all__ = ["import_extra"]


async def import_extra(path: str, what: str, extra: str) -> ModuleType:
    """Return a module, imported in a thread; raise `MissingExtra` if it cannot be imported.

    `path` is absolute, or relative to this package (`._kernel`).
    """
    name = resolve_name(path, __package__)
    if (module := sys.modules.get(name)) is not None:
        return module
    try:
        return await anyio.to_thread.run_sync(import_module, name)
    except ImportError as error:
        raise MissingExtra(what, extra) from error
