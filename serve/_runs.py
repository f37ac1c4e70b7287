"""All runs of a server: how many there may be, whose they are, and for how long they are kept."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from ..commander import Commander
from ._run import OnLeave, Run
from ._served import Question, Served

__all__ = ["Busy", "Runs"]

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


# How many runs that have ended are kept, for each that may run at once; and with how many
# characters altogether.
KEPT = 10
KEPT_SIZE = 100_000_000


class Runs:
    """The runs below one commander. One that has ended is kept for `keep` seconds.

    No more than ten times `most` of them are kept, nor more than `KEPT_SIZE` characters: then those
    that ended first are forgotten sooner.
    """

    def __init__(self, commander: Commander, *, most: int, keep: float) -> None:
        self._commander = commander
        self._most = most
        self._keep = keep
        # The runs that have ended, the first to end first: when each is forgotten, and its size.
        self._kept: dict[str, tuple[asyncio.TimerHandle, int]] = {}
        self._size = 0
        self._runs: dict[str, Run] = {}
        self.running = 0  # how many have not ended
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
    ) -> Run:
        """Begin a run. Raises `Busy`, or `BadQuestion` for what is not offered."""
        if self.closing or self.running >= self._most:
            raise Busy(closing=self.closing)
        run = Run(served, question, owner, on_leave, traced=traced, asks=asks)
        run.at_done(lambda _: self._ended(run))
        self._commander.call_handler(run)
        self.running += 1
        self._runs[run.id] = run
        return run

    def find(self, run_id: str, owner: str) -> Run | None:
        """Return a run of this owner's; another's is as if it were not there (S14)."""
        run = self._runs.get(run_id)
        return run if run is not None and run.owner == owner else None

    def of(self, owner: str) -> list[Run]:
        """Return the runs of one owner, the newest first."""
        return [run for run in reversed(self._runs.values()) if run.owner == owner]

    def _ended(self, run: Run) -> None:
        self.running -= 1
        spent = run.spent
        logger.info(
            "%s %s in %.1f s, %d + %d tokens",
            *(run.served.name, run.status, time.time() - run.created),
            *(spent.input_tokens, spent.output_tokens),
        )
        if run.id not in self._runs:
            return  # `close` has forgotten it
        timer = asyncio.get_running_loop().call_later(self._keep, self._forget, run.id)
        self._kept[run.id] = timer, run.size
        self._size += run.size
        while len(self._kept) > KEPT * self._most or self._size > KEPT_SIZE:
            self._forget(next(iter(self._kept)))

    def _forget(self, run_id: str) -> None:
        timer, size = self._kept.pop(run_id)
        timer.cancel()
        self._size -= size
        del self._runs[run_id]

    async def drain(self, timeout: float) -> None:
        """Take no more, let what runs end, and cancel after `timeout` seconds what still does."""
        self.closing = True
        with suppress(RuntimeError):
            await self._commander.drain(timeout)

    def close(self) -> None:
        """Forget all."""
        for timer, _ in self._kept.values():
            timer.cancel()
        self._kept.clear()
        self._runs.clear()
