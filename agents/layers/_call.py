"""One call of an agent as a node, and its usage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Unpack, cast

from typing_extensions import TypeVar

from ...backends import Backend
from ...commander import Commander, HandlerOptions, Node, act_as, parent_here, payers
from ...commander.context import INHERITED, set_context
from ...commander.errors import ConfigurationError
from ...commander.kinds import require_awaitable
from ...commander.waiting import observe, wait_shielded
from ...messages import Message, Part, Usage
from ._guards import GATE, Gate, GuardCheck, Guarded, wait_for_gate
from ._history import as_messages
from ._memory import ADDED_BY_CALLS, CURRENT_CALLS, SessionId, TemporarySession
from ._message import (
    NEW_MESSAGES,
    AgentMessage,
    copy_message,
    first_in_handoff,
    with_text_output,
)
from ._override import enter_call
from ._steer import STEERING, Steering, as_agent_message
from ._stream import APPROVE, MESSAGE_FEED, begin_voice, lend_voice

if TYPE_CHECKING:
    from ...store import Session
    from ._agent import Agent


__all__ = [
    "OUTER_SESSION",
    "AgentCall",
    "CountedCall",
    "JournalCall",
    "OuterSession",
    "UsageTotals",
    "add_usage",
    "names_sync_form",
    "run_in_tree",
    "usage_of",
]

C = TypeVar("C", bound=Callable[..., Any])
F = TypeVar("F", default=Any)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_usage_lock = Lock()  # several threads may call an agent at the same time


def names_sync_form(advice: str) -> Callable[[C], C]:
    """Add advice to Python's warning about a call that was never awaited.

    The name of a coroutine is that of its function, and the warning contains it. So a call costs
    nothing, and stays a plain coroutine.
    """

    def name(function: C) -> C:
        function.__qualname__ += f" ({advice})"
        return function

    return name


def usage_of(node: Node[Any]) -> dict[str, Usage]:
    """Return the usage of a node and all below it so far, by model."""
    if not node.node_id:
        return {}
    charges = cast("dict[str, Any]", node.commander.usage(node))  # jobs may charge other types
    return {model: used for model, used in charges.items() if isinstance(used, Usage)}


def add_usage(total: dict[str, Usage], models: dict[str, Usage]) -> None:
    """Add usage to `total`, model by model."""
    for model, used in models.items():
        total[model] = total.get(model, Usage()) + used


class UsageTotals:
    """The usage of one agent: its total, and that of each remembered session."""

    def __init__(self) -> None:
        self.total: dict[str, Usage] = {}
        self.sessions: dict[SessionId, dict[str, Usage]] = {}


class CountedCall(Node[T_co], Generic[T_co], internal=True):
    """A call of an agent in a session. Its usage counts for both, however it ends."""

    _spending: UsageTotals | None = None
    _session: SessionId | None = None
    _counted = False
    _node_backend: Backend | None = None  # replaces the models of this call

    @property
    def usage(self) -> Usage:
        """The usage of it and all below it so far; `commander.usage(call)` has it by model."""
        return sum(usage_of(self).values(), Usage())

    def begin(self, agent: Agent[Any], session_id: SessionId) -> None:
        """Begin an attempt: restore the state of the agent's session at the start of the call.

        In a durable run each execution must start from the same state. Raises `ConfigurationError`
        if a part of it comes from a job whose result is stored, because that job does not run
        again.
        """
        named = None if isinstance(session_id, TemporarySession) else session_id
        # Counted once for all attempts, by `_count` at the end of the node.
        self._spending, self._session, self._counted = agent.usage_totals, named, False
        self.at_done(self._count)
        if not agent.memory.drop_stale(session_id):
            raise ConfigurationError(
                f"the session {session_id!r} of {agent.name} has messages from a durable job that"
                " has ended. A restart would lose them: make all calls of a session in one job, or"
                " return the messages from the job"
            )
        agent.tool_sessions.enter(session_id)
        # In the context of this call, which all nodes below inherit.
        enter_call(agent, self._node_backend)
        if agent.approve is not None:
            APPROVE.set(agent.approve)

    @staticmethod
    def _count(call: CountedCall[Any]) -> None:
        usage_totals, session_id = call._spending, call._session
        if usage_totals is None or call._counted:
            return
        used, call._counted = usage_of(call), True
        calls = [each for each in payers(call) if isinstance(each, CountedCall)]
        # The calls of the same agent that include this one and will count it. A call that has
        # counted already, as its commander may outlive it, does not include all of this.
        outer_sessions = [
            each._session for each in calls if each._spending is usage_totals and not each._counted
        ]
        if used:
            with _usage_lock:
                if not outer_sessions:
                    add_usage(usage_totals.total, used)
                if session_id is not None and session_id not in outer_sessions:
                    add_usage(usage_totals.sessions.setdefault(session_id, {}), used)


class OuterSession(NamedTuple):
    """The session of a journal around a call; the journal stores only its agents' memories."""

    agent: Agent[Any]
    session_id: SessionId

    def require(self, agent: Agent[Any], session_id: SessionId) -> None:
        """Refuse an agent whose memory the journal does not store."""
        agents = self.agent.named_agents().values()
        if session_id == self.session_id and any(agent is each for each in agents):
            return
        raise ConfigurationError(
            f"the journal of {self.agent.name} would not store the session {session_id!r} of"
            f" {agent.name}, which is called below its session {self.session_id!r}. Make"
            f" {agent.name} an attribute of {self.agent.name} and pass session_id= on, or call it"
            " without a session"
        )


OUTER_SESSION: ContextVar[OuterSession | None] = ContextVar("anabranch_agents_round", default=None)
"""Set below a call in a session of a journal. Nodes inherit it."""


class AgentCall(CountedCall[AgentMessage[F]], Generic[F], internal=True):
    """A call of `agent` in the session `session_id`. The node has the agent's name.

        call = node.call_handler(agent.call("Hello"))
        call.steer("In French, please.")
        print((await call).text)

    With None the session is temporary and ends with the node's subtree, or it is 0 if the agent was
    given a memory.

    The agent first remembers the messages, and at the end the answer. A call that fails or is
    cancelled before it had any effect removes its messages again, whatever other calls have added
    to the session. Its usage counts for its agent, however it ends.
    """

    # Named like the engine's attributes, so that it does not enter the call's identity.
    _node_steering: Steering | None = None
    _node_context: object = INHERITED
    # The history of the call, its copies in the memory, and the marks of the attempts so far.
    _node_stored: Sequence[AgentMessage] = ()
    _node_remembered: Sequence[AgentMessage] = ()
    _node_attempts: Sequence[object] = ()
    _node_make_new: Callable[[], list[Message]] | None = None

    def __init__(
        self,
        agent: Agent[F],
        messages: Sequence[AgentMessage],
        session_id: SessionId | None,
        options: Mapping[str, Any],
        steering: Steering | None = None,
    ) -> None:
        super().__init__(agent.name)
        if steering is not None:
            self._node_steering = steering
        self.agent = agent
        if session_id is None and not agent.has_own_memory:
            session_id = TemporarySession()
            self.at_done(lambda _: cast("TemporarySession", self.session_id).end())
        self.session_id: SessionId = 0 if session_id is None else session_id
        named = None if isinstance(self.session_id, TemporarySession) else self.session_id
        act_as(self, agent.name, named)
        self._messages = messages
        self._options = options

    def steer(self, *messages: AgentMessage | Message | Part | str) -> bool:
        """Add messages of the user to the next request of this call, after the results of tools.

        Nothing is cancelled: neither the current reply nor a tool. The memory has the messages at
        their place. The next request is one of this agent, or of the next agent that its `forward`
        calls, but never of an agent that a tool calls. If the current reply is the answer, no
        request follows, and the messages stay `undelivered`. A durable run and a journal's session
        store them at once: after a restart the model reads them at the same place.

        Returns False, and adds nothing, if the call has ended. Call it in the loop of the call,
        also before the call has begun. Raises `TypeError` for a message that is not a user's.
        """
        steering = [as_agent_message(each) for each in messages]
        if self.state in ("completed", "failed", "cancelled"):
            return False
        self.steering().add(steering)
        return True

    @property
    def undelivered(self) -> list[AgentMessage]:
        """The messages of `steer` that no request has delivered, in order; final after its end."""
        return [] if self._node_steering is None else self._node_steering.undelivered

    def new_messages(self) -> list[Message]:
        """Return the messages of this call once it has ended, also if it failed or was cancelled.

            call = agent.call("Pay 3 pounds.", history=stored)
            try:
                await commander.run(call)
            finally:
                stored += call.new_messages()

        After an answer these are those of `answer.new_messages()`. Otherwise they are the messages
        that a session would remember: the question, and the calls of tools that have run, with
        their results. There are none if the call had no effect. Raises `RuntimeError` before the
        call has ended, and for a call in a journal's session.
        """
        if isinstance(self, JournalCall) or self.state not in ("completed", "failed", "cancelled"):
            raise RuntimeError(
                "the new messages of a call are known when it has ended. A session of a journal"
                " stores its messages itself"
            )
        return [] if self._node_make_new is None else self._node_make_new()

    def steering(self) -> Steering:
        """Return the steering messages of this call."""
        if self._node_steering is None:
            self._node_steering = Steering()
        return self._node_steering

    async def task(self) -> AgentMessage[F]:
        """Run the hooks, remember the messages, and let the agent answer."""
        set_context(self, self._node_context)
        agent, session_id = self.agent, self.session_id
        is_temporary = isinstance(session_id, TemporarySession)  # of this call, or of a call above
        if is_temporary:
            session_id.forget[agent] = partial(agent.forget, session_id)
        self.begin(agent, session_id)
        begin_voice(self)
        attempt = object()  # a new one for each attempt of this call
        CURRENT_CALLS.set((*CURRENT_CALLS.get(), attempt))
        self._node_attempts = (*self._node_attempts, attempt)
        before, after = agent.hooks_of("before_agent"), agent.hooks_of("after_agent")
        steering, outer_steering = self.steering(), STEERING.get()
        steering.above = None if outer_steering is steering else outer_steering
        hook = partial(before.run, agent, session_id=session_id)
        steering.begin(partial(self._check_steering, hook) if agent.guards else hook)
        STEERING.set(steering)
        received = [await before.run(agent, each, session_id) for each in self._messages]
        # After the hooks, because a hook may call agents, and these must not wait for the guards.
        gate = Gate(GATE.get(), CURRENT_CALLS.get()) if agent.guards else None
        token = None if gate is None else GATE.set(gate)
        earlier = self._remember_history() if self._node_stored else ()
        remembered = self.remember(received)
        try:
            outer = OUTER_SESSION.get()
            if outer is not None and not is_temporary and agent.memory.messages(session_id):
                outer.require(agent, session_id)
            if gate is None:
                reply = await self._forward(remembered)
                await wait_for_gate()
            else:
                work = partial(self._forward, remembered)
                reply = await run_in_tree(Guarded(agent, gate, received, work))
            if isinstance(reply, str):
                reply = AgentMessage(content=reply, sender=agent.name)
            elif not isinstance(reply, AgentMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"forward() of {agent.name} must return a message or a text, not {reply!r:.200}"
                )
            sender = reply.sender
            if first_in_handoff(reply) == agent.name:  # later requests read it as its own
                reply = reply.model_copy(update={"sender": agent.name})
            answer = agent.memory.add(reply, session_id=session_id)[0]
            if agent.has_text_output:
                with_text_output(answer)
        except BaseException:
            if agent.memory.retract(remembered, session_id):
                remembered = []
                if earlier:
                    (agent.conversant or agent).memory.retract(earlier, session_id)
                    self._node_remembered = ()
            self._node_make_new = self._new_messages(remembered, None)
            raise
        finally:
            if token is not None:
                GATE.reset(token)
        new = self._new_messages(remembered, answer)
        answer = copy_message(answer)
        answer.sender = sender
        answer = await after.run(agent, answer, session_id)
        answer = answer.model_copy(update={"usage": self.usage})
        if agent.has_text_output:
            with_text_output(answer)  # hooks may have changed the text
        vars(answer)[NEW_MESSAGES] = self._node_make_new = new
        self.publish(answer)
        return answer

    def remember(self, received: Sequence[AgentMessage]) -> list[AgentMessage]:
        """Add the received messages to the agent's memory."""
        agent = self.agent
        return agent.memory.add(*map(agent.receive_as, received), session_id=self.session_id)

    def publish(self, answer: AgentMessage[F]) -> None:
        """Pass the answer to the readers of streams."""
        if (listener := MESSAGE_FEED.get()) is not None:
            listener.put(answer)

    async def _check_steering(
        self, hook: Callable[[AgentMessage], Awaitable[AgentMessage]], message: AgentMessage
    ) -> AgentMessage:
        """Let the guards pass a steering message before a request delivers it."""
        message = await hook(message)
        for guard in self.agent.guards:
            gate = GATE.get()
            await run_in_tree(GuardCheck(guard, message, gate and gate.outer))
        return message

    def _forward(self, messages: Sequence[AgentMessage]) -> Awaitable[AgentMessage[F] | str]:
        agent = self.agent
        forwarding = agent.forward(*messages, session_id=self.session_id, **self._options)
        return require_awaitable(forwarding, agent, "forward")

    def _remember_history(self) -> Sequence[AgentMessage]:
        """Add the history to the empty session; return the added messages.

        Raises `ConfigurationError` if the session has other messages.
        """
        agent, session_id, owner = self.agent, self.session_id, self.agent.conversant
        assert owner is not None  # `read_history` has checked it
        present = owner.memory.messages(session_id)
        if present and self._node_remembered:
            return ()  # an earlier attempt has added it
        if present:
            raise ConfigurationError(
                f"the session {session_id!r} of {agent.name} has messages already. Give a call"
                " either history= or the session_id= of earlier calls"
            )
        if isinstance(session_id, TemporarySession):
            session_id.forget[owner] = partial(owner.forget, session_id)
        added = owner.memory.add(*self._node_stored, session_id=session_id)
        for each in added:
            vars(each)[ADDED_BY_CALLS] = ()  # they are older than this call
        self._node_remembered = added
        return self._node_remembered

    def _new_messages(
        self, received: Sequence[AgentMessage], answer: AgentMessage | None
    ) -> Callable[[], list[Message]]:
        """Return a function that makes `new_messages()` of what this call has added.

        Without an answer the call has failed, and its failed beginnings of a reply are left out.
        """
        agent, attempts = self.agent, self._node_attempts
        owner = agent.conversant or agent
        found: list[AgentMessage] = []
        for each in reversed(owner.memory.messages(self.session_id)):
            if any(mark in attempts for mark in vars(each).get(ADDED_BY_CALLS, ())):
                found.append(each)
            if len(attempts) == 1 and received and each is received[0]:
                break  # all others are older
        found = found[::-1] or [*received, *([] if answer is None else [answer])]
        if answer is None:
            found = [each for each in found if each.stream_state != "failed"]
        return partial(as_messages, found, owner.name, answer)


class JournalCall(AgentCall[F], Generic[F], internal=True, name="KeptCall"):
    """A call in a session that a journal stores. Its work is below a node of that session."""

    session: Session | None = None  # set while the call runs

    async def task(self) -> AgentMessage[F]:
        """Let the session make the call, unless a call in the session has made this one."""
        set_context(self, self._node_context)
        above = OUTER_SESSION.get()
        if above is not None and above.agent is self.agent:
            return await super().task()
        enter_call(self.agent, self._node_backend)
        sessions = self.agent.journal_sessions()
        begin_voice(self)
        with lend_voice():
            return await sessions.call(self, self._messages, self.session_id, self._options)

    async def suspend(self) -> None:
        """Let running tools end, before everything is cancelled."""
        if self.session is not None:
            await self.session.suspend()


async def run_in_tree(
    node: Node[T], parent: Node[Any] | None = None, **options: Unpack[HandlerOptions]
) -> T:
    """Run a node as a child of `parent` or the current node, else under a new commander.

    A tree of another loop does not count: the node runs under a new commander, with the limits of
    that tree. `options` are those of `call_handler`. Cancelling this call cancels the node and
    waits for its end.
    """
    options["claim"] = True
    if parent is None:
        parent = parent_here()
    if parent is None:
        async with Commander() as commander:
            # Not `commander.run`, which would cancel the node before `suspend` below can let its
            # tools end. Leaving the block cancels it.
            commander.call_handler(node, **options)
            try:
                return await node
            except asyncio.CancelledError:
                if isinstance(node, JournalCall):
                    await node.suspend()
                raise
    parent.call_handler(node, **options)
    try:
        return await node
    except asyncio.CancelledError:
        node.cancel("the call was cancelled")
        await wait_shielded(observe(node))
        raise
