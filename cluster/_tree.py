"""The tree in a worker: it drives one job, and tells home of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ._desk import News
from ._outpost import BREATH, Feed, Outpost, failed
from ._parcel import unpack
from ._report import End, Order

if TYPE_CHECKING:
    from ..agents.remote import Scope
    from ._worker import Line

__all__ = ["Tree"]

logger = logging.getLogger("anabranch.cluster")

# After so many seconds home is told that the job has begun, if there is nothing else to tell.
BEACON = 0.02


class Tree:
    """One job of another machine's tree; all but `__init__` runs on the worker's loop."""

    def __init__(self, order: Order, line: Line) -> None:
        self._order = order
        self._line = line
        if order.stand.home is not None:
            order.stand.home.desk.seek()
        self._outpost = Outpost(order.stand)
        self._feed = Feed(self._outpost)
        self._cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        # When home is told that the job has begun; None once it has been told anything.
        self._beacon: float | None = None
        # How many reports have arrived at home, and the one that is under way.
        self._heard = 0
        self._unheard: bytes | None = None
        self._telling: asyncio.Task[None] | None = None
        self._flushed = 0.0
        self._scope: Scope | None = None
        self._left = 0 if order.said is None else order.said[1]

    def start(self) -> None:
        """Begin, in a task of its own."""
        self._task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._main())

    def cancel(self) -> None:
        """Cancel everything: home has told so."""
        self._cancelled = True
        self._outpost.cancel_all("cancelled from home")

    async def _main(self) -> None:
        try:
            with self._conversation():
                end = await self._drive()
        except BaseException as error:  # noqa: BLE001 - nobody else is there to tell of it
            end = failed(error)
        if self._timer is not None:
            self._timer.cancel()
        self._line.end((self._heard, self._unheard, self._report(end)))
        _sweep()
        self._task = None  # with it the task goes at once, and needs no garbage collector

    @contextmanager
    def _conversation(self) -> Generator[None, None, None]:
        """Go on with the conversation in which the job was put, if it was put in one."""
        if self._order.said is None:
            yield
            return
        from ..agents.remote import continue_scope

        with continue_scope(*self._order.said, None) as self._scope:
            yield

    async def _drive(self) -> End:
        async with self._outpost as outpost:
            self._beacon = asyncio.get_running_loop().time() + BEACON
            self._feed.listen(self._told)
            try:
                job = unpack(self._order.parcel)
            except Exception as error:  # noqa: BLE001 - whatever importing a module raises
                return ("refused", f"{type(error).__name__}: {error}")
            outpost.put_root(job)
            if self._cancelled:
                self.cancel()
        return outpost.ending()

    # --- reports

    def _told(self) -> None:
        """See to it that what has happened is reported soon."""
        if self._unheard is not None:
            return
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + BREATH:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(BREATH, self._flush)

    def _flush(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._feed.gather() or (self._beacon is not None and loop.time() >= self._beacon):
            self._beacon = None
            self._unheard, self._flushed = self._report(None), loop.time()
            self._telling = loop.create_task(self._tell(self._unheard))
        elif self._beacon is not None:
            self._timer = loop.call_at(self._beacon, self._flush)

    async def _tell(self, report: bytes) -> None:
        home = self._order.stand.home
        assert home is not None
        news = News(home.seat, home.call, self._heard + 1, report)
        try:
            await home.desk.tell(news)
        except Exception as error:  # noqa: BLE001 - from now on all is told at the end alone
            logger.warning("home cannot be told what happens here: %r", error)
        else:
            self._heard, self._unheard = self._heard + 1, None
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._flushed + BREATH), self._flush)

    def _report(self, end: End | None) -> bytes:
        left, self._left = self._left, 0 if self._scope is None else self._scope.left
        return self._feed.report(left - self._left, end)


def _sweep() -> None:
    """Cancel what bodies have left behind on the loop, as the end of a program would."""
    own = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not own:
            task.cancel()
