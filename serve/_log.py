"""What a run has said so far: numbered, bounded, and read by anybody at any time.

Writers never wait, and readers only for what is to come: one that stops reading holds up neither
the run nor another reader (S12). What is dropped, as there is too much, is refused by name to those
who ask for it, and never left out in silence (S13).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["Entry", "EntryKind", "Gone", "Log"]

EntryKind: TypeAlias = Literal[
    "text",  # more of what is said to the user
    "broken",  # what was said last broke off, and another answer comes
    "called",  # a tool is called
    "answered",  # what it gave
    "requested",  # the client is to run a tool of its own
    "line",  # of a recording of the run's tree
    "asked",  # a person is asked whether a call may run
    "decided",  # and has answered
    "completed",
    "failed",
    "cancelled",
]

# What an entry counts beside the text in it, in characters.
OVERHEAD = 100


class Entry(NamedTuple):
    """One thing that was said; `number` begins at 1, and has no gaps."""

    number: int
    kind: EntryKind
    data: Mapping[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether nothing comes after it."""
        return self.kind in ("completed", "failed", "cancelled")


class Gone(Exception):
    """What a reader asked for is no longer kept; `first` is the oldest entry that is."""

    def __init__(self, first: int) -> None:
        super().__init__(f"entries before {first} are no longer kept")
        self.first = first


class Log:
    """The entries of one run; `most` is how many characters of them are kept.

    All of it belongs to one loop.
    """

    def __init__(self, most: int = 8_000_000) -> None:
        self._most = most
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._last = 0
        self._waiting: set[asyncio.Future[None]] = set()

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
        return self._entries[-1] if self._entries and self._entries[-1].is_last else None

    @property
    def ended(self) -> bool:
        """Whether the last entry has come."""
        return self.end is not None

    def append(self, kind: EntryKind, **data: Any) -> Entry:
        """Add an entry, and wake those who wait for it."""
        if self.ended:
            raise RuntimeError(f"nothing is said after the end: {kind}")
        self._last += 1
        entry = Entry(self._last, kind, data)
        self._entries.append(entry)
        self._size += _size(entry)
        while self._size > self._most and len(self._entries) > 1:
            self._size -= _size(self._entries.popleft())
        waiting, self._waiting = self._waiting, set()
        for reader in waiting:
            if not reader.done():
                reader.set_result(None)
        return entry

    def kept(self) -> Iterator[Entry]:
        """Give what there is now; raises `Gone` if the beginning is no longer kept."""
        if self.first > 1:
            raise Gone(self.first)
        yield from tuple(self._entries)

    async def read(self, after: int = 0) -> AsyncGenerator[Entry, None]:
        """Give all entries behind the number `after`, as they come, until the last one.

        Raises `Gone` if some of them are no longer kept; also on the way, where this reader is too
        slow.
        """
        number = after + 1
        while True:
            if number < self.first:
                raise Gone(self.first)
            if number > self._last:
                if self.ended:
                    return
                news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.add(news)
                try:
                    await news
                finally:
                    self._waiting.discard(news)
                continue
            entry = self._entries[number - self.first]
            yield entry
            number += 1


def _size(entry: Entry) -> int:
    return OVERHEAD + sum(len(value) for value in entry.data.values() if isinstance(value, str))
