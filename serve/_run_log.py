"""`RunLog`: the entries of a run, numbered and bounded, for any number of readers.

The run never waits for a reader, and readers do not wait for each other. A reader that asks
for dropped entries gets an error, never a gap.

With a journal, readers get an entry after it is on disk, so a crash never takes back an entry that
a client has seen. The journal stores entries in chunks, as notes of the run. A resumed execution
produces the entries of earlier executions again; `_replay` drops these.
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

__all__ = [
    "LAST_KINDS",
    "EntriesExpired",
    "Entry",
    "EntryKind",
    "RunLog",
    "ServerEnding",
    "give_up",
]

logger = logging.getLogger("anabranch.serve")

EntryKind: TypeAlias = Literal[
    "text",  # a piece of a reply
    "reasoning",  # a piece of the model's reasoning
    "broken",  # the last reply broke off and is not an answer
    "called",  # a tool call started
    "answered",  # the result of a tool call
    "items",  # data that the model's provider needs back with the reply
    "requested",  # a tool call that the client must run
    "line",  # a line of the recording of the run's tree
    "asked",  # a person must approve a tool call
    "decided",  # the person's decision
    "completed",
    "failed",
    "cancelled",
]

# The last entry has one of these kinds; other entries have other kinds.
LAST_KINDS: tuple[EntryKind, ...] = ("completed", "failed", "cancelled")
# The journal stores successive entries of these kinds as one.
TEXT_KINDS = ("text", "reasoning")
# An entry counts its texts and this many characters.
OVERHEAD_CHARS = 100
# The most entries that a late reader gets before other tasks run.
MAX_BATCH = 100
# Seconds between two commits while only text arrives.
COMMIT_SECONDS = 0.1
# The name of the journal's notes with a run's entries.
ENTRIES_NOTE = "said"


class Entry(NamedTuple):
    """One entry; numbers begin at 1 and have no gaps."""

    number: int
    kind: EntryKind
    data: Mapping[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether no entry follows."""
        return self.kind in LAST_KINDS


class EntriesExpired(Exception):
    """A reader asked for entries that were dropped; `first` is the oldest stored one."""

    def __init__(self, first: int) -> None:
        super().__init__(f"entries before {first} have expired")
        self.first = first


class ServerEnding(Exception):
    """The server ends before the run; the run continues when the server starts again."""


class RunLog:
    """The newest entries of one run, up to `max_chars` characters; it belongs to one event loop.

    With a `journal` it also stores the entries of the run `run_id` there; `open` reads them again.
    """

    def __init__(
        self, max_chars: int = 8_000_000, *, journal: Journal | None = None, run_id: str = ""
    ) -> None:
        self.journal = journal
        self.run_id = run_id
        self._max_chars = max_chars
        self._entries: deque[Entry] = deque()
        self._size = 0
        self._last = 0
        self._has_ended = False
        self._waiting: set[asyncio.Future[bool]] = set()
        # The kind of the last added entry, and whether it ends the run. With a journal readers get
        # that entry later.
        self._added: EntryKind | None = None
        self.is_ending: bool = False
        self._stopped = False  # no more entries are added here
        # The entries of earlier executions; only with a journal.
        self.replay: Replay = Replay((), "")
        self._unwritten: list[tuple[EntryKind, dict[str, Any]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._error: Exception | None = None
        self._is_resumed = False  # earlier executions may have added entries
        self.has_begun: bool = False  # this execution adds entries

    @classmethod
    async def open(cls, journal: Journal, run_id: str) -> RunLog:
        """Return the log of a run with the entries of earlier executions."""
        log = cls(journal=journal, run_id=run_id)
        await log.catch_up()
        return log

    @property
    def size(self) -> int:
        """The number of stored characters, including `OVERHEAD_CHARS` for each entry."""
        return self._size

    @property
    def first(self) -> int:
        """The number of the oldest stored entry; without entries, the number of the next one."""
        return self._entries[0].number if self._entries else self._last + 1

    @property
    def last(self) -> int:
        """The number of the newest entry; 0 before the first."""
        return self._last

    @property
    def end(self) -> Entry | None:
        """The last entry of the run; None until readers can get it."""
        return self._entries[-1] if self._has_ended else None

    @property
    def has_ended(self) -> bool:
        """Whether readers can get the last entry of the run."""
        return self._has_ended

    @property
    def ends_in_text(self) -> bool:
        """Whether the last added entry is text."""
        return self._added == "text"

    @property
    def is_suspended(self) -> bool:
        """Whether the run continues in a later execution or another process."""
        return self._stopped and not self._has_ended

    # --- writing

    def append(self, kind: EntryKind, **data: Any) -> None:
        """Add an entry, unless an earlier execution did; wake the readers when they can get it.

        Does nothing after `suspend`. Raises `RuntimeError` after the last entry of the run.
        """
        if self._stopped:
            return
        if self.is_ending:
            raise RuntimeError(f"{kind} cannot follow the last entry of a run")
        size = _encode_texts(data)
        if self.journal is not None and not self.replay.is_new(kind, data):
            return
        self._added = kind
        self.is_ending = kind in LAST_KINDS
        if self.journal is None:
            self._publish(kind, data, size)
        else:
            self._write_later(kind, data)

    def _publish(self, kind: EntryKind, data: dict[str, Any], size: int) -> None:
        self._last += 1
        self._size += OVERHEAD_CHARS + size
        self._entries.append(Entry(self._last, kind, data))
        self._has_ended = kind in LAST_KINDS
        while self._size > self._max_chars and len(self._entries) > 1:
            self._size -= OVERHEAD_CHARS + _text_size(self._entries.popleft()[2])
        if self._waiting:
            self._wake()

    def suspend(self) -> None:
        """Add no more entries, because the run continues later; readers get `ServerEnding`."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for reader in waiting:
            _wake(reader, True)

    # --- the journal

    async def catch_up(self) -> None:
        """Read entries that earlier executions, or another server, have added since."""
        assert self.journal is not None
        found: list[tuple[EntryKind, dict[str, Any]]] = []
        for chunk in await self.journal.notes(self.run_id, ENTRIES_NOTE):
            for kind, data in chunk:
                # Two processes can both have added a last entry; the first one counts.
                if not (found and found[-1][0] in LAST_KINDS):
                    found.append((kind, data))
        for kind, data in found[self._last :]:
            self._publish(kind, data, _encode_texts(data))
        self._added = found[-1][0] if found else None
        self.is_ending = self._has_ended
        self._is_resumed = True
        # With the entries that were dropped for readers: the execution repeats these too.
        self.replay = Replay(found, f"{self._last}:")

    async def begin_execution(self) -> None:
        """Begin to add entries; end an interrupted reply that the journal cannot replay.

        The caller has the lease of the run, so no other process adds entries from now on.
        """
        assert self.journal is not None
        if self._is_resumed:
            await self.catch_up()  # another process may have added entries before the lease
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
        if kind in TEXT_KINDS and self._unwritten:
            last, before = self._unwritten[-1]
            if kind == last and before["speech"] == data["speech"]:
                before["text"] += data["text"]
                return
        self._unwritten.append((kind, data))
        if kind not in TEXT_KINDS:
            self._urgent.set()
        if self._writing is None:
            # In an empty context, because the task outlives the run.
            self._writing = asyncio.get_running_loop().create_task(self._write(), context=Context())

    async def _write(self) -> None:
        assert self.journal is not None
        try:
            while self._unwritten:
                entries, self._unwritten = self._unwritten, []
                self._urgent.clear()
                with suppress(RunNotFound):  # cancelled before the journal stored the run
                    await self.journal.note(
                        self.run_id, ENTRIES_NOTE, [[*each] for each in entries]
                    )
                for kind, data in entries:
                    self._publish(kind, data, _text_size(data))
                # Only after the entry is on disk: else a crash in between would leave a cancelled
                # run whose log has no end.
                if entries[-1][0] in ("failed", "cancelled"):
                    await give_up(self.journal, self.run_id)
                if not (self._unwritten or self._has_ended):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(COMMIT_SECONDS):
                            await self._urgent.wait()
        except Exception as error:  # noqa: BLE001 - readers get `ServerEnding`
            text = "cannot store the entries of run %s"
            if isinstance(error, JournalError):
                logger.error(f"{text}: %s", self.run_id, error)
            else:
                log_failure(text, self.run_id, error=error)
            self._error = error
            self.suspend()
        finally:
            self._writing = None

    async def flush(self) -> None:
        """Write all added entries; return when readers can get them."""
        while self._writing is not None:
            self._urgent.set()
            await asyncio.wait((self._writing,))

    async def until_stored(self) -> None:
        """Return when all entries are on disk; raise the error that prevents it.

        After `suspend` it waits until its task is cancelled: a later execution adds the rest, so
        the run must not complete here.
        """
        await self.flush()
        if self._error is not None:
            raise self._error
        if self._stopped:
            await asyncio.get_running_loop().create_future()

    # --- reading

    async def until_ended(self) -> None:
        """Return when readers can get the last entry, or the log was suspended before."""
        while not (self._has_ended or self.is_suspended):
            with suppress(EntriesExpired, ServerEnding):
                async for _ in self.batches(self._last):
                    pass

    def entries(self) -> Iterator[Entry]:
        """Yield all entries so far; raise `EntriesExpired` if some were dropped."""
        if self.first > 1:
            raise EntriesExpired(self.first)
        yield from tuple(self._entries)

    async def read(self, after: int = 0) -> AsyncGenerator[Entry, None]:
        """Yield all entries after the number `after`, as they arrive, up to the last one.

        Raises `EntriesExpired` if some of them were dropped before this reader got them, and
        `ServerEnding` if the server ends before the run.
        """
        async with aclosing(self.batches(after)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def batches(
        self, after: int = 0, idle_seconds: float | None = None
    ) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield the entries of `read` in batches.

        An empty batch means that no entry has arrived for `idle_seconds`, or up to twice as long.
        """
        loop = asyncio.get_running_loop()
        number = after + 1
        wakeup: asyncio.Future[bool] | None = None
        # One timer for all waits: a timer for each wait would cost more than the rest of it.
        timer: asyncio.TimerHandle | None = None
        checked = number  # this reader's position at the last check

        def check() -> None:
            nonlocal checked, timer
            if wakeup is not None and checked == number:
                _wake(wakeup, False)
            checked = number
            timer = loop.call_later(cast("float", idle_seconds), check)

        if idle_seconds is not None:
            timer = loop.call_later(idle_seconds, check)
        try:
            while True:
                if batch := self._next_batch(number):
                    number += len(batch)
                    yield batch
                    # A reader that never waits must let other tasks run.
                    if number <= self._last:
                        await asyncio.sleep(0)
                    continue
                if self._has_ended:
                    return
                if self._stopped:
                    raise ServerEnding
                wakeup = loop.create_future()
                self._waiting.add(wakeup)
                try:
                    has_entry = await wakeup
                finally:
                    self._waiting.discard(wakeup)
                    wakeup = None
                if not has_entry:
                    yield ()
        finally:
            if timer is not None:
                timer.cancel()

    def _next_batch(self, number: int) -> list[Entry]:
        """Return at most `MAX_BATCH` entries from `number` on; raise `EntriesExpired`."""
        if number > self._last:
            return []
        entries = self._entries
        if number == self._last:  # the usual case: the reader waited for this entry
            return [entries[-1]]
        first = entries[0].number
        if number < first:
            raise EntriesExpired(first)
        last = min(self._last, number + MAX_BATCH - 1)
        return [entries[n - first] for n in range(number, last + 1)]


async def give_up(journal: Journal, run_id: str) -> None:
    """Cancel a run in the journal, so that no server resumes it after its last entry."""
    with suppress(JournalError, RunNotFound):  # it has ended, or was never stored
        await journal.cancel(run_id, "the server ended it")


def _wake(reader: asyncio.Future[bool], has_entry: bool) -> None:
    if not reader.done():
        reader.set_result(has_entry)


def _encode_texts(data: dict[str, Any]) -> int:
    """Replace characters without UTF-8 form, and return the size of all texts.

    A job can emit any text, and one such character would break every client's stream.
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
