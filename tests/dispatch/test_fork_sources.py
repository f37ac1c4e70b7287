"""The sources that a fork reads, async and blocking, and the objects that it refuses (F6)."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from support.fork import TIMEOUT_SECONDS, run_body

from anabranch.commander import BadResponse, Node
from anabranch.dispatch import fork
from anabranch.messages import Delta, Message, Usage

pytestmark = pytest.mark.contract("F6")

CHUNKS: list[dict[str, Any]] = [
    {"choices": []},
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
]
WHOLE = Message(
    role="assistant",
    content="Hi",
    usage=Usage(input_tokens=3, output_tokens=1),
    finish_reason="stop",
)


class Dumps:
    """An SDK's chunk object."""

    def __init__(self, chunk: dict[str, Any]) -> None:
        self.chunk = chunk

    def model_dump(self) -> dict[str, Any]:
        return self.chunk


async def test_every_kind_of_source_is_read() -> None:
    """Async or blocking, with deltas, JSON or SDK objects, or an awaitable of such a source."""

    async def asynchronous() -> AsyncIterator[Any]:
        for chunk in CHUNKS:
            yield Dumps(chunk)

    async def awaited() -> Any:
        return asynchronous()

    def blocking() -> Iterator[Any]:
        yield from CHUNKS

    async def body(node: Node[Any]) -> None:
        for source in (asynchronous(), awaited(), blocking(), CHUNKS, map(Dumps, CHUNKS)):
            assert await fork(node, source).message == WHOLE

    await run_body(body)


async def test_what_is_no_source_is_refused_at_once() -> None:
    """Unreadable objects raise `TypeError`, and unreadable items raise `BadResponse`."""

    async def body(node: Node[Any]) -> None:
        with pytest.raises(TypeError, match="iterable"):
            fork(node, None)  # type: ignore[arg-type]
        with pytest.raises(BadResponse):
            await fork(node, [1]).message

    await run_body(body)


async def test_a_blocking_source_is_read_in_a_thread_and_its_failure_is_raised() -> None:
    """It does not block the loop, because it runs in another thread."""
    threads: list[int] = []

    def blocking() -> Iterator[Delta]:
        threads.append(threading.get_ident())
        yield Delta("Hi")
        raise ValueError("broken")

    async def body(node: Node[Any]) -> None:
        with pytest.raises(ValueError, match="broken"):
            await fork(node, blocking()).message

    await run_body(body)
    assert threads != [threading.get_ident()]


async def test_cancelling_reaches_a_blocking_source() -> None:
    """An endless generator is closed. An iterator's `close` is called, even while it blocks."""

    def endless() -> Iterator[Delta]:
        try:
            while True:
                yield Delta("x")
        finally:
            ended.append("generator")

    class Blocked:
        def __init__(self) -> None:
            self.released = threading.Event()

        def __iter__(self) -> Iterator[Delta]:
            yield Delta("x")
            self.released.wait(TIMEOUT_SECONDS)
            ended.append("blocked")

        def close(self) -> None:
            self.released.set()

    ended: list[str] = []

    async def body(node: Node[Any]) -> None:
        for source in (endless(), Blocked()):
            reply = fork(node, source)
            await anext(reply.text)
            await reply.aclose()

    await run_body(body)
    assert ended == ["generator", "blocked"]


async def test_a_source_that_never_waits_does_not_keep_the_loop_to_itself() -> None:
    """An endless source that never suspends can be cancelled, even without a reader."""

    async def endless() -> AsyncIterator[Delta]:
        while True:
            yield Delta("x")

    async def body(node: Node[Any]) -> None:
        reply = fork(node, endless())
        await asyncio.sleep(0)
        await reply.aclose()

    await run_body(body)
