"""The log of a run that a journal keeps: what readers see is on disk, and is told once.

What is said is written in chunks, as notes of the run, and can be read once it is on disk: so who
comes back after a crash asks for nothing that is lost. In a later life the run says again what it
has said, for what is recorded is played; here that is compared with what was told, and left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeAlias, cast

from ..store import Journal, JournalError, RunNotFound
from ._failure import log_failure
from ._log import EntryKind, Log, encode_texts

__all__ = ["ENDS", "KeptLog", "give_up"]

logger = logging.getLogger("anabranch.serve")

# Seconds between two commits where nothing but text has come.
EVERY = 0.1
NOTE = "said"
ENDS = ("completed", "failed", "cancelled")
# Kinds of entries whose text grows.
GROWING = ("text", "reasoning")

Said: TypeAlias = "tuple[EntryKind, dict[str, Any]]"


class _Speech:
    """A message as it was told, and how much of it this life has said again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.again = 0
        self.broken = False  # it was no answer, and that comes again too


class KeptLog(Log):
    """The log of the run `run_id` of a journal. `open` gives it with what was said before."""

    def __init__(self, journal: Journal, run_id: str) -> None:
        super().__init__()
        self._journal = journal
        self._run_id = run_id
        self._fresh: list[Said] = []  # what is not on disk yet
        self._ending = False  # the last entry is among that, or behind it
        self._kind: EntryKind | None = None  # of what was added last
        self._writing: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._trouble: Exception | None = None
        # Names of nodes are those of one life: this is in front of them in the entries.
        self._life = ""
        # What was told before and is to come again: messages in their order; calls by what they
        # are, each with its name; which of those were answered; questions that nobody has answered.
        self._speeches: deque[_Speech] = deque()
        self._calls: dict[str, deque[str]] = {}
        self._answered: set[str] = set()
        self._questions: dict[str, deque[int]] = {}
        # The last message, unless it is known to be no answer; calls may have come behind it.
        self._open: _Speech | None = None
        # By their names in this life.
        self._speaking: dict[str, _Speech] = {}
        self._calling: dict[str, str] = {}
        self._speaker = ""  # who has said something last
        # The reasoning that was told before and that this life has not said again.
        self._reasoning = ""
        self.asked = 0  # the highest number of a question
        self.has_begun = False  # this life says something

    @classmethod
    async def open(cls, journal: Journal, run_id: str) -> KeptLog:
        """Return the log of a run that an earlier life has written."""
        log = cls(journal, run_id)
        await log.catch_up()
        return log

    async def catch_up(self) -> None:
        """Read what was written by others: before this, or meanwhile by another server."""
        said: list[Said] = []
        for chunk in await self._journal.notes(self._run_id, NOTE):
            for kind, data in chunk:
                if not (said and said[-1][0] in ENDS):
                    said.append((kind, data))
        for kind, data in said[self.last :]:
            super().append(kind, **data)
        self._remember(said)
        self._ending = self.ended
        self._kind = said[-1][0] if said else None
        self._life = f"{self.last}:"

    def _remember(self, said: Iterable[Said]) -> None:
        # All of it, also what is no longer kept for readers: it comes again.
        self._speeches.clear()
        self._calls.clear()
        self._questions.clear()
        self._open = None
        self._reasoning = ""
        asked: dict[int, str] = {}
        for kind, data in said:
            if kind == "text":
                if self._open is None or self._open.name != data["speech"]:
                    self._open = _Speech(data["speech"])
                    self._speeches.append(self._open)
                self._open.text += data["text"]
                continue
            if kind == "reasoning":
                self._reasoning += data["text"]
            elif kind == "broken" and self._open is not None:
                if "agent" in data:  # how that reply ended is recorded
                    self._open.broken = True
                else:
                    self._speeches.pop()  # nobody says it again
                self._open = None
            elif kind == "called":
                self._calls.setdefault(_call(data), deque()).append(data["call"])
            elif kind == "answered":
                self._answered.add(data["call"])
            elif kind == "asked":
                asked[data["question"]] = _call(data)
                self.asked = max(self.asked, data["question"])
            elif kind == "decided":
                asked.pop(data["question"], None)
        for number, what in asked.items():
            self._questions.setdefault(what, deque()).append(number)

    @property
    def spoken(self) -> str:
        """What was said last, in an earlier life."""
        return self._speeches[-1].text if self._speeches else ""

    async def begin_life(self) -> None:
        """End the message that is unfinished, unless its reply is recorded and is played again.

        No other server has the run from now on.
        """
        if self._life:
            await self.catch_up()
        self.has_begun = True
        talking = self._open
        if talking is None:
            return
        replies = [text for text in await self._recorded() if text.startswith(talking.text)]
        others = [each for each in self._speeches if each.text.startswith(talking.text)]
        if len(replies) < len(others):
            self._speeches.pop()
            self._open = None
            self.append("broken")

    async def _recorded(self) -> list[str]:
        """Return the texts of the replies that the journal has."""
        texts: list[str] = []
        for row in (await self._journal.look(self._run_id)).rows:
            if row.kind in ("reply", "broken"):
                value: Any = json.loads(row.value)
                said = value["said"] if row.kind == "broken" else value
                message = said["message"]
                texts += [message.get("content") or "", message.get("refusal") or ""]
        return texts

    # --- what is added

    def append(self, kind: EntryKind, **data: Any) -> None:  # type: ignore[override]
        """Add an entry, unless it was told before; it can be read once it is on disk."""
        if self._ending or self._left:
            return
        encode_texts(data)  # as it is told, since that is what is compared
        if kind == "text" and not self._hear(data):
            return
        if kind == "reasoning" and not self._reason(data):
            return
        if kind == "broken" and self._was_broken():
            return
        if kind in ("called", "answered"):
            told = self._called(data) if kind == "called" else self._was_answered(data)
            if told:
                return
        self._ending = kind in ENDS
        self._kind = kind
        last = self._fresh[-1] if self._fresh else None
        grows = last is not None and kind == last[0] and kind in GROWING
        if last is not None and grows and last[1]["speech"] == data["speech"]:
            last[1]["text"] += data["text"]
            return
        self._fresh.append((kind, data))
        if kind not in GROWING:
            self._urgent.set()
        if self._writing is None:
            # In no context: it is no part of the run, and outlives it.
            self._writing = asyncio.get_running_loop().create_task(self._write(), context=Context())

    def _hear(self, data: dict[str, Any]) -> bool:
        """Take out what was told before; return whether anything is left."""
        name = self._speaker = self._life + data["speech"]
        speech = self._speaking.get(name)
        if speech is None:
            told = self._speeches[0] if self._speeches else None
            if told is None or not _agree(told.text, data["text"]):
                data["speech"] = name
                return True
            speech = self._speaking[name] = self._speeches.popleft()
        data["speech"] = speech.name
        told_again = speech.text[speech.again : speech.again + len(data["text"])]
        if not data["text"].startswith(told_again):  # another reply after all
            data["speech"] = name
            self._speaking[name] = _Speech(name)
            return True
        speech.again += len(told_again)
        data["text"] = data["text"][len(told_again) :]
        return bool(data["text"])

    def _reason(self, data: dict[str, Any]) -> bool:
        """Take out what was told before; return whether anything is left."""
        data["speech"] = self._life + data["speech"]
        told, text = self._reasoning, data["text"]
        if not _agree(told, text):  # another reply after all, or others in another order
            told = ""
        data["text"], self._reasoning = text[len(told) :], told[len(text) :]
        return bool(data["text"])

    def _was_broken(self) -> bool:
        told = self._speaking.pop(self._speaker, None)
        self._speaker = ""
        return told is not None and told.broken and told.again == len(told.text)

    def _called(self, data: dict[str, Any]) -> bool:
        name = self._life + data["call"]
        told = self._calls.get(_call(data))
        self._calling[name] = told.popleft() if told else name
        data["call"] = self._calling[name]
        return data["call"] != name

    def _was_answered(self, data: dict[str, Any]) -> bool:
        name = self._life + data["call"]
        data["call"] = self._calling.get(name, name)
        return data["call"] in self._answered

    def asked_before(self, data: Mapping[str, Any]) -> int | None:
        """Return the number of a question that was asked in an earlier life, and waits again."""
        waiting = self._questions.get(_call(data))
        return waiting.popleft() if waiting else None

    @property
    def talks(self) -> bool:
        return self._kind == "text"

    @property
    def is_ending(self) -> bool:
        return self._ending

    async def _write(self) -> None:
        try:
            while self._fresh:
                fresh, self._fresh = self._fresh, []
                self._urgent.clear()
                with suppress(RunNotFound):  # cancelled before the journal had it
                    await self._journal.note(self._run_id, NOTE, [[*each] for each in fresh])
                for kind, data in fresh:
                    super().append(kind, **data)
                if fresh[-1][0] in ("failed", "cancelled"):
                    await give_up(self._journal, self._run_id)
                if not (self._fresh or self.ended):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(EVERY):
                            await self._urgent.wait()
        except Exception as error:  # noqa: BLE001 - readers learn that the log ends here
            if isinstance(error, JournalError):
                logger.error("what %s says is not kept: %s", self._run_id, error)
            else:
                log_failure("what %s says is not kept", self._run_id, error=error)
            self._trouble = error
            self.leave()
        finally:
            self._writing = None

    async def flushed(self) -> None:
        while self._writing is not None:
            self._urgent.set()
            await asyncio.wait((self._writing,))

    async def told(self) -> None:
        """Return when all is on disk; never if some of it was left to be said in a later life."""
        await self.flushed()
        if self._trouble is not None:
            raise self._trouble
        if self._left:
            await asyncio.get_running_loop().create_future()  # until the tree is cancelled


async def give_up(journal: Journal, run_id: str) -> None:
    """Let nobody go on with a run of which the end was told."""
    with suppress(JournalError, RunNotFound):  # it is over, or was never begun
        await journal.cancel(run_id, "it was ended by the server")


def _agree(told: str, again: str) -> bool:
    return told.startswith(again) or again.startswith(told)


def _call(data: Mapping[str, Any]) -> str:
    """Say which call it is, in words that are the same in each life."""
    said: Sequence[Any] = [data["id"], data["name"], data["arguments"]]
    return json.dumps(cast("Any", said))
