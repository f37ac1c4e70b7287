"""`Memory`: the messages of an agent, in separate sessions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import takewhile
from typing import Any, Self, TypeAlias
from uuid import uuid4

from ...backends import Backend, as_backend
from ...backends.override import replaced
from ...commander.durable import DurableAttempt, scope_here
from ...commander.errors import BadResponse, ContextTooLong
from ...commander.kinds import checked, passes_with
from ...messages import Message, Part, Request
from ...tools.sessions import do_all
from ._guards import GATE, Gate
from ._message import AgentMessage, copy_message, has_run
from ._override import A_BACKEND
from ._state import json_value, read_records, saved_fields

__all__ = [
    "ADDED_BY_CALLS",
    "CURRENT_CALLS",
    "Memory",
    "SessionId",
    "SummaryMemory",
    "TemporarySession",
    "added_by",
    "ask_summary",
    "cut_middle",
    "message_tokens",
]

SessionId: TypeAlias = int | str


class TemporarySession(str):
    """A session without a name from the user. It ends with its owner, a call or an unnamed agent.

    Its name differs in each execution of a durable run, so no node's identity may contain it.
    Identities leave out objects with slots.
    """

    __slots__ = ("forget",)

    def __new__(cls, prefix: str = "") -> Self:
        """Make a session with a new unique name."""
        return super().__new__(cls, prefix + uuid4().hex)

    def __init__(self, prefix: str = "") -> None:
        # Functions to call at its end, by the agent that remembers the session.
        self.forget: dict[object, Callable[[], object]] = {}

    def end_with(self, owner: object) -> None:
        """End when `owner` is collected."""
        weakref.finalize(owner, self.end).atexit = False

    def end(self) -> None:
        """Let all its agents forget it; raise their failures at the end."""
        do_all(self.forget.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # another process does not own it: there it is only a name


CURRENT_CALLS: ContextVar[tuple[object, ...]] = ContextVar("anabranch_agents_calls", default=())
"""The attempts of agents' calls around this, the outermost first. Nodes inherit them."""

# Attributes of an `AgentMessage` in a memory. They are not fields, so they are neither saved nor
# compared. The value of `CURRENT_CALLS` when it was added.
ADDED_BY_CALLS = "_added_in"
# In a durable run: the attempt of the node that added it, and the messages that a summary replaced.
ADDED_BY_ATTEMPT, REPLACED_MESSAGES = "_done_in", "_instead_of"
# The gate of the call that added it, if the guards of that had not passed.
ADDED_BEFORE_GATE = "_gate"


Filter: TypeAlias = Callable[[AgentMessage], bool]

CHARACTERS_PER_TOKEN = 4

MIN_CUT_CHARS = 400  # a text of this length is not cut
OMISSION_MARK = "\n[... left out ...]\n"


def message_tokens(message: AgentMessage) -> int:
    """Estimate the tokens of a message: one per four characters, one more, and its parts.

    This estimate must not change. A durable run that resumes has to leave out the same messages as
    before, or the journal has no replies for its requests.
    """
    parts = sum(part.estimate_tokens() for part in message.parts)
    return 1 + len(message.text) // CHARACTERS_PER_TOKEN + parts


@passes_with("add")
class Memory:
    """Lists of messages, one for each `session_id`. Sessions are independent.

        memory = Memory(max_tokens=8000)
        agent = Agent(backend, memory=memory)

    `get` leaves out the messages that `filter` rejects, then all but the last `recent_n` messages,
    then the oldest until the rest has at most `max_tokens` tokens by `count`. The last message
    always stays. The memory itself keeps all messages, and `save` returns them.

    Without `count`, four characters are a token. That is a rough estimate, far too low for Chinese,
    but the same in each version, so that a durable run resumes with the same messages. For better
    figures give `count` the model's tokenizer.

    Messages are copied when they are added, so that a later change of a message does not change the
    memory.
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
            raise ValueError(
                "recent_n must be at least 0 and max_tokens at least 1, or None, not"
                f" {recent_n!r} and {max_tokens!r}"
            )
        self.recent_n = recent_n
        self.filter = filter
        self.max_tokens = max_tokens
        self.count = count
        self._sessions: dict[SessionId, list[AgentMessage]] = {}
        # Whether a message may wait for guards. So memories without guards pay nothing for them.
        self._has_gates = False

    @property
    def sessions(self) -> list[SessionId]:
        """The sessions with messages, in the order of their beginnings."""
        return [session for session in self._sessions if self._visible(session)]

    def add(
        self, *messages: AgentMessage | Message | Part | str, session_id: SessionId = 0
    ) -> list[AgentMessage]:
        """Append messages, a plain string being the user's; return the stored copies."""
        stored = [copy_message(message) for message in messages]
        scope, gate = scope_here(), GATE.get()
        if gate is not None and not gate.is_open:
            self._has_gates = True
            for each in stored:
                vars(each)[ADDED_BEFORE_GATE] = gate
        for each in stored:
            vars(each)[ADDED_BY_CALLS] = CURRENT_CALLS.get()
            vars(each)[ADDED_BY_ATTEMPT] = None if scope is None else scope.current_attempt()
        self._sessions.setdefault(session_id, []).extend(stored)
        return stored

    def get(
        self,
        session_id: SessionId = 0,
        *,
        recent_n: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the field's term
    ) -> list[AgentMessage]:
        """Return the model's part of a session, oldest first, in a new list.

        The arguments override those of the memory.
        """
        accepts = self.filter if filter is None else filter
        messages = [m for m in self._visible(session_id) if accepts is None or accepts(m)]
        recent = self.recent_n if recent_n is None else recent_n
        if recent is not None:
            messages = messages[max(0, len(messages) - recent) :]
        return messages if self.max_tokens is None else self._newest(messages, self.max_tokens)

    def messages(self, session_id: SessionId = 0) -> list[AgentMessage]:
        """Return all messages of a session, also those that `get` leaves out, in a new list."""
        return list(self._visible(session_id))

    def retract(self, messages: Sequence[AgentMessage], session_id: SessionId = 0) -> bool:
        """Remove messages that `add` returned, unless more was added after them.

        Returns whether it did. In an agent's call only messages of this call count as more.
        Messages of other calls stay in the session, and do not prevent the removal.
        """
        messages_now, ids = self._all(session_id), {id(each) for each in messages}
        places = [place for place, each in enumerate(messages_now) if id(each) in ids]
        more = (each for each in messages_now[places[0] if places else 0 :] if id(each) not in ids)
        if len(places) < len(messages) or any(map(_is_added_here, more)):
            return False
        for place in reversed(places):
            del messages_now[place]
        return True

    def retract_answers(self, session_id: SessionId = 0) -> None:
        """Remove the messages of the current agent's call, except for tool calls.

        Tool calls have run, so they stay, with the messages before them. So do messages of other
        calls.
        """
        added_here = [each for each in self._all(session_id) if _is_added_here(each)]
        answers = takewhile(lambda each: not has_run(each), reversed(added_here))
        self.retract([*answers], session_id)

    def drop_stale(self, session_id: SessionId) -> bool:
        """Remove messages that the current durable run would not have after a restart.

        They come from a node that was cancelled, timed out or has another attempt now, or from an
        earlier execution in this process. Returns whether the restarted run would add all others
        again. It would not add those of a job whose result is stored.
        """
        if (scope := scope_here()) is None:
            return True
        here, ends = scope.current_attempt(), set[str]()

        def remaining(messages: Iterable[AgentMessage]) -> Iterator[AgentMessage]:
            for each in messages:
                attempt: DurableAttempt | None = vars(each).get(ADDED_BY_ATTEMPT)
                end = "" if attempt is None else here.gap_to(attempt)
                ends.add(end)
                if end != "cut":
                    yield each
                else:  # a summary that a restarted run would not have: its originals come back
                    yield from remaining(vars(each).get(REPLACED_MESSAGES, ()))

        if self._all(session_id):
            self._sessions[session_id][:] = remaining(self._all(session_id))
        return "kept" not in ends

    def settle(self, session_id: SessionId) -> None:
        """Note that each execution has all messages so far, because a journal stores them."""
        for each in self._all(session_id):
            vars(each).pop(ADDED_BY_ATTEMPT, None)
            vars(each).pop(REPLACED_MESSAGES, None)

    def reset(self, session_id: SessionId = 0) -> None:
        """Forget a session."""
        self._sessions.pop(session_id, None)

    def save(self, session_id: SessionId = 0) -> list[dict[str, Any]]:
        """Return a complete session as plain JSON values; other values become text."""
        messages = self._visible(session_id)
        return json_value([dict(saved_fields(message)) for message in messages])

    def load(self, records: Iterable[Mapping[str, Any]], session_id: SessionId = 0) -> None:
        """Replace a session by a result of `save`.

        Raises `ConfigurationError` for another value, and leaves the session unchanged.
        """
        self.replace(read_records(records), session_id)

    def replace(self, messages: Iterable[AgentMessage], session_id: SessionId = 0) -> None:
        """Replace a session by messages."""
        copies = [copy_message(message) for message in messages]
        self.reset(session_id)
        if copies:
            self._sessions[session_id] = copies

    async def prepare(self, session_id: SessionId) -> None:
        """Reduce a session before a request, if necessary. Here it does nothing."""

    def _all(self, session_id: SessionId) -> list[AgentMessage]:
        return self._sessions.get(session_id, [])

    def _visible(self, session_id: SessionId) -> list[AgentMessage]:
        """Return a session without the messages of other calls whose guards have not passed."""
        messages = self._all(session_id)
        return [*filter(_is_visible, messages)] if self._has_gates else messages

    def _newest(self, messages: list[AgentMessage], tokens: int) -> list[AgentMessage]:
        """Return the newest messages with at most this number of tokens, at least one message."""
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


def added_by(message: AgentMessage) -> tuple[object, ...]:
    """Return the agent's call that added a message, after the calls above it."""
    return vars(message).get(ADDED_BY_CALLS, ())


def _is_added_here(message: AgentMessage) -> bool:
    """Return whether the agent's call around this, or a call below it, added a message."""
    calls = CURRENT_CALLS.get()
    return vars(message).get(ADDED_BY_CALLS, ())[: len(calls)] == calls


def _is_visible(message: AgentMessage) -> bool:
    gate: Gate | None = vars(message).get(ADDED_BEFORE_GATE)
    if gate is None:
        return True
    if gate.is_open:
        del vars(message)[ADDED_BEFORE_GATE]
        return True
    return CURRENT_CALLS.get()[: len(gate.calls)] == gate.calls  # it is the call, or below it


class SummaryMemory(Memory):
    """Replaces the beginning of a session by a summary when it exceeds `max_tokens`.

        agent = Agent(backend, memory=SummaryMemory(backend, max_tokens=8000))

    Before a request `backend` summarizes all but the newest messages, which have at most half as
    many tokens. A message of type "summary" from "memory" replaces the summarized ones, also in
    `save`. If the summary fails, the call that needed it fails, and the memory stays unchanged.

    Messages that `filter` rejects are neither counted nor summarized, and stay in the memory. The
    model always reads summaries, whatever `filter` returns. Messages too long for the context of
    `backend` are summarized in parts. A single message that is too long loses its middle.
    """

    @checked(backend=A_BACKEND)
    def __init__(
        self,
        backend: Backend | str,
        *,
        max_tokens: int,
        prompt: str = "Summarise this conversation for someone who has to go on with it. Keep names"
        ", numbers, decisions and open questions. Write nothing but the summary.",
        filter: Filter | None = None,  # noqa: A002 - the field's term
        count: Callable[[AgentMessage], int] = message_tokens,
    ) -> None:
        super().__init__(filter=filter, count=count)
        self.backend: Backend = as_backend(backend)
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
        """Summarize the session if it is too long."""
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
            vars(summary).update(
                {ADDED_BY_ATTEMPT: scope.current_attempt(), REPLACED_MESSAGES: old}
            )
        # Other calls may have added messages, or summarized, during the request. So the summary
        # replaces its originals only if all of them are still there.
        messages = self._all(session_id)
        replaced = {id(each) for each in old}
        places = [place for place, each in enumerate(messages) if id(each) in replaced]
        if len(places) == len(old):
            for place in reversed(places):
                del messages[place]
            messages.insert(places[0], summary)

    async def _summarise(self, texts: list[str]) -> str:
        """Return a summary of texts, or of the summaries of their halves if they are too long."""
        try:
            return await ask_summary(
                replaced(self.backend), self.prompt, "\n\n".join(texts), cut=len(texts) == 1
            )
        except ContextTooLong:
            if len(texts) == 1:
                raise
        half = len(texts) // 2
        halves = [await self._summarise(texts[:half]), await self._summarise(texts[half:])]
        return await self._summarise(["\n\n".join(halves)])


def _is_summary(message: AgentMessage) -> bool:
    return (message.type, message.sender) == ("summary", "memory")


def _with_notes(message: AgentMessage) -> str:
    """Return a message's text, with a note for each image and file, which the summary loses."""
    return "\n".join([message.text, *(part.text or f"[{part.about}]" for part in message.parts)])


async def ask_summary(backend: Backend, prompt: str, text: str, *, cut: bool = True) -> str:
    """Return a model's summary of `text`; raise `BadResponse` for an empty one.

    A text that does not fit the model's context loses its middle until it fits, or, without `cut`,
    raises `ContextTooLong`.
    """
    request = Request([Message(role="system", content=prompt), Message(role="user", content=text)])
    try:
        summary = (await backend.complete(request)).content
    except ContextTooLong:
        if not cut or (shorter := cut_middle(text)) is None:
            raise
        return await ask_summary(backend, prompt, shorter)
    if not summary:
        raise BadResponse("the model returned an empty summary")
    return summary


def cut_middle(text: str) -> str | None:
    """Return a text without its middle, about half as long; None if it is short already."""
    keep = len(text) // 4
    return None if len(text) <= MIN_CUT_CHARS else text[:keep] + OMISSION_MARK + text[-keep:]
