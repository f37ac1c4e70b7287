"""Sessions of an agent that a journal stores: `Agent(journal=...)`.

A session is a run that stays open, named "AGENT/SESSION". The process holds a lease on it during a
call. A call has the same entries as any run, and also its messages and options, and the changes of
the memories of the agent and of all agents below it. The next process restores the memories from
these changes.
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
from ...commander.durable import scope_here
from ...commander.errors import ConfigurationError
from ...store import Journal, NotStorable, Session, SessionCall
from ._call import OUTER_SESSION, AgentCall, JournalCall, OuterSession, add_usage, run_in_tree
from ._interrupted import InterruptedCall, read_interrupted_call
from ._memory import SessionId
from ._message import NEW_MESSAGES, AgentMessage, own_output, with_text_output
from ._override import backend_of
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
"""Changes of memories, by path: first position, number of removed messages, and new messages."""

# The saved fields of an empty message.
EMPTY_MESSAGE: Mapping[str, Any] = json_value(dict(saved_fields(AgentMessage())))


class _Known(NamedTuple):
    """The memories of a session when its journal had this number of rows."""

    rows: int
    state: State


def run_id_of(agent: str, session_id: SessionId) -> str:
    """Return the name of the run of a session."""
    session = str(session_id)
    if isinstance(session_id, str) and (session.lstrip("+-").isdigit() or session[:1] in "'\""):
        session = repr(session_id)  # so that session "7" differs from session 7
    return f"{agent}/{session}"


class JournalSessions:
    """The sessions of one agent in a journal."""

    def __init__(self, agent: Agent[Any], journal: str | Journal) -> None:
        if "/" in agent.name:
            raise ConfigurationError(
                f"an agent with journal= needs a name= without '/', not {agent.name!r}"
            )
        self._agent = agent
        self.journal = journal
        # The memories in the journal; None during a call, and after an interrupted one.
        self._known: dict[SessionId, _Known | None] = {}
        # The sessions in use by this process, and whether to forget each after that.
        self._busy: dict[SessionId, bool] = {}
        # In each session of a loop, one call runs after the other. A lock works in one loop only.
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
            session.learn_keys(*map(backend_of, self._agent.named_agents().values()))
            inputs = session.without_keys(inputs)
            last = _interrupted(session)
            if last is not None:
                same = {**last.inputs, "before": None} == {**inputs, "before": None}
                if same and not last.is_cancelled:
                    return await self._make(session, last, session_id, node.steering())
                await self._finish(session, last, session_id)
            inputs["before"], current = self._changes(session_id)
            call = session.begin(inputs)
            return await self._make(session, call, session_id, node.steering(), current)

    def is_busy(self, session_id: SessionId) -> bool:
        """Return whether a session is in use. If so, it will be forgotten after that."""
        if session_id not in self._busy:
            return False
        self._busy[session_id] = True
        return True

    def note_forgotten(self, session_id: SessionId) -> None:
        """Note that the agent's memory has forgotten a session."""
        self._known.pop(session_id, None)
        remaining = self._agent.save_memories(session_id)
        if any(remaining.values()):  # in agents below
            self._known[session_id] = _Known(-1, remaining)

    async def recall(self, session_id: SessionId) -> None:
        """Restore the memories of a session from the journal."""
        async with self._opened(session_id):
            pass

    async def keep(self, session_id: SessionId) -> None:
        """Store the differences between the memories and the journal at once."""
        async with self._opened(session_id) as session:
            if _interrupted(session) is not None:
                raise ConfigurationError(
                    f"the last call of {session.run_id} was interrupted. Resume it, or end it"
                    " with end_interrupted(), before you change its memory"
                )
            before, current = self._changes(session_id)
            if before:
                call = session.begin({"messages": [], "options": {}, "before": before})
                await session.end(call)
            self._known[session_id] = _Known(session.rows, current)

    async def find_interrupted(self, session_id: SessionId) -> list[AgentMessage] | None:
        """Return the messages of the interrupted call of a session; None if there is none."""
        found = await self.find_interrupted_inputs(session_id)
        return None if found is None else found[0]

    async def find_interrupted_inputs(
        self, session_id: SessionId
    ) -> tuple[list[AgentMessage], dict[str, Any]] | None:
        """Return the messages and options of the interrupted call of a session."""
        async with self._opened(session_id) as session:
            last = _interrupted(session)
            if last is None or last.is_cancelled:
                return None
            return read_records(last.inputs["messages"]), last.inputs["options"]

    async def end_interrupted(self, session_id: SessionId) -> bool:
        """End the interrupted call of a session where it is, and remember it."""
        async with self._opened(session_id) as session:
            last = _interrupted(session)
            if last is None:
                return False
            agent, start = self._agent, self._agent.save_memories(session_id)
            if not last.has_ended:
                interrupted = await self._read_interrupted(session)
                messages = read_records(last.inputs["messages"])
                if interrupted.has_passed:
                    agent.remember_interrupted(messages, interrupted, session_id)
                state = agent.save_memories(session_id)
                session.store_value(
                    last, _refer(_differences(start, state), last.inputs["messages"], None)
                )
            await session.end(last)
            self._known[session_id] = _Known(session.rows, agent.save_memories(session_id))
            return True

    async def _read_interrupted(self, session: Session) -> InterruptedCall:
        agent = self._agent
        return read_interrupted_call(
            await session.look(), agent.name, has_guards=bool(agent.guards)
        )

    def _changes(self, session_id: SessionId) -> tuple[Changes, State]:
        """Return the differences between the memories and the journal, and the memories."""
        known, current = self._known.get(session_id), self._agent.save_memories(session_id)
        return _differences({} if known is None else known.state, current), current

    @asynccontextmanager
    async def _opened(self, session_id: SessionId) -> AsyncGenerator[Session]:
        """Acquire the lease of a session and restore its memories, alone in this loop."""
        if scope_here() is not None:
            raise ConfigurationError(
                f"{self._agent.name} has journal= and is called inside a durable run, which stores"
                " all work below it. Call it outside, or use an agent without journal="
            )
        turns = self._turns.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        async with turns.setdefault(session_id, asyncio.Lock()):
            journal = self.journal
            name = run_id_of(self._agent.name, session_id)
            async with AsyncExitStack() as stack:
                if not isinstance(journal, Journal):
                    journal = await stack.enter_async_context(Journal(journal))
                session = await stack.enter_async_context(journal.session(name))
                self._busy[session_id] = False
                try:
                    self._read(session, session_id)
                    yield session
                finally:
                    if self._busy.pop(session_id):
                        self._agent.forget(session_id)

    async def _finish(self, session: Session, call: SessionCall, session_id: SessionId) -> None:
        """Let an interrupted call end, without listeners."""
        logger.info("%s: finishing the interrupted call before the next", session.run_id)
        token, steering = MESSAGE_FEED.set(None), Steering()
        try:
            await self._make(session, call, session_id, steering)
        except Exception:  # the failure of an earlier call must not fail the next one
            if not call.is_over:
                raise  # the journal could not store the failure
            logger.warning("The interrupted call of %s failed", session.run_id, exc_info=True)
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
        start: State | None = None,
    ) -> AgentMessage[Any]:
        """Make a call below a node of the session, and record its changes of the memories.

        `start` are the memories before it, if known.
        """
        agent, listener, codec = self._agent, MESSAGE_FEED.get(), _AnswerCodec(self._agent)
        made: AgentMessage[Any] | None = None
        messages, options = read_records(call.inputs["messages"]), call.inputs["options"]
        start, ended = agent.save_memories(session_id) if start is None else start, call.has_ended
        for each in agent.named_agents().values():
            each.memory.settle(session_id)

        async def work() -> AgentMessage[Any]:
            nonlocal listener, made
            listener = None  # the call itself publishes its answer
            OUTER_SESSION.set(OuterSession(agent, session_id))
            record = None
            try:
                node = AgentCall(agent, messages, session_id, options, steering)
                answer = made = await run_in_tree(node)
                record = json.loads(codec.encode(answer))
                return answer
            except Exception:  # it is raised again below
                if agent.guards and agent.save_memories(session_id) == start:
                    # A guard may refuse at a resume what it passed before. The memory then has
                    # nothing, but tools of the earlier execution have run.
                    earlier = (await self._read_interrupted(session)).up_to_tools()
                    if earlier.messages:
                        agent.remember_interrupted(messages, earlier, session_id)
                raise
            finally:
                changes = _differences(start, agent.save_memories(session_id))
                session.store_value(call, _refer(changes, call.inputs["messages"], record))

        self._known[session_id] = None
        try:
            answer = await session.run_call(call, current_node(), work, codec)
        finally:
            if call.is_over:
                state = agent.save_memories(session_id)
                if not ended and call.result is None:
                    # Cancelled before it did anything in this execution, or after its answer.
                    changes = _refer(_differences(start, state), call.inputs["messages"], None)
                    if changes != (call.stored_value or {}):
                        session.store_value(call, changes)
                self._known[session_id] = _Known(session.rows, state)
        if made is not None:
            vars(answer)[NEW_MESSAGES] = vars(made)[NEW_MESSAGES]
            if agent.typed_output_of(made) is not None:  # JSON may not restore it
                vars(answer)["output"] = made.output
        if listener is not None:
            listener.put(answer)
        return answer

    def _read(self, session: Session, session_id: SessionId) -> None:
        """Restore the memories from the journal, if it has changed."""
        agent, known = self._agent, self._known.get(session_id)
        if known is not None and known.rows == session.rows:
            return  # the next call stores the messages that were added since then
        current = agent.save_memories(session_id)
        state: State = {}
        for call in session.calls:
            _apply(state, call.inputs["before"])
            if call.has_ended:
                _apply(state, _refer_back(call))
        before = known.state if known is not None else {}
        added = _differences(
            before, {path: records for path, records in current.items() if records}
        )
        if (known is not None or session_id not in self._known) and added:
            if not session.calls:
                return  # a new session: its first call stores these messages
            if _differences(state, current):
                raise ConfigurationError(
                    f"the memory of session {session.run_id!r} differs from the journal's. Add no"
                    " messages before the first call, or name another session"
                )
        try:
            agent.load_from_journal({**{key: [] for key in current}, **state}, session_id)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"the session {session.run_id!r} in the journal does not fit the agents below"
                f" {agent.name}: {error}"
            ) from error
        self._known[session_id] = _Known(session.rows, state)
        total = agent.usage_totals.sessions[session_id] = {}
        for call in session.calls:
            if call.is_over:  # an interrupted call counts at its end
                add_usage(total, call.usage)


def _interrupted(session: Session) -> SessionCall | None:
    """Return the last call of a session if it has not ended, else None."""
    last = session.calls[-1] if session.calls else None
    return None if last is None or last.is_over else last


class _AnswerCodec:
    """Stores an agent's answer as JSON. The agent's parser restores the `output` value."""

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent

    def encode(self, value: AgentMessage[Any]) -> bytes:
        """Return the answer as JSON; raise `NotStorable` if it would be restored differently."""
        if (typed := self._agent.typed_output_of(value)) is not None:
            typed.choose_stored(value)
        record = {**_record(value), "usage": json_value(value.usage)}
        if value.output is None:  # else `decode` would set it to the text
            record["formatted"] = None
        data = json.dumps(record).encode()
        if typed is not None and own_output(value) is not None:
            # The form of the output is chosen. All else must be restored as it is.
            record = {**record, "formatted": None}
            value = value.model_copy(update={"output": None})
        try:
            same = _alike(self.decode(json.dumps(record).encode()), value)
        except ConfigurationError as error:
            raise NotStorable(f"the answer of {self._agent.name}: {error}") from error
        if not same:
            raise _not_storable(f"the answer of {self._agent.name}", value)
        return data

    def decode(self, data: bytes) -> AgentMessage[Any]:
        """Return the answer."""
        record: dict[str, Any] = json.loads(data)
        (answer,) = self._agent.restore([record])
        has_text_output = "formatted" not in record and self._agent.has_text_output
        return with_text_output(answer) if has_text_output else answer


def _write(message: AgentMessage) -> dict[str, Any]:
    record = _record(message)
    (restored,) = read_records([record])
    if not _alike(restored, message):
        raise _not_storable("a message", message)
    return record


def _record(message: AgentMessage) -> dict[str, Any]:
    return _shorten({name: json_value(each) for name, each in saved_fields(message)})


def _shorten(record: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields with their default values."""
    return {
        name: value
        for name, value in record.items()
        if name == "content" or name not in EMPTY_MESSAGE or value != EMPTY_MESSAGE[name]
    }


def _alike(one: AgentMessage, other: AgentMessage) -> bool:
    """Return whether two messages have the same values of the same types."""
    return all(
        type(value) is type(given) and json_value(value) == json_value(given)
        for value, given in zip(_own_values(one), _own_values(other), strict=True)
    )


def _own_values(message: AgentMessage) -> list[Any]:
    return [own_output(message) if name == "output" else value for name, value in message]


def _not_storable(name: str, message: AgentMessage) -> NotStorable:
    kinds = {name: type(value).__name__ for name, value in message}
    return NotStorable(
        f"a journal cannot store {name}: content ({kinds['content']}), output"
        f" ({kinds['output']}) and extra must be JSON, or values of the agent's output_type"
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
        added = [_shorten(each) for each in new[start : len(new) - end]]
        changes[path] = [start, len(old) - start - end, added]
    return changes


def _apply(state: State, changes: Changes) -> None:
    for path, (start, removed, added) in changes.items():
        state.setdefault(path, [])[start : start + removed] = [
            {**EMPTY_MESSAGE, **each} for each in added
        ]


def _refer(changes: Changes, inputs: list[Any], answer: dict[str, Any] | None) -> Changes:
    """Replace messages that are inputs of the call by their number, its answer by None."""
    if answer is not None:
        answer.pop("usage")

    def short(record: dict[str, Any]) -> Any:
        if record == answer:
            return None
        return inputs.index(record) if record in inputs else record

    return {path: [*position, [*map(short, added)]] for path, (*position, added) in changes.items()}


def _refer_back(call: SessionCall) -> Changes:
    """Return the changes with the messages in place of their numbers."""
    inputs, answer = call.inputs["messages"], call.result

    def restored(added: list[Any]) -> Iterator[dict[str, Any]]:
        for short in added:
            if short is not None:
                yield inputs[short] if isinstance(short, int) else short
            elif answer is not None:  # None if the call ended before its answer was stored
                yield {name: value for name, value in answer.items() if name != "usage"}

    changes: Changes = call.stored_value or {}
    return {path: [*position, [*restored(added)]] for path, (*position, added) in changes.items()}
