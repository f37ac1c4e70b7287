"""The fork as a part of the tree: sources, failures, backpressure, the rejoin (F3, F5, F6)."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from _until import turns

from anabranch.commander import (
    BadResponse,
    Commander,
    Node,
    NodeCancelled,
    StreamInterrupted,
)
from anabranch.dispatch import (
    Delta,
    Message,
    Reply,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    Usage,
    fork,
)
from anabranch.handlers import handler

PATIENCE = 10.0

CALL = [
    Delta("Wait."),
    Delta(tool_calls=[ToolCallDelta(0, "a", "f")]),
    Delta(tool_calls=[ToolCallDelta(0, arguments='{"to_user": "Look')]),
    Delta(tool_calls=[ToolCallDelta(0, arguments='ing", "x": 1}')]),
    Delta(usage=Usage(input_tokens=3, output_tokens=4), finish_reason="tool_calls"),
]


class Source:
    """Gives deltas, then raises `failure` if there is one; notes how far it got and its end."""

    def __init__(self, *deltas: Delta, failure: Exception | None = None) -> None:
        self.deltas = deltas
        self.failure = failure
        self.given = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self.deltas:
            await asyncio.sleep(0)
            self.given += 1
            yield delta
        if self.failure is not None:
            raise self.failure

    async def aclose(self) -> None:
        self.closed = True


class Body(Node[Any]):
    """A node whose body is a function."""

    def __init__(self, body: Callable[[Node[Any]], Any]) -> None:
        self.body = body

    async def task(self) -> Any:
        return await self.body(self)


async def run(body: Callable[[Node[Any]], Any]) -> Any:
    async with asyncio.timeout(PATIENCE), Commander() as commander:
        return await commander.run(Body(body))


async def collect(branch: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in branch]


@handler
async def collected(_: Node[Any], branch: AsyncIterator[Any]) -> list[Any]:
    return await collect(branch)


async def test_branches_and_message_come_out_of_one_reply() -> None:
    """The everyday fork: text shown, calls handed on, the message assembled."""

    async def body(node: Node[Any]) -> tuple[str, list[Any], Message]:
        reply = fork(node, Source(*CALL), to_user="to_user")
        text = node.call_handler(collected(reply.text))
        calls = node.call_handler(collected(reply.tool_calls))
        message = await reply.message
        assert message is await reply.message
        return "".join(await text), await calls, message

    text, calls, message = await run(body)

    assert text == "Wait.\nLooking"
    assert [(c.id, c.name, c.arguments) for c in calls] == [("a", "f", {"x": 1})]
    assert message == Message(
        role="assistant",
        content="Wait.",
        tool_calls=[
            ToolCall(
                id="a",
                name="f",
                arguments={"to_user": "Looking", "x": 1},
                raw='{"to_user": "Looking", "x": 1}',
            )
        ],
        usage=Usage(input_tokens=3, output_tokens=4),
        finish_reason="tool_calls",
    )


async def test_branches_may_be_read_one_after_the_other_or_not_at_all() -> None:
    """F5: a limit of one character, and no order of reading gets stuck."""

    async def body(node: Node[Any]) -> None:
        for order in ("tcm", "ctm", "mct", "m", "c", "t", "tmc", ""):
            reply = fork(node, Source(*CALL, *CALL[:1] * 9), limit=1)
            for branch in order:
                if branch == "t":
                    assert len(await collect(reply.text)) == 10
                elif branch == "c":
                    assert len(await collect(reply.tool_calls)) == 1
                else:
                    await reply.message

    await run(body)


async def test_the_first_item_of_each_branch_may_be_read_before_the_rest_of_any() -> None:
    """F5: a reader that waits for another branch holds nothing back, whatever it has left."""

    async def body(node: Node[Any]) -> None:
        reply = fork(node, Source(*CALL[:1] * 50, *CALL), limit=10)
        first = await anext(reply.text)
        call = await anext(reply.tool_calls)
        assert (first, call.name) == ("Wait.", "f")
        await reply.message

    await run(body)


async def test_a_reader_that_waits_for_a_node_or_has_ended_holds_nothing_back() -> None:
    """F5: the node may itself need the rest of the reply, as one that waits for the message."""

    @handler
    async def whole(_: Node[Any], reply: Reply) -> Message:
        return await reply.message

    @handler
    async def glance(_: Node[Any], branch: AsyncIterator[str]) -> str:
        return await anext(branch)

    async def body(node: Node[Any]) -> None:
        reply = fork(node, Source(*CALL[:1] * 50, *CALL), limit=10)
        await anext(reply.text)
        await whole(reply)
        reply = fork(node, Source(*CALL[:1] * 50, *CALL), limit=10)
        await node.call_handler(glance(reply.text))
        await reply.message

    await run(body)


async def test_a_slow_reader_holds_the_source_back_at_the_limit() -> None:
    """F5: no more than the limit and one delta lie in the buffer of a branch that is read."""

    async def body(node: Node[Any]) -> None:
        source = Source(*[Delta("x" * 10)] * 200, Delta(finish_reason="stop"))
        reply = fork(node, source, limit=100)
        read = 0

        async def slow() -> None:
            nonlocal read
            async for _ in reply.text:
                read += 1
                await turns(20)
                assert source.given - read <= 12

        slow_reader = asyncio.create_task(slow())
        assert (await reply.message).content == "x" * 2000
        await slow_reader

    await run(body)


async def test_a_branch_nobody_has_read_never_holds() -> None:
    """F5: it keeps what came for whoever reads it later."""

    async def body(node: Node[Any]) -> int:
        reply = fork(node, Source(*[Delta("x" * 10)] * 200, Delta(done=True)), limit=1)
        await reply.message
        return len("".join(await collect(reply.text)))

    assert await run(body) == 2000


@pytest.mark.parametrize("after", [0, 1, 3, 5])
async def test_a_failure_of_the_source_reaches_every_branch_after_what_came(after: int) -> None:
    """F6: nobody hangs, whether it fails first, in the middle or last."""
    failure = ValueError("broken")

    async def body(node: Node[Any]) -> list[str]:
        reply = fork(node, Source(*CALL[:after], failure=failure))
        seen: list[str] = []
        with pytest.raises(ValueError, match="broken") as raised:
            async for text in reply.text:
                seen += [text]
        assert raised.value is failure
        for branch in (reply.text, reply.reasoning, reply.tool_calls, reply.tool_call_deltas):
            with pytest.raises(ValueError, match="broken"):
                await collect(branch)
        with pytest.raises(ValueError, match="broken"):
            await reply.message
        return seen

    assert await run(body) == (["Wait."] if after else [])


async def test_a_failure_that_nobody_takes_fails_the_node() -> None:
    """F6: at the join, and not before: the body may still take it."""

    async def body(node: Node[Any]) -> None:
        fork(node, Source(failure=ValueError("broken")))

    with pytest.raises(ValueError, match="broken"):
        await run(body)


async def test_the_end_without_a_finish_reason_is_an_interruption() -> None:
    """F3: with neither a finish reason nor the end mark; the partial message has no calls."""

    async def body(node: Node[Any]) -> Message | None:
        reply = fork(node, Source(*CALL[:-1]), to_user="to_user")
        with pytest.raises(StreamInterrupted) as raised:
            await reply.message
        assert raised.value.partial == reply.partial
        return reply.partial

    partial = await run(body)

    assert partial == Message(role="assistant", content="Wait.\nLooking")


async def test_the_end_mark_without_a_finish_reason_is_a_whole_reply() -> None:
    """F3: `[DONE]` is enough."""

    async def body(node: Node[Any]) -> Message:
        return await fork(node, Source(Delta("Hi"), Delta(done=True))).message

    assert await run(body) == Message(role="assistant", content="Hi")


async def test_cancelling_the_node_closes_the_source() -> None:
    """F6: and whoever reads from outside learns of it."""
    source = Source(*CALL * 1000)
    forked: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def body(node: Node[Any]) -> None:
        reply = fork(node, source)
        await anext(reply.text)
        forked.set_result(reply)
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE), Commander() as commander:
        node = commander.call_handler(Body(body))
        reply = await forked
        node.cancel("enough")
        with pytest.raises(NodeCancelled):
            await collect(reply.text)
        with pytest.raises(NodeCancelled):
            await reply.message
        assert reply.partial is not None
    assert source.closed


async def test_a_source_that_was_never_read_is_closed_too() -> None:
    """F6: the pump may be cancelled before its body ran."""
    source = Source(*CALL)

    async def body(node: Node[Any]) -> None:
        fork(node, source)
        node.cancel()

    with pytest.raises(NodeCancelled):
        await run(body)
    assert (source.given, source.closed) == (0, True)


async def test_the_pump_reads_to_the_end_though_the_body_has_returned() -> None:
    """F6: nobody reads, nothing hangs."""
    source = Source(*CALL)

    async def body(node: Node[Any]) -> Reply:
        return fork(node, source, limit=1)

    reply = await run(body)

    assert (source.given, source.closed) == (len(CALL), True)
    assert len(await collect(reply.tool_calls)) == 1


async def test_aclose_stops_the_pump_and_ends_the_branches() -> None:
    """F6: what came can still be read; the message is refused; closing twice is harmless."""
    source = Source(Delta("Hi"), *CALL * 1000)

    async def body(node: Node[Any]) -> list[str]:
        reply = fork(node, source)
        first = await anext(reply.text)
        await reply.aclose()
        await reply.aclose()
        with pytest.raises(StreamInterrupted) as raised:
            await reply.message
        assert raised.value.partial.content.startswith("Hi")
        return [first, *await collect(reply.text)]

    assert (await run(body))[0] == "Hi"
    assert source.closed
    assert source.given < 1000


@pytest.mark.parametrize("failure", [None, ValueError("broken")])
async def test_callbacks_run_at_the_first_delta_and_at_the_end(failure: Exception | None) -> None:
    """Plain or async; a failure is an end too."""
    seen: list[str] = []

    async def last(_: Reply) -> None:
        await asyncio.sleep(0)
        seen.append("last")

    async def body(node: Node[Any]) -> None:
        reply = fork(node, Source(*CALL, failure=failure))
        reply.at_first(lambda _: seen.append("first")).at_last(last)
        with suppress(ValueError):
            async for text in reply.text:
                seen.append(text)  # noqa: PERF401 - what came before the failure counts

    await run(body)
    assert seen == ["first", "Wait.", "last"]


async def test_a_repair_makes_a_faulty_call_whole() -> None:
    """The hook sees the raw text; what was repaired is on the call."""
    broken = [Delta(tool_calls=[ToolCallDelta(0, "a", "f", "{'x': 1}")]), Delta(done=True)]

    async def by_text(error: ToolCallError) -> str:
        return error.raw.replace("'", '"')

    async def body(node: Node[Any]) -> None:
        for repair in (by_text, lambda _: {"x": 1}):
            reply = fork(node, Source(*broken), repair=repair)
            (call,) = await collect(reply.tool_calls)
            assert (call.arguments, call.repaired, call.raw) == ({"x": 1}, True, "{'x': 1}")
            (sent,) = (await reply.message).tool_calls
            assert sent.to_wire()["function"]["arguments"] == '{"x": 1}'
        for repair in (lambda _: None, lambda _: "still broken"):
            (error,) = await collect(fork(node, Source(*broken), repair=repair).tool_calls)
            assert isinstance(error, ToolCallError)

    await run(body)


async def test_a_repair_that_raises_fails_the_reply() -> None:
    """An error in the hook is not hidden."""
    broken = [Delta(tool_calls=[ToolCallDelta(0, "a", "f", "{")]), Delta(done=True)]

    def repair(_: ToolCallError) -> str:
        raise ZeroDivisionError

    async def body(node: Node[Any]) -> None:
        await collect(fork(node, Source(*broken), repair=repair).tool_calls)

    with pytest.raises(ZeroDivisionError):
        await run(body)


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
    """Async or blocking, deltas, JSON or SDK objects, or an awaitable that gives one of these."""

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

    await run(body)


async def test_what_is_no_source_is_refused_at_once() -> None:
    """A `TypeError` for what cannot be read, a `BadResponse` for what it gives."""

    async def body(node: Node[Any]) -> None:
        with pytest.raises(TypeError, match="iterable"):
            fork(node, None)  # type: ignore[arg-type]
        with pytest.raises(BadResponse):
            await fork(node, [1]).message

    await run(body)


async def test_a_blocking_source_is_read_in_a_thread_and_its_failure_is_raised() -> None:
    """The loop goes on; the thread is not the loop's."""
    threads: list[int] = []

    def blocking() -> Iterator[Delta]:
        threads.append(threading.get_ident())
        yield Delta("Hi")
        raise ValueError("broken")

    async def body(node: Node[Any]) -> None:
        with pytest.raises(ValueError, match="broken"):
            await fork(node, blocking()).message

    await run(body)
    assert threads != [threading.get_ident()]


async def test_cancelling_reaches_a_blocking_source() -> None:
    """An endless generator is closed; an iterator with `close` is told, even while it blocks."""

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
            self.released.wait(PATIENCE)
            ended.append("blocked")

        def close(self) -> None:
            self.released.set()

    ended: list[str] = []

    async def body(node: Node[Any]) -> None:
        for source in (endless(), Blocked()):
            reply = fork(node, source)
            await anext(reply.text)
            await reply.aclose()

    await run(body)
    assert ended == ["generator", "blocked"]


async def test_a_source_that_never_waits_does_not_keep_the_loop_to_itself() -> None:
    """An endless source can be stopped, though nobody reads it and it never suspends."""

    async def endless() -> AsyncIterator[Delta]:
        while True:
            yield Delta("x")

    async def body(node: Node[Any]) -> None:
        reply = fork(node, endless())
        await asyncio.sleep(0)
        await reply.aclose()

    await run(body)


async def test_the_pump_leaves_no_task_behind() -> None:
    """T7 holds for forks too."""

    async def body(node: Node[Any]) -> None:
        reply = fork(node, Source(*CALL))
        await reply.message

    await run(body)
    assert asyncio.all_tasks() == {asyncio.current_task()}
