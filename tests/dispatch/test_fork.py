"""Forks in the tree: branches, backpressure, callbacks, repair (F3, F5, F6)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from support.fork import CALL_DELTAS, DeltaSource, collect, collect_in_handler, run_body
from support.waiting import run_turns

from anabranch.commander import Commander, Node
from anabranch.dispatch import Reply, fork
from anabranch.handlers import handler
from anabranch.messages import Delta, Message, ToolCall, ToolCallDelta, ToolCallError, Usage


@pytest.mark.contract("F6")
async def test_branches_and_message_come_out_of_one_reply() -> None:
    """The usual fork: text is shown, calls are passed on, the message is assembled."""

    async def body(node: Node[Any]) -> tuple[str, list[Any], Message]:
        reply = fork(node, DeltaSource(*CALL_DELTAS), to_user="to_user")
        text = node.call_handler(collect_in_handler(reply.text))
        calls = node.call_handler(collect_in_handler(reply.tool_calls))
        message = await reply.message
        assert message is await reply.message
        return "".join(await text), await calls, message

    text, calls, message = await run_body(body)

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


@pytest.mark.contract("F5")
async def test_branches_may_be_read_one_after_the_other_or_not_at_all() -> None:
    """F5: with a limit of one character, every order of reading completes."""

    async def body(node: Node[Any]) -> None:
        for order in ("tcm", "ctm", "mct", "m", "c", "t", "tmc", ""):
            reply = fork(node, DeltaSource(*CALL_DELTAS, *CALL_DELTAS[:1] * 9), limit=1)
            for branch in order:
                if branch == "t":
                    assert len(await collect(reply.text)) == 10
                elif branch == "c":
                    assert len(await collect(reply.tool_calls)) == 1
                else:
                    await reply.message

    await run_body(body)


@pytest.mark.contract("F5")
async def test_the_first_item_of_each_branch_may_be_read_before_the_rest_of_any() -> None:
    """F5: a reader that waits for another branch does not block it, whatever it has left unread."""

    async def body(node: Node[Any]) -> None:
        reply = fork(node, DeltaSource(*CALL_DELTAS[:1] * 50, *CALL_DELTAS), limit=10)
        first = await anext(reply.text)
        call = await anext(reply.tool_calls)
        assert (first, call.name) == ("Wait.", "f")
        await reply.message

    await run_body(body)


@pytest.mark.contract("F5")
async def test_a_reader_that_waits_for_a_node_or_has_ended_holds_nothing_back() -> None:
    """F5: the node may need the rest of the reply itself, for example to await the message."""

    @handler
    async def whole(_: Node[Any], reply: Reply) -> Message:
        return await reply.message

    @handler
    async def glance(_: Node[Any], branch: AsyncIterator[str]) -> str:
        return await anext(branch)

    async def body(node: Node[Any]) -> None:
        reply = fork(node, DeltaSource(*CALL_DELTAS[:1] * 50, *CALL_DELTAS), limit=10)
        await anext(reply.text)
        await whole(reply)
        reply = fork(node, DeltaSource(*CALL_DELTAS[:1] * 50, *CALL_DELTAS), limit=10)
        await node.call_handler(glance(reply.text))
        await reply.message

    await run_body(body)


@pytest.mark.contract("F5")
async def test_a_slow_reader_holds_the_source_back_at_the_limit() -> None:
    """F5: the buffer of a branch with a reader has at most the limit and one delta."""

    async def body(node: Node[Any]) -> None:
        source = DeltaSource(*[Delta("x" * 10)] * 200, Delta(finish_reason="stop"))
        reply = fork(node, source, limit=100)
        read = 0

        async def slow() -> None:
            nonlocal read
            async for _ in reply.text:
                read += 1
                await run_turns(20)
                assert source.given - read <= 12

        slow_reader = asyncio.create_task(slow())
        assert (await reply.message).content == "x" * 2000
        await slow_reader

    await run_body(body)


@pytest.mark.contract("F5")
async def test_a_branch_nobody_has_read_never_holds() -> None:
    """F5: it buffers all items for a later reader."""

    async def body(node: Node[Any]) -> int:
        reply = fork(node, DeltaSource(*[Delta("x" * 10)] * 200, Delta(done=True)), limit=1)
        await reply.message
        return len("".join(await collect(reply.text)))

    assert await run_body(body) == 2000


@pytest.mark.contract("F6")
@pytest.mark.parametrize("failure", [None, ValueError("broken")])
async def test_callbacks_run_at_the_first_delta_and_at_the_end(failure: Exception | None) -> None:
    """Callbacks may be plain or async. A failure is an end too."""
    seen: list[str] = []

    async def last(_: Reply) -> None:
        await asyncio.sleep(0)
        seen.append("last")

    async def body(node: Node[Any]) -> None:
        reply = fork(node, DeltaSource(*CALL_DELTAS, failure=failure))
        reply.at_first(lambda _: seen.append("first")).at_last(last)
        with suppress(ValueError):
            async for text in reply.text:
                seen.append(text)  # noqa: PERF401 - items before the failure count

    await run_body(body)
    assert seen == ["first", "Wait.", "last"]


@pytest.mark.contract("F3")
async def test_a_repair_makes_a_faulty_call_whole() -> None:
    """The hook gets the raw text. The call has the repaired arguments."""
    broken = [Delta(tool_calls=[ToolCallDelta(0, "a", "f", "{'x': 1}")]), Delta(done=True)]

    async def by_text(error: ToolCallError) -> str:
        return error.raw.replace("'", '"')

    async def body(node: Node[Any]) -> None:
        for repair in (by_text, lambda _: {"x": 1}):
            reply = fork(node, DeltaSource(*broken), repair=repair)
            (call,) = await collect(reply.tool_calls)
            assert (call.arguments, call.repaired, call.raw) == ({"x": 1}, True, "{'x': 1}")
            (sent,) = (await reply.message).tool_calls
            assert sent.to_wire()["function"]["arguments"] == '{"x": 1}'
        for repair in (lambda _: None, lambda _: "still broken"):
            (error,) = await collect(fork(node, DeltaSource(*broken), repair=repair).tool_calls)
            assert isinstance(error, ToolCallError)

    await run_body(body)


@pytest.mark.contract("F3")
async def test_a_repair_that_raises_fails_the_reply() -> None:
    """An error of the hook is raised."""
    broken = [Delta(tool_calls=[ToolCallDelta(0, "a", "f", "{")]), Delta(done=True)]

    def repair(_: ToolCallError) -> str:
        raise ZeroDivisionError

    async def body(node: Node[Any]) -> None:
        await collect(fork(node, DeltaSource(*broken), repair=repair).tool_calls)

    with pytest.raises(ZeroDivisionError):
        await run_body(body)


@pytest.mark.contract("F6")
async def test_reasoning_is_heard_by_those_who_listen_for_it() -> None:
    """Each piece is an event of the node that forked the reply.

    Without a listener no event is made.
    """

    @handler
    async def ask(node: Node[Any], *pieces: str) -> str | None:
        said = [Delta(reasoning=piece) for piece in pieces]
        reply = fork(node, [*said, Delta("So.", finish_reason="stop")])
        return (await reply.message).reasoning

    async with Commander() as commander:
        assert await commander.run(ask("Hm")) == "Hm"
        events = commander.events(["reasoning"])
        node = ask("Hm", "m.")
        assert await commander.run(node) == "Hmm."
        heard = [await anext(events) for _ in range(2)]
        assert [(event.node_id, event.data) for event in heard] == [
            (node.node_id, "Hm"),
            (node.node_id, "m."),
        ]
