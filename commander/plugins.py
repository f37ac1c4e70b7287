"""What other people's packages add to this one: the entry points of installed distributions.

A room that can be extended has a group of its own, such as `anabranch.providers` for what stands
before the colon in `connect("openai:gpt-5-mini")`. Nothing is read before a name is asked for
that the room does not know itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ._report import describe
from .errors import AnabranchError, ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["find_plugin", "plugin_names"]


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
