"""What other people's packages add to this one: the entry points of installed distributions.

A room that can be extended has a group of its own, such as `anabranch.providers` for what stands
before the colon in `connect("openai:gpt-5-mini")`. Nothing is read before a name is asked for
that the room does not know itself.
"""

from __future__ import annotations

from typing import Any

from .errors import AnabranchError, ConfigurationError

__all__ = ["find_plugin", "plugin_names"]


def find_plugin(group: str, name: str) -> Any:
    """Import and return what an installed package has registered as `name`; None if none has.

    Raises `ConfigurationError`, which names the package, if that fails or if two packages have
    the name. An `AnabranchError` raised by the import, such as `MissingExtra`, is passed on.
    """
    from importlib.metadata import entry_points  # costs more to import than most programs need

    found = [*entry_points(group=group, name=name)]
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted(point.dist.name for point in found if point.dist))
        raise ConfigurationError(
            f"{name!r} ({group}) comes from more than one package: uninstall all but one of"
            f" {packages}"
        )
    (point,) = found
    try:
        return point.load()
    except AnabranchError:
        raise
    except Exception as error:
        package = point.dist.name if point.dist else "unknown"
        raise ConfigurationError(
            f"{name!r} ({group}) of the package {package} cannot be loaded from {point.value!r}:"
            f" {type(error).__name__}: {error}"
        ) from error


def plugin_names(group: str) -> list[str]:
    """Return what is registered in `group` by all installed packages, sorted."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group).names)
