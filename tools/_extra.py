"""Import what an extra brings, where it is first used, without holding up the loop."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import resolve_name
from types import ModuleType

import anyio.to_thread

from ..commander._errors import MissingExtra

__all__ = ["import_extra"]


async def import_extra(module: str, what: str, extra: str) -> ModuleType:
    """Return a module, imported in a thread; raise `MissingExtra` if it cannot be imported.

    `module` is absolute, or relative to this package (`._kernel`).
    """
    name = resolve_name(module, __package__)
    if name in sys.modules:
        return sys.modules[name]
    try:
        return await anyio.to_thread.run_sync(import_module, name)
    except ImportError as error:
        raise MissingExtra(what, extra) from error
