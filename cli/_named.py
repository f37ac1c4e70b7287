"""Modules and objects that a user names on the command line or in the environment."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib import import_module
from typing import Any, cast

from ..commander import ConfigurationError

__all__ = ["import_named", "import_users_module", "open_live", "users_codec"]

CODEC = "ANABRANCH_CODEC"


def import_users_module(module: str, what: str) -> Any:
    """Import a module, also from the current folder; an error calls it `what`."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:  # the module is a user's code
        raise ConfigurationError(
            f"{what} cannot be imported: {type(error).__name__}: {error}; start this in the folder"
            f" of {module.partition('.')[0]}, or name it in PYTHONPATH"
        ) from error


def import_named(place: str, what: str) -> Any:
    """Return the object that is named as `module:attribute`."""
    module, _, attribute = place.partition(":")
    if not (module and attribute):
        raise ConfigurationError(f"{what} is not module:attribute")
    found = import_users_module(module, what)
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ConfigurationError(f"{what}: the module {module} has no {attribute}") from None
    return found


def users_codec() -> Any:
    """Return the codec of a journal's values that the environment names, if any."""
    name = os.environ.get(CODEC)
    return import_named(name, f"{CODEC}={name}") if name else None


async def open_live(specs: Sequence[str], stack: AsyncExitStack) -> dict[str, Any]:
    """Return the objects that `--live` options name; they are closed with the stack."""
    opened = dict[str, Any]()
    for spec in specs:
        name, equals, place = spec.partition("=")
        if not (equals and name and ":" in place):
            raise ConfigurationError(f"--live is name=module:attribute, not {spec!r}")
        found = import_named(place, f"--live {spec}")
        if callable(found) and (isinstance(found, type) or not hasattr(found, "__aenter__")):
            found = cast("Any", found)()
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, AbstractAsyncContextManager):
            found = await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", found))
        opened[name] = found
    return opened
