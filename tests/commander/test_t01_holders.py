"""T1: which code may enter, use and leave the block of a commander, also in servers."""

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import FastAPI
from starlette.applications import Starlette
from support.nodes import Root, fail, give, hang, name_parent, wait_for
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled, current_node, parent_here
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T1")

# --- entering, using and leaving in different tasks


@pytest_asyncio.fixture
async def in_fixture():
    """Enter a commander in one task, use it in another and leave it in a third."""
    entered_in = asyncio.current_task()
    async with Root() as commander:
        yield commander, entered_in


async def test_a_fixture_may_hold_the_block(in_fixture):
    """Nodes run there. The test's awaits are its children if the test sees the context."""
    commander, entered_in = in_fixture
    assert asyncio.current_task() is not entered_in
    assert await commander.run(name_parent()) == "root"
    if parent_here() is not None:  # whether the plugin passes the fixture's context on
        assert await name_parent() == "root"


async def test_a_block_may_be_left_by_any_task_in_any_context():
    """The leaving task waits. No context keeps a closed commander as its current node."""
    async with asyncio.timeout(5):
        stack = AsyncExitStack()
        commander = await stack.enter_async_context(Commander())
        node = commander.call_handler(wait_for(release := asyncio.Event()))
        leaving = asyncio.create_task(stack.aclose())
        await settle_loop()
        assert not leaving.done()
        assert current_node() is commander  # it takes children until it is done
        release.set()
        await leaving
    assert node.state == "completed"
    assert parent_here() is None


async def test_a_failure_without_a_user_is_raised_on_leaving():
    """The entering task has ended, and no task waits in the block."""
    async with asyncio.timeout(5):
        commander = Commander(policy="fail_fast")
        await asyncio.create_task(commander.__aenter__())
        commander.call_handler(fail(ValueError("lost")))
        await settle_loop()
        with pytest.raises(ValueError, match="lost"):
            await asyncio.create_task(commander.__aexit__(None, None, None))


@pytest.mark.parametrize("end", ["cancel", "failure"])
async def test_an_end_reaches_the_task_that_uses_the_block_now(end):
    """The task that last awaited a node there is cancelled, as the entering one has ended."""
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
    """It sees the outer commander while that is open, then no tree."""
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
                await settle_loop()
            gate.release()
            await settle_loop()
        gate.release()
        await task
    assert seen == [inner, outer, None]


async def test_a_generator_lends_its_block_to_its_consumer():
    """Between two items the consumer runs in the block, until the generator is closed."""

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
    """The closing task cancels and joins the tree."""

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
    """The body of the `with` statement is in the commander's block."""

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
    """The thread can put jobs with the thread-safe calls."""

    def work():
        return current_node().call_handler_threadsafe(give(7)).result(5)

    async with asyncio.timeout(5), Commander():
        assert await asyncio.to_thread(work) == 7


async def test_a_thread_with_a_loop_of_its_own_has_no_parent_there():
    """The commander belongs to another loop. A commander entered in the thread is separate."""

    async def main():
        assert parent_here() is None
        with pytest.raises(LookupError):
            current_node()
        with pytest.raises(RuntimeError, match="outside of a tree"):
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


# --- real servers


async def test_an_aiohttp_application_may_hold_the_block():
    """Requests run their nodes in the open block."""

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
    """The server's task enters and leaves the block. Tasks of requests use it."""

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
