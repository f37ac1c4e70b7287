"""One run in memory: what its journal has, by identity, and what is added to it.

What holds:

- `trouble` once set stays, and nothing is added any more: whoever catches it can do no harm. A
  journal that does not fit the code is such a trouble (`mismatch`, `failure`), and parks the run.
- A life only adds rows. What a `resumed` row takes away is taken away when rows are loaded.
- A root that is not over is put in each life: by its putter if that comes to it again, by the run
  if not, and when nothing else is left at the latest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import inf
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
)

from ..commander import ConfigurationError, Node, NodeLimits
from ._canonical import digest
from ._codec import Codec
from ._conversation import Talks
from ._failure import decode_failure, mark, marks
from ._file import Row
from ._gone import Gone
from ._inbox import Inbox
from ._keys import Keys
from ._usage import taken
from .errors import JournalError, JournalMismatch, LeaseLost

if TYPE_CHECKING:
    from ._durable import Durable
    from ._file import JournalFile, RunRow
    from ._reply import ReplyRow
    from ._scope import NodeScope

__all__ = ["FIRST", "Cancel", "Kept", "Ledger", "PutBy", "last_clock"]

T = TypeVar("T")

logger = logging.getLogger("anabranch.store")

# The rows that say that something has failed; and those that are taken away of what runs again.
ENDS = ("failure", "failed", "broken", "letter")
FORGOTTEN = ("failure", "aborted", "letter", "waits", "because", "over", "usage")

FIRST = digest("root")
"""Who the first root of every run is."""


class Kept(Protocol):
    """A node whose outcome the journal keeps."""

    _node_durable: ClassVar[bool]

    def _node_prepare(self, ledger: Ledger) -> tuple[str, bool]:
        """Take what the run brings, before the node is put; raise if something is missing.

        Returns the text of its inputs, and whether it says everything.
        """
        ...

    def _node_codec(self) -> Codec:
        """Return how its result is written."""
        ...


class Ledger:
    """What a run's journal has, and how more is added."""

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
        # This life among all in this process, of whatever journal.
        self.life = (run.run_id, object())
        # What the run's clock said when this life began, and when that was.
        self.clock_before = run.clock
        self._claimed = time.time()
        self.live = dict(live)
        self.keys = Keys(*live.values())
        # The limits around the run, which have counted what earlier lives have spent.
        self.counted: list[NodeLimits] = []
        # The number of the last row, of an earlier life or of this one; and of an earlier life.
        self.last = self.before = rows[-1].seq if rows else 0
        self.start = self.loop.time()
        # How often what is said in a reply that grows is written, in seconds; None: it is not.
        self.partials: float | None = None
        # Nothing that ends from now on has ended by itself: it is all taken up again.
        self.suspended = False
        # No effect starts any more; those that are under way may still end.
        self.suspending = False
        self.under_way: set[asyncio.Future[Any]] = set()
        self.grace = 0.0
        self._suspension: asyncio.Future[None] | None = None
        # By identity; the only one there is, as of most, or all of them, oldest first.
        self.by_ident: dict[bytes, Row | list[Row]] = {}
        # Those that are asked for by their kind.
        self._kinds: dict[str, list[Row]] = {
            kind: [] for kind in ("root", "reply", "broken", "spent", "message", "cancelled")
        }
        # Of effects below nodes that may be tried again: in which attempt each was begun last, and
        # which attempt has last taken it from an earlier one.
        self.begun: defaultdict[str, dict[bytes, str]] = defaultdict(dict)
        self.taken_effects: dict[bytes, str] = {}
        # The effects and durable nodes that this life has come to; the effects of earlier ones by
        # caller and name, and the nodes of new ones that wait.
        self.claimed: set[bytes] = set()
        self.intents: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
        self.held: dict[bytes, tuple[set[Node[Any]], set[asyncio.Future[Any]]]] = {}
        # The replies that are being read and are not whole yet.
        self.coming: list[ReplyRow] = []
        # What nodes ask a person, by who they are: the question, and the node.
        self.asks: dict[bytes, tuple[bytes, NodeScope]] = {}
        self.inbox = Inbox()
        self.talks = Talks(self)
        # The letters that were taken in earlier lives.
        self.taken: set[int] = set()
        # The questions whose answers a `resumed` row has taken away: they are asked anew.
        self.unanswered: set[bytes] = set()
        # The roots of this life that are not over, and all that were put in it.
        self.roots: dict[bytes, Node[Any]] = {}
        self.put: set[bytes] = set()
        # Those of them that were put and whose inputs are not kept yet.
        self._new: dict[bytes, Round] = {}
        # What the journal failed with: nothing more can be kept.
        self.trouble: BaseException | None = None
        # Whom a recorded cancel has ended, by which decision and why; and those that are held
        # until they are cancelled again.
        self.cancelled: dict[bytes, Cancel] = {}
        self.doomed: dict[Node[Any], Cancel] = {}
        by_ident = self.by_ident
        for row in rows:
            if row.kind == "result" and (ident := row.ident) not in by_ident:  # as most are
                by_ident[ident] = row
            else:
                self._load(row)

    def _load(self, row: Row) -> None:
        if row.kind == "partial":
            return  # for who looks at the run: no life goes on from it
        if row.kind == "resumed":
            self._forget_failures()
            return
        self._add(row)
        if row.kind == "intent":
            intent = json.loads(row.value)
            call = bytes.fromhex(intent.get("call", "")) or row.ident
            self.intents[intent["by"], intent["name"]].append(call)
            if "of" in intent:
                self.begun[intent["of"]][row.ident] = intent["in"]
        elif row.kind == "takes":
            takes = json.loads(row.value)
            self.taken_effects[bytes.fromhex(takes["effect"])] = takes["in"]
        elif row.kind in ("letter", "refused"):
            self.taken.add(json.loads(row.value)["id"])
        elif row.kind == "cancelled":
            self._know_cancel(row.seq, row.value)

    def _know_cancel(self, number: int, data: bytes) -> None:
        cancel = json.loads(data)
        decision = Cancel(number, cancel["reason"], cancel["by"], cancel["after"])
        for ident in cancel["whom"]:
            self.cancelled.setdefault(bytes.fromhex(ident), decision)

    def _forget_failures(self) -> None:
        """Take away the failures that made roots fail, and the cancels that followed from them.

        A failure that somebody's code has caught stays: what was done then stands on it.
        """
        left, gone = self.failed_roots(), set[bytes]()
        first: dict[bytes, float] = {}  # of what made each of them fail, the number of a row
        while left:
            ident = left.pop()
            if ident in gone:
                continue
            gone.add(ident)
            causes = [
                bytes.fromhex(each)
                for row in self.every(ident, "because")
                for each in json.loads(row.value)
            ]
            rows = [row for each in causes for kind in ENDS for row in self.every(each, kind)]
            first[ident] = min((row.seq for row in rows), default=inf)
            left += causes
        for ident in gone:
            if ident in self.by_ident:
                if self.find(ident, "letter") is not None:
                    self.unanswered.add(ident)
                rows = [row for row in self.rows(ident) if row.kind not in FORGOTTEN]
                self.by_ident[ident] = [_resumed(row) for row in rows]
        for ident in self.by_ident:  # what runs again has all of its time
            if self.find(ident, "began") is not None:
                self.by_ident[ident] = [row for row in self.rows(ident) if row.kind != "began"]
        for row in self.of_kind("cancelled"):
            cancel = json.loads(row.value)
            by = bytes.fromhex(cancel["by"][0][0])
            if by in gone and (cancel["failed"] or row.seq > first[by]):
                for ident in map(bytes.fromhex, cancel["whom"]):
                    self.cancelled.pop(ident, None)
                self._kinds["cancelled"].remove(row)

    def failed_roots(self) -> list[bytes]:
        """Return the roots that have failed."""
        roots = [FIRST, *(row.ident for row in self.of_kind("root"))]
        outcomes = [(each, self.outcome(each)) for each in roots]
        return [each for each, row in outcomes if row is not None and row.kind == "failure"]

    @cached_property
    def gone(self) -> Gone:
        """What earlier lives have put and done."""
        return Gone(self)

    def count_in(self, limits: list[NodeLimits]) -> None:
        """Let the limits around the run count what earlier lives have spent, before this one does.

        Not all of it is played again: not what stands below cancelled nodes, or in ended rounds.
        """
        self.counted = limits
        rows = [*self.of_kind("reply"), *self.of_kind("broken"), *self.of_kind("spent")]
        for row in rows if limits else ():
            for account, usage in taken(row):
                for each in limits:
                    each.count_again(account, usage)

    def clock(self) -> float:
        """Return for how many seconds this run has had an owner: `timeout=` goes by that."""
        return self.clock_before + max(0.0, time.time() - self._claimed)

    def rows(self, ident: bytes) -> Sequence[Row]:
        """Return all rows of an identity, oldest first."""
        found = self.by_ident.get(ident, ())
        return (found,) if isinstance(found, Row) else found

    def find(self, ident: bytes, kind: str) -> Row | None:
        """Return the last row of this kind; None if there is none."""
        for row in reversed(self.rows(ident)):
            if row.kind == kind:
                return row
        return None

    def every(self, ident: bytes, kind: str) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [row for row in self.rows(ident) if row.kind == kind]

    def of_kind(
        self, kind: Literal["root", "reply", "broken", "spent", "message", "cancelled"]
    ) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [*self._kinds[kind]]

    def began(self, root: bytes) -> float:
        """Return the number of the row with which a root began; a new one is after all there is."""
        row = self.find(root, "root")
        return row.seq if row is not None else 0 if root == FIRST else inf

    def append(self, ident: bytes, kind: str, value: bytes = b"", *, find: bool = False) -> bytes:
        """Add a row, and return its value without keys; it is on disk after the next barrier.

        With `find` this life finds it too, as it may come to it again. Raises what the journal
        failed with.
        """
        if self.trouble is not None:
            raise self.trouble
        value = self.keys.cut_json(value)
        row = Row(ident, kind, value)
        try:
            self.last = self.file.append(self.run_id, self.fence, row)
        except (LeaseLost, JournalError) as error:
            self.fail(error)
            raise
        if find:
            self._add(row._replace(seq=self.last, time=time.time()))
        return value

    def _add(self, row: Row) -> None:
        """Let this life find a row."""
        before = self.by_ident.get(row.ident)
        if before is None:
            self.by_ident[row.ident] = row
        elif isinstance(before, list):
            before.append(row)
        else:
            self.by_ident[row.ident] = [before, row]
        if row.kind in self._kinds:
            self._kinds[row.kind].append(row)

    def cancel(
        self,
        whom: list[bytes],
        reason: str,
        *,
        of: bytes = FIRST,
        by: list[list[str]] | None = None,
        failed: bool = False,
        after: float = 0,
    ) -> None:
        """Keep that these nodes are cancelled, below the node `of`: one decision, for all lives.

        `by` is the path of the node that has decided it, which has `failed` if that is why.
        """
        cancel = {"reason": reason, "whom": [each.hex() for each in whom], "failed": failed}
        cancel |= {"by": by or [[FIRST.hex(), FIRST.hex()]], "after": after}
        data = self.append(of, "cancelled", json.dumps(cancel).encode())
        self._know_cancel(self.last, data)

    def keep_causes(self, ident: bytes, error: BaseException) -> None:
        """Keep what a node fails of, for whoever resumes the run: what nobody has caught."""
        if causes := marks(error):
            value = json.dumps(sorted(each.hex() for each in causes)).encode()
            self.append(ident, "because", value)

    def withdraw(self, ended: set[bytes]) -> None:
        """Take back what these nodes, and those below them, ask a person."""
        for asker, (question, asking) in list(self.asks.items()):
            if any(scope.ident in ended for scope in asking.up()):
                del self.asks[asker]
                self.append(question, "withdrawn")

    def fail(self, error: BaseException) -> None:
        """Stop the run, as nothing more of it can be kept: its tree is suspended."""
        if self.trouble is None:
            self.trouble, self.suspended = error, True
            self.loop.call_soon_threadsafe(self.stop_roots, "nothing more of the run is kept")

    def mismatch(self, why: str) -> JournalMismatch:
        """Stop the run, which is parked then; return the error to raise.

        Whoever catches that can do nothing more: all that he adds is refused, and he is cancelled.
        """
        error = JournalMismatch(
            f"{why}: the code or its inputs have changed under the run; go on with the code as it"
            " was, or cancel the run"
        )
        self.fail(error)
        return error

    def failure(self, data: bytes, ident: bytes) -> BaseException:
        """Return the failure that is kept under this identity; one that is gone stops the run."""
        error = decode_failure(data)
        if isinstance(error, JournalMismatch):
            self.fail(error)
        mark(error, ident)
        return error

    def suspend(self) -> asyncio.Future[None]:
        """Begin to suspend the run; return what is done when its tree has been cancelled.

        No effect begins any more; those under way get `grace` seconds to end and to be kept.
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
            self.stop_roots("the run is suspended")

    def stop_roots(self, reason: str) -> None:
        """Cancel all that runs of it."""
        for root in list(self.roots.values()):
            root.cancel(reason)

    # --- roots: the first one, and rounds that were put outside the tree of whoever put them

    def add_root(self, scope: NodeScope, node: Node[Any], key: str | None, put: PutBy) -> None:
        """Let a round begin; what it was put with is kept as soon as its maker has said it all."""
        new = self.find(scope.ident, "root") is None
        if new:
            self.keys.refuse_inputs(cast("Durable[Any]", node)._node_write())
        self.roots[scope.ident] = node
        self.put.add(scope.ident)
        if new:
            self._new[scope.ident] = Round(scope, node, key, put)

    def keep_roots(self, only: bytes | None = None) -> None:
        """Keep the rounds that were put, or `only` that one: it begins, or its putter ends."""
        if not self._new:
            return
        for ident in [only] if only in self._new else [*self._new] if only is None else []:
            new = self._new[ident]
            node = cast("Durable[Any]", new.node)
            written = {**node._node_write(), "key": new.key, "free": new.scope.free.hex()}
            written["retried"] = new.scope.retried
            written |= {"path": new.put.path, "body": new.put.body}
            try:
                written["put"] = node._node_write_put()
            except (ConfigurationError, JournalMismatch) as error:
                # Its own failure, when it begins.
                new.scope.refused = ConfigurationError(str(error))
                written["put"] = {"refused": str(error)}
            self.append(ident, "root", json.dumps(written).encode(), find=True)
            del self._new[ident]

    def puts_again(self, written: dict[str, Any]) -> bool:
        """Say whether the putter of a round comes to its put again in this life.

        A body does not that has ended or was cut short, in another attempt, or that is skipped.
        """
        # A callback runs also where the body is skipped.
        return self.runs_again(written["path"], 0 if written["body"] else 1)

    def runs_again(self, path: list[list[str]], start: int = 0) -> bool:
        """Say whether the bodies of a path run again in this life, from number `start` on."""
        ways = [(bytes.fromhex(who), bytes.fromhex(now)) for who, now in path]
        return self.find(ways[-1][0], "over") is None and all(
            self.outcome(who) is None
            and who not in self.cancelled
            and now == self.attempt(who)[1]
            and self.find(now, "aborted") is None
            for who, now in ways[start:]
        )

    def attempt(self, ident: bytes) -> tuple[int, bytes]:
        """Return which attempt of a node is to be made, by earlier lives, and who it is in that."""
        number = len(self.every(ident, "attempt")) + 1
        return number, ident if number == 1 else digest(ident, number)

    def outcome(self, ident: bytes) -> Row | None:
        """Return a node's result or failure, which its final callbacks may have changed."""
        for row in reversed(self.rows(ident)):
            if row.kind in ("result", "failure"):
                return row
        return None

    def end_root(self, scope: NodeScope) -> None:
        """Take note that a round and its final callbacks are over: it is not walked again."""
        if not self.suspended and scope.kept and self.find(scope.ident, "over") is None:
            self.keep_roots()
            self.append(scope.ident, "over", find=True)

    async def letter(
        self,
        ident: bytes,
        kind: str,
        name: str,
        due: float | None = None,
        codec: Codec | None = None,
    ) -> bytes:
        """Wait for what somebody sends to the run under this name, and take it: it is a row then.

        `ident` says who takes it, who gets the same in each life. What `codec` cannot read is
        refused, for each life, and the next is waited for. Raises `TimeoutError` if nothing was
        sent until `due`, by the wall's clock, and in each later life too.
        """
        if (row := self.find(ident, "letter")) is None:
            letter = await self.inbox.take(kind, name, due)
            while letter is not None and codec is not None and (why := codec.misfit(letter.value)):
                refused = {"id": letter.id, "name": name, "type": codec.shown, "why": why}
                self.append(digest("letter", letter.id), "refused", json.dumps(refused).encode())
                logger.warning(
                    "the run %r waits for a signal %r of the type %s, and letter %d does not fit"
                    " it: %s; it is refused, and the run waits for the next one",
                    *(self.run_id, name, codec.shown, letter.id, why),
                )
                letter = await self.inbox.take(kind, name, due)
            value = {"id": None, "value": None}
            if letter is not None:
                value = {"id": letter.id, "value": letter.value.decode()}
            data = self.append(ident, "letter", json.dumps(value).encode())
        else:
            data = row.value
        value = json.loads(data)
        if value["value"] is None:
            error = TimeoutError(f"no {kind} {name!r} has come in time")
            mark(error, ident)
            raise error
        return value["value"].encode()

    async def barrier(self) -> None:
        """Wait until all that was added is on disk, and the run is still owned here."""
        try:
            await self.file.barrier(self.run_id, self.fence)
        except (JournalError, LeaseLost) as error:
            self.fail(error)
            raise


def last_clock(rows: list[Row]) -> float:
    """Return what a run's clock said when the last of these rows was written that says it."""
    said = [row.value for row in rows if row.kind in ("began", "attempt")]
    return json.loads(said[-1])["clock"] if said else 0.0


class PutBy(NamedTuple):
    """Who puts a round: the putter and those above it up to its root; its body, or a callback."""

    path: list[list[str]]
    body: bool


class Round(NamedTuple):
    """A round that was put, and is not kept yet."""

    scope: NodeScope
    node: Node[Any]
    key: str | None
    put: PutBy


class Cancel(NamedTuple):
    """A recorded cancel: the number of its row, one decision whatever it ended; and why."""

    number: int
    reason: str
    by: list[list[str]]  # the path of the node that has decided it
    after: float  # the seconds that this took, in its life


def _resumed(row: Row) -> Row:
    """Return what is left of a row of what runs again.

    The end of an effect is that of no attempt: it has ended, and is in no doubt. What a reply that
    failed has taken is spent.
    """
    if row.kind == "failed":
        return row._replace(value=json.dumps({**json.loads(row.value), "by": ""}).encode())
    if row.kind == "broken":
        return row._replace(kind="spent", value=json.dumps(json.loads(row.value)["said"]).encode())
    return row
