"""Letters to a run from any process, such as signals, answers and cancels.

`Inbox` has the letters of one run. `FileWatch` waits until the journal's file changes, also by
another process. All callers share one poll.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ._execution import Execution
    from ._journal_file import Letter

__all__ = ["NOTE_KIND", "WALL_CLOCK_POLL_SECONDS", "FileWatch", "Inbox"]

T = TypeVar("T")

WALL_CLOCK_POLL_SECONDS = 60.0  # after which a long wait reads the wall clock again: it may be set
FILE_POLL_SECONDS = 0.25  # between two looks whether another process has written
NOTE_KIND = "note"
"""The kind of letters that are stored with a run for others: the run does not read them."""


class Inbox:
    """Letters by kind and name, in the order of their arrival; each is taken once."""

    def __init__(self) -> None:
        self._letters: defaultdict[tuple[str, str], deque[Letter]] = defaultdict(deque)
        self._came = asyncio.Event()
        self._last = 0

    async def read(self, execution: Execution) -> list[Letter]:
        """Return the new letters, without those that were taken already."""
        came = await execution.file.letters(execution.run_id, self._last)
        self._last = max([self._last, *(letter.id for letter in came)])
        new = [
            letter._replace(value=execution.keys.cut_json(letter.value))
            for letter in came
            if letter.kind != NOTE_KIND and letter.id not in execution.taken_letters
        ]
        for letter in new:
            self._letters[letter.kind, letter.name].append(letter)
        waiting, self._came = self._came, asyncio.Event()
        waiting.set()
        return new

    async def take(self, kind: str, name: str, due: float | None = None) -> Letter | None:
        """Wait for a letter and take it, in the order of the waits.

        Returns None if none was sent until `due`, by the wall clock.
        """
        letters = self._letters[kind, name]
        while not letters:
            left = WALL_CLOCK_POLL_SECONDS
            if due is not None:
                left = min(left, due - time.time())
            if left <= 0:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._came.wait()
        return letters.popleft() if due is None or letters[0].time <= due else None


class FileCall(Protocol):
    """`JournalFile.call`."""

    async def __call__(
        self, function: Callable[[sqlite3.Connection], T], *, writes: bool = True
    ) -> T: ...


class FileWatch:
    """Waits for changes of the file, on one event loop."""

    def __init__(self, call: FileCall) -> None:
        self._call = call
        self._posts = 0
        # Set at the next `post`, and replaced.
        self._posted = asyncio.Event()
        # SQLite's `data_version` at the last poll; -1 before the first.
        self._version = -1
        # Polls until that has changed; None before the first wait.
        self._poll: asyncio.Task[None] | None = None
        # Set when the poll has ended, in any way.
        self._polled = asyncio.Event()
        # How many wait for it; when none do, it is cancelled.
        self._watching = 0

    def post(self) -> None:
        """Note that this journal has posted a letter."""
        self._posts += 1
        self._posted.set()
        self._posted = asyncio.Event()

    async def change(self, seen: int | None) -> int:
        """Return a number once it differs from `seen`: it rises with each commit and `post`."""
        while self._version < 0 or self._version + self._posts == seen:
            if self._poll is None or self._poll.done():
                self._polled = asyncio.Event()
                # In an empty context, or the task would keep a run's objects alive.
                self._poll = asyncio.create_task(
                    self._poll_until_changed(self._posted, self._version), context=Context()
                )
                self._poll.add_done_callback(partial(_end_poll, self._polled))
            poll, polled = self._poll, self._polled
            self._watching += 1
            try:
                await polled.wait()
            finally:
                self._watching -= 1
                if not self._watching:
                    poll.cancel()
            if not poll.cancelled():  # as `asyncio.run` does at its end
                poll.result()
        return self._version + self._posts

    async def _poll_until_changed(self, posted: asyncio.Event, before: int) -> None:
        """Return when the version of the file differs from `before`, or at a `post`."""
        while not posted.is_set():
            (self._version,) = await self._call(
                lambda sql: sql.execute("pragma data_version").fetchone(), writes=False
            )
            if self._version != before:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(FILE_POLL_SECONDS):
                    await posted.wait()


def _end_poll(polled: asyncio.Event, poll: asyncio.Task[None]) -> None:
    if not poll.cancelled():
        poll.exception()  # or asyncio would log it where no one waits any more
    polled.set()
