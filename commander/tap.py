"""What a room needs that follows a whole tree: the seam for recorders and reporters."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ._commander import Commander
from ._event import Event, EventKind
from ._events import Batch
from ._events import Tap as _Tap
from ._frames import is_library
from ._record import Actor, Record, record_of
from ._report import type_name
from .private import running_loop

if TYPE_CHECKING:
    from ._options import NodeLimits

__all__ = [
    "Batch",
    "RunIdentity",
    "Tap",
    "is_suspended",
    "limits_above",
    "own_actor",
    "require_open",
    "run_identity_of",
    "type_name",
    "where_raised",
]


class Tap(_Tap):
    """A listener that does not wait: `notify` is called with the first event after each `take`.

    For a commander that has been entered. `capacity` and `kinds` are as in `commander.events`.
    `notify` is called again when events would be dropped: if it takes them then, none is ever lost.
    `on_close` is called when no more events come. Neither may raise.
    """

    def __init__(
        self,
        commander: Commander,
        capacity: int,
        notify: Callable[[], None],
        kinds: Collection[EventKind] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(record_of(commander).tree, capacity, notify, kinds, on_close)

    def now(self) -> float:
        """Return what the clock of the events shows."""
        return self._tree.clock()

    @property
    def epoch(self) -> float:
        """The time of day at the zero of that clock."""
        return self._tree.origin.epoch


def require_open(commander: Commander, call: str) -> None:
    """Raise `RuntimeError` if `call` is not made inside the commander's block, on its loop."""
    record = record_of(commander)
    if commander.state not in ("running", "joining"):
        raise RuntimeError(
            f"{call} is called inside the commander's block: async with Commander() as commander:"
        )
    if running_loop() is not record.tree.loop:
        raise RuntimeError(f"{call} is called on the commander's own loop, in its thread")


class RunIdentity(NamedTuple):
    """Where a node stands in a durable run, the same in each of the run's lives."""

    run_id: str
    identity: str
    recorded: bool  # how it ends stands in the journal: its body does not run


def run_identity_of(event: Event) -> RunIdentity | None:
    """Return the place in a durable run of the node that an event is of."""
    source = event.source
    if not isinstance(source, Record) or source.scope is None:
        return None
    scope = source.scope
    return RunIdentity(*scope.identity, scope.is_recorded or scope.cancel_reason is not None)


def is_suspended(event: Event) -> bool:
    """Say whether a node that ends here goes on in a later life of its run, which is suspended."""
    source = event.source
    return isinstance(source, Record) and source.scope is not None and source.scope.is_suspended


def own_actor(event: Event) -> Actor | None:
    """Return whose work the node begins to do; None where that is said above it, or of nobody."""
    source = event.source
    return source.own_actor if isinstance(source, Record) else source.actor


def where_raised(error: BaseException) -> str:
    """Return the line of a user's own code that raised, as `"file.py:12 in task"`, or ""."""
    found = ""
    traceback = vars(BaseException)["__traceback__"].__get__(error)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not found or not is_library(code.co_filename):
            found = f"{Path(code.co_filename).name}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return found


def limits_above(event: Event) -> list[NodeLimits]:
    """Return the limits of the node that an event is of, and of those above it in its tree."""
    source = event.source
    if not isinstance(source, Record):
        return []
    every = (source, *source.ancestors())
    return [limits for each in every if (limits := each.limits) is not None]
