"""`AgentStream`: a call of an agent whose messages, text or output are read while they grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, Unpack, cast

from ...commander import HandlerOptions, Node
from ...commander.waiting import wait_shielded
from ...messages import OutputSchema
from ...messages.output import GrowingOutput, GrowingText
from ._call import run_in_tree
from ._message import AgentMessage
from ._stream import MESSAGE_FEED, Feed, OutputReader, StreamedReply

__all__ = ["AgentStream", "MessageStream"]

F = TypeVar("F")
T = TypeVar("T")
R = TypeVar("R")

Reading: TypeAlias = Literal["messages", "text", "output", "the answer"]


CUT = (
    "a read of this stream was cancelled, and that cancelled the call. For a time limit, put"
    " asyncio.timeout() around the whole reading"
)


class _Running:
    """The task of a stream's call; None before the call begins."""

    task: asyncio.Task[Any] | None = None


class MessageStream(Generic[R]):
    """A call or a conversation that begins with the first read, and ends with its stream.

    It is an async iterator of messages, for one reader. As a context manager it cancels the call
    when the block is left early. A stream that is dropped is cancelled too, somewhat later.
    """

    def __init__(
        self,
        call: Node[R],
        parent: Node[Any] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> None:
        self._call = call
        self._parent = parent
        self._options = options
        self._reading: Reading | None = None
        # No reference back to this object: dropping it must finalize the generator at once.
        self._running = _Running()
        self._items: AsyncGenerator[Any, None] | None = None
        self._is_awaited = False  # whether a task waits for the next item
        self._is_closed = False
        self._is_cut = False  # whether a read was cancelled

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentMessage:
        if self._reading is None:
            self._claim("messages", Feed)
        elif self._reading != "messages":
            raise self._second_reader("messages")
        return await self._next()

    async def aclose(self) -> None:
        """Cancel the call unless it has ended, and wait until everything below it has ended.

        A task that reads the stream gets no more items. Twice is harmless.
        """
        self._is_closed = True
        task, interrupted = self._running.task, None
        if task is not None and not task.done():
            task.cancel()
            interrupted = await wait_shielded(task)
        if self._items is not None and not self._is_awaited:
            await self._items.aclose()
        if interrupted is not None:
            raise interrupted

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _claim(self, reading: Reading, make_feed: Callable[[Feed | None], Feed]) -> None:
        """Become the reader. Raise `RuntimeError` if there is another."""
        if self._reading is not None:
            raise self._second_reader(reading)
        self._reading = reading
        self._items = _read(self._call, self._parent, self._options, make_feed, self._running)

    def _second_reader(self, reading: Reading) -> RuntimeError:
        return RuntimeError(
            f"this stream is read already, as {self._reading}, and cannot be read as {reading} too."
            " Make another stream for another reader"
        )

    async def _next(self) -> Any:
        """Return the next item, starting the call before the first."""
        items = self._items
        assert items is not None
        if self._is_closed:
            raise StopAsyncIteration
        if self._is_awaited:
            raise RuntimeError("another task reads this stream already")
        if self._is_cut:
            raise RuntimeError(CUT)
        self._is_awaited = True
        try:
            if self._running.task is None:
                await anext(items)
            return await anext(items)
        except asyncio.CancelledError:
            self._is_cut = True
            raise
        finally:
            self._is_awaited = False

    async def _result(self) -> R:
        """Return the call's result. It leaves unread items to the reader."""
        if self._reading is None:
            self._claim("the answer", _Discarded)
        assert self._items is not None
        if self._running.task is None and not self._is_closed:
            await anext(self._items)
        task = self._running.task
        if task is not None and not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                await self.aclose()
                raise
        if task is None or task.cancelled():
            raise RuntimeError("the stream was closed before its answer")
        return task.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._call!r}>"


class AgentStream(MessageStream[AgentMessage[F]], Generic[F]):
    """One call of an agent, read while it runs: as messages, as text, or as typed output.

        async with agent.stream("Tell me a story.") as stream:
            async for text in stream.text():
                print(text, end="", flush=True)
        answer = await stream.answer()

    The call begins with the first read. A stream has one reader: a second one is a `RuntimeError`.
    A slow reader gets the new text in one piece, and misses none. The failure of the call is raised
    at the end of the reading, and by `answer`. Leaving the block cancels the call and waits for
    everything below it. So does cancelling a read, as `wait_for` does. A later read of text or
    output is a `RuntimeError`.

    Iterating over the stream itself yields messages, as `Agent.stream` describes.
    """

    def text(self) -> AsyncGenerator[str, None]:
        """Yield the new text of the agent's own replies, also of those before a tool call.

        The text of agents below is left out, and so are tool calls and their results. If the agent
        streams no text itself, as one with its own `forward`, its answer comes as one piece.

        Text cannot be taken back: if a reply cannot be used and the model answers again, the text
        of both is yielded. `output` yields valid values only.
        """
        self._check_open()
        self._claim("text", partial(_TextFeed, self._call))
        return _Reading(self._texts())

    def output(self) -> AsyncGenerator[F, None]:
        """Yield the output while it grows, as far as it is valid. The last equals the answer's.

            async for invoice in agent.stream(text).output():
                print(len(invoice.items))

        A value before the last has all required fields, but perhaps incomplete texts and lists, and
        no output validator has seen it. No value equals the one before it, and a list does not
        become shorter. After a reply that cannot be used, the values begin again.
        """
        self._check_open()
        self._claim("output", partial(_OutputFeed, self._call))
        return _Reading(self._outputs())

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(
                "this stream is closed, so there is nothing to read. Read it inside its block"
            )

    async def answer(self) -> AgentMessage[F]:
        """Return the answer at the end of the call, or raise the call's failure.

        It can be called without any reading, after it, and while another task reads. Cancelling it
        closes the stream. Raises `RuntimeError` if the stream was closed before the end.
        """
        return await self._result()

    async def _texts(self) -> AsyncGenerator[str, None]:
        is_silent = True
        while (text := await self._next_or(None)) is not None:
            is_silent = False
            yield cast("str", text)
        if is_silent and not self._is_closed and (text := (await self.answer()).text):
            yield text

    async def _outputs(self) -> AsyncGenerator[F, None]:
        last: tuple[F] | None = None
        while (value := await self._next_or(None)) is not None:
            last = cast("tuple[F]", value)
            yield last[0]
        if not self._is_closed:
            output = (await self.answer()).output
            if last is None or type(output) is not type(last[0]) or output != last[0]:
                yield output

    async def _next_or(self, default: T) -> Any | T:
        try:
            return await self._next()
        except StopAsyncIteration:
            return default


class _Reading(AsyncGenerator[T, None]):
    """Yields the items of a generator. After a read that was cancelled, it raises.

    The generator alone would end without an error, and its text would seem complete.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._is_cut = False

    async def asend(self, value: None, /) -> T:
        if self._is_cut:
            raise RuntimeError(CUT)
        try:
            return await self._items.asend(value)
        except asyncio.CancelledError:
            self._is_cut = True
            raise

    async def athrow(self, *error: Any) -> T:
        return await self._items.athrow(*error)

    async def aclose(self) -> None:
        await self._items.aclose()


class _Discarded(Feed):
    """Has no reader. The feeds further out receive everything."""

    def put(self, message: AgentMessage) -> None:
        self._put_outer(message)

    def grow(self, reply: StreamedReply, text: str) -> None:
        self._grow_outer(reply, text)

    def fail(self, reply: StreamedReply) -> None:
        self._fail_outer(reply)


class _TextFeed(_Discarded):
    """Yields the text of the replies of one call, unread pieces together."""

    def __init__(self, voice: object, outer: Feed | None) -> None:
        super().__init__(outer)
        self._voice = voice
        self._pieces: list[str] = []

    def grow(self, reply: StreamedReply, text: str) -> None:
        super().grow(reply, text)
        if reply.voice is self._voice:
            self._pieces.append(text)
            self._wakeup.set()

    async def __anext__(self) -> Any:
        while not self._pieces:
            await self._wait()
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


class _OutputFeed(_Discarded):
    """Yields the growing output of the newest reply of one call, in a tuple."""

    def __init__(self, voice: object, outer: Feed | None) -> None:
        super().__init__(outer)
        self._voice = voice
        self._growing: GrowingOutput[Any] | None = None
        self._text: GrowingText | None = None  # of replies whose text is the output
        self._reply: StreamedReply | None = None

    def output_reader(self, voice: object) -> OutputReader | None:
        return self if voice is self._voice else super().output_reader(voice)

    def begin_output(self, output: GrowingOutput[Any]) -> None:
        self._growing = output

    def output_grew(self) -> None:
        self._wakeup.set()

    def output_failed(self) -> None:
        if self._growing is not None:
            self._growing.clear()

    def grow(self, reply: StreamedReply, text: str) -> None:
        super().grow(reply, text)
        if reply.voice is not self._voice or not reply.is_output:
            return
        if self._text is None:
            self._text = GrowingText(OutputSchema[str](str))
        if reply is not self._reply:
            self._reply = reply
            self._text.clear()
        self._growing = self._text
        self._text.add(text)
        self._wakeup.set()

    def fail(self, reply: StreamedReply) -> None:
        super().fail(reply)
        if self._text is not None and reply is self._reply:
            self._text.clear()

    async def __anext__(self) -> Any:
        while self._growing is None or (value := self._growing.read()) is None:
            await self._wait()
        return value


async def _read(
    call: Node[Any],
    parent: Node[Any] | None,
    options: HandlerOptions,
    make_feed: Callable[[Feed | None], Feed],
    running: _Running,
) -> AsyncGenerator[Any, None]:
    """Start a call and yield None, then the items of its feed; then raise its failure.

    Feeds further out, as of an agent whose `forward` reads this stream, receive the messages too.
    """
    feed = make_feed(MESSAGE_FEED.get())

    async def run_and_end() -> Any:
        try:
            return await run_in_tree(call, parent, **options)
        finally:
            feed.end()

    # In a task, because no context variable may be set, and no commander open, across a yield.
    token = MESSAGE_FEED.set(feed)
    task = running.task = asyncio.ensure_future(run_and_end())
    MESSAGE_FEED.reset(token)
    try:
        yield None
        async for item in feed:
            yield item
        await asyncio.wait((task,))
        if not task.cancelled():  # else another task has closed the stream
            task.result()
    finally:
        task.cancel()
        interrupted = await wait_shielded(task)
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it if the reader left early
        if interrupted is not None:
            raise interrupted
