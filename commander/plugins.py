"""Code that is imported at its first use: plug-ins of other distributions, and lazy names.

Plug-ins are entry points. Each kind has a group, such as `anabranch.providers` for the prefixes of
`connect("openai:gpt-5-mini")`. Entry points are read only for a name that Anabranch does not know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._report import describe
from .errors import AnabranchError, ConfigurationError
from .other_names import class_advice

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["find_plugin", "lazy_names", "plugin_names"]


def find_plugin(group: str, name: str) -> Any:
    """Import and return the object that a package registered as `name`; None if none did.

    Raises `ConfigurationError` with the package's name if that fails or two packages have the name.
    An `AnabranchError` of the import, such as `MissingExtra`, propagates.
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
    """Return the names that installed packages registered in `group`, sorted."""
    return sorted({point.name for point in _registered(group)})


def _registered(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, without packages whose metadata cannot be read."""
    # Imported here, because it is slow and few programs need it.
    from importlib.metadata import distributions, entry_points

    try:
        return [*entry_points(group=group)]
    except Exception:  # noqa: BLE001 - the parser may raise anything for a broken file
        found: list[EntryPoint] = []
        for package in distributions():
            with suppress(Exception):
                found += package.entry_points.select(group=group)
        return [*dict.fromkeys(found)]


def _package(point: EntryPoint) -> str:
    # Not `dist.name`, which warns about missing metadata from Python 3.12 on.
    about = None if point.dist is None else point.dist.metadata
    return (about["Name"] if about and "Name" in about else "") or "unknown"


# --- names of Anabranch's packages


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package` that imports names at their first use (PEP 562).

    `modules` maps each module of the package to its names, separated by blanks. Type checkers
    cannot follow a `__getattr__`, so the package imports the same names under `TYPE_CHECKING`.

    The name of another framework's class raises an `ImportError` that says what to import.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            if (advice := class_advice(package, name)) is not None:
                # Not an `AttributeError`: `from ... import` would replace its message.
                raise ImportError(advice, name=package)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # `__getattr__` is not called for it again
        return value

    return load
