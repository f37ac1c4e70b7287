"""T1: the block of a commander is part of its tree, whoever enters, uses and leaves it."""

import asyncio
import gc
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from weakref import WeakSet

import pytest
import pytest_asyncio
from _nodes import Idle, fail, give, hang, wait_for
from _until import settled
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from anabranch.commander import Commander, NodeCancelled, NodeClosed, current_node, parent_here
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import SeededLoop


@handler
async def name_parent(node):
    return node.parent.name_of_tree


class NameParent(Job[str]):
    async def task(self):
        return self.parent.name_of_tree


class Root(Commander):
    """A commander that is told from others by its children."""

    def __init__(self, name_of_tree="root", **options):
        super().__init__(**options)
        self.name_of_tree = name_of_tree


# --- what stands in the block


async def test_what_is_awaited_in_the_block_is_a_child_of_the_commander():
    """Handlers and jobs, by themselves, in `gather` and in tasks that the block starts."""
    async with asyncio.timeout(5), Root():
        seen = [await name_parent(), await NameParent()]
        seen += await asyncio.gather(name_parent(), NameParent())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_await(name_parent()))
        seen.append(task.result())
    assert len(seen) == 5
    assert {*seen} == {"root"}


async def _await(node):
    return await node


async def test_the_block_sees_and_explains_what_it_awaits():
    """It is in the commander's tree while it runs."""
    async with asyncio.timeout(5), Commander() as commander:
        release = asyncio.Event()
        waiting = asyncio.create_task(_await(wait_for(release)))
        await settled()
        assert [child.path for child in commander.children] == ["Commander/wait_for#1"]
        assert "wait_for#1 is running" in commander.explain()
        release.set()
        await waiting


async def test_what_is_awaited_in_the_block_raises_there_and_nowhere_else():
    """Its failure is handed to the one who awaits it."""
    async with asyncio.timeout(5), Commander(policy="fail_fast"):
        with pytest.raises(ValueError, match="mine"):
            await fail(ValueError("mine"))


async def test_cancelling_the_commander_reaches_what_the_block_awaits():
    """The block sees `CancelledError`, as a body would; whoever leaves it, `NodeCancelled`."""
    node, running = None, asyncio.Event()
    async with asyncio.timeout(5):
        with pytest.raises(NodeCancelled):
            async with Commander() as commander:
                node = hang(running).at_start(lambda _: None)
                asyncio.get_running_loop().call_soon(commander.cancel, "enough")
                with pytest.raises(asyncio.CancelledError):
                    await node
                raise asyncio.CancelledError
    assert node.state == "cancelled"


async def test_awaiting_the_commander_in_its_own_block_is_an_error():
    """Neither could ever end."""
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(RuntimeError, match="itself"):
            await commander


async def test_awaiting_a_node_from_a_block_in_its_body_is_an_error():
    """Also from a node of the inner tree: both wait for each other."""

    @handler
    async def awaits(node, other):
        await other

    @handler
    async def body(node):
        async with Commander():
            with pytest.raises(RuntimeError, match="could ever end"):
                await node
            with pytest.raises(RuntimeError, match="could ever end"):
                await awaits(node)

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(body())


async def test_after_exit_the_block_starts_nothing():
    """It is refused, as everywhere at the top of a tree that ends."""
    async with asyncio.timeout(5), Commander() as commander:
        commander.exit()
        with pytest.raises(NodeClosed):
            await give()


# --- inner blocks


async def test_a_block_in_a_job_gives_the_jobs_slot_to_others():
    """What the block awaits counts as what the body awaits."""

    class Inner(Job[int]):
        async def task(self):
            async with Commander():
                return await wait_and_give(release, 1)

    class Other(Job[int]):
        async def task(self):
            release.set()
            return 2

    @handler
    async def wait_and_give(node, event, value):
        await event.wait()
        return value

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        release = asyncio.Event()
        first, second = commander.put_job(Inner()), commander.put_job(Other())
        assert [await first, await second] == [1, 2]


async def test_a_block_in_a_job_may_put_the_next_round_of_a_tree_that_is_left():
    """As its body may: the round is cancelled, and the job does not fail."""

    class Round(Job[None]):
        async def task(self):
            async with Commander():
                left.set()
                await settled()
                next_round = self.put_job(Idle(), parent=self.commander)
                with pytest.raises(NodeCancelled):
                    await next_round

    left = asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        job = commander.put_job(Round())
        await left.wait()
        assert await commander.drain()
        assert job.state == "completed"


async def test_drain_in_a_block_in_a_job_does_not_wait_for_the_job():
    """It would wait for itself."""

    class Drains(Job[bool]):
        async def task(self):
            async with Commander():
                return await self.commander.drain()

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(Drains())


async def test_a_cancelled_job_sees_cancelled_error_alone_in_its_block():
    """Not what it did to the nodes that its block awaited."""
    seen = []

    @handler
    async def body(node):
        async with Commander() as inner:
            child = inner.call_handler(hang(running))
            try:
                await child
            finally:
                child.cancel()
                try:
                    await child
                except BaseException as error:
                    seen.append(type(error))

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(body())
        await running.wait()
        node.cancel()
    assert seen == [asyncio.CancelledError]


# --- who enters, uses and leaves it


@pytest_asyncio.fixture
async def in_fixture():
    """A commander that is entered in one task, used in another, and left in a third."""
    entered_in = asyncio.current_task()
    async with Root() as commander:
        yield commander, entered_in


async def test_a_fixture_may_hold_the_block(in_fixture):
    """Its nodes are run there, and what is awaited in the test is its child if the test sees it."""
    commander, entered_in = in_fixture
    assert asyncio.current_task() is not entered_in
    assert await commander.run(name_parent()) == "root"
    if parent_here() is not None:  # the plugin hands the fixture's context on, or it does not
        assert await name_parent() == "root"


async def test_a_block_may_be_left_by_any_task_in_any_context():
    """Whoever leaves it waits, and no context keeps a commander that is done as the current one."""
    async with asyncio.timeout(5):
        stack = AsyncExitStack()
        commander = await stack.enter_async_context(Commander())
        node = commander.call_handler(wait_for(release := asyncio.Event()))
        leaving = asyncio.create_task(stack.aclose())
        await settled()
        assert not leaving.done()
        assert current_node() is commander  # it takes children until it is done
        release.set()
        await leaving
    assert node.state == "completed"
    assert parent_here() is None


async def test_a_failure_without_a_user_is_raised_on_leaving():
    """The task that entered has ended, and nobody waits in the block."""
    async with asyncio.timeout(5):
        commander = Commander(policy="fail_fast")
        await asyncio.create_task(commander.__aenter__())
        commander.call_handler(fail(ValueError("lost")))
        await settled()
        with pytest.raises(ValueError, match="lost"):
            await asyncio.create_task(commander.__aexit__(None, None, None))


@pytest.mark.parametrize("end", ["cancel", "failure"])
async def test_an_end_reaches_the_task_that_uses_the_block_now(end):
    """The one that entered has ended: so it is the last one that has awaited a node there."""
    seen = []

    async def use(stack):
        commander = await stack.enter_async_context(Commander(policy="fail_fast"))

        async def work():
            await give()
            ready.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("told")

        return commander, asyncio.create_task(work())

    async with asyncio.timeout(5):
        stack, ready = AsyncExitStack(), asyncio.Event()
        commander, working = await asyncio.create_task(use(stack))
        await ready.wait()
        if end == "cancel":
            commander.cancel()
        else:
            commander.call_handler(fail(ValueError("its child")))
        await asyncio.wait((working,))
        assert seen == ["told"]
        with pytest.raises(NodeCancelled if end == "cancel" else ValueError):
            await stack.aclose()


async def test_a_task_that_outlives_the_block_falls_back_to_what_is_outside():
    """To the outer commander while that lives, then to no tree at all."""
    seen = []

    async def look(gate):
        for _ in range(3):
            await gate.acquire()
            seen.append(parent_here())

    async with asyncio.timeout(5):
        gate = asyncio.Semaphore(0)
        async with Commander() as outer:
            async with Commander() as inner:
                task = asyncio.create_task(look(gate))
                gate.release()
                await settled()
            gate.release()
            await settled()
        gate.release()
        await task
    assert seen == [inner, outer, None]


async def test_a_generator_lends_its_block_to_its_consumer():
    """Between two items the consumer's code is in it; once the generator is closed it is not."""

    async def numbers():
        async with Root() as commander:
            yield commander
            yield commander

    async with asyncio.timeout(5):
        async with aclosing(numbers()) as each:
            commander = await anext(each)
            assert parent_here() is commander
            assert await name_parent() == "root"
        assert parent_here() is None


async def test_a_generator_may_be_closed_by_another_task():
    """It cancels and joins there."""

    async def hold():
        async with Commander() as commander:
            commander.call_handler(hang(running))
            yield commander

    async with asyncio.timeout(5):
        running = asyncio.Event()
        generator = hold()
        commander = await anext(generator)
        await running.wait()
        await asyncio.create_task(generator.aclose())
    assert commander.children == ()
    assert parent_here() is None


async def test_an_asynccontextmanager_hands_the_block_on():
    """Its `with` block is the commander's."""

    @asynccontextmanager
    async def session():
        async with Root() as commander:
            yield commander

    async with asyncio.timeout(5):
        async with session() as commander:
            assert await name_parent() == "root"
        assert parent_here() is None
        with pytest.raises(ValueError, match="left"):
            async with session() as commander:
                node = commander.call_handler(hang())
                raise ValueError("left")
    assert node.state == "cancelled"


async def test_a_thread_without_a_loop_sees_the_commander():
    """By it the thread can put jobs, with the thread-safe calls."""

    def work():
        return current_node().call_handler_threadsafe(give(7)).result(5)

    async with asyncio.timeout(5), Commander():
        assert await asyncio.to_thread(work) == 7


async def test_a_thread_with_a_loop_of_its_own_has_no_parent_there():
    """The commander belongs to another loop; one that is entered there is on its own."""

    async def main():
        assert parent_here() is None
        with pytest.raises(LookupError):
            current_node()
        with pytest.raises(RuntimeError, match="outside a tree"):
            await give()
        async with Root("own"):
            assert await name_parent() == "own"

    @handler
    async def body(node):
        await asyncio.to_thread(asyncio.run, in_body())

    async def in_body():
        assert parent_here() is None

    async with asyncio.timeout(5), Root() as commander:
        await asyncio.to_thread(asyncio.run, main())
        await commander.run(body())
        assert await name_parent() == "root"


# --- in the servers that people have


async def test_an_aiohttp_application_may_hold_the_block():
    """Requests that come while it is open run their nodes there."""

    async def lifespan(app):
        async with Root() as commander:
            app[KEY] = commander
            yield

    async def answer(request):
        return web.Response(text=await request.app[KEY].run(name_parent()))

    app = web.Application()
    app.cleanup_ctx.append(lifespan)
    app.router.add_get("/", answer)
    async with asyncio.timeout(10), TestClient(TestServer(app)) as client:
        response = await client.get("/")
        assert (response.status, await response.text()) == (200, "root")
    assert app[KEY].state == "completed"


KEY = web.AppKey("commander", Commander)


@pytest.mark.parametrize("make", [Starlette, FastAPI])
async def test_a_lifespan_of_asgi_may_hold_the_block(make):
    """It is entered and left in the server's own task, and used in those of the requests."""

    @asynccontextmanager
    async def lifespan(app):
        async with Root() as commander:
            app.state.commander = commander
            yield

    async def answer(scope, receive, send):
        commander = scope["app"].state.commander
        text = await commander.run(name_parent())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})

    app = make(lifespan=lifespan)
    app.mount("/", answer)
    inbox, outbox = asyncio.Queue(), asyncio.Queue()
    async with asyncio.timeout(10):
        server = asyncio.create_task(app({"type": "lifespan"}, inbox.get, outbox.put))
        inbox.put_nowait({"type": "lifespan.startup"})
        assert (await outbox.get())["type"] == "lifespan.startup.complete"
        body = await asyncio.create_task(_request(app))
        inbox.put_nowait({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await server
    assert body == b"root"
    assert app.state.commander.state == "completed"


async def _request(app):
    sent = asyncio.Queue()
    scope = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    await app(scope, asyncio.Queue().get, sent.put)
    await sent.get()
    return (await sent.get())["body"]


# --- any order


@given(
    steps=st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.integers(0, 2)), max_size=12),
    seed=st.integers(0, 9),
)
def test_the_innermost_block_that_is_open_counts_in_whatever_order_blocks_end(steps, seed):
    """Entered and left by three tasks, each in its own context and each leaving anybody's."""

    async def actor(orders):
        while (order := await orders.get()) is not None:
            call, answer = order
            answer.set_result(await call())

    async def main():
        queues = [asyncio.Queue() for _ in range(3)]
        tasks = [asyncio.create_task(actor(queue)) for queue in queues]
        entered = [[], [], []]  # by each, in order
        open_ones = []

        async def ask(who, call):
            answer = asyncio.get_running_loop().create_future()
            queues[who].put_nowait((call, answer))
            return await answer

        async def look():
            return parent_here()

        for step, who in steps:
            if step == "enter":
                commander = Commander(slow_after=None)
                await ask(who, commander.__aenter__)
                entered[who].append(commander)
                open_ones.append(commander)
            elif open_ones:
                commander = open_ones.pop(len(steps) % len(open_ones))
                await ask(who, lambda: commander.__aexit__(None, None, None))  # noqa: B023
            for each, mine in enumerate(entered):
                live = [commander for commander in mine if commander in open_ones]
                assert await ask(each, look) is (live[-1] if live else None)
        for commander in open_ones:
            await commander.__aexit__(None, None, None)
        for queue in queues:
            queue.put_nowait(None)
        await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed)) as runner:
        runner.run(main())


async def test_a_long_row_of_blocks_keeps_none_of_them():
    """Though each is entered in this context and left in another."""
    kept = WeakSet()
    async with asyncio.timeout(5):
        for _ in range(50):
            commander = Commander(slow_after=None)
            await commander.__aenter__()
            kept.add(commander)
            await asyncio.create_task(commander.__aexit__(None, None, None))
    gc.collect()
    assert len(kept) == 1  # the last one, which the variable has
