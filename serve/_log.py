"""What a run has said so far: numbered, bounded, and read by anybody at any time.

Writers never wait, and readers only for what is to come: one that stops reading holds up neither
the run nor another reader (S12). What is dropped, as there is too much, is refused by name to those
who ask for it, and never left out in silence (S13).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from ..messages.text import encodable

__all__ = ["Entry", "EntryKind", "Gone", "Left", "Log", "encode_texts"]

EntryKind: TypeAlias = Literal[
    "text",  # more of what is said to the user
    "reasoning",  # more of what the model reasons
    "broken",  # what was said last is no answer: another one comes, or none
    "called",  # a tool is called
    "answered",  # what it gave
    "items",  # data that the model's provider wants back with the answer
    "requested",  # the client is to run a tool of its own
    "line",  # of a recording of the run's tree
    "asked",  # a person is asked whether a call may run
    "decided",  # and has answered
    "completed",
    "failed",
    "cancelled",
]

# The last entry is of one of these, and no other is.
ENDS: tuple[EntryKind, ...] = ("completed", "failed", "cancelled")
# What an entry counts beside the text in it, in characters.
OVERHEAD = 100
# How many entries a reader that comes late is given at once, before others run.
BATCH = 100


class Entry(NamedTuple):
    """One thing that was said; `number` begins at 1, and has no gaps."""

    number: int
    kind: EntryKind
    data: Mapping[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether nothing comes after it."""
        return self.kind in ENDS


class Gone(Exception):
    """What a reader asked for is no longer kept; `first` is the oldest entry that is."""

    def __init__(self, first: int) -> None:
        super().__init__(f"entries before {first} are no longer kept")
        self.first = first


class Left(Exception):
    """The server ends before the run does, which goes on when the server begins again."""


class Log:
    """The entries of one run; `most` is how many characters of them are kept.

    All of it belongs to one loop.
    """

    def __init__(self, most: int = 8_000_000) -> None:
        self._most = most
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._last = 0
        self._left = False
        self._ended = False
        self._waiting: set[asyncio.Future[bool]] = set()

    @property
    def size(self) -> int:
        """How many characters are kept, with some for each entry."""
        return self._size

    @property
    def first(self) -> int:
        """The number of the oldest entry that is kept; of the next one, where none is."""
        return self._entries[0].number if self._entries else self._last + 1

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 before the first."""
        return self._last

    @property
    def end(self) -> Entry | None:
        """The last entry, None before it has come."""
        return self._entries[-1] if self._ended else None

    @property
    def ended(self) -> bool:
        """Whether the last entry has come."""
        return self._ended

    def append(self, kind: EntryKind, **data: Any) -> Entry:
        """Add an entry, and wake those who wait for it."""
        if self._ended:
            raise RuntimeError(f"nothing is said after the end: {kind}")
        self._last += 1
        self._size += OVERHEAD + encode_texts(data)
        entry = Entry(self._last, kind, data)
        self._entries.append(entry)
        self._ended = kind in ENDS
        while self._size > self._most and len(self._entries) > 1:
            self._size -= _size(self._entries.popleft())
        if self._waiting:
            self._wake()
        return entry

    @property
    def is_ending(self) -> bool:
        """Whether the last entry was added, though it may be read later."""
        return self.ended

    @property
    def talks(self) -> bool:
        """Whether nothing has come behind the last text."""
        return bool(self._entries) and self._entries[-1].kind == "text"

    @property
    def is_left(self) -> bool:
        """Whether nothing is added any more, though the end has not come."""
        return self._left and not self.ended

    def leave(self) -> None:
        """Add nothing more here, though the end has not come; readers get `Left`."""
        self._left = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for reader in waiting:
            _wake(reader, True)

    async def flushed(self) -> None:
        """Return when all that was added can be read."""

    async def over(self) -> None:
        """Return when the end can be read, or when the server ends before it."""
        while not (self.ended or self.is_left):
            with suppress(Gone, Left):
                async for _ in self.batches(self._last):
                    pass

    def kept(self) -> Iterator[Entry]:
        """Give what there is now; raises `Gone` if the beginning is no longer kept."""
        if self.first > 1:
            raise Gone(self.first)
        yield from tuple(self._entries)

    async def read(self, after: int = 0) -> AsyncGenerator[Entry, None]:
        """Give all entries behind the number `after`, as they come, until the last one.

        Raises `Gone` if some of them are no longer kept; also on the way, where this reader is too
        slow; and `Left` where the server ends before the run.
        """
        async with aclosing(self.batches(after)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def batches(
        self, after: int = 0, patience: float | None = None
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Give what `read` gives, many at once where there are many.

        An empty batch says that nothing has come for `patience` seconds, or up to twice as long.
        """
        loop = asyncio.get_running_loop()
        number = after + 1
        news: asyncio.Future[bool] | None = None
        # One timer for all waits: a timer for each would cost more than the rest of a wait.
        timer: asyncio.TimerHandle | None = None
        looked = number  # where this reader stood when it was last looked at

        def look() -> None:
            nonlocal looked, timer
            if news is not None and looked == number:
                _wake(news, False)
            looked = number
            timer = loop.call_later(cast("float", patience), look)

        if patience is not None:
            timer = loop.call_later(patience, look)
        try:
            while True:
                if batch := self._from(number):
                    number += len(batch)
                    yield batch
                    # A reader that is never made to wait has to let others run nevertheless.
                    if number <= self._last:
                        await asyncio.sleep(0)
                    continue
                if self.ended:
                    return
                if self._left:
                    raise Left
                news = loop.create_future()
                self._waiting.add(news)
                try:
                    said = await news
                finally:
                    self._waiting.discard(news)
                    news = None
                if not said:
                    yield ()
        finally:
            if timer is not None:
                timer.cancel()

    def _from(self, number: int) -> list[Entry]:
        """Return what is kept from `number` on, `BATCH` at most; raises `Gone`."""
        if number > self._last:
            return []
        entries = self._entries
        if number == self._last:  # as it nearly always is
            return [entries[-1]]
        first = entries[0].number
        if number < first:
            raise Gone(first)
        return [entries[n - first] for n in range(number, min(self._last, number + BATCH - 1) + 1)]


def _wake(reader: asyncio.Future[bool], news: bool) -> None:
    if not reader.done():
        reader.set_result(news)


def encode_texts(data: dict[str, Any]) -> int:
    """Replace in texts what no client could read, and return how long they are.

    What a job says comes from anywhere.
    """
    size = 0
    for name, value in data.items():
        if isinstance(value, str):
            if not value.isascii():
                data[name] = value = encodable(value)
            size += len(value)
    return size


def _size(entry: Entry) -> int:
    size = OVERHEAD
    for value in entry.data.values():
        if isinstance(value, str):
            size += len(value)
    return size
