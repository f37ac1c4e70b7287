"""What other people's packages add to this one: the entry points of installed distributions.

A room that can be extended has a group of its own, such as `anabranch.providers` for what stands
before the colon in `connect("openai:gpt-5-mini")`. Nothing is read before a name is asked for
that the room does not know itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._report import describe
from .errors import AnabranchError, ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["find_plugin", "lazy_names", "plugin_names"]


def find_plugin(group: str, name: str) -> Any:
    """Import and return what an installed package has registered as `name`; None if none has.

    Raises `ConfigurationError`, which names the package, if that fails or if two packages have
    the name. An `AnabranchError` raised by the import, such as `MissingExtra`, is passed on.
    """
    found = [point for point in _registered(group) if point.name == name]
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted({_package(point) for point in found}))
        raise ConfigurationError(
            f"{name!r} ({group}) comes from more than one package: uninstall all but one of"
            f" {packages}"
        )
    (point,) = found
    try:
        return point.load()
    except AnabranchError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{name!r} ({group}) of the package {_package(point)} cannot be loaded from"
            f" {point.value!r}: {describe(error)}"
        ) from error


def plugin_names(group: str) -> list[str]:
    """Return what is registered in `group` by all installed packages, sorted."""
    return sorted({point.name for point in _registered(group)})


def _registered(group: str) -> list[EntryPoint]:
    """Return what is registered; a package whose list cannot be read has registered nothing."""
    # It costs more to import than most programs need.
    from importlib.metadata import distributions, entry_points

    try:
        return [*entry_points(group=group)]
    except Exception:  # noqa: BLE001 - whatever a broken file makes of its parser
        found: list[EntryPoint] = []
        for package in distributions():
            with suppress(Exception):
                found += package.entry_points.select(group=group)
        return [*dict.fromkeys(found)]


def _package(point: EntryPoint) -> str:
    # Not `dist.name`, which warns from Python 3.12 on if the package has no metadata.
    about = None if point.dist is None else point.dist.metadata
    return (about["Name"] if about and "Name" in about else "") or "unknown"


# --- names of this package


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`.

    `modules` has, for each module of the package, the names that are found there, separated by
    blanks. A type checker does not look behind a `__getattr__`: the package imports the same names
    under `TYPE_CHECKING`, and calls this only where that is false.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next look finds it
        return value

    return load
