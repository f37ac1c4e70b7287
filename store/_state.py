"""The journal state of one execution of a run: recorded rows, appended rows, and what stops it.

Once `trouble` is set nothing more is appended, so code that catches it cannot do harm. A journal
that does not fit the code is such a trouble (`mismatch`, `read_failure`), and parks the run.

An execution only adds rows. What a `resumed` row removes is removed when the rows are loaded.
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
from ..commander.errors import AnabranchError
from ._codec import Codec
from ._conversation import Conversations
from ._failure import decode_failure, mark, marks
from ._inbox import Inbox
from ._json import digest
from ._keys import Keys
from ._roots import Roots
from ._seal import Row
from ._unreplayed import Intents, Unreplayed
from ._usage import taken
from .errors import JournalError, JournalMismatch, LeaseLost

if TYPE_CHECKING:
    from ._file import JournalFile, RunRow
    from ._reply import ReplyRow
    from ._scope import NodeScope

__all__ = ["FIRST", "Cancel", "JournalState"]

CLOCK_STEP_SECONDS = 0.1  # by which the wall clock may drift before the journal says so

# The rows that say that something failed; and those that are removed of what runs again.
FAILURES = ("failure", "failed", "broken", "letter")
REMOVED = ("failure", "aborted", "letter", "waits", "because", "over", "usage")

# The kinds of rows that `of_kind` finds.
Indexed = Literal["root", "reply", "broken", "spent", "message", "gave", "cancelled"]

FIRST = digest("root")
"""The identity of the first root of every run."""

logger = logging.getLogger("anabranch.store")


class Cancel(NamedTuple):
    """A recorded cancel."""

    number: int  # of its row: one decision, whatever it ended
    reason: str
    by: list[list[str]]  # the path of the node that decided it
    after: float  # the seconds until then, in its execution


class JournalState:
    """The rows of a run in memory, for one execution, and what is appended to them."""

    def __init__(
        self,
        file: JournalFile,
        run: RunRow,
        rows: list[Row],
        live: Mapping[str, Any],
    ) -> None:
        self.file = file
        self.loop = asyncio.get_running_loop()
        self.run_id = run.run_id
        self.fence = run.fence
        # Identifies this execution among all in this process, of whatever journal.
        self.life = (run.run_id, object())
        # What the run's clock said when this execution began.
        self.clock_before = run.clock
        self.live = dict(live)
        self.keys = Keys(*live.values())
        # The limits of the run itself, which each of its roots has.
        self.limits: NodeLimits | None = None
        # These and the limits around the run, which count what earlier executions have used.
        self.counted: list[NodeLimits] = []
        # The number of the last row of an earlier execution, and of the last row of all.
        self.before = self.last = rows[-1].seq if rows else 0
        # When this execution began, by the loop's clock, and how far the wall clock was ahead of
        # it, as the journal knows it.
        self.start = self.loop.time()
        self._ahead = time.time() - self.start
        # How often a growing reply is written, in seconds; None: never.
        self.partials: float | None = None
        # What ends from now on has not ended by itself: it is resumed by the next execution.
        self.suspended = False
        # No effect starts any more; those in progress may still end.
        self.suspending = False
        self.under_way: set[asyncio.Future[Any]] = set()
        self.grace = 0.0
        self._suspension: asyncio.Future[None] | None = None
        # The effects and durable nodes that this execution has replayed or begun.
        self.claimed: set[bytes] = set()
        # What new effects wait for while they are held; by effect, the end of its current call.
        self.held: set[asyncio.Future[Any]] = set()
        self.doing: dict[bytes, asyncio.Future[Any]] = {}
        # By effect with a key: its callers, from the node up, each with the attempt.
        self.keyed: dict[bytes, list[tuple[NodeScope, int]]] = {}
        # The replies that are being read and are not complete yet.
        self.coming: list[ReplyRow] = []
        # By node: the question that it asks a person.
        self.asks: dict[bytes, tuple[bytes, NodeScope]] = {}
        self.inbox = Inbox()
        self.talks = Conversations(self)
        self.roots = Roots(self)
        # The error that stopped this execution: nothing more can be appended.
        self.trouble: BaseException | None = None
        # The nodes whose cancel is recorded, until they are cancelled again.
        self.doomed: dict[Node[Any], Cancel] = {}
        # By identity, oldest first: the only row of most identities, or the list of all.
        self.by_ident: dict[bytes, Row | list[Row]] = {}
        self._kinds: dict[str, list[Row]] = {kind: [] for kind in get_args(Indexed)}
        self.intents = Intents(run.created)
        # The letters that earlier executions have taken.
        self.taken: set[int] = set()
        # The questions whose answers a `resumed` row has removed: they are asked again.
        self.unanswered: set[bytes] = set()
        # The nodes that a recorded cancel has ended.
        self.cancelled: dict[bytes, Cancel] = {}
        by_ident = self.by_ident
        for row in rows:
            if row.kind == "result" and (ident := row.ident) not in by_ident:  # most rows
                by_ident[ident] = row
            else:
                self._load(row)

    # --- recorded rows

    def rows(self, ident: bytes) -> Sequence[Row]:
        """Return all rows of an identity, oldest first."""
        found = self.by_ident.get(ident, ())
        return (found,) if isinstance(found, Row) else found

    def find(self, ident: bytes, kind: str) -> Row | None:
        """Return the last row of this kind, or None."""
        for row in reversed(self.rows(ident)):
            if row.kind == kind:
                return row
        return None

    def every(self, ident: bytes, kind: str) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [row for row in self.rows(ident) if row.kind == kind]

    def of_kind(self, kind: Indexed) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [*self._kinds[kind]]

    def first_row(self, root: bytes) -> float:
        """Return the number of the row with which a root began; infinity for a new root."""
        row = self.find(root, "root")
        return row.seq if row is not None else 0 if root == FIRST else inf

    def root_idents(self) -> list[bytes]:
        """Return the identities of all roots, in the order in which they were put."""
        return [FIRST, *(row.ident for row in self.of_kind("root"))]

    def failed_roots(self) -> list[bytes]:
        """Return the identities of the roots that have failed."""
        outcomes = [(each, self.outcome(each)) for each in self.root_idents()]
        return [each for each, row in outcomes if row is not None and row.kind == "failure"]

    def is_over(self, root: bytes) -> bool:
        """Return whether a root has ended, its final callbacks included."""
        return self.find(root, "over") is not None

    def runs_again(self, path: list[list[str]], start: int = 0) -> bool:
        """Return whether the bodies of a path, from index `start` on, run again."""
        nodes = [(bytes.fromhex(ident), bytes.fromhex(now)) for ident, now in path]
        return not self.is_over(nodes[-1][0]) and all(
            self.outcome(ident) is None
            and ident not in self.cancelled
            and now == self.attempt(ident)[1]
            and self.find(now, "aborted") is None
            for ident, now in nodes[start:]
        )

    def attempt(self, ident: bytes) -> tuple[int, bytes]:
        """Return the number of the next attempt of a node, and its identity in that."""
        number = len(self.every(ident, "attempt")) + 1
        return number, ident if number == 1 else digest(ident, number)

    def outcome(self, ident: bytes) -> Row | None:
        """Return the row of a node's result or failure, as its final callbacks left it."""
        for row in reversed(self.rows(ident)):
            if row.kind in ("result", "failure"):
                return row
        return None

    def _add(self, row: Row) -> None:
        """Add a row to those that `find` returns."""
        before = self.by_ident.get(row.ident)
        if before is None:
            self.by_ident[row.ident] = row
        elif isinstance(before, list):
            before.append(row)
        else:
            self.by_ident[row.ident] = [before, row]
        if row.kind in self._kinds:
            self._kinds[row.kind].append(row)

    def _load(self, row: Row) -> None:
        if row.kind == "partial":
            return  # for those who watch the run: it is never replayed
        if row.kind == "resumed":
            self._remove_failures()
            self.intents.led_to.clear()  # what runs again may take another course
            return
        self._add(row)
        if row.kind == "intent":
            self.intents.add(row)
        elif row.kind == "takes":
            self.intents.add_takeover(row)
        elif row.kind == "gone":
            self.intents.lost.update(map(bytes.fromhex, json.loads(row.value).get("effects", ())))
        elif row.kind in ("letter", "refused"):
            self.taken.add(json.loads(row.value)["id"])
        elif row.kind == "cancelled":
            self._note_cancel(row.seq, row.value)

    def _note_cancel(self, number: int, data: bytes) -> None:
        cancel = json.loads(data)
        decision = Cancel(number, cancel["reason"], cancel["by"], cancel["after"])
        for ident in cancel["whom"]:
            self.cancelled.setdefault(bytes.fromhex(ident), decision)

    def _remove_failures(self) -> None:
        """Remove the failures that made roots fail, and the cancels that followed from them.

        A failure that code has caught stays: what that code did depends on it.
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
                for row in self.every(ident, "because")
                for each in json.loads(row.value)
            ]
            rows = [row for each in causes for kind in FAILURES for row in self.every(each, kind)]
            first[ident] = min((row.seq for row in rows), default=inf)
            left += causes
        for ident in again:
            if ident in self.by_ident:
                if self.find(ident, "letter") is not None:
                    self.unanswered.add(ident)
                rows = [row for row in self.rows(ident) if row.kind not in REMOVED]
                self.by_ident[ident] = [_resumed(row) for row in rows]
        for ident in self.by_ident:  # the timeout of what runs again starts from zero
            if self.find(ident, "began") is not None:
                self.by_ident[ident] = [row for row in self.rows(ident) if row.kind != "began"]
        for row in self.of_kind("cancelled"):
            cancel = json.loads(row.value)
            by = bytes.fromhex(cancel["by"][0][0])
            if by in again and (cancel["failed"] or row.seq > first[by]):
                for ident in map(bytes.fromhex, cancel["whom"]):
                    self.cancelled.pop(ident, None)
                self._kinds["cancelled"].remove(row)

    # --- what this execution does

    @cached_property
    def gone(self) -> Unreplayed:
        """What earlier executions have put and done, as it is when this is first asked for."""
        return Unreplayed(self)

    def count_in(self, limits: list[NodeLimits]) -> None:
        """Charge the limits around the run with what earlier executions have used.

        Not all of that is replayed: not what is below cancelled nodes or in ended rounds.
        """
        self.counted = limits
        rows = [*self.of_kind("reply"), *self.of_kind("broken"), *self.of_kind("spent")]
        for row in rows if limits else ():
            for account, usage in taken(row):
                for each in limits:
                    each.count_again(account, usage)

    def clock(self) -> float:
        """Return for how many seconds this run has had an owner, which `timeout=` counts.

        By the loop's clock, as the wall clock may be set.
        """
        return self.clock_before + self.loop.time() - self.start

    def append(self, ident: bytes, kind: str, value: bytes = b"", *, find: bool = False) -> bytes:
        """Append a row, and return its value without keys; it is on disk after the next barrier.

        With `find` this execution finds the row too. Raises the error that stopped the execution.
        """
        if self.trouble is not None:
            raise self.trouble
        value = self.keys.cut_json(value)
        row = Row(ident, kind, value)
        try:
            ahead = time.time() - self.loop.time()
            if abs(ahead - self._ahead) > CLOCK_STEP_SECONDS:  # the wall clock was set
                self._ahead = ahead
                clock = json.dumps({"clock": self.clock()}).encode()
                self.file.append(self.run_id, self.fence, Row(FIRST, "clock", clock))
            self.last = self.file.append(self.run_id, self.fence, row)
        except (LeaseLost, JournalError) as error:
            self.fail(error)
            raise
        if find:
            self._add(row._replace(seq=self.last, time=time.time()))
        return value

    def record(self, ident: bytes, kind: str, value: Any, *, find: bool = False) -> bytes:
        """Append a row with JSON data; otherwise as `append`."""
        return self.append(ident, kind, json.dumps(value).encode(), find=find)

    def keep_cancel(
        self,
        whom: list[bytes],
        reason: str,
        *,
        of: bytes = FIRST,
        by: list[list[str]] | None = None,
        failed: bool = False,
        after: float = 0,
    ) -> None:
        """Record that these nodes are cancelled, below the node `of`, by one decision.

        `by` is the path of the node that decided it, and `failed` whether it did so by failing.
        """
        cancel = {"reason": reason, "whom": [each.hex() for each in whom], "failed": failed}
        cancel |= {"by": by or [[FIRST.hex(), FIRST.hex()]], "after": after}
        data = self.record(of, "cancelled", cancel)
        self._note_cancel(self.last, data)

    def keep_causes(self, ident: bytes, error: BaseException, *others: bytes) -> None:
        """Record the failures that made a node fail, which no code has caught, for a resume."""
        if causes := marks(error).union(others):
            self.record(ident, "because", sorted(each.hex() for each in causes))

    def withdraw(self, ended: set[bytes]) -> None:
        """Withdraw the questions of these nodes and of those below them."""
        for asker, (question, asking) in list(self.asks.items()):
            if any(scope.ident in ended for scope in asking.up()):
                del self.asks[asker]
                self.append(question, "withdrawn")

    def fail(self, error: BaseException) -> None:
        """Stop this execution, as nothing more can be recorded: its tree is suspended.

        The outcome of the run raises `error`. Nodes that fail with it too are not logged.
        """
        if isinstance(error, AnabranchError):
            error.reported = True
        if self.trouble is None:
            self.trouble, self.suspended = error, True
            self.loop.call_soon_threadsafe(self.roots.stop, "nothing more of the run is kept")

    def mismatch(self, why: str) -> JournalMismatch:
        """Stop this execution and park the run; return the error to raise.

        Code that catches it gets no further: what it appends is refused, and its node is cancelled.
        """
        error = JournalMismatch(
            f"{why}: the code or its inputs have changed under the run; go on with the code as it"
            " was, or cancel the run"
        )
        self.fail(error)
        return error

    def read_failure(self, data: bytes | dict[str, Any], ident: bytes) -> BaseException:
        """Return a recorded failure; if it cannot be made again, stop this execution."""
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        error = decode_failure(data)
        if isinstance(error, JournalMismatch):
            self.fail(error)
        mark(error, ident)
        return error

    def suspend(self) -> asyncio.Future[None]:
        """Begin to suspend the run; the returned future is done when its tree has been cancelled.

        No effect begins any more. Those in progress get `grace` seconds to end and be recorded.
        """
        if self._suspension is None:
            self.suspending = True
            self.suspended = self.suspended or not self.under_way
            self._suspension = asyncio.ensure_future(self._suspend())
        return self._suspension

    async def _suspend(self) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.grace):
                    while self.under_way and not self.suspended:
                        await asyncio.wait(self.under_way)
        finally:
            self.suspended = True
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
                    "the run %r waits for a signal %r of the type %s, and letter %d does not fit"
                    " it: %s; it is refused, and the run waits for the next one",
                    *(self.run_id, name, codec.type_name, letter.id, why),
                )
                letter = await self.inbox.take(kind, name, due)
            value = {"id": None, "value": None}
            if letter is not None:
                value = {"id": letter.id, "value": letter.value.decode()}
            # The next attempt asks the same question and gets this answer.
            find = kind == "answer"
            data = self.record(ident, "letter", value, find=find)
        else:
            data = row.value
        value = json.loads(data)
        if value["value"] is None:
            error = TimeoutError(f"no {kind} {name!r} has come in time")
            mark(error, ident)
            raise error
        return value["value"].encode()

    async def barrier(self) -> None:
        """Wait until all appended rows are on disk; raise if the run is owned elsewhere by then."""
        try:
            await self.file.barrier(self.run_id, self.fence)
        except (JournalError, LeaseLost) as error:
            self.fail(error)
            raise


def _resumed(row: Row) -> Row:
    """Return what is left of a row of a node that runs again.

    A failed effect stays ended, and so is not in doubt, but no attempt gets its failure. The usage
    of a failed reply still counts.
    """
    if row.kind == "failed":
        return row._replace(value=json.dumps({**json.loads(row.value), "by": ""}).encode())
    if row.kind == "broken":
        return row._replace(kind="spent", value=json.dumps(json.loads(row.value)["said"]).encode())
    return row
