"""The pump: the node that reads a reply's source and feeds its branches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from types import coroutine
from typing import Any, TypeAlias, cast

from ..commander import BadResponse, Node, NodeCancelled, StreamInterrupted, emit
from ..commander.waiting import mark_driver
from ..messages import ChunkReader, Delta, Message, ToolCall, ToolCallDelta, ToolCallError
from ..messages.arguments import read_arguments
from ._channel import Channel, Gate, Waiters
from ._format import Format
from ._source import Source, close_source, open_source, to_delta
from .assembly import Assembly, Branches

__all__ = ["Pump", "Repair"]

RepairedArguments: TypeAlias = "str | dict[str, Any] | None"
Repair: TypeAlias = Callable[[ToolCallError], "RepairedArguments | Awaitable[RepairedArguments]"]
"""Returns new arguments for a faulty call, as JSON text or an object, or None to refuse it."""

# The pump gives the loop a turn after this many deltas of a source that never waits, or after fewer
# if the limit is small. At the beginning, and after a branch was too full, it feeds batches that
# grow fourfold up to that size. So deltas of equal length exceed a branch's limit at most fourfold.
_MAX_BATCH_DELTAS = 1024
_ASSUMED_DELTA_CHARS = 64  # derives the batch size from the limit


class Pump(Node[None], internal=True):
    """Reads the source to its end, with or without readers; its branches raise its failure."""

    _node_is_reader = True

    def __init__(
        self,
        source: Source,
        to_user: str | None,
        formats: Sequence[Format],
        repair: Repair | None,
        limit: int,
        exempt: frozenset[str] = frozenset(),
        listener: Node[Any] | None = None,
    ) -> None:
        self._gate = Gate(limit, self)
        # Annotated, not `Channel[str](...)`: the subscription costs more than the object.
        gate, check = self._gate, self.check
        self.text: Channel[str] = Channel(gate, len, check)
        self.reasoning: Channel[str] = Channel(gate, len, check)
        self.calls: Channel[ToolCall | ToolCallError] = Channel(
            gate, lambda call: len(call.raw or ""), check
        )
        self.pieces: Channel[ToolCallDelta] = Channel(
            gate, lambda piece: len(piece.arguments), check
        )
        others = {each.branch for each in formats if each.branch is not None} - {"reasoning"}
        self.others: dict[str, Channel[str]] = {
            name: Channel(gate, len, check) for name in sorted(others)
        }
        self.message: Message | None = None  # once the reply is whole
        # Callbacks of `at_first` and `at_last`. Attributes of a node are part of its stored
        # identity, so these names stay.
        self.firsts: list[Callable[[], object]] = []
        self.lasts: list[Callable[[], object]] = []
        self._source = source
        self._opened: Any = source  # to be closed at the end
        self._iterator: Any = None  # `aiter(self._opened)`; closed too if it is another object
        self._repair = repair
        self._failed = False  # this node's outcome has the error
        self._over = False  # the branches have ended
        self._refused = False  # the assembly has raised, as a user's format may
        self._closed = False  # by `aclose`
        self._listeners = Waiters(self)  # for the message
        branches = Branches(
            self.text.put,
            self.reasoning.put if listener is None else partial(self._emit_reasoning, listener),
            self.calls.put,
            self.pieces.put_all,
            {name: channel.put for name, channel in self.others.items()},
        )
        self._assembly = Assembly(branches, to_user, formats, exempt)

        # A pump that is cancelled before its start never runs `task`. Its readers must end too.
        async def cancelled(_: object) -> None:
            self._break_off(asyncio.CancelledError())
            await self._close_source()

        self.at_terminate(cancelled)

    def _emit_reasoning(self, listener: Node[Any], text: str) -> None:
        emit(listener, "reasoning", text)
        self.reasoning.put(text)

    @property
    def partial(self) -> Message | None:
        """The text and the reasoning so far, as a message; None without either."""
        return self._assembly.partial()

    async def task(self) -> None:
        """Read, assemble and repair; end the branches and close the source in any case."""
        waiting: list[Delta] = []

        def feed() -> None:
            try:
                self._assembly.feed(waiting)
            except BaseException:
                self._refused = True
                raise
            finally:
                waiting.clear()  # also after a failure: no delta may be fed twice

        try:
            self._opened = await open_source(self._source)  # assigned first: `aiter` may raise
            self._iterator = aiter(self._opened)
            await calling_before_waits(self._read(waiting, feed), feed)
            # Before any call is repaired or refused: an interrupted reply hands on no more calls.
            if not self._assembly.whole:
                raise StreamInterrupted("the stream ended without a finish reason or an end mark")
            for call in self._assembly.end():  # the faulty calls; the others are handed on there
                repaired = None if self._repair is None else self._repair(call.error())
                if isawaitable(repaired):
                    repaired = await repaired
                if isinstance(repaired, str):
                    arguments, fault = read_arguments(repaired)
                    repaired = arguments if fault is None else None
                if repaired is None:
                    self._assembly.refuse(call)
                else:
                    call.repair(repaired)
                    self._assembly.hand_on(call)
            self.message = self._assembly.message()
            self._end()  # after the message: `whole` looks for it when the listeners wake
        except BaseException as error:
            self._break_off(error)
            # Callbacks run after the branches have ended, and not after a cancellation.
            if issubclass(type(error), Exception):
                await _call_all(self.lasts)
            raise
        else:
            await _call_all(self.lasts)
        finally:
            await self._close_source()

    async def _read(self, waiting: list[Delta], feed: Callable[[], None]) -> None:
        """Append the source's deltas to `waiting`, and feed them in batches.

        Each suspension feeds the pending deltas too: see `calling_before_waits`.
        """
        gate = self._gate
        max_batch = max(1, min(_MAX_BATCH_DELTAS, gate.limit // _ASSUMED_DELTA_CHARS))
        chunks = ChunkReader()
        left = batch = 0
        async for item in self._iterator:
            delta = item
            # The exact type: most items are deltas, and this test costs less than a call.
            if type(item) is not Delta and (delta := to_delta(item, chunks)) is None:
                continue
            if not left:
                if self._refused:
                    return  # the source has ignored the cancellation that a failed feed throws
                if not batch:
                    await _call_all(self.firsts)  # before the first delta is appended
                elif 1 < batch < max_batch:
                    feed()
                else:
                    # The first delta reaches its readers at once. After a full batch, other tasks
                    # get a turn.
                    await asyncio.sleep(0)
                left = batch = min(4 * batch or 1, max_batch)
            left -= 1
            waiting.append(delta)
            if gate.is_over_limit and await gate.wait():
                left, batch = 0, 1  # small batches again; 0 would run `firsts` again

    def _break_off(self, error: BaseException) -> None:
        if self._over:  # called from `task` and from the callback for cancellation
            return
        self._assembly.break_off()
        # Not isinstance: a user's exception may have a `__class__` property that raises.
        if issubclass(type(error), StreamInterrupted | BadResponse):
            broken = cast("StreamInterrupted | BadResponse", error)
            if broken.partial is None:
                broken.partial = self.partial
        self._failed = True  # before the readers wake and check it
        self._end()

    def _end(self) -> None:
        self._over = True
        for channel in self._gate.channels:
            channel.end()
        self._listeners.wake()

    async def _close_source(self) -> None:
        # Cleared before the first await: `task` and the callback for cancellation both come here.
        source, self._opened = self._opened, None
        iterator, self._iterator = self._iterator, None
        if iterator is not source:  # the iterator first: it may still read from the source
            await close_source(iterator)
        await close_source(source)

    async def check(self) -> None:
        """Raise the reply's failure, unless the reply succeeded or was closed."""
        if self._failed and not self._closed:
            await self

    async def whole(self) -> Message:
        """Wait for the message; raise the reply's failure if there is none."""
        while self.message is None:  # first: a reply that is closed later keeps its message
            if not self._over:
                await self._listeners.wait()
            elif self._closed:
                raise StreamInterrupted("the reply was closed before its end", partial=self.partial)
            else:
                await self
        return self.message

    async def aclose(self) -> None:
        """Stop reading, close the source and end the branches; do nothing after the end."""
        if self.state in ("completed", "failed", "cancelled"):
            return
        # A reply that is over keeps its message or its failure. Set before `cancel`, which ends
        # the branches: their readers check it.
        self._closed = not self._over
        self.cancel("the reply was closed")
        with suppress(NodeCancelled):
            await self


@mark_driver
@coroutine
def calling_before_waits(
    body: Coroutine[Any, Any, None], callback: Callable[[], None]
) -> Generator[Any, Any, None]:
    """Run `body`; call `callback` each time before it suspends, and at its end.

    An async function cannot know whether an `await` will suspend. So this steps `body` as a task
    does, and yields each future that `body` waits for to the real task. All deltas that a source
    has ready are thus read as one batch without delay, which halves the cost of a delta
    (benchmarks/NOTES-fork.md, "What helped").

    If `callback` raises, `body` is cancelled where it waits and runs to its end before the error
    is raised: an async generator that is abandoned in the middle of a step can never be closed.
    """
    step: Callable[[Any], Any] = body.send
    argument: Any = None
    failed: BaseException | None = None
    try:
        while True:
            try:
                waits_for = step(argument)
            except StopIteration:
                break
            except (Exception, asyncio.CancelledError):
                if failed is None:
                    raise
                break  # the effect of the cancellation below; `failed` is its cause
            # Before the yield: this is the last moment before `body` suspends.
            if failed is None:
                try:
                    callback()
                except BaseException as error:  # noqa: BLE001 - raised at the end
                    failed = error
                    step, argument = body.throw, asyncio.CancelledError()
                    continue
            try:
                step, argument = body.send, (yield waits_for)
            except GeneratorExit:
                raise  # `body.close` below throws it into the body
            except BaseException as error:  # noqa: BLE001 - a cancellation, for instance
                step, argument = body.throw, error
    finally:
        body.close()
        if failed is None:
            callback()  # the deltas that came after the last suspension
    if failed is not None:
        raise failed


async def _call_all(callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        if isawaitable(value := callback()):
            await value
