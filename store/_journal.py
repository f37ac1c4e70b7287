"""`Journal`: the runs in one file, as a program sees them."""

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

from ..commander import Commander, ConfigurationError, Node, NodeLimits, parent_here
from ..commander import scope as seam
from ..commander.kinds import NUMBER, require
from ..commander.waiting import outlast
from ..messages.sqlite import MEMORY
from ._codec import Codec
from ._durable import Durable
from ._file import ENDED, JournalFile, check_name, last_clock
from ._inbox import NOTE
from ._lock import RunLock
from ._run import KeptRun, cancel_unowned, resume, start, take_up
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
K = TypeVar("K", bound=KeptRun)

STATES = ("pending", "running", "suspended", "parked", *ENDED)


class Journal:
    """Where runs are kept: a file of SQLite, or ":memory:" for tests.

        async with Journal("runs.db") as journal:
            answer = await journal.run(Order("A-17"), run_id="order-A-17")

    `grace` is how many seconds the effects that are under way get to end when a run is suspended. A
    run that was taken up more than `max_recoveries` times in vain is parked. All values are written
    and read through `codec`, as one that encrypts them. It belongs to the event loop in which it is
    opened; it can be opened again when it is closed. With `partials` what a model says is written
    while it grows, every so many seconds, for those who `look` at the run: no life of it goes on
    from that.
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
        if is_address:  # which may have a password in it
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
        # The runs and sessions here, each with what is done when it has been given back.
        self._driven: dict[KeptRun, asyncio.Future[None]] = {}

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
            if not (isinstance(kept, Session) and not kept.is_calling):  # nobody is in its block
                await outlast(given_back)
        await self._file.close()

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process, and not closed since."""
        return self._file.is_open

    async def start(self, job: Durable[Any], *, run_id: str, queue: str = "") -> RunRow:
        """Accept a run: it is on disk when this returns, and is run when somebody takes it up.

        The same again is the same run. Raises `RunExists` if the name belongs to another.
        """
        return await start(self._file, _require_durable(job), run_id, queue)

    async def runs(
        self, state: str | None = None, prefix: str | None = None, limit: int | None = None
    ) -> list[RunRow]:
        """Return the runs in a state, with names that begin so; the newest first, at most `limit`.

        The states are pending (nobody has taken it up yet), running, suspended, parked (somebody
        has to see to it), completed, failed and cancelled.
        """
        if state is not None and state not in STATES:
            raise ValueError(f"there is no state {state!r}: one of {', '.join(STATES)}")
        if prefix:
            check_name(prefix, "prefix=")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(f"limit= is a number from 0 on, not {limit!r}")
        return await self._file.runs(state, prefix, limit)

    async def look(self, run_id: str) -> RunView:
        """Return a run with its rows and what they say, whoever drives it. Raises `RunNotFound`."""
        run, rows, letters = await self._file.look(run_id)
        return view(run, rows, [each for each in letters if each.kind != NOTE])

    async def fork(self, run_id: str, new_run_id: str, *, at: int | None = None) -> RunRow:
        """Make a new run of another's inputs and its rows up to number `at`, or all; return it.

        It is `pending`; what was sent to the other run is not sent to it. What the other one did
        outside after that row, the new one does again, and with keys of its own. Raises
        `RunNotFound`, `RunExists` if the new name is taken, `ValueError` for a number after the
        last row's.
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

        With `state` only those that are completed, failed or cancelled; with `prefix` only those
        whose names begin so. A run that is not over is never removed. Other processes can write
        during a long purge. One that is cut short, by a cancel or a crash, is completed by the next
        one; until then its runs are gone and only take up room in the file.
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
        """Start a run, or take it up where it was; wait for its end and return its result.

        A run that has ended gives what it gave. Inside a tree it belongs to that tree: its jobs
        stand below the commander. Cancelling this call suspends the run, as every way of leaving
        does; nothing of it is kept as cancelled.

        `timeout` is that of the job, as in `commander.run`: after so many seconds, all executions
        together, the job fails with `TimeoutError`, and the journal keeps that. `limits`, as
        `Limits(budget=...)`, hold for the whole run, its later rounds included, and count what it
        has spent before. The journal keeps neither: give them again to take the run up.
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
        """Take a run up by its name, its job made anew from the journal; else as `run`.

        Raises `RunNotFound`, and `JournalMismatch` if its class is gone or another version.
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
        """Send a value to a run, for `self.durable.signal(name, ...)`; on disk when this returns.

        It is kept until the run asks for it. `key` is an idempotency key, for a sender that retries
        because it does not know whether its signal arrived: of the signals of one name with the
        same key, a run gets only the first, and the others return without an error, also when the
        run is over. The journal knows a key as long as it has the run, and for 30 days at least.
        Raises `RunNotFound`, `JournalError` for a run that is over, `NotStorable` for a value that
        cannot be written.
        """
        check_name(name, "the name of a signal")
        if key is not None:
            check_name(key, "key=")
        data = Codec(type(value), f"the signal {name!r}").encode(value)
        check = partial(self._require_unended, "signal")
        await self._file.post(run_id, "signal", name, data, key=key, check=check)

    async def note(self, run_id: str, name: str, value: Any) -> None:
        """Keep plain JSON beside a run, also one that is over; on disk when this returns.

        It is for whoever asks for `notes`: no life of the run goes on from it, and it is removed
        with the run. Raises `RunNotFound`, and `NotStorable` for what cannot be written.
        """
        check_name(name, "the name of a note")
        data = _note_codec(name).encode(value)
        await self._file.post(run_id, NOTE, name, data, wakes=False)

    async def notes(self, run_id: str, name: str) -> list[Any]:
        """Return what `note` has kept under this name, oldest first. Raises `RunNotFound`."""
        kept = [each for each in await self._file.letters(run_id) if each.kind == NOTE]
        codec = _note_codec(name)
        return [codec.decode(each.value) for each in kept if each.name == name]

    async def cancel(self, run_id: str, reason: str = "") -> None:
        """Cancel a run, whoever drives it; also one that nobody does. It stays cancelled.

        On disk when this returns; whoever drives the run hears of it then. Of one that nobody
        drives nothing runs any more, neither callbacks nor clean-up. Raises `RunNotFound`,
        `JournalError` for a run that is over.
        """
        data = json.dumps(reason).encode()
        check = partial(self._require_unended, "cancel")
        await self._file.post(run_id, "cancel", "", data, check=check)
        with suppress(RunBusy):
            await cancel_unowned(self._file, run_id)

    async def resume(self, run_id: str) -> None:
        """Let what has failed in a run, and what was cancelled for it, run again at its next claim.

        What has completed stays, and so do the numbers of attempts. A parked run may go on then.
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
        """Return the calls that wait for a person's yes, of all runs or of one, oldest first.

        Also those of runs that wait for somebody to take them up. Each is answered by its
        `approve()` or `deny()`, in any order, from any process.
        """
        return await pending(self._file, PendingApproval, run_id)

    async def doubts(self, run_id: str | None = None) -> list[PendingDoubt]:
        """Return the calls of which only a person can say whether they were done, oldest first.

        Each is answered by its `done(value)` or `not_done()`, as `approvals` are.
        """
        return await pending(self._file, PendingDoubt, run_id)

    @asynccontextmanager
    async def session(self, run_id: str) -> AsyncGenerator[Session]:
        """Claim a run that stays open, for as long as the block lasts: what agents' sessions are.

        It is begun if there is none of this name. Raises `RunBusy` while another process, or
        another journal, has it, `RunExists` if the name belongs to a run of another kind, and
        `JournalError` for one that was cancelled.
        """
        file, grace, most = self._file, self.grace, self.max_recoveries
        opening = open_session(file, run_id, grace=grace, max_recoveries=most)
        async with self._held(opening) as session:
            yield session

    @contextmanager
    def reserve(self, name: str) -> Generator[None]:
        """Keep a name from everybody else who reserves it in this file, for as long as the block.

        It says nothing about a run of this name. The end of this process, however it comes, ends
        it too. Raises `RunBusy` while another process, or another journal, has it, and
        `JournalError` where no lock can be made. In memory it keeps nobody out.
        """
        if self.name == MEMORY:
            yield
            return
        try:
            lock = RunLock(self.name, f"\0{name}")  # which no run is called
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
    ) -> AsyncGenerator[KeptRun]:
        """Claim a run for as long as the block lasts."""
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
        async with self._held(taking) as kept:
            yield kept

    @asynccontextmanager
    async def _held(self, taking: AbstractAsyncContextManager[K]) -> AsyncGenerator[K]:
        """Hold what is claimed, for the end of the journal to suspend it and to wait for it."""
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
    # Building one takes longer than writing a note, and a server writes many notes.
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
) -> AsyncGenerator[KeptRun]:
    """Do what `run(job, journal=...)` asks."""
    if run_id is None:
        raise ConfigurationError(
            "run(..., journal=...) needs run_id=: by this name the run is taken up again"
        )
    async with AsyncExitStack() as stack:
        durable = _require_durable(job)
        if not isinstance(journal, Journal):
            journal = Journal(journal)
        if not journal.is_open:
            await stack.enter_async_context(journal)
        yield await stack.enter_async_context(journal.taken_up(durable, run_id, live))


seam.keeper = _kept
