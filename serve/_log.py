"""The entries of a run so far: numbered, bounded, and read by any number of readers.

Writers never wait, and readers only for new entries: one that stops reading delays neither the run
nor another reader (S12). A reader that asks for dropped entries gets an error and never a gap
(S13).

With a journal, readers get an entry when it is on disk: so no crash takes back an entry that a
client has seen. Entries are written in chunks, as notes of the run. A resumed execution produces
the entries of earlier ones again; `_replay` drops these.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import Context
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from ..messages.text import encodable
from ..store import Journal, JournalError, RunNotFound
from ._failure import log_failure
from ._replay import Replay

__all__ = ["ENDS", "EntriesExpired", "Entry", "EntryKind", "Log", "ServerEnding", "give_up"]

logger = logging.getLogger("anabranch.serve")

EntryKind: TypeAlias = Literal[
    "text",  # more of a reply
    "reasoning",  # more of the model's reasoning
    "broken",  # the last reply is no answer: another one follows, or none
    "called",  # a tool is called
    "answered",  # the result of a call
    "items",  # data that the model's provider needs back with the reply
    "requested",  # the client is to call a tool of its own
    "line",  # of a recording of the run's tree
    "asked",  # a person is asked to approve a call
    "decided",  # the person's answer
    "completed",
    "failed",
    "cancelled",
]

# The last entry has one of these kinds, and no other entry has.
ENDS: tuple[EntryKind, ...] = ("completed", "failed", "cancelled")
# Kinds of which several entries in a row are written as one.
GROWING = ("text", "reasoning")
# Characters that an entry counts beside its text.
OVERHEAD = 100
# A late reader gets so many entries at once, before other tasks run.
MAX_BATCH = 100
# Seconds between two commits while only text arrives.
COMMIT_SECONDS = 0.1
# The name of the notes that hold a run's entries.
NOTE = "said"


class Entry(NamedTuple):
    """One entry; numbers begin at 1 and have no gaps."""

    number: int
    kind: EntryKind
    data: Mapping[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether no entry follows."""
        return self.kind in ENDS


class EntriesExpired(Exception):
    """A reader asked for entries that were dropped; `first` is the oldest one that is left."""

    def __init__(self, first: int) -> None:
        super().__init__(f"entries before {first} are no longer kept")
        self.first = first


class ServerEnding(Exception):
    """The server ends before the run, which continues when the server starts again."""


class Log:
    """The entries of one run, `most` characters of them at most; it belongs to one event loop.

    With a `journal` it stores the entries of the run `run_id` there. `open` reads earlier ones.
    """

    def __init__(
        self, most: int = 8_000_000, *, journal: Journal | None = None, run_id: str = ""
    ) -> None:
        self.journal = journal
        self.run_id = run_id
        self._most = most
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._last = 0
        self._ended = False
        self._waiting: set[asyncio.Future[bool]] = set()
        # The kind of the entry that was added last, and whether it is the last of the run; readers
        # may get it later.
        self._added: EntryKind | None = None
        self.is_ending = False
        self._suspended = False
        # What earlier executions have stored; only with a journal.
        self.replay = Replay((), "")
        self._unwritten: list[tuple[EntryKind, dict[str, Any]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._error: Exception | None = None
        self._resumed = False  # earlier executions may have added entries
        self.has_begun = False  # this execution adds entries

    @classmethod
    async def open(cls, journal: Journal, run_id: str) -> Log:
        """Return the log of a run with the entries of earlier executions."""
        log = cls(journal=journal, run_id=run_id)
        await log.catch_up()
        return log

    @property
    def size(self) -> int:
        """The number of stored characters, including `OVERHEAD` for each entry."""
        return self._size

    @property
    def first(self) -> int:
        """The number of the oldest stored entry; without entries, of the next one."""
        return self._entries[0].number if self._entries else self._last + 1

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 before the first."""
        return self._last

    @property
    def end(self) -> Entry | None:
        """The last entry of the run; None before it."""
        return self._entries[-1] if self._ended else None

    @property
    def ended(self) -> bool:
        """Whether readers can get the last entry of the run."""
        return self._ended

    @property
    def ends_in_text(self) -> bool:
        """Whether the entry that was added last is text."""
        return self._added == "text"

    @property
    def is_suspended(self) -> bool:
        """Whether no more entries are added here, though the run has not ended."""
        return self._suspended and not self._ended

    # --- writing

    def append(self, kind: EntryKind, **data: Any) -> None:
        """Add an entry, unless an earlier execution did; wake the readers when they can get it."""
        if self._suspended:
            return
        if self.is_ending:
            raise RuntimeError(f"{kind} cannot follow the last entry of a run")
        size = _encode_texts(data)
        if self.journal is not None and not self.replay.is_new(kind, data):
            return
        self._added = kind
        self.is_ending = kind in ENDS
        if self.journal is None:
            self._publish(kind, data, size)
        else:
            self._write_later(kind, data)

    def _publish(self, kind: EntryKind, data: dict[str, Any], size: int) -> None:
        self._last += 1
        self._size += OVERHEAD + size
        self._entries.append(Entry(self._last, kind, data))
        self._ended = kind in ENDS
        while self._size > self._most and len(self._entries) > 1:
            self._size -= OVERHEAD + _text_size(self._entries.popleft()[2])
        if self._waiting:
            self._wake()

    def suspend(self) -> None:
        """Add no more entries here, though the run has not ended; readers get `ServerEnding`."""
        self._suspended = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for reader in waiting:
            _wake(reader, True)

    # --- the journal

    async def catch_up(self) -> None:
        """Read entries of earlier executions, or of another server that has continued the run."""
        assert self.journal is not None
        found: list[tuple[EntryKind, dict[str, Any]]] = []
        for chunk in await self.journal.notes(self.run_id, NOTE):
            for kind, data in chunk:
                if not (found and found[-1][0] in ENDS):
                    found.append((kind, data))
        for kind, data in found[self._last :]:
            self._publish(kind, data, _encode_texts(data))
        self._added = found[-1][0] if found else None
        self.is_ending = self._ended
        self._resumed = True
        # Also of entries that were dropped for readers: they are repeated too.
        self.replay = Replay(found, f"{self._last}:")

    async def begin_execution(self) -> None:
        """End an interrupted reply, unless the journal has it and replays it.

        No other server executes the run from now on.
        """
        assert self.journal is not None
        if self._resumed:
            await self.catch_up()
        self.has_begun = True
        if not self.replay.has_open_reply:
            return
        recorded: list[str] = []
        for row in (await self.journal.look(self.run_id)).rows:
            if row.kind in ("reply", "broken"):
                value: Any = json.loads(row.value)
                reply = value["said"] if row.kind == "broken" else value
                message = reply["message"]
                recorded += [message.get("content") or "", message.get("refusal") or ""]
        if self.replay.is_interrupted(recorded):
            self.append("broken")

    def _write_later(self, kind: EntryKind, data: dict[str, Any]) -> None:
        if kind in GROWING and self._unwritten:
            last, before = self._unwritten[-1]
            if kind == last and before["speech"] == data["speech"]:
                before["text"] += data["text"]
                return
        self._unwritten.append((kind, data))
        if kind not in GROWING:
            self._urgent.set()
        if self._writing is None:
            # In an empty context: it is no part of the run, and outlives it.
            self._writing = asyncio.get_running_loop().create_task(self._write(), context=Context())

    async def _write(self) -> None:
        assert self.journal is not None
        try:
            while self._unwritten:
                entries, self._unwritten = self._unwritten, []
                self._urgent.clear()
                with suppress(RunNotFound):  # cancelled before the journal had it
                    await self.journal.note(self.run_id, NOTE, [[*each] for each in entries])
                for kind, data in entries:
                    self._publish(kind, data, _text_size(data))
                if entries[-1][0] in ("failed", "cancelled"):
                    await give_up(self.journal, self.run_id)
                if not (self._unwritten or self._ended):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(COMMIT_SECONDS):
                            await self._urgent.wait()
        except Exception as error:  # noqa: BLE001 - readers learn that the log ends here
            text = "the entries of %s cannot be stored"
            if isinstance(error, JournalError):
                logger.error(f"{text}: %s", self.run_id, error)
            else:
                log_failure(text, self.run_id, error=error)
            self._error = error
            self.suspend()
        finally:
            self._writing = None

    async def flushed(self) -> None:
        """Return when readers can get all entries that were added."""
        while self._writing is not None:
            self._urgent.set()
            await asyncio.wait((self._writing,))

    async def stored(self) -> None:
        """Return when all entries are on disk; never if a later execution has to add the rest."""
        await self.flushed()
        if self._error is not None:
            raise self._error
        if self._suspended:
            await asyncio.get_running_loop().create_future()  # until the tree is cancelled

    # --- reading

    async def over(self) -> None:
        """Return when readers can get the last entry, or the server ends before it."""
        while not (self._ended or self.is_suspended):
            with suppress(EntriesExpired, ServerEnding):
                async for _ in self.batches(self._last):
                    pass

    def entries(self) -> Iterator[Entry]:
        """Yield all entries so far; raise `EntriesExpired` if the first ones were dropped."""
        if self.first > 1:
            raise EntriesExpired(self.first)
        yield from tuple(self._entries)

    async def read(self, after: int = 0) -> AsyncGenerator[Entry, None]:
        """Yield all entries after the number `after`, as they come, up to the last one.

        Raises `EntriesExpired` if some of them were dropped, before or because this reader is too
        slow; and `ServerEnding` if the server ends before the run.
        """
        async with aclosing(self.batches(after)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def batches(
        self, after: int = 0, patience: float | None = None
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the entries of `read` in batches.

        An empty batch means that no entry has come for `patience` seconds, or up to twice as long.
        """
        loop = asyncio.get_running_loop()
        number = after + 1
        news: asyncio.Future[bool] | None = None
        # One timer for all waits: a timer for each would cost more than the rest of a wait.
        timer: asyncio.TimerHandle | None = None
        checked = number  # where this reader was at the last check

        def check() -> None:
            nonlocal checked, timer
            if news is not None and checked == number:
                _wake(news, False)
            checked = number
            timer = loop.call_later(cast("float", patience), check)

        if patience is not None:
            timer = loop.call_later(patience, check)
        try:
            while True:
                if batch := self._from(number):
                    number += len(batch)
                    yield batch
                    # A reader that never has to wait lets other tasks run here.
                    if number <= self._last:
                        await asyncio.sleep(0)
                    continue
                if self._ended:
                    return
                if self._suspended:
                    raise ServerEnding
                news = loop.create_future()
                self._waiting.add(news)
                try:
                    has_news = await news
                finally:
                    self._waiting.discard(news)
                    news = None
                if not has_news:
                    yield ()
        finally:
            if timer is not None:
                timer.cancel()

    def _from(self, number: int) -> list[Entry]:
        """Return at most `MAX_BATCH` entries from `number` on; raise `EntriesExpired`."""
        if number > self._last:
            return []
        entries = self._entries
        if number == self._last:  # nearly always
            return [entries[-1]]
        first = entries[0].number
        if number < first:
            raise EntriesExpired(first)
        last = min(self._last, number + MAX_BATCH - 1)
        return [entries[n - first] for n in range(number, last + 1)]


async def give_up(journal: Journal, run_id: str) -> None:
    """Cancel a run in the journal, so that no server resumes it after its last entry."""
    with suppress(JournalError, RunNotFound):  # it has ended, or never began
        await journal.cancel(run_id, "it was ended by the server")


def _wake(reader: asyncio.Future[bool], news: bool) -> None:
    if not reader.done():
        reader.set_result(news)


def _encode_texts(data: dict[str, Any]) -> int:
    """Replace characters that no client could read, and return the size of all texts.

    A job can emit any text.
    """
    size = 0
    for name, value in data.items():
        if isinstance(value, str):
            if not value.isascii():
                data[name] = value = encodable(value)
            size += len(value)
    return size


def _text_size(data: Mapping[str, Any]) -> int:
    size = 0
    for value in data.values():
        if isinstance(value, str):
            size += len(value)
    return size
