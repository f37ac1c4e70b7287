"""All runs of a server: how many there may be, whose they are, and for how long they are kept."""

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
    """There are as many runs as there may be, or the server ends; come back in some seconds."""

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
    """There are no runs before a server has begun, nor when it has ended."""


# How many runs that have ended are kept, for each that may run at once; and with how many
# characters altogether.
KEPT = 10
KEPT_SIZE = 100_000_000
# Runs with the same id of a call that are looked at.
SAME_ID = 8
# Seconds between two looks for calls in doubt, and between two for what the file has too long.
LOOK = 0.5
TIDY = 10.0
# Seconds that a run gets to end when it was cancelled, before its readers are told so.
PATIENCE = 5.0


class Runs:
    """The runs below one commander. One that has ended is kept for `keep` seconds.

    No more than ten times `most` of them are kept, nor more than `KEPT_SIZE` characters: then those
    that ended first are forgotten sooner.
    """

    def __init__(
        self, commander: Commander, *, most: int, keep: float, journal: Journal | None = None
    ) -> None:
        self._commander = commander
        self._most = most
        self._keep = keep
        self._journal = journal
        # The runs that have ended, the first to end first: when each is forgotten, and its size.
        self._kept: dict[str, tuple[asyncio.TimerHandle, int]] = {}
        self._size = 0
        # Those of them that clients are to run calls for, by owner, model and the first call's id;
        # the newest last.
        self._calling: dict[tuple[str, str, str], list[Run]] = {}
        self._runs: dict[str, Run] = {}
        self.running = 0  # how many have not ended, those that wait to be resumed included
        # Persisted runs that this process has not resumed yet, the oldest first; a client waits for
        # those that are wanted.
        self._persisted: dict[str, _Persisted] = {}
        self._wanted: deque[str] = deque()
        # What may still have to be written.
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
        """Begin a run. Raises `Busy`, or `BadQuestion` for what is not offered."""
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
        """Read which runs the journal has; `resume` resumes them."""
        if self._journal is None:
            return
        expired = time.time() - self._keep
        for row in reversed(await self._journal.runs(prefix=PREFIX)):
            if row.class_name != stored_name(Answer):
                continue  # somebody else's
            if row.state not in ENDS or row.updated > expired:
                self._persisted[row.run_id.removeprefix(PREFIX)] = _Persisted(row, asyncio.Event())
                self.running += row.state not in ENDS

    async def resume(self, served: Mapping[str, Served]) -> None:
        """Resume the persisted runs, however many, and read those that have ended.

        The server answers during that time. They are resumed one after the other, first those that
        a client waits for.
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
            pass  # it has expired since
        except Incomplete:
            await give_up(journal, row.run_id)
        except Exception as error:  # noqa: BLE001 - one that is damaged holds up no other
            log_failure("the run %s cannot be taken up", row.run_id, error=error)
        del self._persisted[name]
        self.running -= row.state not in ENDS
        resumed.set()

    async def until_resumed(self, run_id: str | None = None) -> None:
        """Wait until a persisted run is resumed, before all others; without a name, until all are.

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
            logger.warning("the run %s waits: %s is not served, or not kept", row.run_id, name)
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
        self._forget_later(run, row.updated + self._keep - time.time())
        if row.state not in ENDS:
            await give_up(journal, row.run_id)

    async def tend(self) -> None:
        """Look for calls in doubt, and remove from the file what is known no longer, for ever."""
        if self._journal is None:
            return
        clock = asyncio.get_running_loop().time
        try:
            await self._tidy(self._journal)
            tidied = clock()
            while True:
                await asyncio.sleep(LOOK)
                for run in [*self._runs.values()]:
                    await run.look_for_doubts()
                if clock() - tidied > TIDY:
                    await self._tidy(self._journal)
                    tidied = clock()
        except JournalError as error:  # it takes nothing more in this process
            logger.error("the journal has failed: %s", error)

    async def _tidy(self, journal: Journal) -> None:
        await journal.purge(time.time() - self._keep, prefix=PREFIX)

    def find(self, run_id: str, owner: str) -> Run | None:
        """Return a run of this owner's; another's is as if it were not there (S14)."""
        run = self._runs.get(run_id)
        known = run is not None and run.owner == owner and run.is_accepted
        return run if known else None

    def calling(self, owner: str, served: str, call_id: str) -> list[Run]:
        """Return the runs of this owner's whose reply has this call first, the newest first.

        Only those whose reply has provider items; a few, where a provider repeats its ids.
        """
        return self._calling.get((owner, served, call_id), [])[: -SAME_ID - 1 : -1]

    def renew(self, run: Run) -> None:
        """Keep a run that has ended for `keep` seconds from now on."""
        if run.id in self._kept:
            self._remove(run.id)
            self._forget_later(run, self._keep)

    async def delete(self, run: Run) -> None:
        """Forget a run now, in the journal too; one that still goes on is cancelled."""
        if run.id in self._kept:
            self._forget(run.id)
        elif self._runs.pop(run.id, None) is not None:
            run.cancel("a client deleted it")
            await run.log.over()
        if self._journal is not None and run.is_persisted:
            await run.log.flushed()
            await self._journal.purge(math.inf, prefix=PREFIX + run.id)

    def of(self, owner: str) -> list[Run]:
        """Return the runs of one owner, the newest first."""
        known = [run for run in self._runs.values() if run.is_accepted and run.owner == owner]
        return sorted(known, key=lambda run: run.created, reverse=True)

    def _ended(self, run: Run) -> None:
        self.running -= 1
        if run.log.ended:
            self._put_away(run)
            return
        # Its end is known when it is written, and so is what was said last.
        writing = asyncio.get_running_loop().create_task(run.log.flushed(), context=Context())
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        writing.add_done_callback(lambda _: self._put_away(run))

    def _put_away(self, run: Run) -> None:
        """Keep a run that has ended; one that was left goes on later or elsewhere, not here."""
        if run.log.is_suspended:
            self._runs.pop(run.id, None)
            return
        spent = run.spent
        logger.info(
            "%s %s in %.1f s, %d + %d tokens",
            *(run.served.name, run.status, time.time() - run.created),
            *(spent.input_tokens, spent.output_tokens),
        )
        if run.id in self._runs:  # else `close` has forgotten it
            self._forget_later(run, self._keep)

    def _forget_later(self, run: Run, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._forget, run.id)
        self._kept[run.id] = timer, run.size
        self._size += run.size
        if run.first_call is not None:
            place = (run.owner, run.served.name, run.first_call)
            self._calling.setdefault(place, []).append(run)
        while len(self._kept) > KEPT * self._most or self._size > KEPT_SIZE:
            self._forget(next(iter(self._kept)))

    def _forget(self, run_id: str) -> None:
        self._remove(run_id)
        del self._runs[run_id]

    def _remove(self, run_id: str) -> None:
        timer, size = self._kept.pop(run_id)
        timer.cancel()
        self._size -= size
        run = self._runs[run_id]
        if run.first_call is not None:
            place = (run.owner, run.served.name, run.first_call)
            self._calling[place].remove(run)
            if not self._calling[place]:
                del self._calling[place]

    async def drain(self, timeout: float, grace: float = 0.0) -> None:
        """Take no more, let what runs end, and cancel after `timeout` seconds what still does.

        `grace` is how long that may take; what goes on all the same is told to be cancelled.
        """
        self.closing = True
        if timeout <= 0:
            self.suspend()
        timer = asyncio.get_running_loop().call_later(timeout, self.suspend)
        try:
            async with asyncio.timeout(timeout + grace + PATIENCE):
                with suppress(RuntimeError):
                    await self._commander.drain(timeout)
        except TimeoutError:
            for run in [*self._runs.values()]:
                if not run.log.is_ending and not run.log.is_suspended:
                    logger.error("%s goes on though it was cancelled", run.served.name)
                    run.abandon()
        finally:
            timer.cancel()

    def suspend(self) -> None:
        """Let runs that a journal keeps say nothing more: that they are cut off now is no news."""
        self.closing = True
        for run in self._runs.values():
            if run.is_persisted and not run.log.is_ending:
                run.log.suspend()

    async def flush(self) -> None:
        """Write what was said last, once nothing goes on."""
        await asyncio.gather(*self._writing)
        for run in [*self._runs.values()]:
            await run.log.flushed()

    def close(self) -> None:
        """Forget all."""
        for timer, _ in self._kept.values():
            timer.cancel()
        self._kept.clear()
        self._runs.clear()
