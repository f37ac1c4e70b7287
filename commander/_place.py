"""Where a job's body runs, if not here: what a place offers the engine, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from .plugins import find_plugin, plugin_names

if TYPE_CHECKING:
    from ._node import Node
    from ._snapshot import NodeSnapshot

__all__ = ["On", "Place", "RemoteBody", "find_place"]


class RemoteBody(Protocol):
    """A job's body that runs elsewhere, and the subtree below it there, as far as is known here."""

    host: str | None
    """The machine, once it has told that the body began."""

    @property
    def place(self) -> Place | None:
        """Where it was sent; None if it lives there."""
        ...

    async def run(self, node: Node[Any]) -> Any:
        """Do what `node.task()` would do, once for each attempt; end after the subtree there."""
        ...

    def descendants(self, depth: int) -> Sequence[NodeSnapshot]:
        """Return the unfinished nodes there, each before its children; the uppermost at `depth`."""
        ...

    def explain(self) -> str:
        """Say in a few words where the body is or what it waits for."""
        ...


@runtime_checkable
class Place(Protocol):
    """Somewhere else where bodies can run."""

    def prepare(self, node: Node[Any]) -> RemoteBody:
        """Make a job ready for the way; raise if it cannot go. Nothing has started yet."""
        ...


On: TypeAlias = Place | str
"""A place, or the name under which an installed package has registered one: `"ray"`."""

# Each entry point of this group is a place, or a class that is made one without arguments.
GROUP = "anabranch.places"


@cache
def _named(name: str) -> Place:
    found = find_plugin(GROUP, name)
    if found is None:
        names = ", ".join(map(repr, plugin_names(GROUP))) or "none"
        raise ValueError(f"there is no place {name!r} to run on; installed packages have: {names}")
    return found() if isinstance(found, type) else found


def find_place(on: object) -> Place:
    """Return the place that `on=` gives or names; raise `ValueError` if it is none."""
    place = _named(on) if isinstance(on, str) else on
    if isinstance(place, Place) and not isinstance(place, type):
        return place
    raise ValueError(f"on= must be a name or a place such as Ray(num_gpus=1), not {on!r}")
