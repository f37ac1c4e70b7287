"""Store the chat's sessions, with notes about each, in a journal in the user's data folder."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from platformdirs import user_data_path

from ...commander.errors import AnabranchError, ConfigurationError
from ...messages.text import encodable
from ...store import Journal, JournalError, RunBusy, RunNotFound, RunRow

if TYPE_CHECKING:
    from ...agents import Agent

__all__ = [
    "AGENT",
    "SessionBusy",
    "SessionInfo",
    "Sessions",
    "UnknownSession",
    "open_sessions",
    "shorten_title",
]

AGENT = "chat"
"""The name of each chat's agent. So its sessions are the runs "chat/ID"."""

SESSION_NOTE = "chat"
MEMORY_JOURNAL = ":memory:"
ENDED_STATES = ("completed", "failed", "cancelled")
PARTIAL_SECONDS = 0.5  # the most text of a running reply that a crash can lose
MAX_TITLE = 60  # characters


class UnknownSession(ConfigurationError):
    """A name matches no session, or several, which the message lists."""


class SessionBusy(ConfigurationError, RunBusy):
    """Another chat has the session open."""

    def __init__(self, text: str, run_id: str = "", pid: int | None = None) -> None:
        AnabranchError.__init__(self, text)
        self.run_id, self.pid, self.since = run_id, pid, None


@dataclass(frozen=True)
class SessionInfo:
    """The notes about a session. `known` is false until the first turn stores the session."""

    id: str
    title: str = ""
    model: str = ""
    system: str | None = None
    tools: str = ""
    folder: str = ""
    base_url: str | None = None
    """The address of the model, None for the default of its provider."""
    agent: str = ""
    """The value of `--agent`; "" for the chat's own agent."""
    turns: int = 0
    updated: float = 0.0
    """The time of the last use, in seconds since the epoch."""
    known: bool = False

    @property
    def speaker(self) -> dict[str, str | None]:
        """The session's model, as `SessionManager.speaker` returns it."""
        return {"model": self.model, "base_url": self.base_url}

    @property
    def run_id(self) -> str:
        """The name of the run in the journal."""
        return f"{AGENT}/{self.id}"


NOTED = ("title", "model", "system", "tools", "folder", "base_url", "agent", "turns")


class Sessions:
    """The sessions in an open journal.

    `is_stored` is true if the journal is a file. If the file could not be opened or written,
    `trouble` says why. `stack` closes the journal that `leave_file` opens.
    """

    def __init__(
        self, stack: AsyncExitStack, journal: Journal, *, is_stored: bool = True, trouble: str = ""
    ) -> None:
        self._stack = stack
        self.journal = journal
        self.is_stored = is_stored
        self.trouble = trouble
        self._reserved_id = ""
        self._reserved = stack.enter_context(ExitStack())

    def reserve(self, info: SessionInfo) -> None:
        """Reserve a session for this chat, until the chat opens another one or ends.

        Raises `SessionBusy` while another chat has it. The previous reservation then stays.
        """
        if info.id == self._reserved_id:
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(self.journal.reserve(info.run_id))
            except RunBusy as busy:
                user = "another chat" if busy.pid is None else f"process {busy.pid}"
                raise SessionBusy(
                    f"the session {info.title or info.id!r} is in use by {user}. Continue there, or"
                    " choose another session with --resume or /resume",
                    info.run_id,
                    busy.pid,
                ) from None
            except JournalError:
                return  # the next operation on the session reports the error
            self.release()
            self._reserved_id = info.id
            self._reserved.push(stack.pop_all())

    def release(self) -> None:
        """Let other chats open the session."""
        self._reserved_id = ""
        self._reserved.close()

    async def leave_file(self, error: JournalError) -> bool:
        """Replace a journal file that has failed by a journal in memory.

        Returns False if the journal is in memory already, or if the file works and `error` concerns
        one session only.
        """
        if not self.is_stored:
            return False
        with suppress(JournalError):
            await self.journal.runs(limit=0)
            return False
        self.release()
        journal = Journal(MEMORY_JOURNAL, partials=PARTIAL_SECONDS)
        self.journal = await self._stack.enter_async_context(journal)
        self.is_stored = False
        self.trouble = f"{error.journal} {error.why}"
        return True

    def new(self, **noted: Any) -> SessionInfo:
        """Return a new session. It is stored with its first turn."""
        syllables = [secrets.choice("bdfgklmnprstvz") + secrets.choice("aeiou") for _ in range(5)]
        return SessionInfo("".join(syllables), **noted)

    async def begin(self, info: SessionInfo, text: str) -> SessionInfo:
        """Store a session when its first turn begins. `text` is the default title."""
        async with self.journal.session(info.run_id):
            pass
        info = replace(info, title=info.title or shorten_title(text), turns=1, known=True)
        await self._note(info)
        return replace(info, updated=time.time())

    async def list(self, words: str = "") -> list[SessionInfo]:
        """Return all sessions, or those that contain all `words`, most recent first.

        The search covers titles, questions and answers. It ignores case and matches parts of words.
        """
        runs = await self._runs()
        found = await asyncio.gather(*(self._read(each.run_id, each.updated) for each in runs))
        infos = sorted((each for each in found if each), key=lambda each: -each.updated)
        if wanted := words.casefold().split():
            hits = await asyncio.gather(*(self._has(each, wanted) for each in infos))
            infos = [info for info, hit in zip(infos, hits, strict=True) if hit]
        return infos

    async def newest(self) -> SessionInfo | None:
        """Return the most recent session, None if there is none."""
        runs = await self._runs()
        for run in sorted(runs, key=lambda each: -each.updated):
            if (info := await self._read(run.run_id, run.updated)) is not None:
                return info
        return None

    async def find(self, name: str) -> SessionInfo:
        """Return the session with this id or title, or the only one that begins with it.

        Raises `UnknownSession` if none or several match.
        """
        infos, begin = await self.list(), name.casefold()
        exact = [each for each in infos if name == each.id or begin == each.title.casefold()]
        found = exact or [
            each
            for each in infos
            if begin and (each.id.startswith(begin) or each.title.casefold().startswith(begin))
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UnknownSession(f"unknown session {name!r}. List all with /sessions in a chat")
        which = ", ".join(f"{each.id} ({each.title})" for each in found[:5])
        raise UnknownSession(f"{len(found)} sessions begin with {name!r}. Choose one: {which}")

    async def change(self, id: str, **noted: Any) -> SessionInfo:  # noqa: A002 - the field's name
        """Change notes about a session: its title, model, system prompt and so on."""
        if unknown := noted.keys() - set(NOTED):
            raise TypeError(f"a session has no notes named {sorted(unknown)}")
        run_id = f"{AGENT}/{id}"
        await self.journal.note(run_id, SESSION_NOTE, _encodable(noted))
        info = await self._read(run_id, time.time())
        assert info is not None
        return info

    async def fork(
        self,
        id: str,  # noqa: A002 - the field's name
        agent: Agent[Any],
        turns: int | None = None,
    ) -> SessionInfo:
        """Copy a session, or its first `turns` turns, into a new one.

        In the copy, an interrupted turn has ended. `agent` must store its sessions in this journal.
        """
        before = await self.find(id)
        info = replace(self.new(), **{name: getattr(before, name) for name in NOTED})
        await self.journal.fork(before.run_id, info.run_id)
        await agent.end_interrupted(info.id)
        messages = await agent.recall(info.id)
        begins = [number for number, each in enumerate(messages) if "turn" in each.extra]
        if turns is not None and turns < len(begins):
            agent.memory.replace(messages[: begins[max(0, turns)]], info.id)
            await agent.keep(info.id)
        left = len(begins) if turns is None else min(max(0, turns), len(begins))
        info = replace(info, turns=left, known=True, updated=time.time())
        await self._note(info)
        return info

    async def delete(self, id: str) -> None:  # noqa: A002 - the field's name
        """Delete a session permanently. Raises `RunBusy` while a chat uses it."""
        run_id = f"{AGENT}/{id}"
        with suppress(RunNotFound):
            await self.journal.look(run_id)
            async with self.journal.session(run_id):
                pass  # fails if another process owns it
            await self.journal.cancel(run_id, "deleted")
            await self.journal.purge(time.time() + 1, state="cancelled", prefix=run_id)

    async def _runs(self) -> list[RunRow]:
        """Return the runs that can continue. `anabranch runs cancel` ends one permanently."""
        runs = await self.journal.runs(prefix=f"{AGENT}/")
        return [each for each in runs if each.state not in ENDED_STATES]

    async def _note(self, info: SessionInfo) -> None:
        noted = {name: getattr(info, name) for name in NOTED}
        await self.journal.note(info.run_id, SESSION_NOTE, _encodable(noted))

    async def _read(self, run_id: str, updated: float) -> SessionInfo | None:
        try:
            notes = await self.journal.notes(run_id, SESSION_NOTE)
        except RunNotFound:  # deleted after it was listed
            return None
        noted: dict[str, Any] = {}
        for each in notes:
            noted |= {name: value for name, value in each.items() if name in NOTED}
        if not notes:
            return None
        return SessionInfo(run_id.removeprefix(f"{AGENT}/"), **noted, updated=updated, known=True)

    async def _has(self, info: SessionInfo, words: Iterable[str]) -> bool:
        left = [each for each in words if each not in info.title.casefold()]
        if not left:
            return True
        with suppress(RunNotFound):
            rows = (await self.journal.look(info.run_id)).rows
            text = "\n".join(
                part.casefold()
                for row in rows
                if row.kind in ("root", "result", "reply")
                for part in _texts(json.loads(row.value))
            )
            return all(each in text for each in left)
        return False


@asynccontextmanager
async def open_sessions(path: Path | None = None, *, keep: bool = True) -> AsyncGenerator[Sessions]:
    """Open this user's sessions, or those in another file. Only its owner can read the file.

    Without `keep`, or if the file cannot be opened, the sessions are in memory and end with the
    program. `trouble` then is the error.
    """
    path = user_data_path("anabranch") / "chats.db" if path is None else path
    async with AsyncExitStack() as stack:
        journal, trouble = None, ""
        if keep:
            try:
                _make(path)
                journal = await stack.enter_async_context(Journal(path, partials=PARTIAL_SECONDS))
            except (OSError, JournalError) as error:
                why = error.strerror if isinstance(error, OSError) else error.why
                trouble = (
                    f"cannot open {path} ({why}), so this chat will not be saved. Repair the file,"
                    " move it away, or use --no-history"
                )
        is_stored = journal is not None
        if journal is None:
            journal = await stack.enter_async_context(
                Journal(MEMORY_JOURNAL, partials=PARTIAL_SECONDS)
            )
        yield Sessions(stack, journal, is_stored=is_stored, trouble=trouble)


def _make(path: Path) -> None:
    """Create the file and its folder, for their owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.parent.name == "anabranch":  # our folder, even if another program created it
        path.parent.chmod(0o700)
    path.chmod(0o600)


def shorten_title(text: str) -> str:
    """Return the start of a text as a title: one line without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 3].rstrip()}..."


def _encodable(noted: Mapping[str, Any]) -> dict[str, Any]:
    """Make notes encodable, since the name of a folder can contain a lone surrogate."""
    return {name: encodable(v) if isinstance(v, str) else v for name, v in noted.items()}


def _texts(value: Any) -> Iterable[str]:
    """Yield the texts of messages in JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name in ("inputs", "messages", "message", "content"):
            if name in value:
                yield from _texts(cast("Mapping[str, Any]", value)[name])
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _texts(each)
