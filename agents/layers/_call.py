"""One call of an agent as a node, with what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Unpack, cast

from typing_extensions import TypeVar

from ...commander import Commander, HandlerOptions, Node, act_as, parent_here, payers
from ...commander.awaitable import require_awaitable
from ...commander.errors import ConfigurationError
from ...commander.waiting import observe, outlast
from ...messages import Message, Part, Usage
from ._memory import CALLS, SessionId, TemporarySession
from ._message import AgentMessage, copy_message
from ._steer import STEERING, Steering, as_agent_message
from ._stream import APPROVE, MESSAGE_FEED, Feed

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
    "run_in_tree",
    "stream_call",
    "usage_of",
]

F = TypeVar("F", default=Any)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_counting = Lock()  # an agent may be called in several threads at once


def usage_of(node: Node[Any]) -> dict[str, Usage]:
    """Return the usage of a node and all below it so far, by model."""
    if not node.node_id:
        return {}
    charges = cast("dict[str, Any]", node.commander.usage(node))  # others may charge any type
    return {model: used for model, used in charges.items() if isinstance(used, Usage)}


def add_usage(total: dict[str, Usage], models: dict[str, Usage]) -> None:
    """Add usage to `total`, model by model."""
    for model, used in models.items():
        total[model] = total.get(model, Usage()) + used


class UsageTotals:
    """The usage of one agent, in all and in each session that it remembers."""

    def __init__(self) -> None:
        self.total: dict[str, Usage] = {}
        self.sessions: dict[SessionId, dict[str, Usage]] = {}


class CountedCall(Node[T_co], Generic[T_co], internal=True):
    """A call of an agent in a session; its usage counts for both, however it ends."""

    _spending: UsageTotals | None = None
    _session: SessionId | None = None
    _counted = False

    @property
    def usage(self) -> Usage:
        """The usage of it and all below it so far; `commander.usage(call)` has it by model."""
        return sum(usage_of(self).values(), Usage())

    def begin(self, agent: Agent[Any], session_id: SessionId) -> None:
        """Begin an attempt: bring the session of the agent into the state that it starts from.

        In a durable run that is what each later execution has in it too. `ConfigurationError` says
        that it cannot be, as a part of it comes from a job whose result is stored.
        """
        named = None if isinstance(session_id, TemporarySession) else session_id
        # Once for all attempts; a call inside another of its agent is a part of that.
        self._spending, self._session, self._counted = agent.usage_totals, named, False
        self.at_done(self._count)
        if not agent.memory.drop_cut(session_id):
            raise ConfigurationError(
                f"{agent.name} has heard in the session {session_id!r} messages from below a"
                " durable job that has ended: that job does not run again after a restart, so they"
                " would be lost; let one job make all calls of a session, or return them from it"
            )
        agent.tool_sessions.enter(session_id)
        if agent.approve is not None:
            APPROVE.set(agent.approve)  # in the context of this call and of all below

    @staticmethod
    def _count(call: CountedCall[Any]) -> None:
        usage_totals, session_id = call._spending, call._session
        if usage_totals is None or call._counted:
            return
        spent, call._counted = usage_of(call), True
        calls = [each for each in payers(call) if isinstance(each, CountedCall)]
        # One that ended first, as a commander may outlive it, has not counted all of this.
        around = [
            each._session for each in calls if each._spending is usage_totals and not each._counted
        ]
        if spent:
            with _counting:
                if not around:
                    add_usage(usage_totals.total, spent)
                if session_id is not None and session_id not in around:
                    add_usage(usage_totals.sessions.setdefault(session_id, {}), spent)


class OuterSession(NamedTuple):
    """The journal's session around a call: it stores these memories and no others."""

    agent: Agent[Any]
    session_id: SessionId

    def require(self, agent: Agent[Any], session_id: SessionId) -> None:
        """Refuse an agent whose memory the journal would not have."""
        agents = self.agent.named_agents().values()
        if session_id == self.session_id and any(agent is each for each in agents):
            return
        raise ConfigurationError(
            f"{agent.name} is called in the session {session_id!r} below {self.agent.name}, whose"
            f" session {self.session_id!r} a journal keeps: it would forget that with the process;"
            f" make it an attribute of {self.agent.name} and pass session_id= on, or call it"
            " without a session"
        )


OUTER_SESSION: ContextVar[OuterSession | None] = ContextVar("anabranch_agents_round", default=None)
"""Set below a call in a session that a journal stores; nodes inherit it."""


class AgentCall(CountedCall[AgentMessage[F]], Generic[F], internal=True):
    """A call of `agent` in the session `session_id`; it has the agent's name.

    With None it has a session of its own, which ends with its subtree, or 0 if the agent was given
    a memory.

    The agent remembers the messages first and the answer at the end. A call that fails or is
    cancelled before it had any effect takes its messages back, whatever other calls have added to
    the session during that time. Its usage counts for its agent, however it ends.
    """

    # Named like the engine's attributes, because it is no part of the call's identity.
    _node_steering: Steering | None = None

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

    def steering(self) -> Steering:
        """Return the steering messages of this call."""
        if self._node_steering is None:
            self._node_steering = Steering()
        return self._node_steering

    async def task(self) -> AgentMessage[F]:
        """Pass the hooks, remember, and let the agent answer."""
        agent, session_id = self.agent, self.session_id
        own = isinstance(session_id, TemporarySession)  # this call's, or that of one above
        if own:
            session_id.forget[agent] = partial(agent.forget, session_id)
        self.begin(agent, session_id)
        CALLS.set((*CALLS.get(), object()))  # one attempt of this call
        before, after = agent.hooks_of("before_agent"), agent.hooks_of("after_agent")
        steering, above = self.steering(), STEERING.get()
        steering.above = None if above is steering else above
        steering.begin(partial(before.run, agent, session_id=session_id))
        STEERING.set(steering)
        received = [await before.run(agent, each, session_id) for each in self._messages]
        kept = agent.memory.add(*map(agent.receive_as, received), session_id=session_id)
        try:
            outer = OUTER_SESSION.get()
            if outer is not None and not own and agent.memory.messages(session_id):
                outer.require(agent, session_id)
            answering = agent.forward(*kept, session_id=session_id, **self._options)
            reply = await require_awaitable(answering, agent, "forward")
            if isinstance(reply, str):
                reply = AgentMessage(content=reply, sender=agent.name)
            elif not isinstance(reply, AgentMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"forward of {agent.name} gave {reply!r:.200}, no message or text")
            answer = agent.memory.add(reply, session_id=session_id)[0]
        except BaseException:
            agent.memory.retract(kept, session_id)
            raise
        answer = await after.run(agent, copy_message(answer), session_id)
        answer = answer.model_copy(update={"usage": self.usage})
        if (listener := MESSAGE_FEED.get()) is not None:
            listener.put(answer)
        return answer


class JournalCall(AgentCall[F], Generic[F], internal=True, name="KeptCall"):
    """A call in a session that a journal stores; its work is below a node of that session."""

    # While the call runs.
    session: Session | None = None

    async def task(self) -> AgentMessage[F]:
        """Let the session make the call, unless it is a part of a call in it."""
        above = OUTER_SESSION.get()
        if above is not None and above.agent is self.agent:
            return await super().task()
        sessions = self.agent.journal_sessions()
        return await sessions.call(self, self._messages, self.session_id, self._options)

    async def suspend(self) -> None:
        """Let running tools end, before all is cancelled."""
        if self.session is not None:
            await self.session.suspend()


async def run_in_tree(
    node: Node[T], parent: Node[Any] | None = None, **options: Unpack[HandlerOptions]
) -> T:
    """Run a node as a child of `parent` or the current node, else under a commander of its own.

    In a tree of another loop it has a commander of its own too, and the limits there hold.
    `options` are those of `call_handler`. Cancelling this call cancels the node and waits for its
    end.
    """
    options["claim"] = True
    if parent is None:
        parent = parent_here()
    if parent is None:
        async with Commander() as commander:
            # Not `run`, which would cancel the node: leaving the block cancels it in its own way.
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
        await outlast(observe(node))
        raise


async def stream_call(
    call: Node[Any], parent: Node[Any] | None = None, **options: Unpack[HandlerOptions]
) -> AsyncGenerator[AgentMessage, None]:
    """Run a call or a conversation and give all its messages, then raise its failure.

    Listeners further out, as where this is read inside an agent's `forward`, receive them too.
    """
    feed = Feed(MESSAGE_FEED.get())

    async def run_and_end() -> None:
        try:
            await run_in_tree(call, parent, **options)
        finally:
            feed.end()

    # A task of its own, so that no scope is open while this waits in a yield.
    token = MESSAGE_FEED.set(feed)
    running = asyncio.ensure_future(run_and_end())
    MESSAGE_FEED.reset(token)
    try:
        async for message in feed:
            yield message
        await running
    finally:
        running.cancel()
        interrupted = await outlast(running)
        if not running.cancelled():
            running.exception()  # taken, if the reader left before it was raised
        if interrupted is not None:
            raise interrupted
