"""`Memory`: the messages of an agent, in separate sessions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import takewhile
from typing import Any, Self, TypeAlias
from uuid import uuid4

from ...backends import Backend
from ...commander.errors import BadResponse, ContextTooLong
from ...commander.kinds import checked, passes_with
from ...commander.scope import Attempt, scope_here
from ...messages import Message, Part, Request
from ...tools.sessions import do_all
from ._message import AgentMessage, copy_message, has_run
from ._state import json_value, read_records, saved_fields

__all__ = [
    "CALLS",
    "Memory",
    "SessionId",
    "SummaryMemory",
    "TemporarySession",
    "ask_summary",
    "cut_middle",
    "message_tokens",
]

SessionId: TypeAlias = int | str


class TemporarySession(str):
    """A session without a name of the user's: it ends with its owner, a call or a nameless person.

    Its name differs in each execution of a durable run, so no node's identity may contain it:
    objects with slots are not.
    """

    __slots__ = ("forget",)

    def __new__(cls, prefix: str = "") -> Self:
        """Make a session that has no name in common with any other."""
        return super().__new__(cls, prefix + uuid4().hex)

    def __init__(self, prefix: str = "") -> None:
        # Functions to call at its end, by the agent that remembers.
        self.forget: dict[object, Callable[[], object]] = {}

    def end_with(self, owner: object) -> None:
        """End when `owner` is collected."""
        weakref.finalize(owner, self.end).atexit = False

    def end(self) -> None:
        """Let all its agents forget it; failures are raised when all have."""
        do_all(self.forget.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # elsewhere it is a name alone


CALLS: ContextVar[tuple[object, ...]] = ContextVar("anabranch_agents_calls", default=())
"""The calls of agents around this, the outermost first; nodes inherit them."""

# Attributes of a message that are no fields, so that they are neither saved nor compared: the calls
# in which it was added.
ADDED_IN = "_added_in"
# In a durable run: the attempt of a node that added it, and the messages that a summary replaced.
DONE_IN, INSTEAD_OF = "_done_in", "_instead_of"


Filter: TypeAlias = Callable[[AgentMessage], bool]

CHARACTERS_PER_TOKEN = 4

SHORTEST = 400  # characters of a text that is not cut any more
LEFT_OUT = "\n[... left out ...]\n"


def message_tokens(message: AgentMessage) -> int:
    """Guess the tokens of a message: one per four characters, one more, and those of its parts.

    This guess must not change: a durable run that resumes has to leave out the same messages as
    before, or its requests are not those that its journal has replies for.
    """
    parts = sum(part.estimate_tokens() for part in message.parts)
    return 1 + len(message.text) // CHARACTERS_PER_TOKEN + parts


@passes_with("add")
class Memory:
    """Lists of messages, one for each `session_id`; sessions know nothing of each other.

    `get` leaves out what `filter` refuses, then all but the last `recent_n` messages, then the
    oldest until what remains has at most `max_tokens` tokens by `count` (the last message stays
    in any case). Nothing is forgotten by that: `save` gives all.

    Without `count`, four characters are a token. That is rough, far too low for Chinese, but the
    same in each version, so that a durable run resumes with the same messages. Give `count` the
    model's tokenizer for more.

    What is added is copied, so that nobody who changes a message changes another's memory.
    """

    @checked
    def __init__(
        self,
        *,
        recent_n: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the field's term
        max_tokens: int | None = None,
        count: Callable[[AgentMessage], int] = message_tokens,
    ) -> None:
        if (recent_n is not None and recent_n < 0) or (max_tokens is not None and max_tokens < 1):
            raise ValueError(f"recent_n={recent_n!r}, max_tokens={max_tokens!r}: too few")
        self.recent_n = recent_n
        self.filter = filter
        self.max_tokens = max_tokens
        self.count = count
        self._sessions: dict[SessionId, list[AgentMessage]] = {}

    @property
    def sessions(self) -> list[SessionId]:
        """The sessions that have messages, in the order in which they began."""
        return [session for session, messages in self._sessions.items() if messages]

    def add(
        self, *messages: AgentMessage | Message | Part | str, session_id: SessionId = 0
    ) -> list[AgentMessage]:
        """Append messages, a plain string being the user's; return the stored copies."""
        kept = [copy_message(message) for message in messages]
        scope = scope_here()
        for each in kept:
            vars(each)[ADDED_IN] = CALLS.get()
            vars(each)[DONE_IN] = None if scope is None else scope.attempt_here()
        self._sessions.setdefault(session_id, []).extend(kept)
        return kept

    def get(
        self,
        session_id: SessionId = 0,
        *,
        recent_n: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the field's term
    ) -> list[AgentMessage]:
        """Return a session's messages, oldest first, in a new list; the arguments win."""
        accepts = self.filter if filter is None else filter
        messages = [m for m in self._all(session_id) if accepts is None or accepts(m)]
        recent = self.recent_n if recent_n is None else recent_n
        if recent is not None:
            messages = messages[max(0, len(messages) - recent) :]
        return messages if self.max_tokens is None else self._newest(messages, self.max_tokens)

    def messages(self, session_id: SessionId = 0) -> list[AgentMessage]:
        """Return all of a session, whatever `get` leaves out, in a new list."""
        return list(self._all(session_id))

    def retract(self, messages: Sequence[AgentMessage], session_id: SessionId = 0) -> bool:
        """Take back what `add` returned, unless more was added after it; return whether it was so.

        Inside an agent's call only what the call has added itself counts as more: what others have
        added to the session stays, and is no reason to keep this.
        """
        kept, ids = self._all(session_id), {id(each) for each in messages}
        own = [place for place, each in enumerate(kept) if id(each) in ids]
        more = (each for each in kept[own[0] if own else 0 :] if id(each) not in ids)
        if len(own) < len(messages) or any(map(_is_added_here, more)):
            return False
        for place in reversed(own):
            del kept[place]
        return True

    def retract_answers(self, session_id: SessionId = 0) -> None:
        """Take back what the agent's call around this has added, except for tool calls.

        These have run, so they stay, with the messages before them. What others have added to the
        session stays as well.
        """
        own = [each for each in self._all(session_id) if _is_added_here(each)]
        answers = takewhile(lambda each: not has_run(each), reversed(own))
        self.retract([*answers], session_id)

    def drop_cut(self, session_id: SessionId) -> bool:
        """Forget messages that the durable run around this would not have after a restart.

        They were added in a node that was cancelled, timed out or has another attempt now, or in
        an earlier execution in this process. Returns whether the restarted run adds all others
        again: it does not add those of a job whose result is stored.
        """
        if (scope := scope_here()) is None:
            return True
        here, ends = scope.attempt_here(), set[str]()

        def left(messages: Iterable[AgentMessage]) -> Iterator[AgentMessage]:
            for each in messages:
                done_in: Attempt | None = vars(each).get(DONE_IN)
                end = "" if done_in is None else here.lacks(done_in)
                ends.add(end)
                if end != "cut":
                    yield each
                else:  # the messages that it replaced are there again
                    yield from left(vars(each).get(INSTEAD_OF, ()))

        if self._all(session_id):
            self._sessions[session_id][:] = left(self._all(session_id))
        return "kept" not in ends

    def settle(self, session_id: SessionId) -> None:
        """Note that each execution has all messages so far, because a journal stores them."""
        for each in self._all(session_id):
            vars(each).pop(DONE_IN, None)
            vars(each).pop(INSTEAD_OF, None)

    def reset(self, session_id: SessionId = 0) -> None:
        """Forget a session."""
        self._sessions.pop(session_id, None)

    def save(self, session_id: SessionId = 0) -> list[dict[str, Any]]:
        """Return all of a session as plain JSON values; other values become text."""
        said = self._all(session_id)
        return json_value([dict(saved_fields(message)) for message in said])

    def load(self, records: Iterable[Mapping[str, Any]], session_id: SessionId = 0) -> None:
        """Replace a session by what `save` returned.

        Raises `ConfigurationError` for anything else, and leaves the session as it was.
        """
        self.replace(read_records(records), session_id)

    def replace(self, messages: Iterable[AgentMessage], session_id: SessionId = 0) -> None:
        """Replace a session by messages."""
        kept = [copy_message(message) for message in messages]
        self.reset(session_id)
        if kept:
            self._sessions[session_id] = kept

    async def prepare(self, session_id: SessionId) -> None:
        """Make room in a session before a request; here nothing is to do."""

    def _all(self, session_id: SessionId) -> list[AgentMessage]:
        return self._sessions.get(session_id, [])

    def _newest(self, messages: list[AgentMessage], tokens: int) -> list[AgentMessage]:
        """Return the newest messages that have at most so many tokens, at least one."""
        start = len(messages)
        while start:
            tokens -= self.count(messages[start - 1])
            if tokens < 0 and start < len(messages):
                break
            start -= 1
        return messages[start:]

    def __repr__(self) -> str:
        limits = {"recent_n": self.recent_n, "max_tokens": self.max_tokens}
        shown = ", ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
        return f"{type(self).__name__}({shown})"


def _is_added_here(message: AgentMessage) -> bool:
    """Return whether a message was added in the agent's call around this, or below it."""
    calls = CALLS.get()
    return vars(message).get(ADDED_IN, ())[: len(calls)] == calls


class SummaryMemory(Memory):
    """Replaces the beginning of a session by a summary once it is over `max_tokens`.

    Before a request `backend` summarises all but the newest messages, which have at most half as
    many tokens. A message of type "summary" by "memory" replaces the summarised ones, also in
    `save`. If the summary fails, so does the call that needed it, and the memory stays as it was.

    Messages that `filter` refuses are neither counted nor summarised, and stay in the memory. The
    model always reads summaries, whatever `filter` says. Messages too long for the context of
    `backend` are summarised in parts, and a single one that is too long loses its middle.
    """

    @checked
    def __init__(
        self,
        backend: Backend,
        *,
        max_tokens: int,
        prompt: str = "Summarise this conversation for someone who has to go on with it. Keep names"
        ", numbers, decisions and open questions. Write nothing but the summary.",
        filter: Filter | None = None,  # noqa: A002 - the field's term
        count: Callable[[AgentMessage], int] = message_tokens,
    ) -> None:
        super().__init__(filter=filter, count=count)
        self.backend = backend
        self.limit = max_tokens
        self.prompt = prompt

    def get(
        self,
        session_id: SessionId = 0,
        *,
        recent_n: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the field's term
    ) -> list[AgentMessage]:
        """Return a session's messages as `Memory` does, and each summary among them."""
        accepts = filter or self.filter

        def is_read(message: AgentMessage) -> bool:
            return _is_summary(message) or accepts is None or accepts(message)

        return super().get(session_id, recent_n=recent_n, filter=is_read)

    async def prepare(self, session_id: SessionId) -> None:
        """Summarise, if the session is too long."""
        messages = self.get(session_id)
        if sum(map(self.count, messages)) <= self.limit:
            return
        newest = self._newest(messages, self.limit // 2)
        old = messages[: len(messages) - len(newest)]
        if not old:
            return
        text = await self._summarise([f"{each.sender}: {_with_notes(each)}" for each in old])
        summary = AgentMessage(
            content=f"Summary of what was said before:\n{text}", sender="memory", type="summary"
        )
        if (scope := scope_here()) is not None:
            vars(summary).update({DONE_IN: scope.attempt_here(), INSTEAD_OF: old})
        messages = self._all(session_id)  # others may have added, or summarised, meanwhile
        replaced = {id(each) for each in old}
        places = [place for place, each in enumerate(messages) if id(each) in replaced]
        if len(places) == len(old):
            for place in reversed(places):
                del messages[place]
            messages.insert(places[0], summary)

    async def _summarise(self, said: list[str]) -> str:
        """Return a summary of messages, made of those of their halves if they are too long."""
        try:
            return await ask_summary(
                self.backend, self.prompt, "\n\n".join(said), cut=len(said) == 1
            )
        except ContextTooLong:
            if len(said) == 1:
                raise
        half = len(said) // 2
        halves = [await self._summarise(said[:half]), await self._summarise(said[half:])]
        return await self._summarise(["\n\n".join(halves)])


def _is_summary(message: AgentMessage) -> bool:
    return (message.type, message.sender) == ("summary", "memory")


def _with_notes(message: AgentMessage) -> str:
    """Return a message's text, with a note for each image and file that is lost."""
    return "\n".join([message.text, *(part.text or f"[{part.about}]" for part in message.parts)])


async def ask_summary(backend: Backend, prompt: str, text: str, *, cut: bool = True) -> str:
    """Return a model's summary of `text`; raise `BadResponse` for an empty one.

    A text that does not fit the model's context loses its middle until it does, or, without `cut`,
    is a `ContextTooLong`.
    """
    request = Request([Message(role="system", content=prompt), Message(role="user", content=text)])
    try:
        summary = (await backend.complete(request)).content
    except ContextTooLong:
        if not cut or (shorter := cut_middle(text)) is None:
            raise
        return await ask_summary(backend, prompt, shorter)
    if not summary:
        raise BadResponse("the model gave an empty summary")
    return summary


def cut_middle(text: str) -> str | None:
    """Return a text without its middle, about half as long; None if it is short already."""
    keep = len(text) // 4
    return None if len(text) <= SHORTEST else text[:keep] + LEFT_OUT + text[-keep:]
