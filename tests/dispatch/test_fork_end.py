"""How a fork ends: failures, interruptions, cancellation, the pump (F3, F6)."""

import asyncio
from typing import Any

import pytest
from support.fork import CALL_DELTAS, TIMEOUT_SECONDS, BodyNode, DeltaSource, collect, run_body

from anabranch.commander import Commander, Node, NodeCancelled, StreamInterrupted
from anabranch.dispatch import Reply, fork
from anabranch.messages import Delta, Message


@pytest.mark.contract("F6")
@pytest.mark.parametrize("after", [0, 1, 3, 5])
async def test_a_failure_of_the_source_reaches_every_branch_after_what_came(after: int) -> None:
    """F6: no reader hangs, whether the source fails first, in the middle or last."""
    failure = ValueError("broken")

    async def body(node: Node[Any]) -> list[str]:
        reply = fork(node, DeltaSource(*CALL_DELTAS[:after], failure=failure))
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

    assert await run_body(body) == (["Wait."] if after else [])


@pytest.mark.contract("F6")
async def test_a_failure_that_nobody_takes_fails_the_node() -> None:
    """F6: at the join and not before, because the body may still handle it."""

    async def body(node: Node[Any]) -> None:
        fork(node, DeltaSource(failure=ValueError("broken")))

    with pytest.raises(ValueError, match="broken"):
        await run_body(body)


@pytest.mark.contract("F3")
async def test_the_end_without_a_finish_reason_is_an_interruption() -> None:
    """F3: without a finish reason and an end mark. The partial message contains no calls."""

    async def body(node: Node[Any]) -> Message | None:
        reply = fork(node, DeltaSource(*CALL_DELTAS[:-1]), to_user="to_user")
        with pytest.raises(StreamInterrupted) as raised:
            await reply.message
        assert raised.value.partial == reply.partial
        return reply.partial

    partial = await run_body(body)

    assert partial == Message(role="assistant", content="Wait.\nLooking")


@pytest.mark.contract("F3")
async def test_the_end_mark_without_a_finish_reason_is_a_whole_reply() -> None:
    """F3: `[DONE]` is sufficient."""

    async def body(node: Node[Any]) -> Message:
        return await fork(node, DeltaSource(Delta("Hi"), Delta(done=True))).message

    assert await run_body(body) == Message(role="assistant", content="Hi")


@pytest.mark.contract("F6")
async def test_cancelling_the_node_closes_the_source() -> None:
    """F6: readers outside the node get `NodeCancelled`."""
    source = DeltaSource(*CALL_DELTAS * 1000)
    forked: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def body(node: Node[Any]) -> None:
        reply = fork(node, source)
        await anext(reply.text)
        forked.set_result(reply)
        await asyncio.Event().wait()

    async with asyncio.timeout(TIMEOUT_SECONDS), Commander() as commander:
        node = commander.call_handler(BodyNode(body))
        reply = await forked
        node.cancel("enough")
        with pytest.raises(NodeCancelled):
            await collect(reply.text)
        with pytest.raises(NodeCancelled):
            await reply.message
        assert reply.partial is not None
    assert source.closed


@pytest.mark.contract("F6")
async def test_a_source_that_was_never_read_is_closed_too() -> None:
    """F6: the pump may be cancelled before its body starts."""
    source = DeltaSource(*CALL_DELTAS)

    async def body(node: Node[Any]) -> None:
        fork(node, source)
        node.cancel()

    with pytest.raises(NodeCancelled):
        await run_body(body)
    assert (source.given, source.closed) == (0, True)


@pytest.mark.contract("F6")
async def test_the_pump_reads_to_the_end_though_the_body_has_returned() -> None:
    """F6: without readers the fork still ends."""
    source = DeltaSource(*CALL_DELTAS)

    async def body(node: Node[Any]) -> Reply:
        return fork(node, source, limit=1)

    reply = await run_body(body)

    assert (source.given, source.closed) == (len(CALL_DELTAS), True)
    assert len(await collect(reply.tool_calls)) == 1


@pytest.mark.contract("F6")
async def test_aclose_stops_the_pump_and_ends_the_branches() -> None:
    """F6: buffered items can be read, the message raises, and a second close does nothing."""
    source = DeltaSource(Delta("Hi"), *CALL_DELTAS * 1000)

    async def body(node: Node[Any]) -> list[str]:
        reply = fork(node, source)
        first = await anext(reply.text)
        await reply.aclose()
        await reply.aclose()
        with pytest.raises(StreamInterrupted) as raised:
            await reply.message
        assert raised.value.partial.content.startswith("Hi")
        return [first, *await collect(reply.text)]

    assert (await run_body(body))[0] == "Hi"
    assert source.closed
    assert source.given < 1000


@pytest.mark.contract("F6")
async def test_the_pump_leaves_no_task_behind() -> None:
    """T7 holds for forks too."""

    async def body(node: Node[Any]) -> None:
        reply = fork(node, DeltaSource(*CALL_DELTAS))
        await reply.message

    await run_body(body)
    assert asyncio.all_tasks() == {asyncio.current_task()}
