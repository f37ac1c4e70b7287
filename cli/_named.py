"""What a user names on the command line or in the environment: a module, or an object in one."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from ..commander import ConfigurationError

__all__ = ["import_named", "import_users_module", "users_codec"]

CODEC = "ANABRANCH_CODEC"


def import_users_module(module: str, what: str) -> Any:
    """Import a module, also from the current folder; `what` says whose it is."""
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:  # what a user's module does at its import
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
    """Return what a journal's values are sealed with, if the environment names it."""
    name = os.environ.get(CODEC)
    return import_named(name, f"{CODEC}={name}") if name else None
