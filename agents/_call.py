"""One call of an agent as a node: hooks, memory and the agent's own work between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from ..commander import Commander, Node, current_node
from ..commander.waiting import observe, outlast
from ._memory import SessionId, copied
from ._message import AgentMessage
from ._stream import LISTENER, Feed

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["AgentCall", "listen", "run_call"]

F = TypeVar("F", default=Any)


class AgentCall(Node[AgentMessage[F]], Generic[F], internal=True):
    """A call of `agent` in the session `session_id`; it goes by the agent's name.

    What comes in is remembered first, the answer at the end. A call that fails or is cancelled
    before anything was said or done takes back what came in.
    """

    def __init__(
        self,
        agent: Agent[F],
        messages: Sequence[AgentMessage],
        session_id: SessionId,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(agent.name)
        self.agent = agent
        self.session_id: SessionId = session_id
        self._messages = messages
        self._options = options

    async def task(self) -> AgentMessage[F]:
        """Pass the hooks, remember, and let the agent answer."""
        agent, session_id = self.agent, self.session_id
        received = [await agent.hooks_of("before_agent").run(agent, m) for m in self._messages]
        kept = agent.memory.add(*received, session_id=session_id)
        try:
            said = await agent.forward(*kept, session_id=session_id, **self._options)
            answer = agent.memory.add(self._message(said), session_id=session_id)[0]
        except BaseException:
            agent.memory.retract(kept, session_id)
            raise
        answer = await agent.hooks_of("after_agent").run(agent, copied(answer))
        if (listener := LISTENER.get()) is not None:
            listener.put(answer)
        return answer

    def _message(self, said: object) -> AgentMessage[Any]:
        if isinstance(said, str):
            return AgentMessage(content=said, sender=self.agent.name)
        if isinstance(said, AgentMessage):
            return cast("AgentMessage[Any]", said)
        raise TypeError(f"forward of {self.agent.name} gave {said!r:.200}: a message or a string")


async def run_call(call: AgentCall[F]) -> AgentMessage[F]:
    """Run a call as a child of the current node, or under a commander of its own.

    Cancelling this cancels the call and waits for its end.
    """
    try:
        parent = current_node()
    except LookupError:
        async with Commander() as commander:
            return await commander.run(call)
    parent.call_handler(call, claim=True)
    try:
        return await call
    except asyncio.CancelledError:
        call.cancel("the call of the agent was cancelled")
        await outlast(observe(call))
        raise


async def listen(call: AgentCall[F]) -> AsyncGenerator[AgentMessage, None]:
    """Run a call and give all that is said in it, then raise what it failed with."""
    feed = Feed()
    # A task of its own, so that no scope is open while this waits in a yield.
    token = LISTENER.set(feed)
    running = asyncio.ensure_future(_run_and_end(call, feed))
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


async def _run_and_end(call: AgentCall[Any], feed: Feed) -> None:
    try:
        await run_call(call)
    finally:
        feed.end()
