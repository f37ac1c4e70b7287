"""`Runs`: all runs of a server, with limits on their number, size and storage time."""

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
from ._durable_run import RUN_ID_PREFIX, DurableAnswer, IncompleteInput, read_stored_input
from ._failure import log_failure
from ._run import ContextOf, OnLeave, Run
from ._run_log import LAST_KINDS, RunLog, give_up
from ._served_model import RunInput, ServedModel

__all__ = ["Busy", "NotRunning", "Runs"]

logger = logging.getLogger("anabranch.serve")


class Busy(Exception):
    """The server has its maximum of runs, or is ending; clients may retry after `retry_after`."""

    def __init__(self, *, closing: bool) -> None:
        text = "The server is ending." if closing else "The server has its maximum of runs."
        super().__init__(f"{text} Try again later.")
        self.status = 503 if closing else 429
        self.retry_after = 5


class _Persisted(NamedTuple):
    """A run of an earlier process in the journal; `resumed` is set after its resume."""

    row: RunRow
    resumed: asyncio.Event


class NotRunning(RuntimeError):
    """The server has not started, or has ended."""


# The store holds at most this many ended runs for each run that may run at the same time, and at
# most this many characters of ended runs.
MAX_ENDED_RATIO = 10
MAX_ENDED_CHARS = 100_000_000
# A request restores provider items from a run with the same first call id. It compares at most so
# many runs.
MAX_SAME_CALL_ID = 8
# Seconds between two checks for calls in doubt, and for expired runs in the journal.
DOUBT_CHECK_SECONDS = 0.5
PURGE_SECONDS = 10.0
# A cancelled run must end within this time. After it, its clients get the end of the stream anyway.
CANCEL_SECONDS = 5.0


class Runs:
    """The runs below one commander. An ended run stays for `keep` seconds.

    It expires sooner, in the order of their ends, if more than `MAX_ENDED_RATIO` times `max_runs`
    runs, or more than `MAX_ENDED_CHARS` characters, are stored.
    """

    def __init__(
        self,
        commander: Commander,
        *,
        max_runs: int,
        keep: float,
        journal: Journal | None = None,
        context: ContextOf | None = None,
    ) -> None:
        self._commander = commander
        self._context = context
        self._max_runs = max_runs
        self._keep = keep
        self._journal = journal
        # Ended runs in the order of their ends: the timer until each expires, and its size.
        self._ended_runs: dict[str, tuple[asyncio.TimerHandle, int]] = {}
        self._ended_chars = 0
        # Ended runs whose reply has provider items and tool calls, the newest last, by owner, model
        # and the id of the first call. A later request with this call needs the items.
        self._by_call: dict[tuple[str, str, str], list[Run]] = {}
        self._runs: dict[str, Run] = {}
        self.running: int = 0  # the number of runs that have not ended, with those to be resumed
        # Persisted runs that are not resumed yet, oldest first, and the ids of those that a client
        # waits for.
        self._persisted: dict[str, _Persisted] = {}
        self._wanted: deque[str] = deque()
        # Tasks that wait for the last entries of runs to be written.
        self._writing: set[asyncio.Task[None]] = set()
        self.closing: bool = False

    def start(
        self,
        served: ServedModel,
        run_input: RunInput,
        owner: str,
        on_leave: OnLeave,
        *,
        traced: bool = False,
        can_ask: bool = False,
        echo: Mapping[str, Any] = MappingProxyType({}),
    ) -> Run:
        """Start a run. Raises `Busy`, or `InvalidInput` if the model refuses the input."""
        if self.closing or self.running >= self._max_runs:
            raise Busy(closing=self.closing)
        log = None
        # Persist only runs that a client can reconnect to.
        can_reconnect = on_leave == "detach" and echo.get("store", True)
        if self._journal is not None and served.is_durable and can_reconnect:
            log = RunLog(journal=self._journal, run_id=RUN_ID_PREFIX + secrets.token_hex(16))
        more: Any = {"traced": traced, "can_ask": can_ask, "log": log, "echo": echo}
        run = Run(served, run_input, owner, on_leave, **more)
        self._begin(run)
        return run

    def _begin(self, run: Run) -> None:
        run.context_of = self._context
        run.at_done(lambda _: self._ended(run))
        self._commander.call_handler(run)
        self.running += 1
        self._runs[run.id] = run

    async def find_persisted(self) -> None:
        """Find the journal's runs, which `resume` resumes."""
        if self._journal is None:
            return
        expired = time.time() - self._keep
        for row in reversed(await self._journal.runs(prefix=RUN_ID_PREFIX)):
            if row.class_name != stored_name(DurableAnswer):
                continue  # another program's run in the same journal
            if row.state not in LAST_KINDS or row.updated > expired:
                run_id = row.run_id.removeprefix(RUN_ID_PREFIX)
                self._persisted[run_id] = _Persisted(row, asyncio.Event())
                self.running += row.state not in LAST_KINDS

    async def resume(self, served: Mapping[str, ServedModel]) -> None:
        """Resume the persisted runs, one after the other, and read those that have ended.

        The server answers requests during that time. Runs that a client waits for come first.
        """
        try:
            while self._journal is not None and self._persisted and not self.closing:
                run_id = self._wanted.popleft() if self._wanted else next(iter(self._persisted))
                if run_id in self._persisted:
                    await self._resume_one(self._journal, run_id, served)
        finally:  # at the end of the server, wake the clients that wait
            for _, resumed in self._persisted.values():
                resumed.set()

    async def _resume_one(
        self, journal: Journal, run_id: str, served: Mapping[str, ServedModel]
    ) -> None:
        row, resumed = self._persisted[run_id]
        try:
            await self._resume(journal, row, served)
        except RunNotFound:
            pass  # it has expired
        except IncompleteInput:
            await give_up(journal, row.run_id)
        except Exception as error:  # noqa: BLE001 - a damaged run must not block the others
            log_failure("cannot resume run %s", row.run_id, error=error)
        del self._persisted[run_id]
        self.running -= row.state not in LAST_KINDS
        resumed.set()

    async def until_resumed(self, run_id: str | None = None) -> None:
        """Wait until a persisted run, or without an id each one, is resumed. They are resumed next.

        Raises `Busy` if the server ends before that.
        """
        for each in [*self._persisted] if run_id is None else [run_id]:
            if (persisted := self._persisted.get(each)) is not None:
                self._wanted.append(each)
                if not self.closing:
                    await persisted.resumed.wait()
                if each in self._persisted:
                    raise Busy(closing=True)

    async def _resume(
        self, journal: Journal, row: RunRow, served: Mapping[str, ServedModel]
    ) -> None:
        inputs: Any = json.loads(row.inputs)
        name, asked = inputs["served"], inputs["asked"]
        model = served.get(name)
        if model is None or not model.is_durable:
            text = "run %s waits: %s is not served, or its runs are not persisted"
            logger.warning(text, row.run_id, name)
            return
        log = await RunLog.open(journal, row.run_id)
        run_input, echo = await read_stored_input(journal, row.run_id, asked)
        more: Any = {"log": log, "resumed": True, "echo": echo, "created": asked["created"]}
        more |= {"traced": asked["traced"], "can_ask": asked["asks"]}
        run = Run(model, run_input, asked["owner"], "detach", **more)
        if not log.has_ended:
            self._begin(run)
            return
        run.release()
        run.trace = None
        self._runs[run.id] = run
        self._expire_later(run, row.updated + self._keep - time.time())
        # The process died between the last entry and the end of the journal's run.
        if row.state not in LAST_KINDS:
            await give_up(journal, row.run_id)

    async def maintain(self) -> None:
        """Ask about calls in doubt, and remove expired runs from the journal, until cancelled."""
        if self._journal is None:
            return
        clock = asyncio.get_running_loop().time
        try:
            await self._purge(self._journal)
            purged = clock()
            while True:
                await asyncio.sleep(DOUBT_CHECK_SECONDS)
                for run in [*self._runs.values()]:
                    await run.ask_about_doubts()
                if clock() - purged > PURGE_SECONDS:
                    await self._purge(self._journal)
                    purged = clock()
        except JournalError as error:  # after it the journal refuses all writes of this process
            logger.error("the journal has failed: %s", error)

    async def _purge(self, journal: Journal) -> None:
        await journal.purge(time.time() - self._keep, prefix=RUN_ID_PREFIX)

    def find(self, run_id: str, owner: str) -> Run | None:
        """Return a run of this owner; None for the run of another owner."""
        run = self._runs.get(run_id)
        is_known = run is not None and run.owner == owner and run.is_accepted
        return run if is_known else None

    def with_first_call(self, owner: str, served: str, call_id: str) -> list[Run]:
        """Return the owner's runs whose reply has provider items and this first call, newest first.

        Providers may repeat an id, so there may be several. Returns at most `MAX_SAME_CALL_ID`.
        """
        return self._by_call.get((owner, served, call_id), [])[: -MAX_SAME_CALL_ID - 1 : -1]

    def renew(self, run: Run) -> None:
        """Store an ended run for another `keep` seconds from now."""
        if run.id in self._ended_runs:
            self._remove(run.id)
            self._expire_later(run, self._keep)

    async def delete(self, run: Run) -> None:
        """Remove a run, also from the journal; cancel it first if it still runs."""
        if run.id in self._ended_runs:
            self._expire(run.id)
        elif self._runs.pop(run.id, None) is not None:
            run.cancel("a client deleted it")
            await run.log.until_ended()
        if self._journal is not None and run.is_persisted:
            await run.log.flush()
            await self._journal.purge(math.inf, prefix=RUN_ID_PREFIX + run.id)

    def of(self, owner: str) -> list[Run]:
        """Return the runs of an owner, the newest first."""
        known = [run for run in self._runs.values() if run.is_accepted and run.owner == owner]
        return sorted(known, key=lambda run: run.created, reverse=True)

    def _ended(self, run: Run) -> None:
        self.running -= 1
        if run.log.has_ended:
            self._store(run)
            return
        # Its last entries are not on disk yet.
        writing = asyncio.get_running_loop().create_task(run.log.flush(), context=Context())
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        writing.add_done_callback(lambda _: self._store(run))

    def _store(self, run: Run) -> None:
        """Store a run that has ended; forget one that continues later, or in another process."""
        if run.log.is_suspended:
            self._runs.pop(run.id, None)
            return
        usage = run.total_usage
        logger.info(
            "%s %s in %.1f s, %d + %d tokens",
            *(run.served.name, run.status, time.time() - run.created),
            *(usage.input_tokens, usage.output_tokens),
        )
        if run.id in self._runs:  # else `close` has removed it
            self._expire_later(run, self._keep)

    def _expire_later(self, run: Run, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, run.id)
        self._ended_runs[run.id] = timer, run.size
        self._ended_chars += run.size
        if run.first_call is not None:
            key = (run.owner, run.served.name, run.first_call)
            self._by_call.setdefault(key, []).append(run)
        most = MAX_ENDED_RATIO * self._max_runs
        while len(self._ended_runs) > most or self._ended_chars > MAX_ENDED_CHARS:
            self._expire(next(iter(self._ended_runs)))

    def _expire(self, run_id: str) -> None:
        self._remove(run_id)
        del self._runs[run_id]

    def _remove(self, run_id: str) -> None:
        timer, size = self._ended_runs.pop(run_id)
        timer.cancel()
        self._ended_chars -= size
        run = self._runs[run_id]
        if run.first_call is not None:
            key = (run.owner, run.served.name, run.first_call)
            self._by_call[key].remove(run)
            if not self._by_call[key]:
                del self._by_call[key]

    async def drain(self, timeout: float, grace: float = 0.0) -> None:
        """Refuse new runs, let the others end, and cancel the rest after `timeout` seconds.

        Cancelled runs have `grace` plus `CANCEL_SECONDS` seconds to end. After that, their clients
        get the end of the stream anyway.
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
                    logger.error("run %s of %s ignores its cancel", run.id, run.served.name)
                    run.abandon()
        finally:
            timer.cancel()

    def suspend(self) -> None:
        """Suspend the persisted runs, so that their cancel adds no last entry."""
        self.closing = True
        for run in self._runs.values():
            if run.is_persisted and not run.log.is_ending:
                run.log.suspend()

    async def flush(self) -> None:
        """Write the last entries; call it when all runs have ended."""
        await asyncio.gather(*self._writing)
        for run in [*self._runs.values()]:
            await run.log.flush()

    def close(self) -> None:
        """Remove all runs."""
        for timer, _ in self._ended_runs.values():
            timer.cancel()
        self._ended_runs.clear()
        self._runs.clear()
