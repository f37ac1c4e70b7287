"""F1, F5: `pour` writes each item where it arrives, as if the branch's reader had read it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from anabranch.commander import Commander, Node
from anabranch.dispatch import fork
from anabranch.dispatch.pouring import pour
from anabranch.handlers import handler, show
from anabranch.messages import Delta

WORDS = ["a", "b", "c", "d", "e"]
SEEN: ContextVar[str] = ContextVar("seen", default="")

Take = Callable[[str], object]


async def _source(pause: bool, words: list[str]) -> AsyncIterator[Delta]:
    for word in words:
        if pause:
            await asyncio.sleep(0)
        yield Delta(text=word)
    yield Delta(finish_reason="stop", done=True)


@handler
async def reading(node: Node[Any], take: Take, pause: bool, words: list[str]) -> None:
    await pour(fork(node, _source(pause, words)).text, take)


async def _pour(take: Take, pause: bool = True, words: list[str] = WORDS) -> None:
    async with asyncio.timeout(20), Commander() as commander:
        await commander.run(reading(take, pause, words))


@pytest.mark.parametrize("pause", [False, True])
async def test_all_of_it_comes_in_its_order_plain_or_async(pause: bool) -> None:
    """F1: each item once, and each only after the write of the one before has ended."""
    said: list[str] = []

    def take(text: str) -> object:
        said.append(text)
        return late(text) if text in "bd" else None

    async def late(text: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        said.append(text.upper())

    await _pour(take, pause)
    assert said == ["a", "b", "B", "c", "d", "D", "e"]


async def test_a_context_variable_is_the_readers_own() -> None:
    """A write sees the values set by the reader and by earlier writes."""
    SEEN.set("-")

    def take(text: str) -> None:
        SEEN.set(SEEN.get() + text)
        last.append(SEEN.get())

    last: list[str] = []
    await _pour(take)
    assert last[-1] == "-abcde"
    assert SEEN.get() == "-"


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), asyncio.CancelledError()])
@pytest.mark.parametrize("late", [False, True])
async def test_what_the_writer_raises_is_the_readers_failure(
    error: BaseException, late: bool
) -> None:
    """The error is raised at `pour`, and no further item is written."""
    said: list[str] = []

    def write(text: str) -> object:
        said.append(text)
        if len(said) < 2:
            return None
        if late:
            return raising()
        raise error

    async def raising() -> None:
        raise error

    @handler
    async def showing(node: Node[Any]) -> str:
        return await show(fork(node, _source(True, WORDS)).text, write)

    async with asyncio.timeout(20), Commander() as commander:
        with pytest.raises((ValueError, RuntimeError)) as raised:
            await commander.run(showing())
    assert raised.value is error or isinstance(raised.value.__cause__, type(error))
    assert said == ["a", "b"]


async def test_a_reader_that_is_cancelled_is_given_nothing_more() -> None:
    """T5: also no item that arrives in the same turn of the loop as the cancel."""
    said: list[str] = []
    gate = asyncio.Event()
    shown: list[Node[Any]] = []

    async def source() -> AsyncIterator[Delta]:
        yield Delta(text="a")
        await gate.wait()
        shown[0].cancel("enough")
        yield Delta(text="b")
        yield Delta(finish_reason="stop", done=True)

    def write(text: str) -> None:
        said.append(text)
        gate.set()

    @handler
    async def showing(node: Node[Any]) -> str | None:
        reply = fork(node, source())
        shown.append(node.call_handler(show(reply.text, write)))
        return (await reply.message).content

    async with asyncio.timeout(20), Commander() as commander:
        assert await commander.run(showing()) == "ab"
    assert said == ["a"]
    assert shown[0].state == "cancelled"


async def test_a_slow_writer_still_holds_the_source_back() -> None:
    """F5: unwritten items count against the limit, and all of them are written in the end."""
    said: list[str] = []
    read = 0

    async def source() -> AsyncIterator[Delta]:
        nonlocal read
        for _ in range(100):
            read += 1
            await asyncio.sleep(0)
            yield Delta(text="x" * 10)
        yield Delta(finish_reason="stop", done=True)

    ahead: list[int] = []

    async def take(text: str) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        said.append(text)
        ahead.append(read - len(said))

    @handler
    async def body(node: Node[Any]) -> None:
        await pour(fork(node, source(), limit=50).text, take)

    async with asyncio.timeout(20), Commander() as commander:
        await commander.run(body())
    assert len(said) == 100
    assert max(ahead) < 20


async def test_what_is_no_branch_is_read_as_ever() -> None:
    """`pour` accepts every async iterable."""

    async def texts() -> AsyncIterator[str]:
        for word in WORDS:
            yield word

    said: list[str] = []
    await pour(texts(), said.append)
    assert said == WORDS


@pytest.mark.parametrize("late", [False, True])
async def test_a_writer_that_cancels_its_own_reader_harms_nobody_else(late: bool) -> None:
    """T5, F6: the reply completes, and the write that had started is not abandoned."""
    said: list[str] = []
    shown: list[Node[Any]] = []

    def write(text: str) -> object:
        said.append(text)
        if text == "b":
            shown[0].cancel("enough")
        return rest(text) if late else None

    async def rest(text: str) -> None:
        await asyncio.sleep(0)

    @handler
    async def showing(node: Node[Any]) -> str | None:
        reply = fork(node, _slow())
        shown.append(node.call_handler(show(reply.text, write)))
        return (await reply.message).content

    async with asyncio.timeout(20), Commander() as commander:
        assert await commander.run(showing()) == "abcde"
    gc.collect()  # Python warns about a coroutine that was never awaited
    assert said == ["a", "b"]
    assert shown[0].state == "cancelled"


async def _slow() -> AsyncIterator[Delta]:
    """Give the reader time to wait again between two words."""
    for word in WORDS:
        for _ in range(5):
            await asyncio.sleep(0)
        yield Delta(text=word)
    yield Delta(finish_reason="stop", done=True)


async def test_the_context_is_the_same_where_items_had_to_wait() -> None:
    """As while the reader awaits an item: a write sees the values that the write before it set."""
    last: list[str] = []

    def take(text: str) -> object:
        SEEN.set(SEEN.get() + text)
        last.append(SEEN.get())
        return late() if text == "b" else None

    async def late() -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    @handler
    async def taking(node: Node[Any]) -> None:
        await pour(fork(node, _slow()).text, take)

    async with asyncio.timeout(20), Commander() as commander:
        await commander.run(taking())
    assert last == ["a", "ab", "abc", "abcd", "abcde"]


async def test_an_async_writer_leaves_nothing_behind_each_item() -> None:
    """At any time at most one wait is registered, however long the reply is."""
    known: list[int] = []

    @handler
    async def taking(node: Node[Any]) -> None:
        branch: Any = fork(node, _slow()).text

        async def take(_: str) -> None:
            known.append(len(branch._waiters.futures))

        await pour(branch, take)

    async with asyncio.timeout(20), Commander() as commander:
        await commander.run(taking())
    assert known == [0] * len(WORDS)
