"""Import modules and objects that the user names on the command line or in the environment."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ..commander import ConfigurationError

if TYPE_CHECKING:
    from ..backends import Backend

__all__ = ["connect_named", "import_module_named", "import_named", "load_codec", "open_live"]

CODEC_VARIABLE = "ANABRANCH_CODEC"


def connect_named(spec: str) -> Backend:
    """Return the backend of a name; raise `ConfigurationError` for an address without a model."""
    from ..backends import connect  # here, because most commands need no model

    if spec.startswith(("http://", "https://")):
        raise ConfigurationError(
            "an address does not name its model. Write openai:MODEL, and set OPENAI_BASE_URL to the"
            " address"
        )
    return connect(spec)


def import_module_named(module: str, label: str) -> Any:
    """Import a module, also from the current folder; errors call it `label`."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:  # the module is a user's code
        raise ConfigurationError(
            f"{label} cannot be imported: {type(error).__name__}: {error}. Run the command in the"
            f" folder that contains {module.partition('.')[0]}, or add that folder to PYTHONPATH"
        ) from error


def import_named(place: str, label: str) -> Any:
    """Return the object that `place` names as `module:name`; errors call it `label`."""
    module, _, attribute = place.partition(":")
    if not (module and attribute):
        raise ConfigurationError(f"{label} must have the form module:name, such as app:Job")
    found = import_module_named(module, label)
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ConfigurationError(f"{label}: module {module} has no {attribute}") from None
    return found


def load_codec() -> Any:
    """Return the codec for journals that the environment names, None if it names none."""
    name = os.environ.get(CODEC_VARIABLE)
    return import_named(name, f"{CODEC_VARIABLE}={name}") if name else None


async def open_live(specs: Sequence[str], stack: AsyncExitStack) -> dict[str, Any]:
    """Return the objects that `--live` options name, by field.

    Functions are called, awaitables awaited, and context managers entered on `stack`.
    """
    opened = dict[str, Any]()
    for spec in specs:
        name, equals, place = spec.partition("=")
        if not (equals and name and ":" in place):
            raise ConfigurationError(f"--live must have the form FIELD=module:name, not {spec!r}")
        found = import_named(place, f"--live {spec}")
        if callable(found) and (isinstance(found, type) or not hasattr(found, "__aenter__")):
            found = cast("Any", found)()
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, AbstractAsyncContextManager):
            found = await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", found))
        opened[name] = found
    return opened
