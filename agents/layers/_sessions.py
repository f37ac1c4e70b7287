"""Sessions of an agent that are kept in a journal: `Agent(journal=...)`.

A session is a run that stays open, by the name "AGENT/SESSION", and each call one of its calls. It
is claimed for as long as a call lasts. Beside what the store keeps of any run, a call's rows say
what it was called with and how it has changed the memories of the agent and of all below it; so the
memories are put together again from the rows.
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
from ._call import ROUND, AgentCall, KeptCall, KeptSession, run_in_tree
from ._cut import read_cut
from ._memory import SessionId, json_value, read_records, saved_fields
from ._message import AgentMessage
from ._steer import Steering
from ._stream import LISTENER
from ._usage import add_usage

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["KeptSessions", "run_id_of"]

logger = logging.getLogger("anabranch.agents")

State: TypeAlias = dict[str, list[dict[str, Any]]]
"""The memories of a session by the paths of their agents, as `save_memories` gives them."""

Changes: TypeAlias = dict[str, list[Any]]
"""How they have changed, by path: from which message on, how many are gone, which came instead."""

# What `save` writes of a message about which nothing has been said.
DEFAULTS: Mapping[str, Any] = json_value(dict(saved_fields(AgentMessage())))


class _Known(NamedTuple):
    """What the memories here had of a session when its journal had so many rows."""

    rows: int
    state: State


def run_id_of(agent: str, session_id: SessionId) -> str:
    """Return the name of the run that a session is."""
    session = str(session_id)
    if isinstance(session_id, str) and (session.lstrip("+-").isdigit() or session[:1] in "'\""):
        session = repr(session_id)  # another one than the number's
    return f"{agent}/{session}"


class KeptSessions:
    """The sessions of one agent."""

    def __init__(self, agent: Agent[Any], journal: str | Journal) -> None:
        if "/" in agent.name:
            raise ConfigurationError(
                f"an agent whose sessions are kept needs a name= without '/', not {agent.name!r}"
            )
        self._agent = agent
        self.journal = journal
        # What the memories here have of the journal; None during a call, and after one that was
        # cut.
        self._known: dict[SessionId, _Known | None] = {}
        # The sessions that are in use here, and whether each is to be forgotten after that.
        self._busy: dict[SessionId, bool] = {}
        # One call after the other in each session, in each loop.
        self._turns: WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[SessionId, asyncio.Lock]
        ] = WeakKeyDictionary()

    async def call(
        self,
        node: KeptCall[Any],
        messages: Sequence[AgentMessage],
        session_id: SessionId,
        options: Mapping[str, Any],
    ) -> AgentMessage[Any]:
        """Make a call below `node`, when one that was cut has come to its end."""
        inputs = {"messages": [_write(each) for each in messages], "options": dict(options)}
        async with self._taken(session_id) as session:
            node.session = session
            session.learn_keys(*(each.backend for each in self._agent.named_agents().values()))
            inputs = session.without_keys(inputs)
            self._read(session, session_id)
            last = session.calls[-1] if session.calls else None
            if last is not None and not last.over:
                same = {**last.inputs, "before": None} == {**inputs, "before": None}
                if same and not last.cancelled:
                    return await self._make(session, last, session_id, node.steering())
                await self._finish(session, last, session_id)
            known = self._known.get(session_id)
            here = self._agent.save_memories(session_id)
            inputs["before"] = _differences({} if known is None else known.state, here)
            call = session.begin(inputs)
            return await self._make(session, call, session_id, node.steering(), here)

    def is_busy(self, session_id: SessionId) -> bool:
        """Say whether a session is in use, so that it can be forgotten only after that: it is."""
        if session_id not in self._busy:
            return False
        self._busy[session_id] = True
        return True

    def let_go(self, session_id: SessionId) -> None:
        """Take note that the memory here has nothing of a session any more."""
        self._known.pop(session_id, None)
        left = self._agent.save_memories(session_id)
        if any(left.values()):  # in agents below
            self._known[session_id] = _Known(-1, left)

    async def recall(self, session_id: SessionId) -> None:
        """Let the memories have what the journal has of a session."""
        async with self._taken(session_id) as session:
            self._read(session, session_id)

    async def keep(self, session_id: SessionId) -> None:
        """Write at once how the memory here differs from what the journal has of a session."""
        async with self._taken(session_id) as session:
            self._read(session, session_id)
            if session.calls and not session.calls[-1].over:
                raise ConfigurationError(
                    f"the last call of {session.run_id} was cut: let it go on, or end it by"
                    " stop_cut(), before its memory is changed"
                )
            known = self._known.get(session_id)
            here = self._agent.save_memories(session_id)
            before = _differences({} if known is None else known.state, here)
            if before:
                call = session.begin({"messages": [], "options": {}, "before": before})
                await session.end(call)
            self._known[session_id] = _Known(session.rows, here)

    async def find_cut(self, session_id: SessionId) -> list[AgentMessage] | None:
        """Return what the call was asked that was cut in a session; None if none was."""
        async with self._taken(session_id) as session:
            self._read(session, session_id)
            last = session.calls[-1] if session.calls else None
            if last is None or last.over or last.cancelled:
                return None
            return read_records(last.inputs["messages"])

    async def stop_cut(self, session_id: SessionId) -> bool:
        """End the call that was cut, as it stands, and remember what it had said and done."""
        async with self._taken(session_id) as session:
            self._read(session, session_id)
            last = session.calls[-1] if session.calls else None
            if last is None or last.over:
                return False
            agent, start = self._agent, self._agent.save_memories(session_id)
            if not last.ended:
                cut = read_cut(await session.look(), agent.name)
                asked = read_records(last.inputs["messages"])
                agent.remember_cut(asked, cut, session_id)
                state = agent.save_memories(session_id)
                session.keep(
                    last, _refer(_differences(start, state), last.inputs["messages"], None)
                )
            await session.end(last)
            self._known[session_id] = _Known(session.rows, agent.save_memories(session_id))
            return True

    @asynccontextmanager
    async def _taken(self, session_id: SessionId) -> AsyncGenerator[Session]:
        if scope_here() is not None:
            raise ConfigurationError(
                f"{self._agent.name} keeps its sessions in a journal of its own, and is called"
                " inside a durable run, which keeps what is done below it: call it outside, or use"
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
                    yield session
                finally:
                    if self._busy.pop(session_id):
                        self._agent.forget(session_id)

    async def _finish(self, session: Session, call: SessionCall, session_id: SessionId) -> None:
        """Let a call that was cut come to its end; nobody listens any more."""
        logger.info("%s finishes a call that was cut, before the next", session.run_id)
        token, steering = LISTENER.set(None), Steering()
        try:
            await self._make(session, call, session_id, steering)
        except Exception:  # the call has failed, which the next one need not hear
            if not call.over:
                raise  # nothing can be kept
            logger.warning("a call of %s that was cut has failed", session.run_id, exc_info=True)
        finally:
            LISTENER.reset(token)
        if left := len(steering.unheard):
            logger.warning("%s was told %d messages that no request had", session.run_id, left)

    async def _make(
        self,
        session: Session,
        call: SessionCall,
        session_id: SessionId,
        steering: Steering,
        start: State | None = None,  # what is remembered now, if that is known
    ) -> AgentMessage[Any]:
        agent, heard, written = self._agent, LISTENER.get(), _Answer(self._agent)
        messages, options = read_records(call.inputs["messages"]), call.inputs["options"]
        start, ended = agent.save_memories(session_id) if start is None else start, call.ended
        for each in agent.named_agents().values():
            each.memory.settle(session_id)

        async def work() -> AgentMessage[Any]:
            nonlocal heard
            heard = None  # the call itself tells it
            ROUND.set(KeptSession(agent, session_id))
            said = None
            try:
                made = AgentCall(agent, messages, session_id, options)
                made.steer_by(steering)
                answer = await run_in_tree(made)
                said = json.loads(written.encode(answer))
                return answer
            finally:
                changes = _differences(start, agent.save_memories(session_id))
                session.keep(call, _refer(changes, call.inputs["messages"], said))

        self._known[session_id] = None
        try:
            answer = await session.make(call, current_node(), work, written)
        finally:
            if call.over:
                state = agent.save_memories(session_id)
                if not ended and call.result is None:
                    # It was cancelled: before it did anything in this life, or after its answer.
                    changes = _refer(_differences(start, state), call.inputs["messages"], None)
                    if changes != (call.kept or {}):
                        session.keep(call, changes)
                self._known[session_id] = _Known(session.rows, state)
        if heard is not None:
            heard.put(answer)
        return answer

    def _read(self, session: Session, session_id: SessionId) -> None:
        """Let the memories have what the journal has."""
        agent, known = self._agent, self._known.get(session_id)
        if known is not None and known.rows == session.rows:
            return  # what was added here since then is written with the next call
        here = agent.save_memories(session_id)
        state: State = {}
        for call in session.calls:
            _apply(state, call.inputs["before"])
            if call.ended:
                _apply(state, _refer_back(call))
        before = known.state if known is not None else {}
        added = _differences(before, {path: said for path, said in here.items() if said})
        if (known is not None or session_id not in self._known) and added:
            if not session.calls:
                return  # it begins with what was remembered here
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
        spent = agent.spending.sessions[session_id] = {}
        for call in session.calls:
            if call.over:  # else it is counted when it is
                add_usage(spent, call.usage)


class _Answer:
    """How an agent's answer is written: what its parser made of it is made again."""

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent

    def encode(self, value: AgentMessage[Any]) -> bytes:
        """Return it as JSON; raise `NotStorable` for one that would come back as another."""
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
        """Return what was encoded."""
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
    """Leave out what every message has that says nothing else."""
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
    """Return what has changed: by path, from where on, how many are gone, and what came instead."""
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
