"""Places where a job's body can run, other than this process, and their names."""

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
    """A job's body that runs at a place, and the nodes below it there."""

    host: str | None
    """The machine; None until it has reported that the body began."""

    @property
    def place(self) -> Place | None:
        """The place of the put; None if the node was created there."""
        ...

    async def run(self, node: Node[Any]) -> Any:
        """Run the body in the place of `node.task()`, once for each attempt.

        Returns after all nodes below it there have ended.
        """
        ...

    def descendants(self, depth: int) -> Sequence[NodeSnapshot]:
        """Return the unfinished nodes there, each before its children, the topmost at `depth`."""
        ...

    def explain(self) -> str:
        """Describe the body's location or its wait in a few words."""
        ...


@runtime_checkable
class Place(Protocol):
    """A place where the bodies of jobs can run."""

    def prepare(self, node: Node[Any]) -> RemoteBody:
        """Return the remote body of a job; raise if the job cannot run there. Starts nothing."""
        ...


On: TypeAlias = Place | str
"""A place, or the name under which an installed package has registered one: `"ray"`."""

# Each entry point of this group is a place, or a class that creates one without arguments.
PLACES_GROUP = "anabranch.places"


@cache
def _named(name: str) -> Place:
    found = find_plugin(PLACES_GROUP, name)
    if found is None:
        names = ", ".join(map(repr, plugin_names(PLACES_GROUP))) or "none"
        raise ValueError(f"unknown place {name!r}; installed packages have: {names}")
    return found() if isinstance(found, type) else found


def find_place(on: object) -> Place:
    """Return the place that `on=` is or names; raise `ValueError` if there is none."""
    place = _named(on) if isinstance(on, str) else on
    if isinstance(place, Place) and not isinstance(place, type):
        return place
    raise ValueError(f"on= must be a name or a place such as Ray(num_gpus=1), not {on!r}")
