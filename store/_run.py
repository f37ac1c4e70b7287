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
from ._execution import FIRST_ROOT, Execution
from ._failure import decode_failure
from ._journal_file import ENDED_STATES, SESSION_CLASS, Row
from ._json import canonical, digest
from ._keys import Keys
from ._roots import put_again
from ._scope import NodeScope
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
    from ._journal_file import JournalFile, Letter, RunRow

__all__ = [
    "OwnedRun",
    "acquire_or_start",
    "acquired",
    "cancel_unowned",
    "record_taken",
    "resume",
    "start",
]

K = TypeVar("K", bound="OwnedRun")


class OwnedRun:
    """A run that this process has acquired, or one that has ended."""

    def __init__(
        self, job: Durable[Any] | None, execution: Execution, *, ended: bool, grace: float
    ) -> None:
        self._job: Any = job
        self._timeout: float | None = None
        self._execution = execution
        self._ended = ended
        execution.grace_seconds = grace
        self.error: BaseException | None = None
        self._result: Any = None
        # Cancels that arrived before the roots were put; None after that.
        self._early_cancels: list[Letter] | None = []
        # Done when the earlier letters were read, and the roots may be put.
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write_partials(self, every: float | None) -> None:
        """Set the interval in seconds between writes of growing replies; None: never."""
        self._execution.partial_seconds = every

    async def drive(
        self,
        commander: Node[Any],
        *,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
    ) -> None:
        """Put the unfinished roots below `commander`, and wait until all of them have ended.

        `timeout` applies to the first root, `limits` to the whole run.

        Cancelling this call suspends the run: effects in progress get `grace` seconds to end, then
        its tree is cancelled. The next execution resumes it.
        """
        if self._ended:
            self._read_outcome()
            return
        execution = self._execution
        self._timeout, execution.limits = timeout, limits
        reader = asyncio.create_task(self._read_letters())
        try:
            await self._began  # an earlier cancel takes effect before a root begins
            if execution.suspending:
                raise NodeCancelled(execution.run_id, "the run is suspended")
            self._put_roots(commander)
            early, self._early_cancels = self._early_cancels or [], None
            for letter in early:
                self._take_cancel(letter)
            while execution.roots.running:
                await observe(next(iter(execution.roots.running.values())))
                if not (execution.roots.running or execution.suspended):
                    self._put_rounds(commander)  # their putters did not put them again
        except asyncio.CancelledError:
            await self._suspend()
            raise
        finally:
            reader.cancel()
        if isinstance(execution.stop_error, JournalMismatch):
            raise execution.stop_error
        if execution.stop_error is not None:
            self.error = execution.stop_error
            return
        await execution.barrier()
        if self._job.state == "pending":  # only later rounds were not over
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
        """Return the state of the run at its release, and the text of its error or None."""
        if isinstance(self.error, JournalMismatch):
            return "parked", str(self.error)
        return _state(self._execution), None

    def _put_roots(self, commander: Node[Any]) -> None:
        execution = self._execution
        own = [] if execution.limits is None else [execution.limits]
        execution.charge_earlier_usage([*limits_around(commander), *own])
        if execution.rows_of_kind("root"):
            execution.unreplayed  # noqa: B018 - computed before the roots change the rows
        if not execution.is_over(FIRST_ROOT):
            options = {"claim": True, "timeout": self._timeout}
            self._put(commander, self._job, FIRST_ROOT, FIRST_ROOT, options)
        self._put_rounds(commander, waited_for=execution.roots.is_put_again)

    def _put_rounds(
        self, commander: Node[Any], waited_for: Callable[[dict[str, Any]], bool] = lambda _: False
    ) -> None:
        """Put the rounds that are neither over nor put, except those that a putter puts again."""
        execution = self._execution
        for row in execution.rows_of_kind("root"):
            written = json.loads(row.value)
            left = not execution.is_over(row.ident) and row.ident not in execution.roots.put_idents
            if left and not waited_for(written):
                job = make_again(written, execution.live)
                refused = written["put"].get("refused")
                options = {} if refused else put_again(job, written["put"])
                options["key"] = written["key"]
                self._put(commander, job, row.ident, bytes.fromhex(written["free"]), options)
                scope = cast("NodeScope", scope_of(job))
                scope.is_retried = written["retried"]
                if refused:
                    scope.refusal = ConfigurationError(refused)

    def _put(
        self,
        commander: Node[Any],
        job: Durable[Any],
        ident: bytes,
        free: bytes,
        options: dict[str, Any],
    ) -> None:
        job._node_prepare(self._execution)
        scope = NodeScope(self._execution, ident, free, None, ident)
        attach_scope(job, scope, commander)
        self._execution.roots.add(ident, job)
        commander.put_job(job, limits=self._execution.limits, **options)

    async def _read_letters(self) -> None:
        """Read the letters to the run while it runs here."""
        execution, seen = self._execution, None
        try:
            while True:
                seen = await execution.file.watch(seen)
                for letter in await execution.inbox.read(execution):
                    if letter.kind == "cancel":
                        self._take_cancel(letter)
                if not self._began.done():
                    self._began.set_result(None)
        except (JournalError, LeaseLost) as error:
            if not self._began.done():
                self._began.set_exception(error)
            execution.fail(error)

    def _take_cancel(self, letter: Letter) -> None:
        if self._execution.suspending:
            return  # the next execution handles it
        if self._early_cancels is not None:
            self._early_cancels.append(letter)
            return
        self._execution.roots.stop(json.loads(letter.value))
        record_taken(self._execution, letter)

    async def _suspend(self) -> None:
        await wait_shielded(self._execution.suspend())
        for root in list(self._execution.roots.running.values()):
            await wait_shielded(observe(root))

    def begin_to_suspend(self) -> None:
        """Wait up to `grace` seconds for effects in progress, then cancel the tree."""
        self._execution.suspend()

    def _read_outcome(self) -> None:
        if (row := self._execution.find_outcome(FIRST_ROOT)) is not None and row.kind == "result":
            self._result = self._job._node_codec().decode(row.value)
        elif row is not None:
            self.error = decode_failure(row.value)
        elif (cancel := self._execution.recorded_cancels.get(FIRST_ROOT)) is not None:
            self.error = NodeCancelled(self._execution.run_id, cancel.reason)
        else:
            self.error = RunParked(self._execution.run_id, "ended without an outcome")


def _state(execution: Execution) -> str:
    """Return the state of a run that is released: suspended, unless all its roots are over."""
    idents = execution.root_idents()
    if not all(map(execution.is_over, idents)):
        return "suspended"
    outcomes = [execution.find_outcome(ident) for ident in idents]
    if any(row is not None and row.kind == "failure" for row in outcomes):
        return "failed"
    return (
        "cancelled" if any(each in execution.recorded_cancels for each in idents) else "completed"
    )


@asynccontextmanager
async def acquire_or_start(
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

    Raises `RunExists` if the run has another class or other inputs, `RunNotFound` for a missing run
    without a job, `RunBusy` if it has an owner, `JournalMismatch` if its class was removed or
    changed, `RunParked` if it was acquired too often without progress.
    """
    try:
        run = await start(file, job, run_id, queue, live)
        if job is None:
            if run.class_name == SESSION_CLASS:
                raise ConfigurationError(
                    f"{run_id!r} is a session of an agent, which only a call of the agent resumes:"
                    " call it with journal= and session_id="
                )
            written = {"class": run.class_name, "version": run.version}
            job = make_again({**written, "inputs": json.loads(run.inputs)}, dict(live))
    except JournalMismatch as error:
        if (await file.run(run_id)).state not in ENDED_STATES:
            with suppress(RunBusy):  # another process has the code and runs it
                run, _ = await file.acquire(run_id, owner_here())
                await file.release(run_id, run.fence, "parked", str(error).encode())
        raise
    if run.state in ENDED_STATES:
        rows = await file.rows(run_id)
        yield OwnedRun(job, Execution(file, run, rows, live), ended=True, grace=grace)
        return
    make = partial(OwnedRun, job, ended=False, grace=grace)
    async with acquired(file, run_id, live, make, max_recoveries=max_recoveries) as owned:
        yield owned


@asynccontextmanager
async def acquired(
    file: JournalFile,
    run_id: str,
    live: Mapping[str, Any],
    make: Callable[[Execution], K],
    *,
    max_recoveries: int,
) -> AsyncGenerator[K]:
    """Acquire a run for the block; `make` returns the object that drives it."""
    run, rows = await file.acquire(run_id, owner_here())
    execution: Execution | None = None
    state, note = "suspended", None
    try:
        execution = Execution(file, run, rows, live)
        file.keys[run_id] = execution.keys
        if run.recoveries > max_recoveries:
            state = "parked"
            note = f"was resumed {run.recoveries} times without progress"
            raise RunParked(run_id, note)
        owned = make(execution)
        try:
            yield owned
        finally:
            state, note = owned.ending()
    except JournalMismatch as error:
        state, note = "parked", str(error)
        raise
    finally:
        if execution is not None:
            execution.suspended = True  # nodes that still end must not append rows
            note = note and execution.keys.cut_text(note)
            del file.keys[run_id]
        with suppress(LeaseLost):
            error = None if note is None else note.encode()
            clock = None if execution is None else execution.clock()
            await file.release(run_id, run.fence, state, error, clock=clock)


def owner_here() -> str:
    """Return the name of this process in the journal."""
    return f"{socket.gethostname()}:{os.getpid()}"


def record_taken(execution: Execution, letter: Letter) -> None:
    """Record that a letter was handled: a later execution does not get it again."""
    execution.record(digest("letter", letter.id), "letter", {"id": letter.id, "value": None})


async def cancel_unowned(file: JournalFile, run_id: str) -> None:
    """Cancel a run without an owner, if it has a letter that cancels it. Raises `RunBusy`."""
    run, rows = await file.acquire(run_id, "cancel")
    execution = Execution(file, run, rows, {})
    left = [each for each in execution.root_idents() if not execution.is_over(each)]
    idents = [each for each in left if execution.find_outcome(each) is None]
    cancelled = False
    try:
        # The letter may have been handled by an owner that has released the run since.
        for letter in await file.letters(run_id):
            if letter.kind != "cancel" or letter.id in execution.taken_letters:
                continue
            if idents and not cancelled:
                execution.record_cancel(idents, json.loads(letter.value))
                cancelled = True
            while left:
                execution.append(left.pop(0), "over", find=True)
            record_taken(execution, letter)
    finally:
        await file.release(run_id, run.fence, "cancelled" if cancelled else _state(execution))


async def resume(file: JournalFile, run_id: str) -> None:
    """Let the failed parts run again in the next execution."""
    before = (await file.run(run_id)).state
    if before in ("pending", "cancelled"):
        return
    run, rows = await file.acquire(run_id, "resume")
    execution = Execution(file, run, rows, {})
    state = _state(execution)  # it may have ended by now
    if before == "parked" or execution.failed_roots():
        # A failed call of a session stays failed, as later calls have followed it.
        kind = "unparked" if run.class_name == SESSION_CLASS else "resumed"
        file.append(run_id, run.fence, Row(FIRST_ROOT, kind, b""))
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
    again = make_again(written, job._node_live(), type(job))._node_inputs()
    if canonical(again, numbers=True) != canonical(job._node_inputs(), numbers=True):
        raise NotStorable(
            f"the inputs of {job!r} change when it is created from them again: its __post_init__"
            " must not change an input twice"
        )
    try:
        run = await file.run(run_id)
    except RunNotFound:
        inputs = json.dumps(written["inputs"]).encode()
        return await file.start(run_id, name, version, inputs, queue)
    if run.class_name != name:
        raise RunExists(run_id, f"it is a {run.class_name}, not a {name}")
    before = {"class": name, "version": run.version, "inputs": json.loads(run.inputs)}
    owned = make_again(before, job._node_live(), type(job))._node_inputs()
    # As numbers: an earlier version read an integer as a float where a float is annotated.
    if other := [
        each
        for each in again
        if canonical(again[each], numbers=True) != canonical(owned[each], numbers=True)
    ]:
        raise RunExists(run_id, f"it was started with other inputs ({', '.join(other)})")
    return run
