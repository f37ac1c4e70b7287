"""All runs of a server: their number, their owners, and how long they are stored."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from types import MappingProxyType
from typing import Any, NamedTuple

from ..commander import Commander
from ..commander.stored_names import stored_name
from ..store import Journal, JournalError, RunNotFound, RunRow
from ._durable_run import PREFIX, Answer, Incomplete, read_question
from ._failure import log_failure
from ._log import ENDS, Log, give_up
from ._run import OnLeave, Run
from ._served import Question, Served

__all__ = ["Busy", "NotBegun", "Runs"]

logger = logging.getLogger("anabranch.serve")


class Busy(Exception):
    """The server has its maximum of runs, or is ending; a client may retry in some seconds."""

    def __init__(self, *, closing: bool) -> None:
        what = (
            "the server is about to end" if closing else "the server has as many runs as it takes"
        )
        super().__init__(what)
        self.status = 503 if closing else 429
        self.retry_after = 5


class _Persisted(NamedTuple):
    """A run that an earlier process has persisted, and whether it is resumed."""

    row: RunRow
    resumed: asyncio.Event


class NotBegun(RuntimeError):
    """A server has no runs before its start and after its end."""


# The number of ended runs that are stored, for each that may run at once; and their characters.
MAX_ENDED = 10
MAX_ENDED_SIZE = 100_000_000
# Runs with the same call id that are compared.
MAX_SAME_ID = 8
# Seconds between two checks for calls in doubt, and for expired runs in the journal.
DOUBT_POLL_SECONDS = 0.5
PURGE_SECONDS = 10.0
# A cancelled run has so many seconds to end; then its readers are told that it was cancelled.
CANCEL_SECONDS = 5.0


class Runs:
    """The runs below one commander. One that has ended is stored for `keep` seconds.

    At most ten times `most` of them are stored, with `MAX_ENDED_SIZE` characters: those that ended
    first expire sooner.
    """

    def __init__(
        self, commander: Commander, *, most: int, keep: float, journal: Journal | None = None
    ) -> None:
        self._commander = commander
        self._most = most
        self._keep = keep
        self._journal = journal
        # Ended runs in the order of their ends: the timer until each expires, and its size.
        self._stored: dict[str, tuple[asyncio.TimerHandle, int]] = {}
        self._size = 0
        # Those with calls for their clients, by owner, model and the first call's id; the newest
        # last.
        self._calling: dict[tuple[str, str, str], list[Run]] = {}
        self._runs: dict[str, Run] = {}
        self.running = 0  # the number that has not ended, including those that are not resumed yet
        # Persisted runs that are not resumed yet, oldest first; clients wait for the wanted ones.
        self._persisted: dict[str, _Persisted] = {}
        self._wanted: deque[str] = deque()
        # Tasks that wait for the last entries of runs to be written.
        self._writing: set[asyncio.Task[None]] = set()
        self.closing = False

    def start(
        self,
        served: Served,
        question: Question,
        owner: str,
        on_leave: OnLeave,
        *,
        traced: bool = False,
        asks: bool = False,
        echo: Mapping[str, Any] = MappingProxyType({}),
    ) -> Run:
        """Start a run. Raises `Busy`, or `BadQuestion` for a question that is refused."""
        if self.closing or self.running >= self._most:
            raise Busy(closing=self.closing)
        log = None
        # Persist only runs that a client can reconnect to.
        returns = on_leave == "detach" and echo.get("store", True)
        if self._journal is not None and served.keeps and returns:
            log = Log(journal=self._journal, run_id=PREFIX + secrets.token_hex(16))
        more: Any = {"traced": traced, "asks": asks, "log": log, "echo": echo}
        run = Run(served, question, owner, on_leave, **more)
        self._begin(run)
        return run

    def _begin(self, run: Run) -> None:
        run.at_done(lambda _: self._ended(run))
        self._commander.call_handler(run)
        self.running += 1
        self._runs[run.id] = run

    async def find_persisted(self) -> None:
        """List the journal's runs; `resume` resumes them."""
        if self._journal is None:
            return
        expired = time.time() - self._keep
        for row in reversed(await self._journal.runs(prefix=PREFIX)):
            if row.class_name != stored_name(Answer):
                continue  # another program's
            if row.state not in ENDS or row.updated > expired:
                self._persisted[row.run_id.removeprefix(PREFIX)] = _Persisted(row, asyncio.Event())
                self.running += row.state not in ENDS

    async def resume(self, served: Mapping[str, Served]) -> None:
        """Resume the persisted runs, one after the other, and read those that have ended.

        The server answers requests during that time. Runs that a client waits for come first.
        """
        try:
            while self._journal is not None and self._persisted and not self.closing:
                name = self._wanted.popleft() if self._wanted else next(iter(self._persisted))
                if name in self._persisted:
                    await self._resume_one(self._journal, name, served)
        finally:  # the end of the server
            for _, resumed in self._persisted.values():
                resumed.set()

    async def _resume_one(self, journal: Journal, name: str, served: Mapping[str, Served]) -> None:
        row, resumed = self._persisted[name]
        try:
            await self._resume(journal, row, served)
        except RunNotFound:
            pass  # it has expired
        except Incomplete:
            await give_up(journal, row.run_id)
        except Exception as error:  # noqa: BLE001 - a damaged run must not block the others
            log_failure("cannot resume the run %s", row.run_id, error=error)
        del self._persisted[name]
        self.running -= row.state not in ENDS
        resumed.set()

    async def until_resumed(self, run_id: str | None = None) -> None:
        """Wait until a persisted run is resumed, before the others; without an id, until all are.

        Raises `Busy` if the server ends before that.
        """
        for name in [*self._persisted] if run_id is None else [run_id]:
            if (persisted := self._persisted.get(name)) is not None:
                self._wanted.append(name)
                if not self.closing:
                    await persisted.resumed.wait()
                if name in self._persisted:
                    raise Busy(closing=True)

    async def _resume(self, journal: Journal, row: RunRow, served: Mapping[str, Served]) -> None:
        inputs: Any = json.loads(row.inputs)
        name, asked = inputs["served"], inputs["asked"]
        thing = served.get(name)
        if thing is None or not thing.keeps:
            logger.warning(
                "the run %s waits: %s is not served, or its runs are not persisted",
                row.run_id,
                name,
            )
            return
        log = await Log.open(journal, row.run_id)
        known = {name: asked[name] for name in ("traced", "asks", "created")}
        question, echo = await read_question(journal, row.run_id, asked)
        known |= {"log": log, "resumed": True, "echo": echo}
        run = Run(thing, question, asked["owner"], "detach", **known)
        if not log.ended:
            self._begin(run)
            return
        run.settle()
        run.trace = None
        self._runs[run.id] = run
        self._expire_later(run, row.updated + self._keep - time.time())
        if row.state not in ENDS:
            await give_up(journal, row.run_id)

    async def tend(self) -> None:
        """Ask about calls in doubt, and remove expired runs from the journal, until cancelled."""
        if self._journal is None:
            return
        clock = asyncio.get_running_loop().time
        try:
            await self._purge(self._journal)
            purged = clock()
            while True:
                await asyncio.sleep(DOUBT_POLL_SECONDS)
                for run in [*self._runs.values()]:
                    await run.look_for_doubts()
                if clock() - purged > PURGE_SECONDS:
                    await self._purge(self._journal)
                    purged = clock()
        except JournalError as error:  # it takes no more writes in this process
            logger.error("the journal has failed: %s", error)

    async def _purge(self, journal: Journal) -> None:
        await journal.purge(time.time() - self._keep, prefix=PREFIX)

    def find(self, run_id: str, owner: str) -> Run | None:
        """Return a run of this owner; None for another owner's (S14)."""
        run = self._runs.get(run_id)
        known = run is not None and run.owner == owner and run.is_accepted
        return run if known else None

    def calling(self, owner: str, served: str, call_id: str) -> list[Run]:
        """Return the owner's runs whose reply has this first call, the newest first.

        Only those whose reply has provider items: a few, in case a provider repeats its ids.
        """
        return self._calling.get((owner, served, call_id), [])[: -MAX_SAME_ID - 1 : -1]

    def renew(self, run: Run) -> None:
        """Store a run that has ended for `keep` seconds from now on."""
        if run.id in self._stored:
            self._remove(run.id)
            self._expire_later(run, self._keep)

    async def delete(self, run: Run) -> None:
        """Remove a run, also from the journal; cancel it if it still runs."""
        if run.id in self._stored:
            self._expire(run.id)
        elif self._runs.pop(run.id, None) is not None:
            run.cancel("a client deleted it")
            await run.log.over()
        if self._journal is not None and run.is_persisted:
            await run.log.flushed()
            await self._journal.purge(math.inf, prefix=PREFIX + run.id)

    def of(self, owner: str) -> list[Run]:
        """Return the runs of an owner, the newest first."""
        known = [run for run in self._runs.values() if run.is_accepted and run.owner == owner]
        return sorted(known, key=lambda run: run.created, reverse=True)

    def _ended(self, run: Run) -> None:
        self.running -= 1
        if run.log.ended:
            self._store(run)
            return
        # Readers get its last entries when they are written.
        writing = asyncio.get_running_loop().create_task(run.log.flushed(), context=Context())
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        writing.add_done_callback(lambda _: self._store(run))

    def _store(self, run: Run) -> None:
        """Store a run that has ended; a suspended one continues later, or in another process."""
        if run.log.is_suspended:
            self._runs.pop(run.id, None)
            return
        spent = run.spent
        logger.info(
            "%s %s in %.1f s, %d + %d tokens",
            *(run.served.name, run.status, time.time() - run.created),
            *(spent.input_tokens, spent.output_tokens),
        )
        if run.id in self._runs:  # else `close` has removed it
            self._expire_later(run, self._keep)

    def _expire_later(self, run: Run, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, run.id)
        self._stored[run.id] = timer, run.size
        self._size += run.size
        if run.first_call is not None:
            place = (run.owner, run.served.name, run.first_call)
            self._calling.setdefault(place, []).append(run)
        while len(self._stored) > MAX_ENDED * self._most or self._size > MAX_ENDED_SIZE:
            self._expire(next(iter(self._stored)))

    def _expire(self, run_id: str) -> None:
        self._remove(run_id)
        del self._runs[run_id]

    def _remove(self, run_id: str) -> None:
        timer, size = self._stored.pop(run_id)
        timer.cancel()
        self._size -= size
        run = self._runs[run_id]
        if run.first_call is not None:
            place = (run.owner, run.served.name, run.first_call)
            self._calling[place].remove(run)
            if not self._calling[place]:
                del self._calling[place]

    async def drain(self, timeout: float, grace: float = 0.0) -> None:
        """Take no new runs, let the others end, and cancel those that run after `timeout` seconds.

        They have `grace` seconds to end; then their readers are told that they were cancelled.
        """
        self.closing = True
        if timeout <= 0:
            self.suspend()
        timer = asyncio.get_running_loop().call_later(timeout, self.suspend)
        try:
            async with asyncio.timeout(timeout + grace + CANCEL_SECONDS):
                with suppress(RuntimeError):
                    await self._commander.drain(timeout)
        except TimeoutError:
            for run in [*self._runs.values()]:
                if not run.log.is_ending and not run.log.is_suspended:
                    logger.error("%s still runs though it was cancelled", run.served.name)
                    run.abandon()
        finally:
            timer.cancel()

    def suspend(self) -> None:
        """Suspend the persisted runs: their interruption now is no entry."""
        self.closing = True
        for run in self._runs.values():
            if run.is_persisted and not run.log.is_ending:
                run.log.suspend()

    async def flush(self) -> None:
        """Write the last entries, when nothing runs any more."""
        await asyncio.gather(*self._writing)
        for run in [*self._runs.values()]:
            await run.log.flushed()

    def close(self) -> None:
        """Remove all runs."""
        for timer, _ in self._stored.values():
            timer.cancel()
        self._stored.clear()
        self._runs.clear()
