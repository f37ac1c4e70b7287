"""One life of a run in memory: its rows, what is added to them, and what stops it.

What holds: `trouble` once set stays, and nothing is added any more, so whoever catches it can do no
harm. A journal that does not fit the code is such a trouble (`mismatch`, `read_failure`), and parks
the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..commander import Node, NodeLimits
from ..commander.errors import AnabranchError
from ._codec import Codec
from ._conversation import Talks
from ._failure import decode_failure, mark, marks
from ._file import Row
from ._gone import Gone
from ._inbox import Inbox
from ._json import digest
from ._keys import Keys
from ._roots import Roots
from ._rows import FIRST, Cancel, Rows
from ._usage import taken
from .errors import JournalError, JournalMismatch, LeaseLost

if TYPE_CHECKING:
    from ._file import JournalFile, RunRow
    from ._reply import ReplyRow
    from ._scope import NodeScope

__all__ = ["Ledger"]

CLOCK_STEP = 0.1  # seconds by which the wall's clock may drift before the journal says so

logger = logging.getLogger("anabranch.store")


class Ledger(Rows):
    """The journal of a run, for one life: its rows, and how more are added."""

    def __init__(
        self,
        file: JournalFile,
        run: RunRow,
        rows: list[Row],
        live: Mapping[str, Any],
    ) -> None:
        super().__init__(rows)
        self.file = file
        self.loop = asyncio.get_running_loop()
        self.run_id = run.run_id
        self.intents.began = run.created
        self.fence = run.fence
        # This life among all in this process, of whatever journal.
        self.life = (run.run_id, object())
        # What the run's clock said when this life began.
        self.clock_before = run.clock
        self.live = dict(live)
        self.keys = Keys(*live.values())
        # The limits of the run itself, which each of its roots has.
        self.limits: NodeLimits | None = None
        # These and the limits around the run, which have counted what earlier lives have spent.
        self.counted: list[NodeLimits] = []
        # The number of the last row, of an earlier life or of this one.
        self.last = rows[-1].seq if rows else 0
        # When this life began, by the loop's clock; and how far the wall's clock was ahead of that,
        # as the journal knows it.
        self.start = self.loop.time()
        self._ahead = time.time() - self.start
        # How often what is said in a reply that grows is written, in seconds; None: it is not.
        self.partials: float | None = None
        # Nothing that ends from now on has ended by itself: it is all taken up again.
        self.suspended = False
        # No effect starts any more; those that are under way may still end.
        self.suspending = False
        self.under_way: set[asyncio.Future[Any]] = set()
        self.grace = 0.0
        self._suspension: asyncio.Future[None] | None = None
        # The effects and durable nodes that this life has come to.
        self.claimed: set[bytes] = set()
        # What new effects wait for while they are held; and by effect, the end of what is done now.
        self.held: set[asyncio.Future[Any]] = set()
        self.doing: dict[bytes, asyncio.Future[Any]] = {}
        # By effect that was given a key: who has called it, and in which attempts of all above.
        self.keyed: dict[bytes, list[tuple[NodeScope, int]]] = {}
        # The replies that are being read and are not whole yet.
        self.coming: list[ReplyRow] = []
        # What nodes ask a person, by who they are: the question, and the node.
        self.asks: dict[bytes, tuple[bytes, NodeScope]] = {}
        self.inbox = Inbox()
        self.talks = Talks(self)
        self.roots = Roots(self)
        # What the journal failed with: nothing more can be kept.
        self.trouble: BaseException | None = None
        # The nodes whose cancel is recorded, until they are cancelled again.
        self.doomed: dict[Node[Any], Cancel] = {}

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
        """Return for how many seconds this run has had an owner: `timeout=` goes by that.

        The loop's clock counts them: somebody may set the clock of the wall.
        """
        return self.clock_before + self.loop.time() - self.start

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
            ahead = time.time() - self.loop.time()
            if abs(ahead - self._ahead) > CLOCK_STEP:  # the clock of the wall was set
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
        """Keep that these nodes are cancelled, below the node `of`: one decision, for all lives.

        `by` is the path of the node that has decided it, which has `failed` if that is why.
        """
        cancel = {"reason": reason, "whom": [each.hex() for each in whom], "failed": failed}
        cancel |= {"by": by or [[FIRST.hex(), FIRST.hex()]], "after": after}
        data = self.append(of, "cancelled", json.dumps(cancel).encode())
        self._note_cancel(self.last, data)

    def keep_causes(self, ident: bytes, error: BaseException, *others: bytes) -> None:
        """Keep what a node fails of, for whoever resumes the run: what nobody has caught."""
        if causes := marks(error).union(others):
            value = json.dumps(sorted(each.hex() for each in causes)).encode()
            self.append(ident, "because", value)

    def withdraw(self, ended: set[bytes]) -> None:
        """Take back what these nodes, and those below them, ask a person."""
        for asker, (question, asking) in list(self.asks.items()):
            if any(scope.ident in ended for scope in asking.up()):
                del self.asks[asker]
                self.append(question, "withdrawn")

    def fail(self, error: BaseException) -> None:
        """Stop the run, as nothing more of it can be kept: its tree is suspended.

        The run's outcome raises `error`; nodes that fail with it as well are not logged.
        """
        if isinstance(error, AnabranchError):
            error.reported = True
        if self.trouble is None:
            self.trouble, self.suspended = error, True
            self.loop.call_soon_threadsafe(self.roots.stop, "nothing more of the run is kept")

    def mismatch(self, why: str) -> JournalMismatch:
        """Stop the run, which is parked then; return the error to raise.

        Code that catches it goes no further: what it adds is refused, and its node is cancelled.
        """
        error = JournalMismatch(
            f"{why}: the code or its inputs have changed under the run; go on with the code as it"
            " was, or cancel the run"
        )
        self.fail(error)
        return error

    def read_failure(self, data: bytes, ident: bytes) -> BaseException:
        """Return the failure that is kept here; if its class is gone, the run stops."""
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
            self.roots.stop("the run is suspended")

    async def take_letter(
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
            while letter is not None and codec is not None and (why := codec.refusal(letter.value)):
                refused = {"id": letter.id, "name": name, "type": codec.type_name, "why": why}
                self.append(digest("letter", letter.id), "refused", json.dumps(refused).encode())
                logger.warning(
                    "the run %r waits for a signal %r of the type %s, and letter %d does not fit"
                    " it: %s; it is refused, and the run waits for the next one",
                    *(self.run_id, name, codec.type_name, letter.id, why),
                )
                letter = await self.inbox.take(kind, name, due)
            value = {"id": None, "value": None}
            if letter is not None:
                value = {"id": letter.id, "value": letter.value.decode()}
            # The next attempt asks the same question, and gets this answer.
            find = kind == "answer"
            data = self.append(ident, "letter", json.dumps(value).encode(), find=find)
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
