"""`Journal`: the durable runs in one file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import lru_cache, partial
from math import isnan
from shlex import quote
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from ..commander import Commander, ConfigurationError, Node, NodeLimits, durable, parent_here
from ..commander.context import INHERITED, context_set
from ..commander.kinds import NUMBER, require
from ..commander.waiting import wait_shielded
from ..files.sqlite import MEMORY
from ._codec import Codec
from ._durable import Durable
from ._inbox import NOTE_KIND
from ._journal_file import ENDED_STATES, JournalFile, check_name, last_clock
from ._lock import RunLock
from ._open_file import explain
from ._run import OwnedRun, acquire_or_start, cancel_unowned, resume, start
from ._session import Session, open_session
from ._view import PendingApproval, PendingDoubt, RunView, pending, view
from .errors import JournalError, RunBusy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from ._checksums import BytesCodec
    from ._journal_file import RunRow

__all__ = ["Journal"]

T = TypeVar("T")
K = TypeVar("K", bound=OwnedRun)

RUN_STATES = ("pending", "running", "suspended", "parked", *ENDED_STATES)


class Journal:
    """The store of durable runs: an SQLite file, or ":memory:" for tests.

        async with Journal("runs.db") as journal:
            answer = await journal.run(Order("A-17"), run_id="order-A-17")

    When a run is suspended, effects in progress get `grace` seconds to end. A run that was resumed
    more than `max_recoveries` times without progress is parked. `codec` transforms all values, such
    as by encryption. `partials` is the interval in seconds between writes of growing replies, for
    `look`; they are never replayed. A journal belongs to the event loop that opens it, and can be
    opened again after it is closed.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        grace: float = 5.0,
        max_recoveries: int = 5,
        partials: float | None = None,
        codec: BytesCodec | None = None,
    ) -> None:
        name = os.fspath(name) if isinstance(name, os.PathLike) else name
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the name of a journal must be a text or a path, not {name!r}")
        scheme, is_address, _ = name.partition("://")
        if is_address:  # left out of the error, as it may contain a password
            raise JournalError(f"{scheme}://...", "is not a file", "name a file of this machine")
        if not grace >= 0:
            raise ValueError(f"grace= must be a number of seconds, not {grace!r}")
        if not max_recoveries >= 0:
            raise ValueError(f"max_recoveries= must be a number from 0 on, not {max_recoveries!r}")
        if partials is not None and not partials > 0:
            raise ValueError(f"partials= must be a number of seconds above 0, not {partials!r}")
        if codec is not None and not all(hasattr(codec, each) for each in ("encode", "decode")):
            raise TypeError(f"codec= must have the methods encode and decode, unlike {codec!r}")
        self.name = name
        self.partials = partials
        self.grace = grace
        self.max_recoveries = max_recoveries
        self._file = JournalFile(name, codec)
        # The runs and sessions that are owned here, each with a future that is done at its release.
        self._driven: dict[OwnedRun, asyncio.Future[None]] = {}

    async def __aenter__(self) -> Self:
        await self._file.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for run in self._driven:
            run.begin_to_suspend()
        for run, released in list(self._driven.items()):
            # Nothing of an idle session is under way, and its own block releases it.
            if not (isinstance(run, Session) and not run.is_calling):
                await wait_shielded(released)
        await self._file.close()

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process, and not closed since."""
        return self._file.is_open

    async def start(self, job: Durable[Any], *, run_id: str, queue: str = "") -> RunRow:
        """Store a pending run, or return the existing one; `run` or `take_up` executes it.

        Raises `RunExists` if the name belongs to a run of another class or with other inputs.
        """
        return await start(self._file, _require_durable(job), run_id, queue)

    async def runs(
        self, state: str | None = None, prefix: str | None = None, limit: int | None = None
    ) -> list[RunRow]:
        """Return the runs in a state, with names that start with `prefix`, the newest first.

        The states are pending (not started yet), running, suspended, parked (needs attention),
        completed, failed and cancelled.
        """
        if state is not None and state not in RUN_STATES:
            raise ValueError(f"the state must be one of {', '.join(RUN_STATES)}, not {state!r}")
        if prefix:
            check_name(prefix, "prefix=")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(f"limit= must be a number from 0 on, not {limit!r}")
        return await self._file.runs(state, prefix, limit)

    async def look(self, run_id: str) -> RunView:
        """Return a view of a run with its journal entries, whichever process owns it.

        Raises `RunNotFound`.
        """
        run, rows, letters = await self._file.look(run_id)
        return view(run, rows, [each for each in letters if each.kind != NOTE_KIND])

    async def fork(self, run_id: str, new_run_id: str, *, at: int | None = None) -> RunRow:
        """Create a pending run with the inputs of another and its rows, all or up to number `at`.

        Signals, answers and cancels that wait for the other run are not copied. The new run
        executes effects after that row again, with new effect keys. Raises `RunNotFound`,
        `RunExists` if the new name exists, `ValueError` for a number after the last row.
        """
        rows = await self._file.rows(run_id)
        last = rows[-1].seq if rows else 0  # not their count, as some numbers have no row
        number = last if at is None else at
        if not 0 <= number <= last:
            raise ValueError(f"at= must be from 0 to {last}, the last row of the run {run_id!r}")
        clock = last_clock([row for row in rows if row.seq <= number])
        return await self._file.fork(run_id, number, new_run_id, clock)

    async def purge(
        self, before: float, *, state: str | None = None, prefix: str | None = None
    ) -> int:
        """Remove the runs that ended before a time, in seconds since the epoch; return how many.

        `state` limits it to completed, failed or cancelled runs, `prefix` to names that start with
        it. A run that is not over is never removed. Other processes can write during a long purge.
        The next purge completes an interrupted one; until then its runs only use disk space.
        """
        if not isinstance(before, int | float) or isnan(before):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"before= must be a time as time.time() returns it, not {before!r}")
        if state is not None and state not in ENDED_STATES:
            raise ValueError(
                f"state= must be one of {', '.join(ENDED_STATES)}: only such runs can be removed"
            )
        if prefix:
            check_name(prefix, "prefix=")
        states = ENDED_STATES if state is None else (state,)
        return await self._file.purge(before, states=states, prefix=prefix)

    async def run(
        self,
        job: Durable[T],
        *,
        run_id: str,
        live: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
        context: object = INHERITED,
    ) -> T:
        """Start a run or resume it; wait for its end and return its result.

        A run that has ended returns its recorded result. Inside a tree its jobs are below the
        commander of that tree. Cancelling this call suspends the run, without a recorded cancel.

        `timeout` limits the seconds of the job in all executions together. After that it fails with
        `TimeoutError`, which is recorded. `limits`, such as `Limits(budget=...)`, apply to the run
        with its later rounds, and count earlier usage. `context` is a value that all code of the
        run can read, see `Context`. The journal stores none of them: pass them again to resume the
        run. Without its context, the run stops where that is read, and can be resumed.
        """
        with context_set(context):
            return await self._drive(job, run_id, live, timeout, limits)

    async def take_up(
        self,
        run_id: str,
        *,
        live: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
        context: object = INHERITED,
    ) -> Any:
        """Resume a run by its name, with its job from the journal; otherwise as `run`.

        Raises `RunNotFound`, and `JournalMismatch` if its class was removed or has another version.
        """
        with context_set(context):
            return await self._drive(None, run_id, live, timeout, limits)

    async def _drive(
        self,
        job: Durable[Any] | None,
        run_id: str,
        live: Mapping[str, Any] | None,
        timeout: float | None,
        limits: NodeLimits | None,
    ) -> Any:
        require(timeout, NUMBER | None, "timeout must be a number of seconds or None")
        require(limits, NodeLimits | None, "limits must be an object such as Limits(budget=...)")
        async with self._acquired(job, run_id, live) as run:
            node = parent_here()
            if node is None:
                async with Commander() as commander:
                    await run.drive(commander, timeout=timeout, limits=limits)
            else:
                await run.drive(node.commander, timeout=timeout, limits=limits)
        return run.outcome()

    async def signal(
        self, run_id: str, name: str, value: Any = None, *, key: str | None = None
    ) -> None:
        """Send a value to a run, which receives it by `self.durable.signal(name, ...)`.

        The value is on disk when this returns, and stored until the run receives it. `key` is an
        idempotency key for a sender that retries: of all signals with one name and key, a run gets
        only the first. The others return without an error, also when the run is over. The journal
        stores a key as long as the run, and for 30 days at least. Raises `RunNotFound`,
        `JournalError` for a run that is over, `NotStorable` for a value that cannot be stored.
        """
        check_name(name, "the name of a signal")
        if key is not None:
            check_name(key, "key=")
        data = Codec(type(value), f"the signal {name!r}").encode(value)
        check = partial(self._require_unended, "signal")
        await self._file.post(run_id, "signal", name, data, key=key, check=check)

    async def note(self, run_id: str, name: str, value: Any) -> None:
        """Store plain JSON with a run, also one that is over; durable when this returns.

        `notes` returns it; the run itself never reads it, and it is removed with the run. Raises
        `RunNotFound`, and `NotStorable` for a value that cannot be stored.
        """
        check_name(name, "the name of a note")
        data = _note_codec(name).encode(value)
        await self._file.post(run_id, NOTE_KIND, name, data, wakes=False)

    async def notes(self, run_id: str, name: str) -> list[Any]:
        """Return the notes of this name, oldest first. Raises `RunNotFound`."""
        notes = [each for each in await self._file.letters(run_id) if each.kind == NOTE_KIND]
        codec = _note_codec(name)
        return [codec.decode(each.value) for each in notes if each.name == name]

    async def cancel(self, run_id: str, reason: str = "") -> None:
        """Cancel a run for good, whether or not a process owns it; durable when this returns.

        The owner then cancels its tree. A run without an owner is over at once, without callbacks
        or clean-up. Raises `RunNotFound`, `JournalError` for a run that is over.
        """
        data = json.dumps(reason).encode()
        check = partial(self._require_unended, "cancel")
        await self._file.post(run_id, "cancel", "", data, check=check)
        with suppress(RunBusy):
            await cancel_unowned(self._file, run_id)

    async def resume(self, run_id: str) -> None:
        """Remove a run's failures, and the cancels that they caused, so that these parts run again.

        They run at the next `run` or `take_up`, which this also allows for a parked run. Results
        and the numbers of attempts stay. Raises `RunNotFound`, `RunBusy`, and `JournalError` for a
        run that has completed.
        """
        run = await self._file.run(run_id)
        if run.state == "completed":
            why = f"cannot resume the run {run_id!r}, which has completed"
            raise JournalError(
                self.name, why, f"anabranch runs show {quote(run_id)} shows its result"
            )
        await resume(self._file, run_id)

    def _require_unended(self, what: str, run: RunRow) -> None:
        if run.state in ENDED_STATES:
            why = f"accepts no {what} for the run {run.run_id!r}, which is over ({run.state})"
            remedy = f"anabranch runs show {quote(run.run_id)} shows how it ended"
            raise JournalError(self.name, why, remedy)

    async def approvals(self, run_id: str | None = None) -> list[PendingApproval]:
        """Return the calls that wait for an approval, of all runs or of one, oldest first.

        Calls of suspended runs are among them. Answer each by its `approve()` or `deny()`, in any
        order and from any process.

            for call in await journal.approvals():
                await call.deny("not today")
        """
        return await pending(self._file, PendingApproval, run_id)

    async def doubts(self, run_id: str | None = None) -> list[PendingDoubt]:
        """Return the calls in doubt that a person has to resolve, oldest first.

        Answer each by its `done(value)` or `not_done()`, as in `approvals`.
        """
        return await pending(self._file, PendingDoubt, run_id)

    @asynccontextmanager
    async def session(self, run_id: str) -> AsyncGenerator[Session]:
        """Acquire a run that stays open, such as an agent's session, for the block.

        Creates it if there is none of this name. Raises `RunBusy` while another process or journal
        owns it, `RunExists` if the name belongs to another kind of run, and `JournalError` for one
        that was cancelled.
        """
        file, grace, most = self._file, self.grace, self.max_recoveries
        opening = open_session(file, run_id, grace=grace, max_recoveries=most)
        async with self._registered(opening) as session:
            yield session

    @contextmanager
    def reserve(self, name: str) -> Generator[None]:
        """Reserve a name in this file for the block; a run of this name is not affected.

        The end of the process ends the reservation in any case. Raises `RunBusy` while another
        process or journal has reserved the name, and `JournalError` where no lock can be created. A
        journal in memory excludes no one.
        """
        if self.name == MEMORY:
            yield
            return
        try:
            lock = RunLock(self.name, f"\0{name}")  # no name of a run begins so
        except RunBusy as busy:
            raise RunBusy(name, busy.pid, busy.since) from None
        except OSError as error:
            raise explain(self.name, error) from error
        try:
            yield
        finally:
            lock.release()

    @asynccontextmanager
    async def _acquired(
        self, job: Durable[Any] | None, run_id: str, live: Mapping[str, Any] | None
    ) -> AsyncGenerator[OwnedRun]:
        """Acquire a run for the block."""
        if not isinstance(live, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"live= must be a dict from names of fields to values, not {live!r}")
        acquiring = acquire_or_start(
            self._file,
            job if job is None else _require_durable(job),
            run_id,
            live or {},
            grace=self.grace,
            max_recoveries=self.max_recoveries,
        )
        async with self._registered(acquiring) as run:
            yield run

    @asynccontextmanager
    async def _registered(self, acquiring: AbstractAsyncContextManager[K]) -> AsyncGenerator[K]:
        """Register an acquired run, so that closing the journal suspends it and waits for it."""
        released = asyncio.get_running_loop().create_future()
        run = None
        try:
            async with acquiring as run:
                self._driven[run] = released
                run.write_partials(self.partials)
                yield run
        finally:
            if run is not None:
                del self._driven[run]
            released.set_result(None)


@lru_cache(maxsize=64)
def _note_codec(name: str) -> Codec:
    # Cached: building a codec takes longer than writing a note, and a server writes many notes.
    return Codec(Any, f"the note {name!r}")


def _require_durable(job: object) -> Durable[Any]:
    if not isinstance(job, Durable):
        raise TypeError(f"{job!r} is not durable: only a Durable job can run in a journal")
    return cast("Durable[Any]", job)


@asynccontextmanager
async def _open_run(
    job: Node[Any],
    journal: str | os.PathLike[str] | Journal,
    run_id: str | None,
    live: Mapping[str, Any] | None,
) -> AsyncGenerator[OwnedRun]:
    """Implement `run(job, journal=...)`."""
    if run_id is None:
        raise ConfigurationError(
            "run(..., journal=...) needs run_id=, the name by which the run is resumed"
        )
    async with AsyncExitStack() as stack:
        durable_job = _require_durable(job)
        if not isinstance(journal, Journal):
            journal = Journal(journal)
        if not journal.is_open:
            await stack.enter_async_context(journal)
        yield await stack.enter_async_context(journal._acquired(durable_job, run_id, live))


durable.run_opener = _open_run
