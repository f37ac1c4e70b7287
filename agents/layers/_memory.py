"""`Memory`: what an agent has heard and said, each session for itself."""

from __future__ import annotations

import json
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import fields, is_dataclass
from itertools import takewhile
from math import isfinite
from operator import is_
from typing import Any, Self, TypeAlias, cast
from uuid import uuid4

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ...backends import Backend
from ...commander.errors import BadResponse, ConfigurationError, ContextTooLong
from ...commander.kinds import FUNCTION, require
from ...commander.scope import Attempt, scope_here
from ...messages import Message, Part, Request
from ...messages.text import encodable
from ...tools import ToolResult
from ...tools.sessions import do_all
from ._message import TOOLS, AgentMessage, copy_message, has_run
from ._parsers import Parser

__all__ = [
    "CALLS",
    "OWN",
    "Memory",
    "OwnSession",
    "SessionId",
    "SummaryMemory",
    "ask_summary",
    "cut_middle",
    "fit_json",
    "fit_keys",
    "message_tokens",
    "read_again",
    "read_records",
    "saved_fields",
]

SessionId: TypeAlias = int | str


class OwnSession(str):
    """A session that nobody has named: it ends with what has it, a call or a nameless person.

    Its name is another one in each life of a durable run, so it says nothing of who is called: what
    has slots is not written among a node's inputs.
    """

    __slots__ = ("forget",)

    def __new__(cls, prefix: str = "") -> Self:
        """Make a session that has no name in common with any other."""
        return super().__new__(cls, prefix + uuid4().hex)

    def __init__(self, prefix: str = "") -> None:
        # What to do at its end, by the agent that remembers.
        self.forget: dict[object, Callable[[], object]] = {}

    def end_with(self, owner: object) -> None:
        """End when `owner` is collected."""
        weakref.finalize(owner, self.end).atexit = False

    def end(self) -> None:
        """Let all agents that were asked in it forget it; failures are raised when all have."""
        do_all(self.forget.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)  # elsewhere it is a name alone


CALLS: ContextVar[tuple[object, ...]] = ContextVar("anabranch_agents_calls", default=())
"""The calls of agents in which this runs, the outermost first; nodes hand them down."""

# Where a message keeps the calls in which it was added; what is no field is neither saved nor
# compared.
ADDED_IN = "_added_in"
# Likewise the attempt of a node, in a durable run, and what a summary has replaced there.
DONE_IN, INSTEAD_OF = "_done_in", "_instead_of"

# In a saved state, beside the fields of a message: that its agent has said it.
OWN = "own"

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

    def __init__(
        self,
        *,
        recent_n: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the field's term
        max_tokens: int | None = None,
        count: Callable[[AgentMessage], int] = message_tokens,
    ) -> None:
        require(recent_n, int | None, "recent_n must be a number of messages or None")
        require(max_tokens, int | None, "max_tokens must be a number of tokens or None")
        require(filter, FUNCTION | None, "filter must be a function or None")
        require(count, FUNCTION, "count must be a function")
        if (recent_n is not None and recent_n < 0) or (max_tokens is not None and max_tokens < 1):
            raise ValueError(f"recent_n={recent_n!r}, max_tokens={max_tokens!r}: too few")
        self.recent_n = recent_n
        self.filter = filter
        self.max_tokens = max_tokens
        self.count = count
        self._sessions: dict[SessionId, list[AgentMessage]] = {}

    @property
    def sessions(self) -> list[SessionId]:
        """The sessions in which something was said, in the order in which they began."""
        return [session for session, messages in self._sessions.items() if messages]

    def add(
        self, *messages: AgentMessage | Message | Part | str, session_id: SessionId = 0
    ) -> list[AgentMessage]:
        """Append messages, a plain string being the user's; return them as they are kept."""
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
        """Take back what `add` returned, unless more was added after it; say if it was so.

        Inside an agent's call that is what the call has added itself: what others have added to the
        session meanwhile stays, and is no reason to keep this.
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
        """Take back what the agent's call around this has added, except for calls of tools.

        These have run, so they stay, with what came before them. What others have added to the
        session stays as well.
        """
        own = [each for each in self._all(session_id) if _is_added_here(each)]
        answers = takewhile(lambda each: not has_run(each), reversed(own))
        self.retract([*answers], session_id)

    def drop_cut(self, session_id: SessionId) -> bool:
        """Forget what a later life of the durable run around this would not come to again.

        That is what was said in a node that was cancelled, that took too long or that has another
        attempt now, or in an earlier life in this process. Says whether all the rest is said again:
        what a job has said whose result is kept is not.
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
                else:  # what it has replaced is there again
                    yield from left(vars(each).get(INSTEAD_OF, ()))

        if self._all(session_id):
            self._sessions[session_id][:] = left(self._all(session_id))
        return "kept" not in ends

    def settle(self, session_id: SessionId) -> None:
        """Take note that each life is told all that was said so far, as it stands in a journal."""
        for each in self._all(session_id):
            vars(each).pop(DONE_IN, None)
            vars(each).pop(INSTEAD_OF, None)

    def reset(self, session_id: SessionId = 0) -> None:
        """Forget a session."""
        self._sessions.pop(session_id, None)

    def save(self, session_id: SessionId = 0) -> list[dict[str, Any]]:
        """Return all of a session as plain JSON values; what is not JSON is written as text."""
        said = self._all(session_id)
        return json_value([dict(saved_fields(message)) for message in said])

    def load(self, records: Iterable[Mapping[str, Any]], session_id: SessionId = 0) -> None:
        """Put what `save` returned in the place of a session.

        Raises `ConfigurationError` for anything else, and leaves the session as it was.
        """
        self.replace(read_records(records), session_id)

    def replace(self, messages: Iterable[AgentMessage], session_id: SessionId = 0) -> None:
        """Put messages in the place of a session."""
        kept = [copy_message(message) for message in messages]
        self.reset(session_id)
        if kept:
            self._sessions[session_id] = kept

    async def prepare(self, session_id: SessionId) -> None:
        """Make room in a session before a model is asked; here there is nothing to do."""

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


def saved_fields(message: AgentMessage) -> Iterator[tuple[str, Any]]:
    """Yield the fields to write: the last two, which earlier versions lack, only where set."""
    for name, value in message:
        if name != "usage" and (value or name not in ("reasoning", "provider_items")):
            yield name, value


class SummaryMemory(Memory):
    """Replaces the beginning of a session by a summary once it is over `max_tokens`.

    Before a model is asked, all but the newest messages, of at most half as many tokens, are given
    to `backend`; its summary stands in their place, as a message of type "summary" by "memory".
    `save` then has the summary too: what it replaced is forgotten. If the summary fails, so does
    the call that needed it, and the memory stays as it was.

    What `filter` refuses is neither counted nor summarised, and stays in the memory; it is not
    asked about summaries, which the model always reads. What is too long for the context of
    `backend` is summarised in parts, and one message that is too long loses its middle.
    """

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
        require(backend, Backend, "backend must be one that connect(...) makes", like="stream")
        require(max_tokens, int, "max_tokens must be a number of tokens")
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
        """Return a summary of what was said, made of those of its halves if it is too long."""
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
    """Return what was said, with a note for each image and file that nobody sees any more."""
    return "\n".join([message.text, *(part.text or f"[{part.about}]" for part in message.parts)])


async def ask_summary(backend: Backend, prompt: str, text: str, *, cut: bool = True) -> str:
    """Return what a model makes of `text`; raise `BadResponse` if that is nothing.

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


def json_value(value: object) -> Any:
    """Return what JSON keeps of a value."""
    try:
        made = to_jsonable_python(value, fallback=str, bytes_mode="base64")
    except ValueError as error:
        if SURROGATE not in str(error):
            raise
        fitted = fit_keys(value)
        made = to_jsonable_python(fitted, fallback=str, bytes_mode="base64")
    try:  # nearly all fits, which is found out many times faster than it is walked through
        json.dumps(made, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return fit_json(made)
    return made


def fit_json(value: Any) -> Any:
    """Return JSON values as every reader of JSON takes them.

    It has no infinity, which is written as text, as pydantic reads it, and no UTF-8 has half a
    surrogate pair, as an environment or a person may send one: it becomes U+FFFD.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return _fit_items(cast("dict[Any, Any]", value), fit_json)
    if isinstance(value, list):
        return [fit_json(each) for each in cast("list[Any]", value)]
    return value


SURROGATE = "surrogates not allowed"  # as Python says it


def fit_keys(value: Any) -> Any:
    """Return a value whose mappings have keys that pydantic can write: no half surrogate pairs.

    What has none is the same object.
    """
    if isinstance(value, dict):
        given = cast("dict[Any, Any]", value)
        named = _fit_items(given, fit_keys)
        return given if _same(named, given) and _same(named.values(), given.values()) else named
    if isinstance(value, list | tuple | deque):
        row = cast("Iterable[Any]", value)
        items = [fit_keys(each) for each in row]
        if _same(items, row):
            return row
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, BaseModel):
        changed = {name: fit for name, each in value if (fit := fit_keys(each)) is not each}
        return value.model_copy(update=changed) if changed else value
    if is_dataclass(value) and not isinstance(value, type):
        declared = {each.name: getattr(value, each.name, None) for each in fields(value)}
        changed = {
            name: fit for name, each in declared.items() if (fit := fit_keys(each)) is not each
        }
        fitted = copy(value) if changed else value
        for name, fit in changed.items():
            object.__setattr__(fitted, name, fit)
        return fitted
    return value


def _same(one: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(map(is_, one, other))


def _fit_items(value: dict[Any, Any], fit: Callable[[Any], Any]) -> dict[Any, Any]:
    """Return a mapping with keys that JSON takes; two that become one text stay two."""
    fitted: dict[Any, Any] = {}
    for key, each in value.items():
        if isinstance(key, str) and (name := encodable(key)) is not key:
            while name in value or name in fitted:
                name += "\N{REPLACEMENT CHARACTER}"
            key = name
        fitted[key] = fit(each)
    return fitted


def read_again(parser: Parser[Any], text: str, saved: object, cut: bool) -> Any:
    """Return what `parser` had made of a reply, `saved` being what JSON has kept of it.

    Not all can be read from that: fields may have other names there, or none. So it is what the
    reply means, if that is what was saved. Raises `ValueError` if neither can be.
    """
    with suppress(ValueError):  # an agent of the user's own may have made it of something else
        made = (parser.parse_cut if cut else parser.parse)(text)
        if json_value(made) == saved:
            return made
    return parser.restore(saved)


def read_records(records: Iterable[Mapping[str, Any]]) -> list[AgentMessage]:
    """Return the messages that were saved; raise `ConfigurationError` if they were not."""
    messages: list[AgentMessage] = []
    try:
        if not isinstance(records, (list, tuple)):
            raise TypeError(f"a list of messages was expected, not {records!r:.200}")
        for record in cast("Sequence[Mapping[str, Any]]", records):
            if not isinstance(record, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"a message was expected, not {record!r:.200}")
            # By itself pydantic would make a message of anything, and drop what it does not know.
            if unknown := record.keys() - {*AgentMessage.model_fields, OWN}:
                raise ValueError(f"a message has no {', '.join(sorted(map(repr, unknown)))}")
            if "content" not in record:
                raise ValueError("a message has a 'content'")
            message: AgentMessage = AgentMessage.model_validate(record)
            if message.type == TOOLS:
                parts = [Message.model_validate(part) for part in message.formatted]
                message.formatted = [
                    ToolResult.model_validate(saved) if part.role == "tool" else part
                    for part, saved in zip(parts, message.formatted, strict=True)
                ]
            messages.append(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"this is not a saved memory ({str(error).splitlines()[0]})"
        ) from error
    return messages
