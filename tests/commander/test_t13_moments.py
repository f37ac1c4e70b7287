"""T13: user code that changes the tree while a node ends does not break that end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from support.nodes import Idle, fail, give, hang
from support.waiting import settle_loop, wait_until

from anabranch.commander import (
    Commander,
    Node,
    NodeCancelled,
    NodeClosed,
    Retry,
    check_cancelled,
    run,
)
from anabranch.commander._record import record_of
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T13")


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("act", ["exit", "cancel"])
async def test_a_predicate_that_ends_its_node_is_obeyed_at_once(act: str, answer: bool) -> None:
    """The node skips its pause, and only `at_terminate` runs."""
    ran: list[str] = []
    node = fail(ValueError())
    node.at_terminate(lambda node: ran.append("terminate"))
    node.at_exception(lambda node: ran.append("exception"))

    def on(error: BaseException) -> bool:
        commander.exit("left") if act == "exit" else node.cancel()
        return answer

    async with asyncio.timeout(5), Commander() as commander:
        running = commander.run(node, retry=Retry(on=on, backoff=3600, jitter=0))
        if act == "exit":
            assert await running == "left"
        else:
            with pytest.raises(NodeCancelled):
                await running
    assert ran == ["terminate"]


@pytest.mark.parametrize("answer", [True, False])
async def test_a_predicate_puts_no_child_below_its_node(answer: bool) -> None:
    """`NodeClosed` refuses the put, whether or not another attempt follows."""
    alive: list[int] = []
    refused: list[NodeClosed] = []

    @handler
    async def tries(node: Node[Any]) -> None:
        alive.append(len(node.children))
        raise ValueError

    node = tries()

    def on(error: BaseException) -> bool:
        try:
            node.call_handler(hang())
        except NodeClosed as closed:
            refused.append(closed)
        return answer

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(node, retry=Retry(attempts=2, on=on))
    assert len(refused) == 1
    assert alive == [0] * (1 + answer)


@pytest.mark.parametrize("fault", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["child", "threads"])
def test_an_interrupt_leaves_the_parents_clean_up_whole(
    where: str, fault: type[BaseException]
) -> None:
    """The body is cancelled once, although its child fails and then the tree ends."""
    cleaned: list[bool] = []

    @handler
    async def child(node: Node[Any]) -> None:
        await asyncio.sleep(0)
        raise fault

    def blocking() -> None:
        try:
            while True:
                check_cancelled()
        finally:
            raise fault

    def at_once() -> None:
        raise fault

    @handler
    async def parent(node: Node[Any]) -> None:
        threads: list[Node[Any]] = []
        if where == "child":
            node.call_handler(child())
        else:
            threads = [node.in_thread(blocking), node.in_thread(at_once)]
        try:
            await asyncio.Event().wait()
        finally:
            await settle_loop()
            await wait_until(lambda: all(each.state in ("failed", "cancelled") for each in threads))
            cleaned.append(True)

    with pytest.raises(fault):
        run(parent())
    assert cleaned == [True]


async def test_a_cancel_does_not_disturb_the_clean_up_after_a_timeout() -> None:
    """The body is already cancelled by then. The node ends cancelled."""
    cleaned: list[bool] = []
    cleaning = asyncio.Event()

    @handler
    async def careful(node: Node[Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await settle_loop()
            cleaned.append(True)

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(careful(), timeout=0, claim=True)
        await cleaning.wait()
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
    assert cleaned == [True]


@pytest.mark.parametrize("act", ["exit", "cancel"])
def test_a_signal_handlers_plain_call_wakes_a_loop_that_sleeps(act: str) -> None:
    """The loop is not notified of the signal, so only the call can wake it."""

    @handler
    async def waits(node: Node[Any]) -> None:
        commander = node.commander

        def act_now(*_: object) -> None:
            commander.exit("left") if act == "exit" else node.cancel()

        signal.signal(signal.SIGUSR1, act_now)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        await asyncio.sleep(5)
        pytest.fail("the loop slept on")

    before = signal.getsignal(signal.SIGUSR1)
    try:
        if act == "exit":
            assert run(waits(), slow_after=None) == "left"
        else:
            with pytest.raises(NodeCancelled):
                run(waits(), slow_after=None)
    finally:
        signal.signal(signal.SIGUSR1, before)


class StubbornTask(asyncio.Task[Any]):
    """A task that its own method cannot cancel."""

    def cancel(self, msg: Any = None) -> bool:
        raise ValueError("no")


class Closed(asyncio.Task[Any]):
    """A task that accepts no callbacks."""

    def add_done_callback(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("no")


@pytest.mark.parametrize("kind", [StubbornTask, Closed])
async def test_odd_tasks_of_a_factory_end_as_others_do(kind: type[asyncio.Task[Any]]) -> None:
    """Tasks that refuse a cancel or a callback end normally."""
    loop = asyncio.get_running_loop()
    own = asyncio.current_task()

    def factory(loop: Any, body: Any, **options: Any) -> asyncio.Task[Any]:
        node_task = body.__qualname__ == "_drive"
        return (kind if node_task else asyncio.Task)(body, loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        async with Commander() as commander:
            node = commander.call_handler(hang(), timeout=0.001, claim=True)
            with pytest.raises(TimeoutError):
                await node
            assert await commander.run(give("given")) == "given"
    finally:
        loop.set_task_factory(None)
    assert asyncio.current_task() is own


async def test_a_factory_that_raises_into_a_body_uses_up_its_attempts() -> None:
    """The body itself does not begin in any of the attempts."""
    loop = asyncio.get_running_loop()
    thrown: list[int] = []

    def factory(loop: Any, body: Any, **options: Any) -> asyncio.Task[Any]:
        async def throws() -> None:
            body.send(None)
            thrown.append(1)
            try:
                body.throw(ValueError())
            except StopIteration:
                return

        return asyncio.Task(throws(), loop=loop, **options)

    async with asyncio.timeout(5):
        loop.set_task_factory(factory)
        try:
            async with Commander() as commander:
                with pytest.raises(ValueError):
                    await commander.run(give(), retry=Retry(attempts=3))
        finally:
            loop.set_task_factory(None)
    assert len(thrown) == 3


@pytest.mark.parametrize("fault", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_futures_callback_keeps_no_other_future_unanswered(fault: type[BaseException]) -> None:
    """Each future that is open at the end is answered there."""

    def boom(future: Future[Any]) -> None:
        raise fault

    async def main() -> Commander:
        async with Commander() as commander:
            return commander

    loop = asyncio.new_event_loop()
    commander = loop.run_until_complete(main())
    record_of(commander).tree.requests._over = False  # as immediately before the end
    futures = [commander.put_job_threadsafe(Idle()) for _ in range(3)]
    for future in futures:
        future.add_done_callback(boom)
    record_of(commander).tree.requests.close()
    loop.close()
    assert all(type(future.exception(0)) is NodeClosed for future in futures)


async def test_a_drain_from_inside_a_node_cancels_the_others_after_its_timeout() -> None:
    """The calling node continues, and drain returns False."""

    @handler
    async def drains(node: Node[Any]) -> bool:
        return await node.commander.drain(0)

    async with asyncio.timeout(5), Commander() as commander:
        other = commander.call_handler(hang())
        assert await commander.run(drains()) is False
        assert other.state == "cancelled"


async def test_a_drain_that_an_exit_ends_says_so() -> None:
    """drain returns False, because `exit` cancelled nodes."""
    async with asyncio.timeout(5), Commander() as commander:
        commander.call_handler(hang())
        draining = asyncio.create_task(commander.drain())
        await settle_loop()
        commander.exit()
        assert await draining is False


async def test_what_is_no_node_is_refused_by_run() -> None:
    """The `TypeError` names the expected type."""
    for given in (42, None, give):
        with pytest.raises(TypeError, match="not a job or a handler"):
            await Commander().run(given)  # type: ignore[arg-type]


def test_what_is_no_node_is_refused_by_the_blocking_run() -> None:
    """The refusal comes before a loop is made."""
    with pytest.raises(TypeError, match="not a job or a handler"):
        run(42)  # type: ignore[arg-type]


async def test_a_reason_that_is_no_text_cancels_all_the_same() -> None:
    """The call comes from another thread, where an error would go unnoticed."""

    class Mute:
        def __str__(self) -> str:
            raise ValueError

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(hang())
        reason: Any = Mute()
        await asyncio.to_thread(commander.cancel_threadsafe, node, reason=reason)
        with pytest.raises(NodeCancelled) as caught:
            await node
    assert caught.value.reason == "Mute"
