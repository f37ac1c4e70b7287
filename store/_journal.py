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
from ..commander.kinds import NUMBER, require
from ..commander.waiting import wait_shielded
from ..messages.sqlite import MEMORY
from ._codec import Codec
from ._durable import Durable
from ._file import ENDED, JournalFile, check_name, last_clock
from ._inbox import NOTE
from ._lock import RunLock
from ._run import OwnedRun, cancel_unowned, resume, start, take_up
from ._schema import explain
from ._session import Session, open_session
from ._view import PendingApproval, PendingDoubt, RunView, pending, view
from .errors import JournalError, RunBusy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from ._file import RunRow
    from ._seal import BytesCodec

__all__ = ["Journal"]

T = TypeVar("T")
K = TypeVar("K", bound=OwnedRun)

STATES = ("pending", "running", "suspended", "parked", *ENDED)


class Journal:
    """The store of durable runs: an SQLite file, or ":memory:" for tests.

        async with Journal("runs.db") as journal:
            answer = await journal.run(Order("A-17"), run_id="order-A-17")

    When a run is suspended, effects in progress get `grace` seconds to end. A run that was resumed
    more than `max_recoveries` times without success is parked. `codec` transforms all values, such
    as by encryption. With `partials` growing replies are written every so many seconds, for those
    who `look` at the run; they are never replayed. A journal belongs to the event loop in which it
    is opened, and can be opened again after it is closed.
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
            raise TypeError(f"a journal is the name of a file, or a path, and not {name!r}")
        scheme, is_address, _ = name.partition("://")
        if is_address:  # which may contain a password
            raise JournalError(f"{scheme}://...", "is no file", "name a file of this machine")
        if not grace >= 0:
            raise ValueError(f"grace= is a number of seconds, and not {grace!r}")
        if not max_recoveries >= 0:
            raise ValueError(f"max_recoveries= is a number from 0 on, and not {max_recoveries!r}")
        if partials is not None and not partials > 0:
            raise ValueError(f"partials= is a number of seconds above 0, and not {partials!r}")
        if codec is not None and not all(hasattr(codec, each) for each in ("encode", "decode")):
            raise TypeError(f"codec= is an object with encode and decode, and not {codec!r}")
        self.name = name
        self.partials = partials
        self.grace = grace
        self.max_recoveries = max_recoveries
        self._file = JournalFile(name, codec)
        # The runs and sessions that are owned here, each with a future that is done on release.
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
        for kept in self._driven:
            kept.begin_to_suspend()
        for kept, given_back in list(self._driven.items()):
            if not (isinstance(kept, Session) and not kept.is_calling):  # it has work to end
                await wait_shielded(given_back)
        await self._file.close()

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process, and not closed since."""
        return self._file.is_open

    async def start(self, job: Durable[Any], *, run_id: str, queue: str = "") -> RunRow:
        """Create a pending run durably, or return the existing one; `run` or `take_up` executes it.

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
        if state is not None and state not in STATES:
            raise ValueError(f"there is no state {state!r}: one of {', '.join(STATES)}")
        if prefix:
            check_name(prefix, "prefix=")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(f"limit= is a number from 0 on, not {limit!r}")
        return await self._file.runs(state, prefix, limit)

    async def look(self, run_id: str) -> RunView:
        """Return a view of a run with its rows, whichever process owns it. Raises `RunNotFound`."""
        run, rows, letters = await self._file.look(run_id)
        return view(run, rows, [each for each in letters if each.kind != NOTE])

    async def fork(self, run_id: str, new_run_id: str, *, at: int | None = None) -> RunRow:
        """Create a pending run with the inputs of another and its rows, all or up to number `at`.

        Letters are not copied. Effects of the other run after that row are executed again by the
        new one, with keys of its own. Raises `RunNotFound`, `RunExists` if the new name is taken,
        `ValueError` for a number after the last row.
        """
        rows = await self._file.rows(run_id)
        last = rows[-1].seq if rows else 0  # not their count: there may be numbers without a row
        number = last if at is None else at
        if not 0 <= number <= last:
            raise ValueError(
                f"the last row of the run {run_id!r} is {last}: at= is from 0 to {last}"
            )
        clock = last_clock([row for row in rows if row.seq <= number])
        return await self._file.fork(run_id, number, new_run_id, clock)

    async def purge(
        self, before: float, *, state: str | None = None, prefix: str | None = None
    ) -> int:
        """Remove the runs that ended before a time, in seconds since the epoch; return how many.

        `state` limits it to completed, failed or cancelled runs, `prefix` to names that start with
        it. A run that is not over is never removed. Other processes can write during a long purge.
        An interrupted purge is completed by the next one; until then its runs only use disk space.
        """
        if not isinstance(before, int | float) or isnan(before):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"before= is a time as time.time() gives it, and not {before!r}")
        if state is not None and state not in ENDED:
            raise ValueError(f"only runs that are over are removed: {', '.join(ENDED)}")
        if prefix:
            check_name(prefix, "prefix=")
        states = ENDED if state is None else (state,)
        return await self._file.purge(before, states=states, prefix=prefix)

    async def run(
        self,
        job: Durable[T],
        *,
        run_id: str,
        live: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
    ) -> T:
        """Start a run or resume it; wait for its end and return its result.

        A run that has ended returns its recorded result. Inside a tree its jobs are below the
        commander of that tree. Cancelling this call suspends the run, without a recorded cancel.

        `timeout` is that of the job, as in `commander.run`: after so many seconds of all executions
        together the job fails with `TimeoutError`, which is recorded. `limits`, such as
        `Limits(budget=...)`, hold for the run with its later rounds, and count earlier usage. The
        journal stores neither: pass them again to resume the run.
        """
        return await self._drive(job, run_id, live, timeout, limits)

    async def take_up(
        self,
        run_id: str,
        *,
        live: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
    ) -> Any:
        """Resume a run by its name, with its job from the journal; otherwise as `run`.

        Raises `RunNotFound`, and `JournalMismatch` if its class was removed or has another version.
        """
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
        async with self.taken_up(job, run_id, live) as kept:
            node = parent_here()
            if node is None:
                async with Commander() as commander:
                    await kept.drive(commander, timeout=timeout, limits=limits)
            else:
                await kept.drive(node.commander, timeout=timeout, limits=limits)
        return kept.outcome()

    async def signal(
        self, run_id: str, name: str, value: Any = None, *, key: str | None = None
    ) -> None:
        """Send a value to a run, for `self.durable.signal(name, ...)`; durable when this returns.

        It is stored until the run asks for it. `key` is an idempotency key for a sender that
        retries: of the signals of one name with the same key a run gets only the first. The others
        return without an error, also when the run is over. The journal stores a key as long as the
        run, and for 30 days at least. Raises `RunNotFound`, `JournalError` for a run that is over,
        `NotStorable` for a value that cannot be stored.
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
        await self._file.post(run_id, NOTE, name, data, wakes=False)

    async def notes(self, run_id: str, name: str) -> list[Any]:
        """Return the notes of this name, oldest first. Raises `RunNotFound`."""
        kept = [each for each in await self._file.letters(run_id) if each.kind == NOTE]
        codec = _note_codec(name)
        return [codec.decode(each.value) for each in kept if each.name == name]

    async def cancel(self, run_id: str, reason: str = "") -> None:
        """Cancel a run for good, whether or not a process owns it; durable when this returns.

        The owner then cancels its tree. Of a run without an owner nothing runs any more, neither
        callbacks nor clean-up. Raises `RunNotFound`, `JournalError` for a run that is over.
        """
        data = json.dumps(reason).encode()
        check = partial(self._require_unended, "cancel")
        await self._file.post(run_id, "cancel", "", data, check=check)
        with suppress(RunBusy):
            await cancel_unowned(self._file, run_id)

    async def resume(self, run_id: str) -> None:
        """Let the failed parts of a run, and those cancelled for them, run again when it resumes.

        Completed parts stay, and so do the numbers of attempts. A parked run may be resumed then.
        Raises `RunNotFound`, `RunBusy`, and `JournalError` for a run that has completed.
        """
        run = await self._file.run(run_id)
        if run.state == "completed":
            why = f"has nothing to resume in the run {run_id!r}, which has completed"
            raise JournalError(
                self.name, why, f"anabranch runs show {quote(run_id)} shows what it gave"
            )
        await resume(self._file, run_id)

    def _require_unended(self, what: str, run: RunRow) -> None:
        if run.state in ENDED:
            why = f"takes no {what} for the run {run.run_id!r}, which is over ({run.state})"
            remedy = f"anabranch runs show {quote(run.run_id)} shows how it ended"
            raise JournalError(self.name, why, remedy)

    async def approvals(self, run_id: str | None = None) -> list[PendingApproval]:
        """Return the calls that wait for an approval, of all runs or of one, oldest first.

        Also those of suspended runs. Answer each by its `approve()` or `deny()`, in any order and
        from any process.
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
            lock = RunLock(self.name, f"\0{name}")  # not the name of any run
        except RunBusy as busy:
            raise RunBusy(name, busy.pid, busy.since) from None
        except OSError as error:
            raise explain(self.name, error) from error
        try:
            yield
        finally:
            lock.release()

    @asynccontextmanager
    async def taken_up(
        self, job: Durable[Any] | None, run_id: str, live: Mapping[str, Any] | None
    ) -> AsyncGenerator[OwnedRun]:
        """Acquire a run for the block."""
        if not isinstance(live, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"live= is a dict of values by the names of fields, and not {live!r}")
        taking = take_up(
            self._file,
            job if job is None else _require_durable(job),
            run_id,
            live or {},
            grace=self.grace,
            max_recoveries=self.max_recoveries,
        )
        async with self._registered(taking) as kept:
            yield kept

    @asynccontextmanager
    async def _registered(self, taking: AbstractAsyncContextManager[K]) -> AsyncGenerator[K]:
        """Register an acquired run, so that closing the journal suspends it and waits for it."""
        given_back = asyncio.get_running_loop().create_future()
        kept = None
        try:
            async with taking as kept:
                self._driven[kept] = given_back
                kept.write_partials(self.partials)
                yield kept
        finally:
            if kept is not None:
                del self._driven[kept]
            given_back.set_result(None)


@lru_cache(maxsize=64)
def _note_codec(name: str) -> Codec:
    # Building a codec takes longer than writing a note, and a server writes many notes.
    return Codec(Any, f"the note {name!r}")


def _require_durable(job: object) -> Durable[Any]:
    if not isinstance(job, Durable):
        raise TypeError(f"{job!r} is not durable: a run in a journal is a Durable job")
    return cast("Durable[Any]", job)


@asynccontextmanager
async def _kept(
    job: Node[Any],
    journal: str | os.PathLike[str] | Journal,
    run_id: str | None,
    live: Mapping[str, Any] | None,
) -> AsyncGenerator[OwnedRun]:
    """Implement `run(job, journal=...)`."""
    if run_id is None:
        raise ConfigurationError(
            "run(..., journal=...) needs run_id=: by this name the run is taken up again"
        )
    async with AsyncExitStack() as stack:
        durable_job = _require_durable(job)
        if not isinstance(journal, Journal):
            journal = Journal(journal)
        if not journal.is_open:
            await stack.enter_async_context(journal)
        yield await stack.enter_async_context(journal.taken_up(durable_job, run_id, live))


durable.run_opener = _kept
