"""Where a job's body runs, if not here: what a place offers the engine, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from ._record import record_of

if TYPE_CHECKING:
    from ._node import Node
    from ._snapshot import NodeSnapshot

__all__ = ["Away", "On", "Place", "send"]


class Away(Protocol):
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

    def below(self, depth: int) -> Sequence[NodeSnapshot]:
        """Return the unfinished nodes there, each before its children; the uppermost at `depth`."""
        ...

    def explain(self) -> str:
        """Say in a few words where the body is or what it waits for."""
        ...


@runtime_checkable
class Place(Protocol):
    """Somewhere else where bodies can run."""

    def prepare(self, node: Node[Any]) -> Away:
        """Make a job ready for the way; raise if it cannot go. Nothing has started yet."""
        ...


On: TypeAlias = Place | Literal["ray"]

# The engine stands below the rooms that offer places and must not import them: so a place that
# goes by a name is looked up when it is first used.
PLACES = {"ray": ("..cluster", "Ray")}


def send(job: Node[Any], on: On | None) -> None:
    """Let the body of `job` run `on`, by default where its class says; None is here."""
    if on is None:
        on = job.on
        if on is None:
            return
    record = record_of(job)
    record.away = _place(on).prepare(job)
    record.special = True


@cache
def _named(on: str) -> Place:
    room, name = PLACES[on]
    return getattr(import_module(room, __package__), name)()


def _place(on: object) -> Place:
    if isinstance(on, str) and on in PLACES:
        return _named(on)
    if isinstance(on, Place) and not isinstance(on, type):
        return on
    names = ", ".join(map(repr, PLACES))
    raise ValueError(f"on= must be {names} or a place such as Ray(num_gpus=1), not {on!r}")
