"""Sessions of an agent that a journal stores: `Agent(journal=...)`.

A session is a run that stays open, named "AGENT/SESSION", and each call is one of its calls. The
process holds a lease on the run during a call. The entries of a call are those of any run, its
messages and options, and how it changed the memories of the agent and of all agents below it. So
the memories are restored from the entries.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from ...commander import current_node
from ...commander.errors import ConfigurationError
from ...commander.scope import scope_here
from ...store import Journal, NotStorable, Session, SessionCall
from ._call import OUTER_SESSION, AgentCall, JournalCall, OuterSession, add_usage, run_in_tree
from ._interrupted import read_interrupted_call
from ._memory import SessionId
from ._message import AgentMessage
from ._state import json_value, read_records, saved_fields
from ._steer import Steering
from ._stream import MESSAGE_FEED

if TYPE_CHECKING:
    from ._agent import Agent


__all__ = ["JournalSessions", "run_id_of"]

logger = logging.getLogger("anabranch.agents")

State: TypeAlias = dict[str, list[dict[str, Any]]]
"""The memories of a session by the paths of their agents, as `save_memories` gives them."""

Changes: TypeAlias = dict[str, list[Any]]
"""How memories have changed, by path: the first message, how many are gone, and the new ones."""

# The saved fields of a message that has no values of its own.
DEFAULTS: Mapping[str, Any] = json_value(dict(saved_fields(AgentMessage())))


class _Known(NamedTuple):
    """The memories of a session as they were when its journal had so many rows."""

    rows: int
    state: State


def run_id_of(agent: str, session_id: SessionId) -> str:
    """Return the name of the run that a session is."""
    session = str(session_id)
    if isinstance(session_id, str) and (session.lstrip("+-").isdigit() or session[:1] in "'\""):
        session = repr(session_id)  # not the number's
    return f"{agent}/{session}"


class JournalSessions:
    """The sessions of one agent."""

    def __init__(self, agent: Agent[Any], journal: str | Journal) -> None:
        if "/" in agent.name:
            raise ConfigurationError(
                f"an agent whose sessions are kept needs a name= without '/', not {agent.name!r}"
            )
        self._agent = agent
        self.journal = journal
        # The memories as the journal has them; None during a call, and after an interrupted one.
        self._known: dict[SessionId, _Known | None] = {}
        # The sessions in use here, and whether each is to be forgotten after that.
        self._busy: dict[SessionId, bool] = {}
        # One call after the other in each session, in each loop.
        self._turns: WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[SessionId, asyncio.Lock]
        ] = WeakKeyDictionary()

    async def call(
        self,
        node: JournalCall[Any],
        messages: Sequence[AgentMessage],
        session_id: SessionId,
        options: Mapping[str, Any],
    ) -> AgentMessage[Any]:
        """Make a call below `node`, after the end of an interrupted one."""
        inputs = {"messages": [_write(each) for each in messages], "options": dict(options)}
        async with self._opened(session_id) as session:
            node.session = session
            session.learn_keys(*(each.backend for each in self._agent.named_agents().values()))
            inputs = session.without_keys(inputs)
            last = _interrupted(session)
            if last is not None:
                same = {**last.inputs, "before": None} == {**inputs, "before": None}
                if same and not last.cancelled:
                    return await self._make(session, last, session_id, node.steering())
                await self._finish(session, last, session_id)
            inputs["before"], here = self._changes(session_id)
            call = session.begin(inputs)
            return await self._make(session, call, session_id, node.steering(), here)

    def is_busy(self, session_id: SessionId) -> bool:
        """Return whether a session is in use; then it is forgotten after that."""
        if session_id not in self._busy:
            return False
        self._busy[session_id] = True
        return True

    def note_forgotten(self, session_id: SessionId) -> None:
        """Note that the agent's memory has nothing of a session any more."""
        self._known.pop(session_id, None)
        left = self._agent.save_memories(session_id)
        if any(left.values()):  # in agents below
            self._known[session_id] = _Known(-1, left)

    async def recall(self, session_id: SessionId) -> None:
        """Restore the memories of a session from the journal."""
        async with self._opened(session_id):
            pass

    async def keep(self, session_id: SessionId) -> None:
        """Store at once how the memories differ from the journal's."""
        async with self._opened(session_id) as session:
            if _interrupted(session) is not None:
                raise ConfigurationError(
                    f"the last call of {session.run_id} was cut: let it go on, or end it by"
                    " end_interrupted(), before its memory is changed"
                )
            before, here = self._changes(session_id)
            if before:
                call = session.begin({"messages": [], "options": {}, "before": before})
                await session.end(call)
            self._known[session_id] = _Known(session.rows, here)

    async def find_interrupted(self, session_id: SessionId) -> list[AgentMessage] | None:
        """Return the messages of the interrupted call of a session; None if there is none."""
        async with self._opened(session_id) as session:
            last = _interrupted(session)
            if last is None or last.cancelled:
                return None
            return read_records(last.inputs["messages"])

    async def end_interrupted(self, session_id: SessionId) -> bool:
        """End the interrupted call of a session as it is, and remember what it had done."""
        async with self._opened(session_id) as session:
            last = _interrupted(session)
            if last is None:
                return False
            agent, start = self._agent, self._agent.save_memories(session_id)
            if not last.ended:
                cut = read_interrupted_call(await session.look(), agent.name)
                asked = read_records(last.inputs["messages"])
                agent.remember_interrupted(asked, cut, session_id)
                state = agent.save_memories(session_id)
                session.keep(
                    last, _refer(_differences(start, state), last.inputs["messages"], None)
                )
            await session.end(last)
            self._known[session_id] = _Known(session.rows, agent.save_memories(session_id))
            return True

    def _changes(self, session_id: SessionId) -> tuple[Changes, State]:
        """Return how the memories differ from the journal's, and the memories."""
        known, here = self._known.get(session_id), self._agent.save_memories(session_id)
        return _differences({} if known is None else known.state, here), here

    @asynccontextmanager
    async def _opened(self, session_id: SessionId) -> AsyncGenerator[Session]:
        """Acquire the lease of a session and restore its memories, alone in this loop."""
        if scope_here() is not None:
            raise ConfigurationError(
                f"{self._agent.name} keeps its sessions in a journal of its own, and is called"
                " inside a durable run, which stores all work below it: call it outside, or use"
                " one without journal="
            )
        turns = self._turns.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        async with turns.setdefault(session_id, asyncio.Lock()):
            given = self.journal
            name = run_id_of(self._agent.name, session_id)
            async with AsyncExitStack() as stack:
                if not isinstance(given, Journal):
                    given = await stack.enter_async_context(Journal(given))
                session = await stack.enter_async_context(given.session(name))
                self._busy[session_id] = False
                try:
                    self._read(session, session_id)
                    yield session
                finally:
                    if self._busy.pop(session_id):
                        self._agent.forget(session_id)

    async def _finish(self, session: Session, call: SessionCall, session_id: SessionId) -> None:
        """Let an interrupted call end, without listeners."""
        logger.info("%s finishes a call that was cut, before the next", session.run_id)
        token, steering = MESSAGE_FEED.set(None), Steering()
        try:
            await self._make(session, call, session_id, steering)
        except Exception:  # the next call does not fail for it
            if not call.over:
                raise  # nothing can be stored
            logger.warning("a call of %s that was cut has failed", session.run_id, exc_info=True)
        finally:
            MESSAGE_FEED.reset(token)
        if left := len(steering.undelivered):
            logger.warning("%s: no request delivered %d steering messages", session.run_id, left)

    async def _make(
        self,
        session: Session,
        call: SessionCall,
        session_id: SessionId,
        steering: Steering,
        start: State | None = None,  # the memories now, if known
    ) -> AgentMessage[Any]:
        agent, listener, codec = self._agent, MESSAGE_FEED.get(), _Answer(self._agent)
        messages, options = read_records(call.inputs["messages"]), call.inputs["options"]
        start, ended = agent.save_memories(session_id) if start is None else start, call.ended
        for each in agent.named_agents().values():
            each.memory.settle(session_id)

        async def work() -> AgentMessage[Any]:
            nonlocal listener
            listener = None  # the call itself puts its answer
            OUTER_SESSION.set(OuterSession(agent, session_id))
            record = None
            try:
                made = AgentCall(agent, messages, session_id, options, steering)
                answer = await run_in_tree(made)
                record = json.loads(codec.encode(answer))
                return answer
            finally:
                changes = _differences(start, agent.save_memories(session_id))
                session.keep(call, _refer(changes, call.inputs["messages"], record))

        self._known[session_id] = None
        try:
            answer = await session.make(call, current_node(), work, codec)
        finally:
            if call.over:
                state = agent.save_memories(session_id)
                if not ended and call.result is None:
                    # Cancelled before it did anything in this execution, or after its answer.
                    changes = _refer(_differences(start, state), call.inputs["messages"], None)
                    if changes != (call.kept or {}):
                        session.keep(call, changes)
                self._known[session_id] = _Known(session.rows, state)
        if listener is not None:
            listener.put(answer)
        return answer

    def _read(self, session: Session, session_id: SessionId) -> None:
        """Restore the memories from the journal, if it has changed."""
        agent, known = self._agent, self._known.get(session_id)
        if known is not None and known.rows == session.rows:
            return  # messages added here since then are stored with the next call
        here = agent.save_memories(session_id)
        state: State = {}
        for call in session.calls:
            _apply(state, call.inputs["before"])
            if call.ended:
                _apply(state, _refer_back(call))
        before = known.state if known is not None else {}
        added = _differences(before, {path: records for path, records in here.items() if records})
        if (known is not None or session_id not in self._known) and added:
            if not session.calls:
                return  # it begins with the messages here
            if _differences(state, here):
                raise ConfigurationError(
                    f"the journal has a session {session.run_id!r}, and its memory here is another:"
                    f" put nothing into it before the first call, or name another session"
                )
        try:
            agent.load_state_dict({**{key: [] for key in here}, **state}, session_id)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"the journal has a session {session.run_id!r} of an agent that was made of others:"
                f" {error}"
            ) from error
        self._known[session_id] = _Known(session.rows, state)
        spent = agent.usage_totals.sessions[session_id] = {}
        for call in session.calls:
            if call.over:  # else it is counted at its end
                add_usage(spent, call.usage)


def _interrupted(session: Session) -> SessionCall | None:
    """Return the last call of a session if it has not ended, else None."""
    last = session.calls[-1] if session.calls else None
    return None if last is None or last.over else last


class _Answer:
    """Stores an agent's answer as JSON; its parser makes the `formatted` value again."""

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent

    def encode(self, value: AgentMessage[Any]) -> bytes:
        """Return it as JSON; raise `NotStorable` if it would be restored differently."""
        record = {**_record(value), "usage": json_value(value.usage)}
        data = json.dumps(record).encode()
        try:
            same = _alike(self.decode(data), value)
        except ConfigurationError as error:
            raise NotStorable(f"the answer of {self._agent.name}: {error}") from error
        if not same:
            raise _not_storable(f"the answer of {self._agent.name}", value)
        return data

    def decode(self, data: bytes) -> AgentMessage[Any]:
        """Return the answer."""
        return self._agent.restore([json.loads(data)])[0]


def _write(message: AgentMessage) -> dict[str, Any]:
    record = _record(message)
    (back,) = read_records([record])
    if not _alike(back, message):
        raise _not_storable("a message", message)
    return record


def _record(message: AgentMessage) -> dict[str, Any]:
    return _shorten({name: json_value(each) for name, each in saved_fields(message)})


def _shorten(record: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields that have their defaults."""
    return {
        name: value
        for name, value in record.items()
        if name == "content" or name not in DEFAULTS or value != DEFAULTS[name]
    }


def _alike(one: AgentMessage, other: AgentMessage) -> bool:
    """Say whether two messages have the same values, of the same types."""
    return all(
        type(value) is type(given) and json_value(value) == json_value(given)
        for (_, value), (_, given) in zip(one, other, strict=True)
    )


def _not_storable(what: str, message: AgentMessage) -> NotStorable:
    kinds = {name: type(value).__name__ for name, value in message}
    return NotStorable(
        f"{what} cannot be kept in a journal: content ({kinds['content']}), formatted"
        f" ({kinds['formatted']}) and extra must be JSON, or be made by the agent's output_format"
    )


def _differences(before: Mapping[str, Any], now: State) -> Changes:
    """Return the changes between two states."""
    changes: Changes = {}
    for path, new in now.items():
        old = before.get(path, [])
        if old == new:
            continue
        shorter, start, end = min(len(old), len(new)), 0, 0
        while start < shorter and old[start] == new[start]:
            start += 1
        while end < shorter - start and old[-1 - end] == new[-1 - end]:
            end += 1
        came = [_shorten(each) for each in new[start : len(new) - end]]
        changes[path] = [start, len(old) - start - end, came]
    return changes


def _apply(state: State, changes: Changes) -> None:
    for path, (start, gone, came) in changes.items():
        state.setdefault(path, [])[start : start + gone] = [{**DEFAULTS, **each} for each in came]


def _refer(changes: Changes, asked: list[Any], said: dict[str, Any] | None) -> Changes:
    """Write numbers for messages that stand in the call's inputs, None for its answer."""
    if said is not None:
        said.pop("usage")

    def short(record: dict[str, Any]) -> Any:
        if record == said:
            return None
        return asked.index(record) if record in asked else record

    return {path: [*where, [*map(short, came)]] for path, (*where, came) in changes.items()}


def _refer_back(call: SessionCall) -> Changes:
    asked, said = call.inputs["messages"], call.result

    def whole(came: list[Any]) -> Iterator[dict[str, Any]]:
        for short in came:
            if short is not None:
                yield asked[short] if isinstance(short, int) else short
            elif said is not None:  # else it was killed, or cancelled, before its answer was kept
                yield {name: value for name, value in said.items() if name != "usage"}

    changes: Changes = call.kept or {}
    return {path: [*where, [*whole(came)]] for path, (*where, came) in changes.items()}
