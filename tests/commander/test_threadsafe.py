"""Calls from other threads: futures of the thread-safe calls, and refusals of the others."""

import asyncio
import concurrent.futures as cf
import random
import signal
import threading
from contextlib import suppress

import pytest
from support.nodes import Idle, fail, give, hang
from support.seeds import example_count, seeds
from support.waiting import settle_loop, wait_until

from anabranch.commander import Commander, NodeCancelled, NodeClosed, current_node, run
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T15")


async def in_thread(function, *args):
    """Run a function in a thread outside any tree."""
    with cf.ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, function, *args)


# --- futures


async def test_wait_and_as_completed_see_a_future_that_was_cancelled():
    """The cancel comes before the node starts, while it runs, or from two threads at once."""
    async with asyncio.timeout(10), Commander() as commander:

        def ask():
            futures = [commander.call_handler_threadsafe(hang()) for _ in range(3)]
            together = threading.Barrier(2)

            def cancel():
                together.wait(5)
                return [future.cancel() for future in futures]

            with cf.ThreadPoolExecutor(2) as pool:
                answers = [pool.submit(cancel) for _ in range(2)]
                assert [answer.result(5) for answer in answers] == [[True] * 3] * 2
            assert cf.wait(futures, 5).done == {*futures}
            assert {*cf.as_completed(futures, 5)} == {*futures}

        await in_thread(ask)


async def test_a_callback_that_raises_disturbs_neither_the_others_nor_the_node(caplog):
    """The future ends by its node or by a cancel. The error is logged, as the library documents."""

    def raises(_):
        raise ValueError("a callback")

    async with asyncio.timeout(5), Commander() as commander:
        seen = []
        for ends in (True, False):
            node = give() if ends else hang()
            future = commander.call_handler_threadsafe(node)
            for callback in (raises, seen.append, raises):
                future.add_done_callback(callback)
            if not ends:
                await wait_until(lambda node=node: node.state == "running")
                assert await in_thread(future.cancel)
            await wait_until(lambda node=node: node.state in ("completed", "cancelled"))
            await settle_loop()
            assert seen.pop() is future
            assert node.state == ("completed" if ends else "cancelled")
    assert caplog.text.count("ValueError: a callback") == 4


@pytest.mark.parametrize("seed", seeds(example_count(8, 40)))
async def test_futures_are_as_documented_however_threads_use_them(seed, caplog):
    """Four threads ask, wait, cancel and add callbacks at random. Some callbacks raise."""
    make = random.Random(seed)
    kinds = {"give": give, "fail": lambda: fail(ValueError()), "hang": hang, "idle": Idle}
    called, answers = [], []

    def use(number):
        draw = random.Random(f"{seed} {number}")
        for _ in range(30):
            index = draw.randrange(len(futures))
            future = futures[index]
            what = draw.randrange(5)
            if what == 0 and draw.random() < 0.3:
                answers.append((future, future.cancel()))
            elif what == 1:
                with suppress(ValueError, TimeoutError, cf.CancelledError, NodeCancelled):
                    future.result(draw.choice([0, 0.001]))
            elif what == 2:
                token, raises = object(), draw.random() < 0.3
                called.append(token)

                def callback(done, token=token, raising=raises):
                    assert done.done()
                    called.remove(token)  # a second call would raise, and be logged
                    if raising:
                        raise KeyError("meant")

                future.add_done_callback(callback)
            elif what == 3:
                cf.wait(draw.sample(futures, 3), draw.choice([0, 0.001]), cf.FIRST_COMPLETED)
            else:
                assert not future.running()
                assert future.done() or not future.cancelled()

    async with asyncio.timeout(20), Commander(max_concurrency=2) as commander:
        nodes = [kinds[make.choice([*kinds])]() for _ in range(12)]

        def ask():
            return [
                (commander.put_job_threadsafe if isinstance(node, Idle) else
                 commander.call_handler_threadsafe)(node)
                for node in nodes
            ]  # fmt: skip

        futures = await in_thread(ask)
        await asyncio.gather(*(in_thread(use, number) for number in range(4)))
        commander.exit()
        done, pending = await in_thread(cf.wait, futures, 10)
    assert not pending
    assert {*cf.as_completed(futures, 0)} == done == {*futures}
    assert called == []
    for future, node in zip(futures, nodes, strict=True):
        said = [answer for which, answer in answers if which is future]
        assert all(said) if future.cancelled() else not any(said)
        if future.cancelled():
            assert node.state in ("pending", "cancelled", "completed", "failed")
            continue
        error = future.exception(0)
        assert node.state == {type(None): "completed", ValueError: "failed"}.get(
            type(error), "cancelled"
        )
    assert all("KeyError: 'meant'" in record.exc_text for record in caplog.records
               if record.name == "concurrent.futures")  # fmt: skip


def test_no_future_is_left_without_an_answer_when_the_loop_ends():
    """Threads put without pause while `run` ends. Each put is answered or refused."""
    for _ in range(20):
        commanders, futures, over = [], [], threading.Event()

        @handler
        async def opens(node, commanders=commanders):
            commanders.append(node.commander)

        def put(commanders=commanders, futures=futures, over=over):
            while not over.wait(0):
                if commanders:
                    try:
                        futures.append(commanders[0].put_job_threadsafe(Idle()))
                    except NodeClosed:
                        return

        threads = [threading.Thread(target=put) for _ in range(2)]
        for thread in threads:
            thread.start()
        run(opens())
        for thread in threads:
            thread.join(5)
            over.set()
        assert not cf.wait(futures, 5).not_done
        assert {type(future.exception(0)) for future in futures} <= {type(None), NodeClosed}


async def test_what_is_unanswered_at_the_commanders_end_is_answered_there():
    """The put comes too late for the loop. The job never enters the tree."""
    late, futures = Idle(), []
    async with asyncio.timeout(5), Commander() as commander:
        node = give().at_commander_end(lambda _: futures.append(commander.put_job_threadsafe(late)))
        await commander.run(node)
    assert isinstance(futures[0].exception(0), NodeClosed)
    await settle_loop()
    assert (late.state, late.parent) == ("pending", None)
    with pytest.raises(NodeClosed):
        commander.put_job_threadsafe(late)


def test_a_future_can_be_cancelled_when_its_loop_was_closed():
    """The cancel reaches no node. Threads that wait for the future continue."""

    async def opened():
        await commander.__aenter__()

    loop, commander = asyncio.new_event_loop(), Commander(slow_after=None)
    loop.run_until_complete(opened())
    future = commander.put_job_threadsafe(Idle())
    loop.close()
    assert future.cancel()
    assert cf.wait([future], 0).done


def test_a_run_that_is_abandoned_answers_those_who_wait():
    """A body calls `sys.exit` while a node that another thread put is running."""
    futures, running = [], asyncio.Event()

    @handler
    async def leaves(node):
        thread = threading.Thread(
            target=lambda: futures.append(node.commander.call_handler_threadsafe(hang(running)))
        )
        thread.start()
        await running.wait()
        thread.join()
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run(leaves())
    assert isinstance(futures[0].exception(5), (NodeClosed, NodeCancelled))


# --- exit and cancel from other threads


async def test_exit_threadsafe_wakes_the_loop_and_leaves():
    """The loop is otherwise idle. Pending runs return the result."""
    async with asyncio.timeout(5), Commander() as commander:
        asked = asyncio.create_task(commander.run(hang()))
        await settle_loop()
        await in_thread(commander.exit_threadsafe, "left")
        assert await asked == "left"
    commander.exit_threadsafe()  # ignored after the commander's end


async def test_cancel_threadsafe_cancels_a_node_or_the_whole_tree():
    """The cancel has a reason, and reaches a node that was put immediately before."""
    async with asyncio.timeout(5):
        with pytest.raises(NodeCancelled, match="all of it"):
            async with Commander() as commander:
                one, other = commander.call_handler(hang()), commander.call_handler(hang())
                third = hang()

                def cancel():
                    commander.cancel_threadsafe(one, reason="this one")
                    future = commander.call_handler_threadsafe(third)
                    commander.cancel_threadsafe(third)  # cancelled after the put
                    with pytest.raises(NodeCancelled):
                        future.result(5)

                await in_thread(cancel)
                with pytest.raises(NodeCancelled, match="this one"):
                    await one
                assert other.state == "running"
                await in_thread(lambda: commander.cancel_threadsafe(reason="all of it"))
                await asyncio.Event().wait()
    assert other.state == "cancelled"


async def test_cancel_threadsafe_refuses_what_it_cannot_cancel():
    """A reason in place of a node, a node of another tree and an unstarted commander are errors."""
    async with asyncio.timeout(5), Commander() as commander, Commander() as other:
        node = other.call_handler(give())
        with pytest.raises(TypeError, match="reason="):
            commander.cancel_threadsafe("a reason")
        with pytest.raises(RuntimeError, match="tree"):
            commander.cancel_threadsafe(node)
    for call in (Commander().cancel_threadsafe, Commander().exit_threadsafe):
        with pytest.raises(RuntimeError, match="async with"):
            call()


CALLS = {
    "put_job": (lambda node: node.put_job(Idle()), "commander.put_job_threadsafe"),
    "call_handler": (lambda node: node.call_handler(give()), "commander.call_handler_threadsafe"),
    "in_thread": (lambda node: node.in_thread(int), "commander.call_handler_threadsafe"),
    "in_process": (lambda node: node.in_process(int), "commander.call_handler_threadsafe"),
    "cancel": (lambda node: node.cancel(), "commander.cancel_threadsafe"),
    "exit": (lambda node: node.commander.exit(), "commander.exit_threadsafe"),
    "recover": (lambda node: node.recover(1), "at_exception"),
    "drain": (lambda node: node.commander.drain().send(None), "run_coroutine_threadsafe"),
    "events": (lambda node: anext(node.commander.events()).send(None), "listener on that loop"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("place", ["plain thread", "loop of another thread", "in_thread"])
async def test_what_changes_the_tree_is_refused_elsewhere_and_the_safe_way_named(call, place):
    """The tree is unchanged: the node runs on without children, and its commander stays open."""
    attempt, named = CALLS[call]

    def refused(node):
        with pytest.raises(RuntimeError) as caught:
            attempt(node)
        assert named in str(caught.value)
        assert "belongs to another thread's event loop" in str(caught.value)
        return True

    async def main(node):
        return refused(node)

    async with asyncio.timeout(10), Commander() as commander:
        node = commander.call_handler(hang())
        await settle_loop()
        if place == "in_thread":
            assert await commander.in_thread(refused, node)
        elif place == "plain thread":
            assert await in_thread(refused, node)
        else:
            assert await in_thread(asyncio.run, main(node))
        assert (node.state, node.children) == ("running", ())
        assert commander.children == (node,)
        commander.put_job(Idle())
        node.cancel()


def test_the_trees_own_thread_may_cancel_with_no_task_running():
    """Callbacks of the loop and signal handlers may cancel, also while the loop is stopped."""

    async def opened():
        await commander.__aenter__()
        nodes.extend(commander.call_handler(hang()) for _ in range(4))
        await settle_loop()

    async def left():
        await commander.__aexit__(None, None, None)

    def handled(*_):
        assert current_loop() is loop
        nodes[1].cancel("by signal")

    current_loop = asyncio.get_running_loop
    loop, nodes, commander = asyncio.new_event_loop(), [], Commander()
    loop.run_until_complete(opened())
    nodes[0].cancel("standing still")
    before = signal.signal(signal.SIGUSR1, handled)
    try:
        loop.call_soon(nodes[2].cancel, "by callback")
        loop.call_soon(signal.raise_signal, signal.SIGUSR1)
        loop.call_later(0, commander.exit)
        loop.run_until_complete(left())
    finally:
        signal.signal(signal.SIGUSR1, before)
        loop.close()
    reasons = [node.error.reason for node in nodes]
    assert reasons == ["standing still", "by signal", "by callback", "exit"]


async def test_a_body_of_another_tree_is_elsewhere_too():
    """The body runs on another loop, so it must use the thread-safe calls."""
    refused = []

    @handler
    async def stranger(node, other):
        try:
            other.cancel()
        except RuntimeError as error:
            refused.append(str(error))
        assert current_node() is node

    async with asyncio.timeout(10), Commander() as commander:
        node = commander.call_handler(hang())
        await in_thread(run, stranger(node))
        assert node.state == "running"
        node.cancel()
    assert "cancel_threadsafe" in refused[0]
