"""Who a node of a run is, and what the journal has of it.

A node is known by who puts it, its class or function, the key it was given or else its inputs, the
how-manieth of these, and the attempt of each node above it. So it finds what it did in an earlier
life whatever else ran beside it, in whatever order.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from ..commander import ConfigurationError, NodeLimits
from ..commander.private import running_loop
from ..commander.scope import Attempt, Scope
from ._file import Row
from ._json import digest
from .errors import NotDurable

if TYPE_CHECKING:
    from ._state import JournalState

__all__ = ["NodeIdentity"]


class NodeIdentity(Scope):
    """Who a node of a run is. `ident` says that; `now` also in which attempt."""

    __slots__ = (
        "_counts",
        "_now",
        "attempt",
        "began",
        "durable",
        "free",
        "holds",
        "ident",
        "kept",
        "ledger",
        "outcome",
        "parent",
        "recorded",
        "root",
    )

    # What few nodes have is set where it is needed.
    # What it had spent when its outcome was recorded.
    _spent: Row | None = None
    # Whether it, or a node above it, may be tried again.
    retried = False
    # The identity without attempts that earlier releases gave it, where they gave it another one:
    # below a durable node, and in a second attempt. Their journals name effects by it.
    free_before: bytes | None = None
    # A wait for it that an earlier execution gave up before it ended, and this one not yet.
    given_up: dict[str, Any] | None = None
    # Whether it gives what the effect that it is for gave before: nothing below it is put again.
    skips = False
    # Whether another task than that of the putter's body has put it.
    aside = False
    # What others know its attempt by.
    _attempt: Attempt | None = None

    def __init__(
        self, ledger: JournalState, ident: bytes, free: bytes, parent: Self | None, root: bytes
    ) -> None:
        self.ledger = ledger
        self.ident = ident
        # The same without the attempts.
        self.free = free
        self.parent = parent
        # The root it is below, and itself if it is one.
        self.root = root
        # Who it is in this attempt; None for its end, of which few have to know.
        self._now: bytes | None = ident
        # By what it puts: how many of these in this attempt, and which task put the last aside.
        self._counts: (
            dict[str | bytes, tuple[int, weakref.ref[asyncio.Task[Any]] | None]] | None
        ) = None
        # The number of its attempt, and what the run's clock said when that began.
        self.attempt = 1
        self.began = 0.0
        # Whether effects below it that one attempt has begun are found by the next: see `holder`.
        self.holds = parent is None
        self.outcome: Row | None = None
        self.recorded = False
        # Whether how it ends, by itself, is known: of a node that is only left, nothing is.
        self.kept = False
        # Whether its outcome is kept.
        self.durable = False
        found = ledger.by_ident.get(ident)
        if isinstance(found, Row) and found.kind == "result":  # all that there is of most
            self.outcome, self.recorded, self.kept = found, True, True
        elif found is not None:
            self._read(ledger.rows(ident))
        if not self.recorded and ident in ledger.cancelled:
            self.cancelled, self.kept = ledger.cancelled[ident].reason, True
            self._spent = ledger.find(ident, "usage")
        if root == ident:
            self.is_root = self.durable = True

    def _read(self, rows: Sequence[Row]) -> None:
        """Take what the journal has of it."""
        usage: Row | None = None
        for row in rows:
            kind = row.kind
            if kind == "result" or kind == "failure":
                if self.recorded:
                    # A second outcome is what callbacks have made of the first: they are over.
                    self.walked = True
                self.outcome, self.recorded, self.kept = row, True, True
                if usage is not None:
                    self._spent = usage
            elif kind == "usage":
                usage = row
            elif kind == "over":
                self.walked = True
            elif kind == "given up":
                self.given_up = json.loads(row.value)

    @property
    def now(self) -> bytes:
        """Who it is in this attempt. Its final callbacks have one of their own."""
        if self._now is None:
            self._now = digest(self.ident, "end")
        return self._now

    @property
    def in_attempt(self) -> bytes:
        """Who it was in its last attempt, also when that is over."""
        return self.ident if self.attempt == 1 else digest(self.ident, self.attempt)

    @property
    def free_now(self) -> bytes:
        """Return `now` without the attempts."""
        closing = self.now == digest(self.ident, "end")
        return digest(self.free, "end") if closing else self.free

    @property
    def counted(self) -> list[NodeLimits]:
        return self.ledger.counted

    @property
    def holder(self) -> Self:
        """The nearest at or above it whose effects belong together: a durable or a retried node."""
        scope = self
        while not scope.holds and scope.parent is not None:
            scope = scope.parent
        return scope

    def up(self) -> Iterator[Self]:
        """Give it and all above it."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def path(self) -> list[list[str]]:
        """Return who it is and in which attempt, and all above it up to its root."""
        above = [] if self.parent is None or self.is_root else self.parent.path()
        return [[self.ident.hex(), self.now.hex()], *above]

    def require_own_loop(self, what: object) -> None:
        """Refuse what a thread asks for, also on a loop of its own: rows have one order."""
        if running_loop() is not self.ledger.loop:
            raise NotDurable(
                f"{what} is asked for in a thread, and not on the loop of its run: what the run is"
                " to keep is asked for by its async code; a plain function is a step, or a tool"
            )

    def number(
        self, of: str | bytes, key: str | None = None, *, aside: bool = False, what: str = ""
    ) -> int:
        """Return the how-manieth of these it is, from 0, in this attempt; or refuse it.

        `what` says what it is, where `of` does not.
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

    def attempt_here(self) -> Attempt:
        if self._attempt is None:
            above = None if self.parent is None or self.is_root else self.parent.attempt_here()
            self._attempt = Attempt(above, self.ledger.life)
        return self._attempt
