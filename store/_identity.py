"""The identity of a node in its run: a node finds its rows of earlier executions by it.

The identity is a digest of its putter, its class or function, its key or else its inputs, its
ordinal among identical siblings, and the attempt of each node above it. So it does not depend on
other nodes that run at the same time, or on their order.
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
from ._journal_file import Row
from ._json import digest
from .errors import NotDurable

if TYPE_CHECKING:
    from ._execution import Execution

__all__ = ["NodeIdentity"]


class NodeIdentity(DurableScope):
    """The identity of a node: `ident`, and with its attempt `attempt_ident`."""

    __slots__ = (
        "_attempt_ident",
        "_counts",
        "attempt",
        "base_ident",
        "began",
        "execution",
        "has_recorded_end",
        "ident",
        "is_durable",
        "outcome",
        "parent",
        "root",
        "shares_effects",
    )

    # Class attributes, as few nodes set them, and a run may have millions of nodes.
    # Its usage when its outcome was recorded.
    _recorded_usage: Row | None = None
    # Whether it, or a node above it, has `retry=`.
    is_retried = False
    # `base_ident` as earlier releases computed it, where that differs: below a durable node, and in
    # a second attempt. Their journals name effects by it.
    old_base_ident: bytes | None = None
    # A wait for it that timed out in an earlier execution, and has not timed out in this one.
    given_up: dict[str, Any] | None = None
    # Whether it returns the recorded result of its effect, and so puts no nodes again.
    returns_recorded = False
    # Whether a task other than the putter's body has put it.
    is_aside = False
    # The current attempt for the engine, made when it first asks.
    _attempt: DurableAttempt | None = None

    def __init__(
        self,
        execution: Execution,
        ident: bytes,
        base_ident: bytes,
        parent: Self | None,
        root: bytes,
    ) -> None:
        self.execution: Execution = execution
        self.ident: bytes = ident
        # The identity without attempts: effects of all attempts share it.
        self.base_ident: bytes = base_ident
        self.parent: Self | None = parent
        # The identity of its root, which may be itself.
        self.root: bytes = root
        # None once only final callbacks put nodes: few have any, so it is computed when needed.
        self._attempt_ident: bytes | None = ident
        # By description of a put or call: the count in this attempt, and the task of the
        # last one if that is not the body.
        self._counts: (
            dict[str | bytes, tuple[int, weakref.ref[asyncio.Task[Any]] | None]] | None
        ) = None
        # The number of its attempt, from 1, and the run's clock at the start of that.
        self.attempt: int = 1
        self.began: float = 0.0
        # Whether its next attempt finds the effects that this one began: see `effect_sharer`.
        self.shares_effects: bool = parent is None
        self.outcome: Row | None = None
        self.is_recorded: bool = False
        # Whether its end is recorded; that of a suspended node is not.
        self.has_recorded_end: bool = False
        # Whether its outcome is recorded when it ends.
        self.is_durable: bool = False
        found = execution.rows_by_ident.get(ident)
        if isinstance(found, Row) and found.kind == "result":  # most nodes have only this
            self.outcome, self.is_recorded, self.has_recorded_end = found, True, True
        elif found is not None:
            self._read(execution.rows(ident))
        if not self.is_recorded and ident in execution.recorded_cancels:
            self.cancel_reason: str | None = execution.recorded_cancels[ident].reason
            self.has_recorded_end = True
            self._recorded_usage = execution.find(ident, "usage")
        if root == ident:
            self.is_root = self.is_durable = True

    def _read(self, rows: Sequence[Row]) -> None:
        usage: Row | None = None
        for row in rows:
            kind = row.kind
            if kind == "result" or kind == "failure":
                if self.is_recorded:
                    # Its final callbacks have changed the outcome, so they are over.
                    self.has_run_callbacks: bool = True
                self.outcome, self.is_recorded, self.has_recorded_end = row, True, True
                if usage is not None:
                    self._recorded_usage = usage
            elif kind == "usage":
                usage = row
            elif kind == "over":
                self.has_run_callbacks = True
            elif kind == "given up":
                self.given_up = json.loads(row.value)

    @property
    def attempt_ident(self) -> bytes:
        """The identity in this attempt; another one while its final callbacks run."""
        if self._attempt_ident is None:
            self._attempt_ident = digest(self.ident, "end")
        return self._attempt_ident

    @property
    def last_attempt_ident(self) -> bytes:
        """The identity in its last attempt, also while its final callbacks run."""
        return self.ident if self.attempt == 1 else digest(self.ident, self.attempt)

    @property
    def base_attempt_ident(self) -> bytes:
        """`attempt_ident` without attempts: the base identity of the nodes that it puts."""
        closing = self.attempt_ident == digest(self.ident, "end")
        return digest(self.base_ident, "end") if closing else self.base_ident

    @property
    def counted_limits(self) -> list[NodeLimits]:
        return self.execution.counted_limits

    @property
    def effect_sharer(self) -> Self:
        """The nearest node, itself or above it, whose attempts share effects."""
        scope = self
        while not scope.shares_effects and scope.parent is not None:
            scope = scope.parent
        return scope

    def up(self) -> Iterator[Self]:
        """Yield this scope and the scopes of all nodes above it."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def path(self) -> list[list[str]]:
        """Return `ident` and `attempt_ident` of it and of all nodes above it, up to its root."""
        above = [] if self.parent is None or self.is_root else self.parent.path()
        return [[self.ident.hex(), self.attempt_ident.hex()], *above]

    def require_own_loop(self, what: object) -> None:
        """Raise `NotDurable` in a thread, also one with a loop: rows need a reproducible order."""
        if running_loop() is not self.execution.loop:
            raise NotDurable(
                f"{what} was called in a thread, but the order of threads cannot be replayed: call"
                " it on the event loop of the run, from async code"
            )

    def number(
        self, of: str | bytes, key: str | None = None, *, aside: bool = False, label: str = ""
    ) -> int:
        """Return the ordinal of a call among equal calls in this attempt, from 0.

        `of` identifies equal calls, and `label` names them in errors. Raises `ConfigurationError`
        for a second call with the same `key`, and for equal calls of several tasks, whose order may
        differ in the next execution.
        """
        task = asyncio.current_task() if aside else None
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        number, before = counts.get(of, (0, None))
        if number and key is not None:
            raise ConfigurationError(f"two {label} have the key {key!r}: give each its own key")
        if number and (other := before and before()) is not task and aside and other is not None:
            raise ConfigurationError(
                f"several tasks start {label} with equal inputs, and a resumed"
                " run could not tell them apart: give each a key=, or put each in its own handler"
            )
        counts[of] = (number + 1, None if task is None else weakref.ref(task))
        return number

    def current_attempt(self) -> DurableAttempt:
        if self._attempt is None:
            above = None if self.parent is None or self.is_root else self.parent.current_attempt()
            self._attempt = DurableAttempt(above, self.execution.token)
        return self._attempt
