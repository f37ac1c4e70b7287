"""One call of an agent as a node: hooks, memory and the agent's own work between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, cast

from typing_extensions import TypeVar

from ...commander import Commander, Node, NodeLimits, act_as, parent_here
from ...commander.awaitable import require_awaitable
from ...commander.errors import ConfigurationError
from ...commander.waiting import observe, outlast
from ...messages import Message, Part
from ._memory import CALLS, OwnSession, SessionId
from ._message import AgentMessage, copy_message
from ._steer import STEERING, Steering, as_agent_message
from ._stream import APPROVE, LISTENER, Feed
from ._usage import CountedCall

if TYPE_CHECKING:
    from ...store import Session
    from ._agent import Agent

__all__ = [
    "ROUND",
    "AgentCall",
    "KeptCall",
    "KeptSession",
    "require_again",
    "run_in_tree",
    "stream_call",
]

F = TypeVar("F", default=Any)
T = TypeVar("T")


class KeptSession(NamedTuple):
    """The session in a journal below whose call this is: it keeps these memories and no others."""

    agent: Agent[Any]
    session_id: SessionId

    def require(self, agent: Agent[Any], session_id: SessionId) -> None:
        """Refuse an agent that would remember what the journal does not have."""
        agents = self.agent.named_agents().values()
        if session_id == self.session_id and any(agent is each for each in agents):
            return
        raise ConfigurationError(
            f"{agent.name} is called in the session {session_id!r} below {self.agent.name}, whose"
            f" session {self.session_id!r} a journal keeps: it would forget that with the process;"
            f" make it an attribute of {self.agent.name} and pass session_id= on, or call it"
            " without a session"
        )


ROUND: ContextVar[KeptSession | None] = ContextVar("anabranch_agents_round", default=None)
"""Set below a call that a journal keeps; nodes hand it down."""


def require_again(agent: Agent[Any], session_id: SessionId) -> None:
    """Let a session have what each later life of the durable run around this will have in it too.

    Raises `ConfigurationError` if some of that is a job's whose result is kept.
    """
    if not agent.memory.drop_cut(session_id):
        raise ConfigurationError(
            f"{agent.name} has heard in the session {session_id!r} what was said below a durable"
            " job that has ended: that job does not run again in a later life, which would forget"
            " it; let one job make all calls of a session, or hand on what was said as a result"
        )


class AgentCall(CountedCall[AgentMessage[F]], Generic[F], internal=True):
    """A call of `agent` in the session `session_id`; it goes by the agent's name.

    With None it has a session of its own, which ends with its subtree, or 0 if the agent was given
    a memory.

    What comes in is remembered first, the answer at the end. A call that fails or is cancelled
    before anything was said or done takes back what came in, whatever other calls have added to the
    session meanwhile. What it took counts as its agent's
    `usage`, however it ends.
    """

    # What it is told on its way; of an engine's name, as it is no part of what was called.
    _node_steering: Steering | None = None

    def __init__(
        self,
        agent: Agent[F],
        messages: Sequence[AgentMessage],
        session_id: SessionId | None,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(agent.name)
        self.agent = agent
        if session_id is None and not agent.keeps_memory:
            session_id = OwnSession()
            self.at_done(lambda _: cast("OwnSession", self.session_id).end())
        self.session_id: SessionId = 0 if session_id is None else session_id
        named = None if isinstance(self.session_id, OwnSession) else self.session_id
        act_as(self, agent.name, named)
        self._messages = messages
        self._options = options

    def steer(self, *messages: AgentMessage | Message | Part | str) -> bool:
        """Let the model hear these with its next request of this call, after what tools gave.

        Nothing is cancelled: neither the reply under way nor a tool. They are remembered in their
        place, as the user's. The next request is this agent's, or in a `forward` of its own that
        of the next agent which it calls, and never of one that a tool calls. If none comes, as the
        reply under way is the answer, they are `unheard`. In a durable run and in a session of a
        journal they are kept at once: a later life's model hears them as this one's did.

        Returns False, and takes none, if the call has ended. Call it in the loop in which the call
        is made, also before it has begun. Raises `TypeError` for what is no message of a user.
        """
        told = [as_agent_message(each) for each in messages]
        if self.state in ("completed", "failed", "cancelled"):
            return False
        self.steering().tell(told)
        return True

    @property
    def unheard(self) -> list[AgentMessage]:
        """What it was told by `steer` and no request had so far, in order; whole once it ended."""
        return [] if self._node_steering is None else self._node_steering.unheard

    def steering(self) -> Steering:
        """Return what it is told on its way."""
        if self._node_steering is None:
            self._node_steering = Steering()
        return self._node_steering

    def steer_by(self, steering: Steering) -> None:
        """Let it be told what another call is, in whose place it is made."""
        self._node_steering = steering

    async def task(self) -> AgentMessage[F]:
        """Pass the hooks, remember, and let the agent answer."""
        agent, session_id = self.agent, self.session_id
        named = None if isinstance(session_id, OwnSession) else session_id
        self.count_for(agent.spending, named)
        if isinstance(session_id, OwnSession):  # this call's, or that of one above
            session_id.forget[agent] = partial(agent.forget, session_id)
        require_again(agent, session_id)
        agent.tool_sessions.enter(session_id)
        CALLS.set((*CALLS.get(), object()))  # one attempt of this call
        if agent.approve is not None:
            APPROVE.set(agent.approve)  # in the context of this call and what is below
        before, after = agent.hooks_of("before_agent"), agent.hooks_of("after_agent")
        steering, above = self.steering(), STEERING.get()
        steering.above = None if above is steering else above
        steering.begin(partial(before.run, agent, session_id=session_id))
        STEERING.set(steering)
        received = [await before.run(agent, each, session_id) for each in self._messages]
        kept = agent.memory.add(*map(agent.receive_as, received), session_id=session_id)
        try:
            above = ROUND.get()
            if above is not None and named is not None and agent.memory.messages(named):
                above.require(agent, named)
            saying = agent.forward(*kept, session_id=session_id, **self._options)
            said = await require_awaitable(saying, agent, "forward")
            if isinstance(said, str):
                said = AgentMessage(content=said, sender=agent.name)
            elif not isinstance(said, AgentMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"forward of {agent.name} gave {said!r:.200}, no message or text")
            answer = agent.memory.add(said, session_id=session_id)[0]
        except BaseException:
            agent.memory.retract(kept, session_id)
            raise
        answer = await after.run(agent, copy_message(answer), session_id)
        answer = answer.model_copy(update={"usage": self.usage})
        if (listener := LISTENER.get()) is not None:
            listener.put(answer)
        return answer


class KeptCall(AgentCall[F], Generic[F], internal=True):
    """A call in a session that a journal keeps; what it does is below a node of that session's."""

    # While the call is made.
    session: Session | None = None

    async def task(self) -> AgentMessage[F]:
        """Let the session make it, unless it is a part of a call of that."""
        above = ROUND.get()
        if above is not None and above.agent is self.agent:
            return await super().task()
        sessions = self.agent.kept_sessions()
        return await sessions.call(self, self._messages, self.session_id, self._options)

    async def suspend(self) -> None:
        """Let tools that are under way come to their end, before all is cancelled."""
        if self.session is not None:
            await self.session.suspend()


async def run_in_tree(
    node: Node[T],
    parent: Node[Any] | None = None,
    *,
    timeout: float | None = None,
    limits: NodeLimits | None = None,
) -> T:
    """Run a node as a child of `parent` or the current one, else under a commander of its own.

    So it does in a tree of another loop, whose limits hold all the same. Cancelling this call
    cancels the node and waits for its end.
    """
    if parent is None:
        parent = parent_here()
    if parent is None:
        async with Commander() as commander:
            # Not `run`, which would cancel the node: that the block is left decides nothing of it.
            commander.call_handler(node, claim=True, timeout=timeout, limits=limits)
            try:
                return await node
            except asyncio.CancelledError:
                if isinstance(node, KeptCall):
                    await node.suspend()
                raise
    parent.call_handler(node, claim=True, timeout=timeout, limits=limits)
    try:
        return await node
    except asyncio.CancelledError:
        node.cancel("the call was cancelled")
        await outlast(observe(node))
        raise


async def stream_call(
    call: Node[Any],
    parent: Node[Any] | None = None,
    *,
    timeout: float | None = None,
    limits: NodeLimits | None = None,
) -> AsyncGenerator[AgentMessage, None]:
    """Run a call or a conversation and give all that is said in it, then raise its failure.

    Who listens already, as where this is read inside an agent's `forward`, hears it too.
    """
    feed = Feed(LISTENER.get())

    async def run_and_end() -> None:
        try:
            await run_in_tree(call, parent, timeout=timeout, limits=limits)
        finally:
            feed.end()

    # A task of its own, so that no scope is open while this waits in a yield.
    token = LISTENER.set(feed)
    running = asyncio.ensure_future(run_and_end())
    LISTENER.reset(token)
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
