"""What is said below one call, as it grows, for one listener."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar

from ...handlers import View
from ...messages import Message, Request, ToolCall
from ...tools import AnyTool, Approve, Decision, ToolResult, ask_approval
from ...tools.calls import NO_PERSON
from ._message import AgentMessage, StreamState, copy_message

__all__ = ["APPROVE", "MESSAGE_FEED", "AgentView", "Feed", "StreamedReply"]


class StreamedReply:
    """One reply that an agent is giving, text by text."""

    def __init__(self, sender: str, receiver: str | None = None, said: str = "") -> None:
        self.sender = sender
        self.receiver = receiver
        self.said = said
        self.fresh: list[str] = []
        self.outer: StreamedReply | None = (
            None  # the same speech, as who listens further out has it
        )

    @property
    def begun(self) -> bool:
        """Whether anything has been said."""
        return bool(self.said or self.fresh)

    @property
    def text(self) -> str:
        """All that has been said so far."""
        return self.said + "".join(self.fresh)

    def message(self, state: StreamState | None = None) -> AgentMessage:
        """Return what has been said so far; `extra["delta"]` is what is new in it."""
        delta = "".join(self.fresh)
        state = state or ("streaming" if self.said else "begin")
        self.said += delta
        self.fresh.clear()
        return AgentMessage(
            content=self.said,
            sender=self.sender,
            receiver=self.receiver,
            extra={"delta": delta},
            stream_state=state,
        )


class Feed(AsyncIterator[AgentMessage]):
    """A queue of messages; a slow reader gets more new text at once, and misses none.

    Who listens further out, `outer`, hears all of it too, at its own pace.
    """

    def __init__(self, outer: Feed | None = None) -> None:
        self._outer = outer
        self._items: deque[AgentMessage | StreamedReply] = deque()
        self._news = asyncio.Event()
        self._ended = False

    def put(self, message: AgentMessage) -> None:
        """Add a message that is whole."""
        if self._outer is not None:
            self._outer.put(copy_message(message))
        self._add(message)

    def _add(self, item: AgentMessage | StreamedReply) -> None:
        self._items.append(item)
        self._news.set()

    def grow(self, speech: StreamedReply, text: str) -> None:
        """Add text to a message that grows."""
        self._grow_outer(speech, text)
        if not speech.fresh:
            self._add(speech)
        speech.fresh.append(text)

    def fail(self, speech: StreamedReply) -> None:
        """Say that a message which has begun broke off."""
        self._fail_outer(speech)
        if speech.fresh:
            self._items.remove(speech)
        self._add(speech.message("failed"))

    def _grow_outer(self, speech: StreamedReply, text: str) -> None:
        if self._outer is not None:
            speech.outer = speech.outer or StreamedReply(speech.sender, speech.receiver)
            self._outer.grow(speech.outer, text)

    def _fail_outer(self, speech: StreamedReply) -> None:
        if self._outer is not None and speech.outer is not None:
            self._outer.fail(speech.outer)

    def end(self) -> None:
        """Let the reader come to an end."""
        self._ended = True
        self._news.set()

    async def __anext__(self) -> AgentMessage:
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        item = self._items.popleft()
        return item.message() if isinstance(item, StreamedReply) else item


MESSAGE_FEED: ContextVar[Feed | None] = ContextVar("anabranch_agents_listener", default=None)
"""Who listens to the call in which this runs; nodes hand it down."""


APPROVE: ContextVar[Approve | None] = ContextVar("anabranch_agents_approve", default=None)
"""Who is asked about the calls of agents below that name nobody; nodes hand it down."""


class AgentView(View):
    """Shows an agent's exchanges to a view, if it has one, and to the listener, if there is one.

    What the model hears on the way, it hears by `hear`; `tools` gives the agent's as they are now.
    """

    def __init__(
        self,
        sender: str,
        view: View | None,
        approve: Approve | None,
        hear: Callable[[Request], Awaitable[Sequence[Message]]],
        tools: Callable[[], Sequence[AnyTool]],
    ) -> None:
        self._sender = sender
        self._hear = hear
        self._tools = tools
        self._approve = approve or (APPROVE.get() if view is None else None)
        self._view = view
        self._feed = MESSAGE_FEED.get()
        self._speech = StreamedReply(sender)
        self._over = False  # the next text is another reply's

    async def heard(self, request: Request) -> Sequence[Message]:
        """Return what the calls around were told."""
        return await self._hear(request)

    def next_tools(self, tools: Sequence[AnyTool]) -> Sequence[AnyTool]:
        """Return the agent's tools, which a call, or anybody else, may have changed."""
        return self._tools()

    def write(self, text: str) -> Awaitable[object] | object:
        """Pass text on."""
        if self._over:
            self._speech, self._over = StreamedReply(self._sender), False
        if self._feed is not None:
            self._feed.grow(self._speech, text)
        return None if self._view is None else self._view.write(text)

    def ended(self) -> None:
        """Take the end of one reply's text."""
        self._over = True
        if self._view is not None:
            self._view.ended()

    def break_off(self) -> None:
        """Tell the listener that the last text is no answer; twice is harmless."""
        if self._feed is not None and self._speech.begun:
            self._feed.fail(self._speech)
        self._speech = StreamedReply(self._sender)

    def called(self, call: ToolCall) -> None:
        """Show a call, as a message of type "tool_call"."""
        if self._feed is not None:
            self._feed.put(
                AgentMessage(
                    content=call.text,
                    formatted=call,
                    sender=self._sender,
                    receiver=call.name,
                    type="tool_call",
                )
            )
        if self._view is not None:
            self._view.called(call)

    def answered(self, result: ToolResult) -> None:
        """Show a result, as a message of type "tool_result"."""
        if self._over:  # the reply that called was whole, and what it said with it
            self._speech = StreamedReply(self._sender)
        if self._feed is not None:
            self._feed.put(
                AgentMessage(
                    content=result.content,
                    formatted=result,
                    sender=result.name or "",
                    receiver=self._sender,
                    type="tool_result",
                )
            )
        if self._view is not None:
            self._view.answered(result)

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask who was named, or the view; without one nobody is there to say yes."""
        if self._approve is not None:
            return await ask_approval(self._approve, call, tool)
        if self._view is None:
            return NO_PERSON
        return await self._view.ask(call, tool)
