"""Messages of an agent's call while they grow, for the readers of its stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from ...handlers import View
from ...messages import Delta, Message, Request, ToolCall
from ...messages.output import GrowingOutput
from ...tools import AnyTool, Approve, Decision, ToolResult, ask_approval
from ...tools.calls import NO_PERSON
from ._guards import GATE, hold
from ._message import AgentMessage, StreamState, copy_message

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = [
    "APPROVE",
    "MESSAGE_FEED",
    "AgentView",
    "Feed",
    "OutputReader",
    "StreamedReply",
    "begin_voice",
    "lend_voice",
    "make_view",
    "mute_voice",
]

_VOICE: ContextVar[object | None] = ContextVar("anabranch_agents_voice", default=None)
"""The call whose replies an `AgentView` here publishes. Nodes inherit it."""

_IS_LENT: ContextVar[bool] = ContextVar("anabranch_agents_voice_lent", default=False)
"""Whether the next call of an agent below publishes as `_VOICE`, and not as itself."""


def begin_voice(call: object) -> None:
    """Let replies in this context count as those of `call`, unless the voice was lent to it."""
    if _IS_LENT.get():
        _IS_LENT.set(False)
    else:
        _VOICE.set(call)


@contextmanager
def lend_voice() -> Generator[None]:
    """Let replies of an agent that the block calls count as those of the call around it.

    For a `forward` that gives another agent's answer as its own: `AgentStream.text` yields them.
    """
    token = _IS_LENT.set(True)
    try:
        yield
    finally:
        _IS_LENT.reset(token)


@contextmanager
def mute_voice() -> Generator[None]:
    """Let replies in the block count as those of no call."""
    token = _VOICE.set(None)
    try:
        yield
    finally:
        _VOICE.reset(token)


class StreamedReply:
    """A reply that an agent is giving, text by text.

    `text_before` is the text that messages have passed on; `pending` are the texts since. `voice`
    is the call whose reply it is, None in a conversation.
    """

    def __init__(
        self,
        sender: str,
        receiver: str | None = None,
        text_before: str = "",
        voice: object | None = None,
        *,
        is_output: bool = False,
    ) -> None:
        self.voice = voice
        self.is_output = is_output  # whether the text is the output of the agent
        self.sender = sender
        self.receiver = receiver
        self.text_before: str = text_before
        self.pending: list[str] = []
        self.outer: StreamedReply | None = None  # the same reply in the outer feed

    @property
    def begun(self) -> bool:
        """Whether it has any text."""
        return bool(self.text_before or self.pending)

    @property
    def text(self) -> str:
        """All text so far."""
        return self.text_before + "".join(self.pending)

    def message(self, state: StreamState | None = None) -> AgentMessage:
        """Return the text so far as a message; `extra["delta"]` is the new part of it."""
        delta = "".join(self.pending)
        state = state or ("streaming" if self.text_before else "begin")
        self.text_before += delta
        self.pending.clear()
        return AgentMessage(
            content=self.text_before,
            sender=self.sender,
            receiver=self.receiver,
            extra={"delta": delta},
            stream_state=state,
        )


class OutputReader(Protocol):
    """Receives typed output of a call while it grows."""

    def begin_output(self, output: GrowingOutput[Any]) -> None:
        """Read another reply."""

    def output_grew(self) -> None:
        """See that the output has a new piece."""

    def output_failed(self) -> None:
        """Drop the output of a reply that cannot be used."""


class Feed(AsyncIterator[AgentMessage]):
    """A queue of messages for one reader.

    A slow reader gets more new text at once, and misses none. `outer`, the feed of a reader further
    out, receives all of it too, at its own speed.
    """

    def __init__(self, outer: Feed | None = None) -> None:
        self._outer = outer
        self._items: deque[AgentMessage | StreamedReply] = deque()
        self._wakeup = asyncio.Event()
        self._ended = False

    def put(self, message: AgentMessage) -> None:
        """Add a complete message."""
        self._put_outer(message)
        self._add(message)

    def _add(self, item: AgentMessage | StreamedReply) -> None:
        self._items.append(item)
        self._wakeup.set()

    def grow(self, reply: StreamedReply, text: str) -> None:
        """Add text to a message that grows."""
        self._grow_outer(reply, text)
        if not reply.pending:
            self._add(reply)
        reply.pending.append(text)

    def fail(self, reply: StreamedReply) -> None:
        """End a message that broke off."""
        self._fail_outer(reply)
        if reply.pending:
            self._items.remove(reply)
        self._add(reply.message("failed"))

    def _put_outer(self, message: AgentMessage) -> None:
        if self._outer is not None:
            self._outer.put(copy_message(message))

    def _grow_outer(self, reply: StreamedReply, text: str) -> None:
        if self._outer is not None:
            reply.outer = reply.outer or StreamedReply(
                reply.sender, reply.receiver, voice=reply.voice, is_output=reply.is_output
            )
            self._outer.grow(reply.outer, text)

    def _fail_outer(self, reply: StreamedReply) -> None:
        if self._outer is not None and reply.outer is not None:
            self._outer.fail(reply.outer)

    def output_reader(self, voice: object) -> OutputReader | None:
        """Return the feed, of this or a reader further out, for the growing output of a call."""
        return None if self._outer is None else self._outer.output_reader(voice)

    def end(self) -> None:
        """Let the reader end after the messages so far."""
        self._ended = True
        self._wakeup.set()

    async def _wait(self) -> None:
        """Wait until something is new; raise `StopAsyncIteration` at the end."""
        if self._ended:
            raise StopAsyncIteration
        self._wakeup.clear()
        await self._wakeup.wait()

    async def __anext__(self) -> AgentMessage:
        while not self._items:
            await self._wait()
        item = self._items.popleft()
        return item.message() if isinstance(item, StreamedReply) else item


MESSAGE_FEED: ContextVar[Feed | None] = ContextVar("anabranch_agents_listener", default=None)
"""Receives all messages of agents below. Nodes inherit it."""


APPROVE: ContextVar[Approve | None] = ContextVar("anabranch_agents_approve", default=None)
"""Decides on tool calls of agents below without `approve` or a view. Nodes inherit it."""


class AgentView(View):
    """The view of an agent's exchange: publishes it to the feed, and to the view of the user.

    `deliver` returns the steering messages for a request. `tools` returns the agent's tools of the
    moment.
    """

    def __init__(
        self,
        sender: str,
        view: View | None,
        approve: Approve | None,
        deliver: Callable[[Request], Awaitable[Sequence[Message]]],
        tools: Callable[[], Sequence[AnyTool]],
        *,
        has_text_output: bool = False,
    ) -> None:
        self._sender = sender
        self._deliver = deliver
        self._tools = tools
        self._approve = approve or (APPROVE.get() if view is None else None)
        self._view = view
        self._feed = MESSAGE_FEED.get()
        self._gate = GATE.get()
        self._voice = _VOICE.get()
        self._has_text_output = has_text_output
        self._reader = _find_reader()
        self._reply = self._new_reply()
        self._over = False  # whether the next text belongs to another reply

    def _new_reply(self) -> StreamedReply:
        return StreamedReply(self._sender, voice=self._voice, is_output=self._has_text_output)

    def output_failed(self, reason: str) -> None:
        """Publish that the last reply is not the answer."""
        self.break_off()
        if self._reader is not None:
            self._reader.output_failed()
        if isinstance(self._view, View):
            self._view.output_failed(reason)

    async def heard(self, request: Request) -> Sequence[Message]:
        """Return the steering messages that this request delivers."""
        return await self._deliver(request)

    def incoming(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Hold a reply back until the guards of the calls around this have passed."""
        gate = self._gate
        return deltas if gate is None or gate.is_open else hold(deltas, gate)

    def next_tools(self, tools: Sequence[AnyTool]) -> Sequence[AnyTool]:
        """Return the agent's tools, which may have changed since the last request."""
        return self._tools()

    def write(self, text: str) -> Awaitable[object] | object:
        """Publish text of the reply."""
        if self._over:
            self._reply, self._over = self._new_reply(), False
        if self._feed is not None:
            self._feed.grow(self._reply, text)
        return None if self._view is None else self._view.write(text)

    def ended(self) -> None:
        """Note the end of one reply's text."""
        self._over = True
        if self._view is not None:
            self._view.ended()

    def break_off(self) -> None:
        """Publish that the last text is not the answer; twice is harmless."""
        if self._feed is not None and self._reply.begun:
            self._feed.fail(self._reply)
        self._reply = self._new_reply()

    def called(self, call: ToolCall) -> None:
        """Publish a call, as a message of type "tool_call"."""
        if self._feed is not None:
            self._feed.put(
                AgentMessage(
                    content=call.text,
                    output=call,
                    sender=self._sender,
                    receiver=call.name,
                    type="tool_call",
                )
            )
        if self._view is not None:
            self._view.called(call)

    def answered(self, result: ToolResult) -> None:
        """Publish a result, as a message of type "tool_result"."""
        if self._over:  # the reply with the call is complete: `break_off` must not end it
            self._reply = self._new_reply()
        if self._feed is not None:
            self._feed.put(
                AgentMessage(
                    content=result.content,
                    output=result,
                    sender=result.name or "",
                    receiver=self._sender,
                    type="tool_result",
                )
            )
        if self._view is not None:
            self._view.answered(result)

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask the agent's `approve`, else the view; without both, refuse the call."""
        if self._approve is not None:
            return await ask_approval(self._approve, call, tool)
        if self._view is None:
            return NO_PERSON
        return await self._view.ask(call, tool)


class _WatchingView(AgentView):
    """Also publishes typed output while it grows."""

    def output_begun(self, output: GrowingOutput[Any]) -> None:
        """Publish that another reply begins."""
        if self._reader is not None:
            self._reader.begin_output(output)
        if isinstance(self._view, View):
            self._view.output_begun(output)

    def output_grew(self) -> None:
        """Publish that the output has a new piece."""
        if self._reader is not None:
            self._reader.output_grew()
        if isinstance(self._view, View):
            self._view.output_grew()


def make_view(
    agent: Agent[Any],
    view: View | None,
    approve: Approve | None,
    deliver: Callable[[Request], Awaitable[Sequence[Message]]],
    tools: Callable[[], Sequence[AnyTool]],
) -> AgentView:
    """Return the view for an exchange of an agent. It watches typed output only for a reader."""
    is_watched = isinstance(view, View) and type(view).output_begun is not View.output_begun
    kind = _WatchingView if is_watched or _find_reader() is not None else AgentView
    text = agent.has_text_output
    return kind(agent.name, view, approve, deliver, tools, has_text_output=text)


def _find_reader() -> OutputReader | None:
    feed, voice = MESSAGE_FEED.get(), _VOICE.get()
    return None if feed is None or voice is None else feed.output_reader(voice)
