"""Waiting until a journal's file has changed: however many wait, it is looked at once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Protocol, TypeVar

__all__ = ["Watch"]

T = TypeVar("T")

LOOK = 0.25  # seconds between two looks whether another process has written


class Call(Protocol):
    """`JournalFile.call`."""

    async def __call__(
        self, function: Callable[[sqlite3.Connection], T], *, writes: bool = True
    ) -> T: ...


class Watch:
    """All who wait for letters, on one loop."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._posts = 0
        # Set at the next `post`, and another one is made.
        self._posted = asyncio.Event()
        # What SQLite said of the file when it was looked at last; -1 before that.
        self._version = -1
        # Looks until that has changed; None before anybody has waited.
        self._look: asyncio.Task[None] | None = None
        # Set when the look has ended, however it has.
        self._looked = asyncio.Event()
        # How many wait for it: without any it is cancelled.
        self._watching = 0

    def post(self) -> None:
        """Take note that something was posted here, by this journal."""
        self._posts += 1
        self._posted.set()
        self._posted = asyncio.Event()

    async def change(self, seen: int | None) -> int:
        """Return a number once it differs from `seen`: it rises with each commit and `post`."""
        while self._version < 0 or self._version + self._posts == seen:
            if self._look is None or self._look.done():
                self._looked = asyncio.Event()
                # In no run's context, or that run would live as long.
                self._look = asyncio.create_task(
                    self._look_once(self._posted, self._version), context=Context()
                )
                self._look.add_done_callback(partial(_end_look, self._looked))
            look, looked = self._look, self._looked
            self._watching += 1
            try:
                await looked.wait()
            finally:
                self._watching -= 1
                if not self._watching:
                    look.cancel()
            if not look.cancelled():  # as `asyncio.run` does with all tasks when it is left
                look.result()
        return self._version + self._posts

    async def _look_once(self, posted: asyncio.Event, before: int) -> None:
        """Return when the file is not as it was `before`, or at a `post`."""
        while not posted.is_set():
            (self._version,) = await self._call(
                lambda sql: sql.execute("pragma data_version").fetchone(), writes=False
            )
            if self._version != before:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await posted.wait()


def _end_look(looked: asyncio.Event, look: asyncio.Task[None]) -> None:
    if not look.cancelled():
        look.exception()  # else asyncio would log it, if nobody watches any more
    looked.set()
