"""Start, resume and release runs: each execution begins with acquiring the run."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..commander import ConfigurationError, Node, NodeCancelled, NodeLimits, limits_around
from ..commander.durable import attach_scope, scope_of
from ..commander.waiting import observe, wait_shielded
from ._durable import Durable, make_again
from ._failure import decode_failure
from ._file import ENDED, Row
from ._json import canonical, digest
from ._keys import Keys
from ._roots import put_again
from ._scope import NodeScope
from ._state import FIRST, JournalState
from .errors import (
    JournalError,
    JournalMismatch,
    LeaseLost,
    NotStorable,
    RunBusy,
    RunExists,
    RunNotFound,
    RunParked,
)

if TYPE_CHECKING:
    from ._file import JournalFile, Letter, RunRow

__all__ = [
    "SESSION",
    "OwnedRun",
    "acquired",
    "cancel_unowned",
    "note_taken",
    "resume",
    "start",
    "take_up",
]

K = TypeVar("K", bound="OwnedRun")

SESSION = "anabranch.store:Session"
"""The class of a run that stays open: only its calls resume it."""


class OwnedRun:
    """A run that this process has acquired, or one that has ended."""

    def __init__(
        self, job: Durable[Any] | None, ledger: JournalState, *, ended: bool, grace: float
    ) -> None:
        self._job: Any = job
        self._timeout: float | None = None
        self._ledger = ledger
        self._ended = ended
        ledger.grace = grace
        self.error: BaseException | None = None
        self._result: Any = None
        # Cancels that arrived before the roots were put; None after that.
        self._early: list[Letter] | None = []
        # Done when the roots may be put.
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write_partials(self, every: float | None) -> None:
        """Write growing replies every so many seconds; None: never."""
        self._ledger.partials = every

    async def drive(
        self,
        commander: Node[Any],
        *,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
    ) -> None:
        """Put the unfinished roots below `commander`, and wait until all of them have ended.

        `timeout` is that of the first root; `limits` hold for the run as a whole.

        If this is cancelled, the run is suspended: effects in progress get `grace` seconds to end,
        then its tree is cancelled. The next execution does the rest.
        """
        if self._ended:
            self._read_outcome()
            return
        ledger = self._ledger
        self._timeout, ledger.limits = timeout, limits
        reader = asyncio.create_task(self._read_letters())
        try:
            await self._began  # the letters that were sent before are read then
            if ledger.suspending:
                raise NodeCancelled(ledger.run_id, "the run is suspended")
            self._put_roots(commander)
            early, self._early = self._early or [], None
            for letter in early:
                self._take_cancel(letter)
            while ledger.roots.running:
                await observe(next(iter(ledger.roots.running.values())))
                if not (ledger.roots.running or ledger.suspended):
                    self._put_rounds(commander)  # whose putters did not put them again
        except asyncio.CancelledError:
            await self._suspend()
            raise
        finally:
            reader.cancel()
        if isinstance(ledger.trouble, JournalMismatch):
            raise ledger.trouble
        if ledger.trouble is not None:
            self.error = ledger.trouble
            return
        await ledger.barrier()
        if self._job.state == "pending":  # only later rounds were left
            self._read_outcome()
            return
        try:
            self._result = await self._job
        except BaseException as error:  # noqa: BLE001 - `outcome` raises it
            self.error = error

    def outcome(self) -> Any:
        """Return the result of the first root, or raise its failure."""
        if self.error is not None:
            raise self.error
        return self._result

    def ending(self) -> tuple[str, str | None]:
        """Return the state in which the run is released, and a note about it."""
        if isinstance(self.error, JournalMismatch):
            return "parked", str(self.error)
        return _state(self._ledger), None

    def _put_roots(self, commander: Node[Any]) -> None:
        ledger = self._ledger
        own = [] if ledger.limits is None else [ledger.limits]
        ledger.count_in([*limits_around(commander), *own])
        if ledger.of_kind("root"):
            ledger.gone  # noqa: B018 - it has to see the rows as they are now
        if not ledger.is_over(FIRST):
            options = {"claim": True, "timeout": self._timeout}
            self._put(commander, self._job, FIRST, FIRST, options)
        self._put_rounds(commander, waited_for=ledger.roots.puts_again)

    def _put_rounds(
        self, commander: Node[Any], waited_for: Callable[[dict[str, Any]], bool] = lambda _: False
    ) -> None:
        """Put the rounds that are neither over nor put yet, except those that a putter will put."""
        ledger = self._ledger
        for row in ledger.of_kind("root"):
            written = json.loads(row.value)
            left = not ledger.is_over(row.ident) and row.ident not in ledger.roots.put
            if left and not waited_for(written):
                job = make_again(written, ledger.live)
                refused = written["put"].get("refused")
                options = {} if refused else put_again(job, written["put"])
                options["key"] = written["key"]
                self._put(commander, job, row.ident, bytes.fromhex(written["free"]), options)
                scope = cast("NodeScope", scope_of(job))
                scope.retried = written["retried"]
                if refused:
                    scope.refused = ConfigurationError(refused)

    def _put(
        self,
        commander: Node[Any],
        job: Durable[Any],
        ident: bytes,
        free: bytes,
        options: dict[str, Any],
    ) -> None:
        job._node_prepare(self._ledger)
        scope = NodeScope(self._ledger, ident, free, None, ident)
        attach_scope(job, scope, commander)
        self._ledger.roots.add(ident, job)
        commander.put_job(job, limits=self._ledger.limits, **options)

    async def _read_letters(self) -> None:
        """Read the letters to the run while it runs here."""
        ledger, seen = self._ledger, None
        try:
            while True:
                seen = await ledger.file.watch(seen)
                for letter in await ledger.inbox.read(ledger):
                    if letter.kind == "cancel":
                        self._take_cancel(letter)
                if not self._began.done():
                    self._began.set_result(None)
        except (JournalError, LeaseLost) as error:
            if not self._began.done():
                self._began.set_exception(error)
            ledger.fail(error)

    def _take_cancel(self, letter: Letter) -> None:
        if self._ledger.suspending:
            return  # the next execution takes it
        if self._early is not None:
            self._early.append(letter)
            return
        self._ledger.roots.stop(json.loads(letter.value))
        note_taken(self._ledger, letter)

    async def _suspend(self) -> None:
        await wait_shielded(self._ledger.suspend())
        for root in list(self._ledger.roots.running.values()):
            await wait_shielded(observe(root))

    def begin_to_suspend(self) -> None:
        """Wait up to `grace` seconds for effects in progress, then cancel the tree."""
        self._ledger.suspend()

    def _read_outcome(self) -> None:
        if (row := self._ledger.outcome(FIRST)) is not None and row.kind == "result":
            self._result = self._job._node_codec().decode(row.value)
        elif row is not None:
            self.error = decode_failure(row.value)
        elif (cancel := self._ledger.cancelled.get(FIRST)) is not None:
            self.error = NodeCancelled(self._ledger.run_id, cancel.reason)
        else:
            self.error = RunParked(self._ledger.run_id, "has ended without an outcome")


def _state(ledger: JournalState) -> str:
    """Return the state of a run without an owner: suspended, unless all its roots are over."""
    idents = ledger.root_idents()
    if not all(map(ledger.is_over, idents)):
        return "suspended"
    outcomes = [ledger.outcome(ident) for ident in idents]
    if any(row is not None and row.kind == "failure" for row in outcomes):
        return "failed"
    return "cancelled" if any(each in ledger.cancelled for each in idents) else "completed"


@asynccontextmanager
async def take_up(
    file: JournalFile,
    job: Durable[Any] | None,
    run_id: str,
    live: Mapping[str, Any],
    *,
    queue: str = "",
    grace: float,
    max_recoveries: int,
) -> AsyncGenerator[OwnedRun]:
    """Acquire a run for the block, and start it if there is none of this name.

    Raises `RunExists` for a run with another class or other inputs, `RunNotFound` for a missing run
    without a job, `RunBusy` for one that has an owner, `JournalMismatch` for one whose code was
    removed, `RunParked` for one that was acquired too often without success.
    """
    try:
        run = await start(file, job, run_id, queue, live)
        if job is None:
            if run.class_name == SESSION:
                raise ConfigurationError(
                    f"{run_id!r} is a session of an agent: it goes on when the agent is called in"
                    " it (journal=, session_id=)"
                )
            written = {"class": run.class_name, "version": run.version}
            job = make_again({**written, "inputs": json.loads(run.inputs)}, dict(live))
    except JournalMismatch as error:
        if (await file.run(run_id)).state not in ENDED:
            with suppress(RunBusy):  # its owner has the code
                run, _ = await file.acquire(run_id, owner_here())
                await file.release(run_id, run.fence, "parked", str(error).encode())
        raise
    if run.state in ENDED:
        rows = await file.rows(run_id)
        yield OwnedRun(job, JournalState(file, run, rows, live), ended=True, grace=grace)
        return
    made = partial(OwnedRun, job, ended=False, grace=grace)
    async with acquired(file, run_id, live, made, max_recoveries=max_recoveries) as kept:
        yield kept


@asynccontextmanager
async def acquired(
    file: JournalFile,
    run_id: str,
    live: Mapping[str, Any],
    make: Callable[[JournalState], K],
    *,
    max_recoveries: int,
) -> AsyncGenerator[K]:
    """Acquire a run for the block; `make` returns the object that drives it."""
    run, rows = await file.acquire(run_id, owner_here())
    ledger: JournalState | None = None
    state, note = "suspended", None
    try:
        ledger = JournalState(file, run, rows, live)
        file.keys[run_id] = ledger.keys
        if run.recoveries > max_recoveries:
            state = "parked"
            note = f"was taken up {run.recoveries} times and came no further"
            raise RunParked(run_id, note)
        kept = make(ledger)
        try:
            yield kept
        finally:
            state, note = kept.ending()
    except JournalMismatch as error:
        state, note = "parked", str(error)
        raise
    finally:
        if ledger is not None:
            ledger.suspended = True
            note = note and ledger.keys.cut_text(note)
            del file.keys[run_id]
        with suppress(LeaseLost):
            error = None if note is None else note.encode()
            clock = None if ledger is None else ledger.clock()
            await file.release(run_id, run.fence, state, error, clock=clock)


def owner_here() -> str:
    """Return the name of this process in the journal."""
    return f"{socket.gethostname()}:{os.getpid()}"


def note_taken(ledger: JournalState, letter: Letter) -> None:
    """Record that a letter was handled: a resumed run does not get it again."""
    ledger.record(digest("letter", letter.id), "letter", {"id": letter.id, "value": None})


async def cancel_unowned(file: JournalFile, run_id: str) -> None:
    """Cancel a run without an owner, if a letter says so. Raises `RunBusy`."""
    run, rows = await file.acquire(run_id, "cancel")
    ledger = JournalState(file, run, rows, {})
    left = [each for each in ledger.root_idents() if not ledger.is_over(each)]
    whom = [each for each in left if ledger.outcome(each) is None]
    cancelled = False
    try:
        for letter in await file.letters(run_id):
            if letter.kind != "cancel" or letter.id in ledger.taken:
                continue
            if whom and not cancelled:
                ledger.keep_cancel(whom, json.loads(letter.value))
                cancelled = True
            while left:
                ledger.append(left.pop(0), "over", find=True)
            note_taken(ledger, letter)
    finally:
        await file.release(run_id, run.fence, "cancelled" if cancelled else _state(ledger))


async def resume(file: JournalFile, run_id: str) -> None:
    """Let the failed parts run again in the next execution."""
    before = (await file.run(run_id)).state
    if before in ("pending", "cancelled"):
        return
    run, rows = await file.acquire(run_id, "resume")
    ledger = JournalState(file, run, rows, {})
    state = _state(ledger)  # it may have ended by now
    if before == "parked" or ledger.failed_roots():
        # A failed call of a session stays failed: others have followed.
        kind = "unparked" if run.class_name == SESSION else "resumed"
        file.append(run_id, run.fence, Row(FIRST, kind, b""))
        state = "suspended"
    await file.release(run_id, run.fence, state)


async def start(
    file: JournalFile,
    job: Durable[Any] | None,
    run_id: str,
    queue: str,
    live: Mapping[str, Any] | None = None,
) -> RunRow:
    """Return the run of this name; create it, on disk, if there is none."""
    if job is None:
        return await file.run(run_id)
    written = job._node_write()
    name, version = written["class"], written["version"]
    Keys(*job._node_live().values(), *(live or {}).values()).refuse_inputs(written)
    given = make_again(written, job._node_live(), type(job))._node_inputs()
    if canonical(given, numbers=True) != canonical(job._node_inputs(), numbers=True):
        raise NotStorable(
            f"{job!r} made again of its inputs has others: its __post_init__ must leave inputs as"
            " they are, or change them only once"
        )
    try:
        run = await file.run(run_id)
    except RunNotFound:
        inputs = json.dumps(written["inputs"]).encode()
        return await file.start(run_id, name, version, inputs, queue)
    if run.class_name != name:
        raise RunExists(run_id, f"it is a {run.class_name}, and not a {name}")
    before = {"class": name, "version": run.version, "inputs": json.loads(run.inputs)}
    kept = make_again(before, job._node_live(), type(job))._node_inputs()
    # An earlier version read an integer as a float where a float is annotated.
    if other := [
        each
        for each in given
        if canonical(given[each], numbers=True) != canonical(kept[each], numbers=True)
    ]:
        raise RunExists(run_id, f"it was started with other inputs ({', '.join(other)})")
    return run
