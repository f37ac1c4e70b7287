"""Shrunk failures that the model-based test has found."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.waiting import settle_loop, turn_until

from anabranch.commander import Commander, Node, Retry, current_node
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job


@handler
async def wait(node: Node[Any]) -> None:
    await asyncio.Event().wait()


@handler
async def leaf(node: Node[Any], value: str = "done") -> str:
    return value


@handler
async def fails(node: Node[Any], error: Exception) -> None:
    raise error


class Leaf(Job[str]):
    async def task(self) -> str:
        return "done"


async def test_a_task_cancelled_before_its_first_step_ends_its_node_once() -> None:
    """A cancel of every task of the loop started the pending node a second time."""
    ended: list[str] = []
    async with Commander() as commander:
        node = commander.call_handler(wait()).at_done(lambda node: ended.append(node.state))
        assert record_of(node).task is not None
        record_of(node).task.cancel()
    assert node.state == "cancelled"
    assert ended == ["joining"]


async def test_a_cancel_before_an_async_callback_has_begun_does_not_lose_the_node() -> None:
    """The cancel met the callback's task before its first step, and the node never ended."""
    steps: list[str] = []

    async def slow(node: Node[Any]) -> None:
        steps.append("begun")
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(leaf()).at_end(slow)
        await turn_until(lambda: node.state == "joining")
        node.cancel()
    assert steps == ["begun"]
    assert node.state == "cancelled"


async def test_a_node_cancelled_before_its_body_is_the_current_node_in_its_callbacks() -> None:
    """Callbacks run in the node's own context, whether or not its body has begun."""
    seen: list[Node[Any]] = []
    async with Commander() as commander:
        node = commander.call_handler(wait()).at_terminate(lambda node: seen.append(current_node()))
        node.cancel()
    assert seen == [node]


async def test_a_node_that_its_own_async_callback_cancels_keeps_no_result() -> None:
    """No later await of the callback could raise the cancellation."""

    async def cancel(node: Node[Any]) -> None:
        node.cancel()

    async with Commander() as commander:
        node = commander.call_handler(leaf()).at_end(cancel)
    assert (node.state, node.result) == ("cancelled", None)


async def test_of_several_start_callbacks_that_raise_none_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first error fails the node, the others are logged."""

    def raises(text: str) -> Any:
        def callback(node: Node[Any]) -> None:
            raise ValueError(text)

        return callback

    async with Commander() as commander:
        node = leaf().at_start(raises("first")).at_start(raises("second"))
        with pytest.raises(ValueError, match="first"):
            await commander.run(node)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["second"]


async def test_a_start_callback_s_failure_is_logged_if_the_next_one_is_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cancellation ended the node before the failure could."""

    def raises(node: Node[Any]) -> None:
        raise ValueError("early")

    async def cancels(node: Node[Any]) -> None:
        node.cancel()
        await asyncio.sleep(0)

    async with Commander() as commander:
        commander.call_handler(leaf()).at_start(raises).at_start(cancels)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["early"]


async def test_a_failure_beside_one_that_leaves_the_block_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The block's exception propagates unchanged, and the tree's own failure is logged."""
    with pytest.raises(KeyError, match="block"):
        async with Commander(policy="collect") as commander:
            commander.call_handler(fails(ValueError("child")))
            await settle_loop()
            raise KeyError("block")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    group = record.exc_info[1]
    assert isinstance(group, ExceptionGroup)
    assert group.exceptions[0].args == ("child",)


def test_a_loop_closed_under_the_block_lets_go_of_it() -> None:
    """A closed loop leaves nothing to wait for. The collector's `GeneratorExit` was ignored."""

    async def block() -> None:
        async with Commander(slow_after=None) as commander:
            await commander.run(wait())

    loop = asyncio.new_event_loop()
    coroutine = block()
    task = loop.create_task(coroutine)
    for _ in range(4):
        loop.call_soon(loop.stop)
        loop.run_forever()
    for left in asyncio.all_tasks(loop):
        left._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    coroutine.close()
    del task


async def test_a_job_whose_child_fails_before_it_starts_does_not_run_its_body() -> None:
    """The job ends with its child's failure at its first turn."""
    ran: list[str] = []

    class Body(Job[None]):
        async def task(self) -> None:
            ran.append("body")

    @handler
    async def holds(node: Node[Any], gate: asyncio.Event) -> None:
        await gate.wait()

    class Holds(Job[None]):
        gate: asyncio.Event

        async def task(self) -> None:
            await self.gate.wait()

    gate = asyncio.Event()
    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        commander.put_job(Holds(gate))
        job = commander.put_job(Body())
        child = job.call_handler(fails(ValueError("early")))
        await settle_loop()
        assert child.state == "failed"
        gate.set()
    assert isinstance(job.error, ValueError)
    assert ran == []


async def test_a_child_that_fails_before_its_parent_has_begun_uses_up_an_attempt() -> None:
    """With `within=`, the retry lacked a first attempt to count the time from."""
    async with Commander() as commander:
        job = commander.put_job(Leaf(), retry=Retry(attempts=2, within=60))
        job.call_handler(fails(ValueError("early")))
        await asyncio.sleep(0)
    assert job.state == "completed"
