"""An execution of a run: recorded rows, appended rows, and the error that stopped it.

Once `stop_error` is set nothing more is appended, so code that catches the error can do no harm. A
journal that does not fit the code is such an error (`park`, `read_failure`), and parks the run.

An execution only adds rows. Rows that a `resumed` row removes are left out when rows are loaded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..commander import Node, NodeLimits
from ..commander.errors import AnabranchError, is_final
from ._checksums import Row
from ._codec import Codec
from ._conversation import Conversations
from ._failure import attach_idents, decode_failure, failure_idents
from ._inbox import Inbox
from ._json import digest
from ._keys import Keys
from ._reply import usage_in_row
from ._roots import Roots
from ._unreplayed import Intents, Unreplayed
from .errors import JournalError, JournalMismatch, LeaseLost

if TYPE_CHECKING:
    from ._journal_file import JournalFile, RunRow
    from ._reply import ReplyRow
    from ._scope import NodeScope

__all__ = ["FIRST_ROOT", "Cancel", "Execution"]

CLOCK_STEP_SECONDS = 0.1  # a larger step of the wall clock is recorded

# The kinds of rows that record a failure, and those that a resume removes.
FAILURE_KINDS = ("failure", "failed", "broken", "letter")
KINDS_REMOVED_ON_RESUME = ("failure", "aborted", "letter", "waits", "because", "over", "usage")

# The kinds of rows that `rows_of_kind` finds.
Indexed = Literal["root", "reply", "broken", "spent", "message", "gave", "cancelled"]

FIRST_ROOT = digest("root")
"""The identity of the first root of every run."""

logger = logging.getLogger("anabranch.store")


class Cancel(NamedTuple):
    """A recorded cancel."""

    number: int  # of its row, which identifies the decision
    reason: str
    by: list[list[str]]  # the path of the node that decided it
    after: float  # seconds from the start of its execution


class Execution:
    """One execution of a run: all its rows in memory, and the methods that append rows."""

    def __init__(
        self,
        file: JournalFile,
        run: RunRow,
        rows: list[Row],
        live: Mapping[str, Any],
    ) -> None:
        self.file = file
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.run_id: str = run.run_id
        self.fence: int = run.fence
        # Identifies this execution among those of all journals in this process.
        self.token: tuple[str, object] = (run.run_id, object())
        # The run's clock when this execution began.
        self.clock_at_start: float = run.clock
        self.live: dict[str, Any] = dict(live)
        self.keys: Keys = Keys(*live.values())
        # The limits of the run, which each of its roots has.
        self.limits: NodeLimits | None = None
        # These and the limits around the run, which were charged with earlier usage.
        self.counted_limits: list[NodeLimits] = []
        # The number of the last row of an earlier execution, and of the last row of all.
        self.last_recorded: int = rows[-1].seq if rows else 0
        self.last_number: int = self.last_recorded
        # When this execution began, by the loop's clock, and the last recorded difference between
        # the wall clock and that.
        self.started_at: float = self.loop.time()
        self._ahead = time.time() - self.started_at
        # The interval between writes of growing replies; None: never.
        self.partial_seconds: float | None = None
        # The ends of nodes are not recorded any more: the next execution resumes these nodes.
        self.suspended: bool = False
        # No effect starts any more; effects in progress may still end.
        self.suspending: bool = False
        self.grace_seconds: float = 0.0
        self._suspension: asyncio.Future[None] | None = None
        # The identities of effects and durable nodes that this execution has replayed or begun.
        self.reached: set[bytes] = set()
        # The futures at which held effects wait (see `_match`).
        self.held_effects: set[asyncio.Future[Any]] = set()
        # By effect whose call is in progress: a future that is done at its end.
        self.effects_in_progress: dict[bytes, asyncio.Future[Any]] = {}
        # By effect with a key: its caller and the nodes above, each with its attempt.
        self.keyed_callers: dict[bytes, list[tuple[NodeScope, int]]] = {}
        # The replies that are not complete yet.
        self.growing_replies: list[ReplyRow] = []
        # By node: the identity of the question that it asks a person.
        self.open_questions: dict[bytes, tuple[bytes, NodeScope]] = {}
        self.inbox: Inbox = Inbox()
        self.conversations: Conversations = Conversations(self)
        self.roots: Roots = Roots(self)
        # The error that stopped this execution: nothing more can be appended.
        self.stop_error: BaseException | None = None
        # The nodes that wait to be cancelled again, as their cancel is recorded.
        self.pending_cancels: dict[Node[Any], Cancel] = {}
        # By identity, oldest first: the only row of most identities, or the list of all.
        self.rows_by_ident: dict[bytes, Row | list[Row]] = {}
        self._kinds: dict[str, list[Row]] = {kind: [] for kind in get_args(Indexed)}
        self.intents: Intents = Intents(run.created)
        # The numbers of the letters that earlier executions have taken.
        self.taken_letters: set[int] = set()
        # The identities of answers that a `resumed` row has removed: the questions are asked again.
        self.removed_answers: set[bytes] = set()
        # By node that a recorded cancel has ended.
        self.recorded_cancels: dict[bytes, Cancel] = {}
        rows_by_ident = self.rows_by_ident
        for row in rows:
            if row.kind == "result" and (ident := row.ident) not in rows_by_ident:  # most rows
                rows_by_ident[ident] = row
            else:
                self._load(row)

    # --- recorded rows

    def rows(self, ident: bytes) -> Sequence[Row]:
        """Return all rows of an identity, oldest first."""
        found = self.rows_by_ident.get(ident, ())
        return (found,) if isinstance(found, Row) else found

    def find(self, ident: bytes, kind: str) -> Row | None:
        """Return the last row of this kind, or None."""
        for row in reversed(self.rows(ident)):
            if row.kind == kind:
                return row
        return None

    def find_all(self, ident: bytes, kind: str) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [row for row in self.rows(ident) if row.kind == kind]

    def rows_of_kind(self, kind: Indexed) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [*self._kinds[kind]]

    def first_row_number(self, root: bytes) -> float:
        """Return the number of the first row of a root; infinity for a new root."""
        row = self.find(root, "root")
        return row.seq if row is not None else 0 if root == FIRST_ROOT else inf

    def root_idents(self) -> list[bytes]:
        """Return the identities of all roots, in the order of their puts."""
        return [FIRST_ROOT, *(row.ident for row in self.rows_of_kind("root"))]

    def failed_roots(self) -> list[bytes]:
        """Return the identities of the roots that have failed."""
        outcomes = [(each, self.find_outcome(each)) for each in self.root_idents()]
        return [each for each, row in outcomes if row is not None and row.kind == "failure"]

    def is_over(self, root: bytes) -> bool:
        """Return whether a root has ended, its final callbacks included."""
        return self.find(root, "over") is not None

    def runs_again(self, path: list[list[str]], start: int = 0) -> bool:
        """Return whether the bodies of a path, from index `start` on, run again."""
        nodes = [(bytes.fromhex(ident), bytes.fromhex(now)) for ident, now in path]
        return not self.is_over(nodes[-1][0]) and all(
            self.find_outcome(ident) is None
            and ident not in self.recorded_cancels
            and now == self.next_attempt(ident)[1]
            and self.find(now, "aborted") is None
            for ident, now in nodes[start:]
        )

    def next_attempt(self, ident: bytes) -> tuple[int, bytes]:
        """Return the number of the next attempt of a node, and its identity in that."""
        number = len(self.find_all(ident, "attempt")) + 1
        return number, ident if number == 1 else digest(ident, number)

    def find_outcome(self, ident: bytes) -> Row | None:
        """Return the last row of a node's result or failure: final callbacks may change it."""
        for row in reversed(self.rows(ident)):
            if row.kind in ("result", "failure"):
                return row
        return None

    def _add(self, row: Row) -> None:
        """Add a row to those that `find` returns."""
        before = self.rows_by_ident.get(row.ident)
        if before is None:
            self.rows_by_ident[row.ident] = row
        elif isinstance(before, list):
            before.append(row)
        else:
            self.rows_by_ident[row.ident] = [before, row]
        if row.kind in self._kinds:
            self._kinds[row.kind].append(row)

    def _load(self, row: Row) -> None:
        if row.kind == "partial":
            return  # only for watchers of the run: it is never replayed
        if row.kind == "resumed":
            self._remove_failures()
            self.intents.led_to.clear()  # nodes that run again may take another course
            return
        self._add(row)
        if row.kind == "intent":
            self.intents.add(row)
        elif row.kind == "takes":
            self.intents.add_takeover(row)
        elif row.kind == "gone":
            self.intents.lost_effects.update(
                map(bytes.fromhex, json.loads(row.value).get("effects", ()))
            )
        elif row.kind in ("letter", "refused"):
            self.taken_letters.add(json.loads(row.value)["id"])
        elif row.kind == "cancelled":
            self._note_cancel(row.seq, row.value)

    def _note_cancel(self, number: int, data: bytes) -> None:
        cancel = json.loads(data)
        decision = Cancel(number, cancel["reason"], cancel["by"], cancel["after"])
        for ident in cancel["whom"]:
            self.recorded_cancels.setdefault(bytes.fromhex(ident), decision)

    def _remove_failures(self) -> None:
        """Remove the failures that made roots fail, and the cancels that followed from them.

        A failure that code has caught stays, as the later calls of that code depend on it.
        """
        left, again = self.failed_roots(), set[bytes]()
        first: dict[bytes, float] = {}  # by node: the row of the first failure that made it fail
        while left:
            ident = left.pop()
            if ident in again:
                continue
            again.add(ident)
            causes = [
                bytes.fromhex(each)
                for row in self.find_all(ident, "because")
                for each in json.loads(row.value)
            ]
            rows = [
                row
                for each in causes
                for kind in FAILURE_KINDS
                for row in self.find_all(each, kind)
            ]
            first[ident] = min((row.seq for row in rows), default=inf)
            left += causes
        for ident in again:
            if ident in self.rows_by_ident:
                if self.find(ident, "letter") is not None:
                    self.removed_answers.add(ident)
                rows = [row for row in self.rows(ident) if row.kind not in KINDS_REMOVED_ON_RESUME]
                self.rows_by_ident[ident] = [_resumed(row) for row in rows]
        for ident in self.rows_by_ident:  # timeouts of nodes that run again start from zero
            if self.find(ident, "began") is not None:
                self.rows_by_ident[ident] = [row for row in self.rows(ident) if row.kind != "began"]
        for row in self.rows_of_kind("cancelled"):
            cancel = json.loads(row.value)
            by = bytes.fromhex(cancel["by"][0][0])
            if by in again and (cancel["failed"] or row.seq > first[by]):
                for ident in map(bytes.fromhex, cancel["whom"]):
                    self.recorded_cancels.pop(ident, None)
                self._kinds["cancelled"].remove(row)

    # --- appended rows

    @cached_property
    def unreplayed(self) -> Unreplayed:
        """The recorded entries that were not replayed when this was first used."""
        return Unreplayed(self)

    def charge_earlier_usage(self, limits: list[NodeLimits]) -> None:
        """Charge the limits around the run with the usage of earlier executions.

        Replays do not charge it: nodes below cancelled nodes and in ended rounds are not replayed.
        """
        self.counted_limits = limits
        rows = [
            *self.rows_of_kind("reply"),
            *self.rows_of_kind("broken"),
            *self.rows_of_kind("spent"),
        ]
        for row in rows if limits else ():
            for account, usage in usage_in_row(row):
                for each in limits:
                    each.count_again(account, usage)

    def clock(self) -> float:
        """Return for how many seconds this run has had an owner; `timeout=` counts these.

        It uses the loop's clock, as the wall clock may be set.
        """
        return self.clock_at_start + self.loop.time() - self.started_at

    def append(
        self,
        ident: bytes,
        kind: str,
        value: bytes = b"",
        *,
        find: bool = False,
        ends_effect: bool = False,
    ) -> bytes:
        """Append a row, and return its value without keys; it is on disk after the next barrier.

        With `find` this execution finds the row too; other rows take no memory. Raises the error
        that stopped the execution, unless the row `ends_effect` and only a context was missing.
        """
        if self.stop_error is not None and not (ends_effect and self.lacks_context):
            raise self.stop_error
        value = self.keys.cut_json(value)  # before the row is queued or found
        row = Row(ident, kind, value)
        try:
            ahead = time.time() - self.loop.time()
            if abs(ahead - self._ahead) > CLOCK_STEP_SECONDS:  # the wall clock was set
                self._ahead = ahead
                clock = json.dumps({"clock": self.clock()}).encode()
                self.file.append(self.run_id, self.fence, Row(FIRST_ROOT, "clock", clock))
            self.last_number = self.file.append(self.run_id, self.fence, row)
        except (LeaseLost, JournalError) as error:
            self.fail(error)
            raise
        if find:
            self._add(row._replace(seq=self.last_number, time=time.time()))
        return value

    def record(
        self,
        ident: bytes,
        kind: str,
        value: Any,
        *,
        find: bool = False,
        ends_effect: bool = False,
    ) -> bytes:
        """Append a row with JSON data; otherwise as `append`."""
        data = json.dumps(value).encode()
        return self.append(ident, kind, data, find=find, ends_effect=ends_effect)

    def record_cancel(
        self,
        idents: list[bytes],
        reason: str,
        *,
        of: bytes = FIRST_ROOT,
        by: list[list[str]] | None = None,
        failed: bool = False,
        after: float = 0,
    ) -> None:
        """Record that these nodes are cancelled, below the node `of`, by one decision.

        `by` is the path of the node that decided it, and `failed` whether it did so by failing.
        """
        cancel = {"reason": reason, "whom": [each.hex() for each in idents], "failed": failed}
        cancel |= {"by": by or [[FIRST_ROOT.hex(), FIRST_ROOT.hex()]], "after": after}
        data = self.record(of, "cancelled", cancel)
        self._note_cancel(self.last_number, data)

    def record_causes(self, ident: bytes, error: BaseException, *others: bytes) -> None:
        """Record which uncaught failures made a node fail: a resume removes these."""
        if causes := failure_idents(error).union(others):
            self.record(ident, "because", sorted(each.hex() for each in causes))

    def withdraw_questions(self, ended: set[bytes]) -> None:
        """Withdraw the questions of these nodes and of those below them."""
        for asker, (question, asking) in list(self.open_questions.items()):
            if any(scope.ident in ended for scope in asking.up()):
                del self.open_questions[asker]
                self.append(question, "withdrawn")

    def fail(self, error: BaseException) -> None:
        """Stop this execution, as it can record nothing more, and suspend its tree.

        The outcome of the run raises `error`. Nodes that fail with it are not logged.
        """
        if isinstance(error, AnabranchError):
            error.reported = True
        if self.stop_error is None:
            self.stop_error, self.suspended = error, True
            self.loop.call_soon_threadsafe(
                self.roots.stop, "the journal cannot record the run any more"
            )

    def stop_for_context(self, error: Exception) -> None:
        """Stop this execution, as code needs a context that the next one may pass.

        Or nobody could be asked for approval, and the next one asks again: see `is_final`.

        That is no outcome of the run, whatever code does about the error. Only the ends of effects
        in progress are recorded: they get `grace` seconds, so that none is left in doubt.
        """
        if isinstance(error, AnabranchError):
            error.reported = True
        if self.stop_error is None:
            self.stop_error, self.suspended = error, True
            self.suspend()

    @property
    def lacks_context(self) -> bool:
        """Whether `stop_for_context` stopped this execution."""
        return is_final(self.stop_error)

    def park(self, why: str) -> JournalMismatch:
        """Stop this execution and park the run; return the error to raise.

        Code that catches it cannot continue: its appends are refused, and its node is cancelled.
        """
        error = JournalMismatch(
            f"{why}: the code or its inputs have changed since the run began; resume it with the"
            " earlier code, or cancel it"
        )
        self.fail(error)
        return error

    def read_failure(self, data: bytes | dict[str, Any], ident: bytes) -> BaseException:
        """Return a recorded failure; if it cannot be decoded, park the run."""
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        error = decode_failure(data)
        if isinstance(error, JournalMismatch):
            self.fail(error)
        attach_idents(error, ident)
        return error

    def suspend(self) -> asyncio.Future[None]:
        """Begin to suspend the run; the returned future is done when its tree has been cancelled.

        No effect begins any more. Those in progress get `grace` seconds to end and be recorded.
        """
        if self._suspension is None:
            self.suspending = True
            self.suspended = self.suspended or not self.effects_in_progress
            self._suspension = asyncio.ensure_future(self._suspend())
        return self._suspension

    async def _suspend(self) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.grace_seconds):
                    while self.effects_in_progress and (not self.suspended or self.lacks_context):
                        await asyncio.wait(self.effects_in_progress.values())
        finally:
            self.suspended = True  # first, so that the ends of cancelled nodes are not recorded
            self.roots.stop("the run is suspended")

    async def take_letter(
        self,
        ident: bytes,
        kind: str,
        name: str,
        due: float | None = None,
        codec: Codec | None = None,
    ) -> bytes:
        """Wait for a letter of this kind and name, and record that it is taken.

        Each execution gets the same letter for the same `ident`. One that `codec` cannot read is
        refused for good. Raises `TimeoutError` if none was sent until `due`, by the wall clock,
        and in each later execution too.
        """
        if (row := self.find(ident, "letter")) is None:
            letter = await self.inbox.take(kind, name, due)
            while letter is not None and codec is not None and (why := codec.refusal(letter.value)):
                refused = {"id": letter.id, "name": name, "type": codec.type_name, "why": why}
                self.record(digest("letter", letter.id), "refused", refused)
                logger.warning(
                    "the run %r refused the signal %r (letter %d), which is not of the type %s: %s."
                    " It waits for the next one.",
                    *(self.run_id, name, letter.id, codec.type_name, why),
                )
                letter = await self.inbox.take(kind, name, due)
            value = {"id": None, "value": None}
            if letter is not None:
                value = {"id": letter.id, "value": letter.value.decode()}
            # The next attempt of the node asks the same question and gets this answer.
            find = kind == "answer"
            data = self.record(ident, "letter", value, find=find)
        else:
            data = row.value
        value = json.loads(data)
        if value["value"] is None:
            error = TimeoutError(f"no {kind} {name!r} arrived in time")
            attach_idents(error, ident)
            raise error
        return value["value"].encode()

    async def barrier(self) -> None:
        """Wait until all appended rows are on disk; raise if the run has another owner."""
        try:
            await self.file.barrier(self.run_id, self.fence)
        except (JournalError, LeaseLost) as error:
            self.fail(error)
            raise


def _resumed(row: Row) -> Row:
    """Return a row of a node that runs again as the next execution finds it.

    A failed effect has ended, so it is not in doubt, but no attempt gets its failure. The usage of
    a failed reply still counts.
    """
    if row.kind == "failed":
        return row._replace(value=json.dumps({**json.loads(row.value), "by": ""}).encode())
    if row.kind == "broken":
        return row._replace(kind="spent", value=json.dumps(json.loads(row.value)["said"]).encode())
    return row
