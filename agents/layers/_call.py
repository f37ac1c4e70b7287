"""One call of an agent as a node: hooks, memory and the agent's own work between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from ...commander import Commander, Node, NodeLimits, act_as, parent_here
from ...commander.awaitable import require_awaitable
from ...commander.waiting import observe, outlast
from ._memory import CALLS, OwnSession, SessionId
from ._message import AgentMessage, copy_message
from ._stream import APPROVE, LISTENER, Feed
from ._usage import CountedCall

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["AgentCall", "run_in_tree", "stream_call"]

F = TypeVar("F", default=Any)
T = TypeVar("T")


class AgentCall(CountedCall[AgentMessage[F]], Generic[F], internal=True):
    """A call of `agent` in the session `session_id`; it goes by the agent's name.

    With None it has a session of its own, which ends with its subtree, or 0 if the agent was given
    a memory.

    What comes in is remembered first, the answer at the end. A call that fails or is cancelled
    before anything was said or done takes back what came in, whatever other calls have added to the
    session meanwhile. What it took counts as its agent's
    `usage`, however it ends.
    """

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

    async def task(self) -> AgentMessage[F]:
        """Pass the hooks, remember, and let the agent answer."""
        agent, session_id = self.agent, self.session_id
        named = None if isinstance(session_id, OwnSession) else session_id
        self.count_for(agent.spending, named)
        if isinstance(session_id, OwnSession):  # this call's, or that of one above
            session_id.forget[agent] = partial(agent.forget, session_id)
        agent.tool_sessions.enter(session_id)
        CALLS.set((*CALLS.get(), object()))  # one attempt of this call
        if agent.approve is not None:
            APPROVE.set(agent.approve)  # in the context of this call and what is below
        before, after = agent.hooks_of("before_agent"), agent.hooks_of("after_agent")
        received = [await before.run(agent, each, session_id) for each in self._messages]
        kept = agent.memory.add(*received, session_id=session_id)
        try:
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
            return await commander.run(node, timeout=timeout, limits=limits)
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
