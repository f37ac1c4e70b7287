"""The identity of a node in its run, and the rows that the journal has of it.

A node is identified by its putter, its class or function, its key or else its inputs, its ordinal
among identical siblings, and the attempt of each node above it. So it finds its rows of an earlier
execution whatever else ran beside it, and in whatever order.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from ..commander import ConfigurationError, NodeLimits
from ..commander.durable import DurableAttempt, DurableScope
from ..commander.private import running_loop
from ._file import Row
from ._json import digest
from .errors import NotDurable

if TYPE_CHECKING:
    from ._state import JournalState

__all__ = ["NodeIdentity"]


class NodeIdentity(DurableScope):
    """The identity of a node: `ident`, and with its attempt `now`."""

    __slots__ = (
        "_counts",
        "_now",
        "attempt",
        "began",
        "durable",
        "free",
        "holds",
        "ident",
        "is_recorded",
        "kept",
        "ledger",
        "outcome",
        "parent",
        "root",
    )

    # Few nodes set these.
    # Its usage when its outcome was recorded.
    _spent: Row | None = None
    # Whether it, or a node above it, may be tried again.
    retried = False
    # `free` of earlier releases where it differs: below a durable node, and in a second attempt.
    # Their journals name effects by it.
    free_before: bytes | None = None
    # A wait for it that an earlier execution gave up before it ended, and this one has not yet.
    given_up: dict[str, Any] | None = None
    # Whether it returns the recorded result of its effect, and so puts nothing again.
    skips = False
    # Whether another task than that of the putter's body has put it.
    aside = False
    # The attempt, as the engine knows it.
    _attempt: DurableAttempt | None = None

    def __init__(
        self, ledger: JournalState, ident: bytes, free: bytes, parent: Self | None, root: bytes
    ) -> None:
        self.ledger = ledger
        self.ident = ident
        # The identity without attempts.
        self.free = free
        self.parent = parent
        # The root it is below, and itself if it is one.
        self.root = root
        # `now`; None for its final callbacks, for which it is computed when needed.
        self._now: bytes | None = ident
        # By kind of what it puts: the number in this attempt, and the other task that put the last.
        self._counts: (
            dict[str | bytes, tuple[int, weakref.ref[asyncio.Task[Any]] | None]] | None
        ) = None
        # The number of its attempt, and the run's clock when that began.
        self.attempt = 1
        self.began = 0.0
        # Whether effects below it that one attempt has begun are found by the next: see `holder`.
        self.holds = parent is None
        self.outcome: Row | None = None
        self.is_recorded = False
        # Whether its own end is recorded, which that of a suspended node is not.
        self.kept = False
        # Whether its outcome is recorded.
        self.durable = False
        found = ledger.by_ident.get(ident)
        if isinstance(found, Row) and found.kind == "result":  # the only row of most nodes
            self.outcome, self.is_recorded, self.kept = found, True, True
        elif found is not None:
            self._read(ledger.rows(ident))
        if not self.is_recorded and ident in ledger.cancelled:
            self.cancel_reason, self.kept = ledger.cancelled[ident].reason, True
            self._spent = ledger.find(ident, "usage")
        if root == ident:
            self.is_root = self.durable = True

    def _read(self, rows: Sequence[Row]) -> None:
        """Read its rows."""
        usage: Row | None = None
        for row in rows:
            kind = row.kind
            if kind == "result" or kind == "failure":
                if self.is_recorded:
                    # A second outcome is that of its final callbacks, which are over.
                    self.has_run_callbacks = True
                self.outcome, self.is_recorded, self.kept = row, True, True
                if usage is not None:
                    self._spent = usage
            elif kind == "usage":
                usage = row
            elif kind == "over":
                self.has_run_callbacks = True
            elif kind == "given up":
                self.given_up = json.loads(row.value)

    @property
    def now(self) -> bytes:
        """The identity in this attempt. Its final callbacks have one of their own."""
        if self._now is None:
            self._now = digest(self.ident, "end")
        return self._now

    @property
    def in_attempt(self) -> bytes:
        """The identity in its last attempt, also when that is over."""
        return self.ident if self.attempt == 1 else digest(self.ident, self.attempt)

    @property
    def free_now(self) -> bytes:
        """The identity `now` without attempts."""
        closing = self.now == digest(self.ident, "end")
        return digest(self.free, "end") if closing else self.free

    @property
    def counted_limits(self) -> list[NodeLimits]:
        return self.ledger.counted

    @property
    def holder(self) -> Self:
        """The nearest durable or retried node, itself or above it: its attempts share effects."""
        scope = self
        while not scope.holds and scope.parent is not None:
            scope = scope.parent
        return scope

    def up(self) -> Iterator[Self]:
        """Yield it and all nodes above it."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def path(self) -> list[list[str]]:
        """Return `ident` and `now` of it and of all nodes above it, up to its root."""
        above = [] if self.parent is None or self.is_root else self.parent.path()
        return [[self.ident.hex(), self.now.hex()], *above]

    def require_own_loop(self, what: object) -> None:
        """Refuse calls from a thread, also on a loop of its own: rows have one order."""
        if running_loop() is not self.ledger.loop:
            raise NotDurable(
                f"{what} is asked for in a thread, and not on the loop of its run: what the run is"
                " to keep is asked for by its async code; a plain function is a step, or a tool"
            )

    def number(
        self, of: str | bytes, key: str | None = None, *, aside: bool = False, what: str = ""
    ) -> int:
        """Return the ordinal of a call among equal ones in this attempt, from 0, or refuse it.

        `what` describes it, where `of` does not.
        """
        what = what or f"{of}"
        task = asyncio.current_task() if aside else None
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        number, before = counts.get(of, (0, None))
        if number and key is not None:
            raise ConfigurationError(f"the key {key!r} is given to two {what.split(' [')[0]}")
        if number and (other := before and before()) is not task and aside and other is not None:
            raise ConfigurationError(
                f"several tasks put {what.split(' ')[1]} at once, and nothing that could be written"
                " tells one from the other: give each a key=, or put them in handlers, or a journal"
                " could not say whose result is whose"
            )
        counts[of] = (number + 1, None if task is None else weakref.ref(task))
        return number

    def current_attempt(self) -> DurableAttempt:
        if self._attempt is None:
            above = None if self.parent is None or self.is_root else self.parent.current_attempt()
            self._attempt = DurableAttempt(above, self.ledger.life)
        return self._attempt
