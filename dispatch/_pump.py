"""The pump: the node that reads a reply's source and feeds its branches (F6)."""

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

Repaired: TypeAlias = "str | dict[str, Any] | None"
Repair: TypeAlias = Callable[[ToolCallError], "Repaired | Awaitable[Repaired]"]
"""Sees a faulty call; gives arguments, as JSON text or an object, or None to let it be refused."""

# A source that never waits gives way to the loop after this many deltas, or after fewer if the
# limit is small. At the beginning, and after a branch was too full, deltas are handed on in batches
# that grow fourfold up to that: so a branch of deltas alike passes its limit four times at most.
_TURN = 1024
_DELTA = 64  # characters in a delta, for that


class Pump(Node[None], internal=True):
    """Reads the source to its end, whoever listens; its failure is raised from the branches."""

    _node_is_reader = True

    def __init__(
        self,
        source: Source,
        to_user: str | None,
        formats: Sequence[Format],
        repair: Repair | None,
        limit: int,
        exempt: frozenset[str] = frozenset(),
        hears: Node[Any] | None = None,
    ) -> None:
        self._gate = Gate(limit, self)
        # Annotated, not subscripted: that would take longer than making them.
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
        self.firsts: list[Callable[[], object]] = []
        self.lasts: list[Callable[[], object]] = []
        self._source = source
        self._opened: Any = source  # what has to be closed
        self._iterator: Any = None  # of it, perhaps another thing to be closed
        self._repair = repair
        self._failed = False  # its own outcome says with what
        self._over = False
        self._refused = False  # the assembly has raised, as a user's format may
        self._closed = False  # by `aclose`
        self._listeners = Waiters(self)  # for the message
        branches = Branches(
            self.text.put,
            self.reasoning.put if hears is None else partial(self._tell_reasoning, hears),
            self.calls.put,
            self.pieces.put_all,
            {name: channel.put for name, channel in self.others.items()},
        )
        self._assembly = Assembly(branches, to_user, formats, exempt)

        async def cancelled(_: object) -> None:  # the body may never have begun
            self._break_off(asyncio.CancelledError())
            await self._close_source()

        self.at_terminate(cancelled)

    def _tell_reasoning(self, hears: Node[Any], text: str) -> None:
        emit(hears, "reasoning", text)
        self.reasoning.put(text)

    @property
    def partial(self) -> Message | None:
        """The text and the reasoning so far, as a message; None without either."""
        return self._assembly.partial()

    async def task(self) -> None:
        """Read, assemble, repair; whatever happens, end the branches and close the source."""
        waiting: list[Delta] = []

        def feed() -> None:
            try:
                self._assembly.feed(waiting)
            except BaseException:
                self._refused = True
                raise
            finally:
                waiting.clear()

        try:
            self._opened = await open_source(self._source)
            self._iterator = aiter(self._opened)
            await calling_before_waits(self._read(waiting, feed), feed)
            if not self._assembly.whole:
                raise StreamInterrupted("the stream ended without a finish reason or an end mark")
            for call in self._assembly.end():  # faulty ones
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
            self._end()
        except BaseException as error:
            self._break_off(error)
            if issubclass(type(error), Exception):
                await _call_all(self.lasts)
            raise
        else:
            await _call_all(self.lasts)
        finally:
            await self._close_source()

    async def _read(self, waiting: list[Delta], feed: Callable[[], None]) -> None:
        """Put what the source gives into `waiting`, and feed it now and then."""
        gate, turn = self._gate, max(1, min(_TURN, self._gate.limit // _DELTA))
        chunks = ChunkReader()
        left = batch = 0
        async for item in self._iterator:
            delta = item
            if type(item) is not Delta and (delta := to_delta(item, chunks)) is None:
                continue
            if not left:
                if self._refused:
                    return  # and the source did not mind being cancelled
                if not batch:
                    await _call_all(self.firsts)
                elif 1 < batch < turn:
                    feed()
                else:
                    await asyncio.sleep(0)
                left = batch = min(4 * batch or 1, turn)
            left -= 1
            waiting.append(delta)
            if gate.pressed and await gate.wait():
                left, batch = 0, 1

    def _break_off(self, error: BaseException) -> None:
        if self._over:
            return
        self._assembly.break_off()
        # By its type: its `__class__` may raise.
        if issubclass(type(error), StreamInterrupted | BadResponse):
            broken = cast("StreamInterrupted | BadResponse", error)
            if broken.partial is None:
                broken.partial = self.partial
        self._failed = True
        self._end()

    def _end(self) -> None:
        self._over = True
        for channel in self._gate.channels:
            channel.end()
        self._listeners.wake()

    async def _close_source(self) -> None:
        source, self._opened = self._opened, None
        iterator, self._iterator = self._iterator, None
        if iterator is not source:
            await close_source(iterator)
        await close_source(source)

    async def check(self) -> None:
        """Return if the branches ended well, or were closed; else raise the reply's failure."""
        if self._failed and not self._closed:
            await self

    async def whole(self) -> Message:
        """Wait for the message, or raise what the reply failed with."""
        while self.message is None:
            if not self._over:
                await self._listeners.wait()
            elif self._closed:
                raise StreamInterrupted("the reply was closed before its end", partial=self.partial)
            else:
                await self
        return self.message

    async def aclose(self) -> None:
        """Stop reading, close the source and end the branches; harmless if that is done."""
        if self.state in ("completed", "failed", "cancelled"):
            return
        self._closed = not self._over
        self.cancel("the reply was closed")
        with suppress(NodeCancelled):
            await self


@mark_driver
@coroutine
def calling_before_waits(
    body: Coroutine[Any, Any, None], callback: Callable[[], None]
) -> Generator[Any, Any, None]:
    """Run `body`; call `callback` each time before it waits for the loop, and at its end.

    An async function cannot know whether what it awaits will wait. So this steps `body` as a task
    does, and gives what comes out of each step, the future that it waits for, to the task. Thus
    all deltas that a source has ready are read together and late by nothing, which halves the
    cost of a delta (benchmarks/NOTES-fork.md, "What helped").

    If `callback` raises, `body` is cancelled where it waits, and ends before that is raised: an
    async generator that is left in the midst of a step can never be closed.
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
                break
            if failed is None:
                try:
                    callback()
                except BaseException as error:  # noqa: BLE001 - raised below
                    failed = error
                    step, argument = body.throw, asyncio.CancelledError()
                    continue
            try:
                step, argument = body.send, (yield waits_for)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is for the body
                step, argument = body.throw, error
    finally:
        body.close()
        if failed is None:
            callback()
    if failed is not None:
        raise failed


async def _call_all(callbacks: list[Callable[[], object]]) -> None:
    for callback in callbacks:
        if isawaitable(value := callback()):
            await value
