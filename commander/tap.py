"""The interface for recorders and reporters of a whole tree: `Tap`, and facts about events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import _events
from ._commander import Commander
from ._event import Event
from ._events import Batch
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
    "speaker_of",
    "type_name",
    "where_raised",
]


class Tap(_events.Tap):
    """A listener for recorders, under the name that stored data may have for it."""


def require_open(commander: Commander, call: str) -> None:
    """Raise `RuntimeError` unless `call` is made inside the commander's block, on its loop."""
    record = record_of(commander)
    if commander.state not in ("running", "joining"):
        raise RuntimeError(
            f"{call} must be called inside the block of 'async with Commander() as commander'"
        )
    if running_loop() is not record.tree.loop:
        raise RuntimeError(f"{call} must be called in the thread of the commander's event loop")


class RunIdentity(NamedTuple):
    """The identity of a node in a durable run, equal in all executions."""

    run_id: str
    identity: str
    recorded: bool  # the journal has its outcome, so its body does not run


def run_identity_of(event: Event) -> RunIdentity | None:
    """Return the identity of an event's node in its durable run; None if it is in no run."""
    source = event.source
    if not isinstance(source, Record) or source.scope is None:
        return None
    scope = source.scope
    return RunIdentity(*scope.identity, scope.is_recorded or scope.cancel_reason is not None)


def is_suspended(event: Event) -> bool:
    """Return whether the node's run is suspended, so that a later execution continues the node."""
    source = event.source
    return isinstance(source, Record) and source.scope is not None and source.scope.is_suspended


def own_actor(event: Event) -> Actor | None:
    """Return the actor whose work the node begins; None if a node above began it, or none did."""
    source = event.source
    return source.own_actor if isinstance(source, Record) else source.actor


def speaker_of(event: Event) -> str | None:
    """Return the agent whose answer has the text of an event: for most nodes `event.agent`."""
    actor = event.source.actor
    return None if actor is None else actor.answers_for or actor.agent


def where_raised(error: BaseException) -> str:
    """Return the line of a user's code that raised, as `"file.py:12 in task"`, or ""."""
    found = ""
    traceback = vars(BaseException)["__traceback__"].__get__(error)
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not found or not is_library(code.co_filename):
            found = f"{Path(code.co_filename).name}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return found


def limits_above(event: Event) -> list[NodeLimits]:
    """Return the limits of an event's node and of the nodes above it in its tree."""
    source = event.source
    if not isinstance(source, Record):
        return []
    every = (source, *source.ancestors())
    return [limits for each in every if (limits := each.limits) is not None]
