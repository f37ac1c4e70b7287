"""T5: cancelling a subtree, a wait, a run and a block."""

import asyncio

import pytest
from _until import settled

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler
from anabranch.jobs import Job


@handler
async def give(node, value=None):
    return value


@handler
async def hang(node, running=None):
    if running is not None:
        running.set()
    await asyncio.Event().wait()


@handler
async def tree(node, depth, width, leaves):
    """A tree whose every body waits; `leaves` counts down as its leaves start."""
    for _ in range(width if depth else 0):
        node.call_handler(tree(depth - 1, width, leaves))
    if not depth:
        leaves.count_down()
    await asyncio.Event().wait()


class Latch:
    """Open once it has been counted down."""

    def __init__(self, count):
        self.count = count
        self.open = asyncio.Event()

    def count_down(self):
        self.count -= 1
        if not self.count:
            self.open.set()


def everything_below(node):
    return [each for child in node.children for each in (child, *everything_below(child))]


# --- the subtree


async def test_cancel_marks_and_ends_the_whole_subtree():
    """Every node below ends cancelled, and nothing beside it does."""
    async with asyncio.timeout(5), Commander() as commander:
        latch = Latch(2**4 + 1)
        other = commander.call_handler(tree(0, 0, latch))
        top = commander.call_handler(tree(4, 2, latch))
        await latch.open.wait()
        below = everything_below(top)
        assert len(below) == 30
        top.cancel("all")
        with pytest.raises(NodeCancelled):
            await top
        assert {node.state for node in (top, *below)} == {"cancelled"}
        assert {node.error.reason for node in below} == {"all"}
        assert other.state == "running"
        other.cancel()


async def test_children_end_before_their_parents():
    """Each at_terminate of a child comes before its parent's, at any depth."""
    ended = []
    async with asyncio.timeout(5), Commander() as commander:
        latch = Latch(3**3)
        top = commander.call_handler(tree(3, 3, latch))
        await latch.open.wait()
        for node in (top, *everything_below(top)):
            node.at_terminate(ended.append)
        top.cancel()
        with pytest.raises(NodeCancelled):
            await top
    assert len(ended) == 40
    place = {node: index for index, node in enumerate(ended)}
    assert all(place[node] < place[node.parent] for node in ended[:-1])


async def test_bodies_are_told_deepest_first():
    """The CancelledError reaches the leaf's body first, then its parent's, the root's last."""
    told, running = [], asyncio.Event()

    @handler
    async def chain(node, depth):
        if depth:
            node.call_handler(chain(depth - 1))
        else:
            running.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append(depth)

    async with asyncio.timeout(5), Commander() as commander:
        top = commander.call_handler(chain(5))
        await running.wait()
        top.cancel()
    assert told == [0, 1, 2, 3, 4, 5]


async def test_a_joining_parent_waits_for_its_childrens_clean_up():
    """A slow clean-up below keeps everything above it open."""
    cleaning, release, running = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @handler
    async def slow(node):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await release.wait()

    @handler
    async def parent(node):
        node.call_handler(slow())

    async with asyncio.timeout(5), Commander() as commander:
        top = commander.call_handler(parent())
        await running.wait()
        top.cancel()
        await cleaning.wait()
        assert top.state == "joining"
        release.set()
        with pytest.raises(NodeCancelled):
            await top


async def test_a_body_being_cancelled_sees_cancelled_error_alone():
    """Whatever it awaits: a cancelled child, several, or one that raises in its own clean-up."""
    seen = []

    @handler
    async def child(node, running, noisy):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            if noisy:
                await asyncio.sleep(0)

    async def watched(awaitable):
        try:
            await awaitable
        except BaseException as error:
            seen.append(type(error))
            raise

    @handler
    async def one(node, running):
        await watched(child(running, False))

    @handler
    async def noisy(node, running):
        await watched(child(running, True))

    @handler
    async def several(node, running):
        await watched(asyncio.gather(child(asyncio.Event(), False), child(running, False)))

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (one, noisy, several):
            running = asyncio.Event()
            top = commander.call_handler(kind(running))
            await running.wait()
            top.cancel()
            with pytest.raises(NodeCancelled):
                await top
    assert seen == [asyncio.CancelledError] * 3


async def test_a_clean_up_that_awaits_a_cancelled_child_sees_cancelled_error():
    """Not the NodeCancelled that anybody else would get."""
    seen = []

    @handler
    async def parent(node, running):
        child = node.call_handler(hang(running))
        try:
            await child
        except asyncio.CancelledError:
            try:
                await child
            except BaseException as error:
                seen.append(type(error))
            raise

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        top = commander.call_handler(parent(running))
        await running.wait()
        top.cancel()
    assert seen == [asyncio.CancelledError]


@pytest.mark.parametrize("then", ["returns", "raises", "returns a node"])
async def test_the_node_ends_cancelled_whatever_its_body_then_does(then, caplog):
    """It swallows the cancellation and returns, or raises something else."""

    @handler
    async def stubborn(node, running):
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if then == "raises":
                raise ValueError from None
            return give(1) if then == "returns a node" else "swallowed"

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(stubborn(running))
        await running.wait()
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
        assert (node.state, node.result) == ("cancelled", None)
    assert len(caplog.records) == (then == "raises")


async def test_a_clean_up_may_await_as_long_as_it_needs():
    """One cancel is one CancelledError; a second cancel does not disturb the clean-up."""
    cleaned, cleaning, release = [], asyncio.Event(), asyncio.Event()

    @handler
    async def careful(node, running):
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await release.wait()
            cleaned.append(True)

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(careful(running))
        await running.wait()
        node.cancel()
        await cleaning.wait()
        node.cancel()
        await settled()
        release.set()
    assert cleaned == [True]


async def test_children_added_meanwhile_are_cancelled_before_their_body_runs():
    """By the body's own clean-up or from outside, jobs and handlers, awaited or not."""
    ran, added, awaited = [], [], []

    @handler
    async def late(node):
        ran.append(node)

    class Late(Job[None]):
        async def task(self):
            ran.append(self)

    @handler
    async def parent(node, running):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            added.append(node.call_handler(late().at_start(ran.append)))
            added.append(node.put_job(Late()))
            try:
                await late()
            except asyncio.CancelledError as error:
                awaited.append(error)

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(parent(running))
        await running.wait()
        node.cancel()
        added.append(node.put_job(Late()))
        with pytest.raises(NodeCancelled):
            await node
    assert ran == []
    assert [each.state for each in added] == ["cancelled"] * 3
    assert len(awaited) == 1


async def test_a_pending_node_runs_at_terminate_without_at_start():
    """In its first turn, in the queue behind a limit, and between two attempts."""
    seen = []

    class Idle(Job[None]):
        async def task(self):
            seen.append("body")

    class Hang(Job[None]):
        async def task(self):
            await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        holder = commander.put_job(Hang())
        await settled()
        queued = commander.put_job(Idle())
        called = commander.call_handler(give())
        for node in (queued, called):
            node.at_start(lambda _: seen.append("start"))
            node.at_terminate(lambda _: seen.append("terminate"))
        await settled()
        queued.cancel()
        with pytest.raises(NodeCancelled):
            await queued
        fresh = commander.call_handler(give()).at_terminate(lambda _: seen.append("terminate"))
        fresh.at_start(lambda _: seen.append("start")).cancel()
        with pytest.raises(NodeCancelled):
            await fresh
        assert holder.state == "running"
        holder.cancel()
    assert called.state == "completed"
    assert seen == ["start", "terminate", "terminate"]


async def test_cancelling_a_done_or_unstarted_node_does_nothing():
    """The result stays; the unstarted one is cancelled once it enters a tree."""
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(give(1))
        assert await node == 1
        node.cancel()
        assert (node.state, await node) == ("completed", 1)


async def test_a_node_cancelled_before_it_was_put_never_runs():
    """The mark is kept."""
    ran = []

    @handler
    async def body(node):
        ran.append(node)

    async with asyncio.timeout(5), Commander() as commander:
        node = body()
        node.cancel("too early")
        with pytest.raises(NodeCancelled, match="too early"):
            await commander.run(node)
    assert ran == []


async def test_a_node_may_cancel_itself():
    """The next await of its body raises; without one it is cancelled all the same."""

    @handler
    async def at_once(node):
        node.cancel("myself")
        return 1

    @handler
    async def at_await(node):
        node.cancel("myself")
        await asyncio.sleep(0)
        raise AssertionError

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (at_once, at_await):
            with pytest.raises(NodeCancelled, match="myself"):
                await commander.run(kind())


async def test_a_body_that_raises_cancelled_error_by_itself_is_cancelled():
    """Or whose task is cancelled by somebody who knows nothing of nodes."""
    tasks = []

    @handler
    async def raises(node):
        raise asyncio.CancelledError

    @handler
    async def told(node):
        tasks.append(asyncio.current_task())
        tasks[0].cancel()
        await asyncio.sleep(0)

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (raises, told):
            node = kind()
            with pytest.raises(NodeCancelled):
                await commander.run(node)
            assert node.state == "cancelled"


# --- who awaits


async def test_whoever_awaits_a_cancelled_node_gets_node_cancelled():
    """An `Exception` with path and reason; now and after the end."""
    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(hang(running))
        waiter = asyncio.ensure_future(node)
        await running.wait()
        node.cancel("no longer wanted")
        for awaitable in (waiter, node):
            with pytest.raises(NodeCancelled) as caught:
                await awaitable
            assert isinstance(caught.value, Exception)
            assert (caught.value.path, caught.value.reason) == (node.path, "no longer wanted")
            assert "no longer wanted" in str(caught.value)


async def test_a_parent_that_lets_node_cancelled_escape_has_failed():
    """Its at_exception runs, and its own parent sees a failure."""

    @handler
    async def parent(node, running):
        child = node.call_handler(hang(running))
        node.call_handler(canceller(child, running))
        await child

    @handler
    async def canceller(node, other, running):
        await running.wait()
        other.cancel("from aside")

    async with asyncio.timeout(5), Commander() as commander:
        node = parent(asyncio.Event())
        with pytest.raises(NodeCancelled, match="from aside"):
            await commander.run(node)
        assert node.state == "failed"


async def test_a_cancelled_child_that_nobody_awaits_does_not_fail_its_parent(caplog):
    """Under any policy; and nothing is logged."""

    @handler
    async def parent(node):
        node.call_handler(give()).cancel()
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        for policy in ("fail_fast", "collect", "isolate"):
            assert await commander.run(parent(), policy=policy) == "unharmed"
    assert caplog.records == []


async def test_cancelling_an_await_never_cancels_the_node():
    """By task.cancel, by wait_for, by asyncio.timeout, by gather: it runs on to its end."""
    release = asyncio.Event()

    @handler
    async def work(node):
        await release.wait()
        return "done"

    async def wait_for(node):
        return await node

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(work())
        waiter = asyncio.create_task(wait_for(node))
        await settled()
        waiter.cancel()
        await asyncio.wait([waiter])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(node, 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await node
        group = asyncio.gather(node)
        await settled()
        group.cancel()
        await asyncio.wait([group])
        assert node.state == "running"
        release.set()
        assert await node == "done"


# --- run


async def test_cancelling_run_cancels_its_job_waits_for_it_and_raises_again():
    """Other nodes are left alone."""
    cleaning, release, running = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Careful(Job[None]):
        async def task(self):
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await release.wait()

    async with asyncio.timeout(5), Commander() as commander:
        other, job = commander.call_handler(hang()), Careful()
        run = asyncio.create_task(commander.run(job))
        await running.wait()
        run.cancel()
        await cleaning.wait()
        await settled()
        assert not run.done()
        run.cancel()
        await settled()
        assert not run.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (job.state, other.state) == ("cancelled", "running")
        other.cancel()


async def test_run_raises_node_cancelled_if_the_job_was_cancelled_otherwise():
    """`run` itself was not cancelled."""
    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = hang(running)
        run = asyncio.create_task(commander.run(node))
        await running.wait()
        node.cancel("other cause")
        with pytest.raises(NodeCancelled, match="other cause"):
            await run


# --- the block


@pytest.mark.parametrize("error", [ValueError("left"), KeyboardInterrupt(), SystemExit(3)])
async def test_an_exception_that_leaves_the_block_cancels_waits_and_goes_on_unwrapped(error):
    """The very same object, after the tree's last clean-up."""
    ended, running = [], asyncio.Event()

    @handler
    async def careful(node):
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(node.state)

    async with asyncio.timeout(5):
        with pytest.raises(type(error)) as caught:
            async with Commander() as commander:
                node = commander.call_handler(careful())
                await running.wait()
                raise error
    assert caught.value is error
    assert node.state == "cancelled"
    assert ended == ["running"]
    assert type(error).__name__ in node.error.reason


async def test_a_cancelled_block_cancels_waits_and_raises_cancelled_error():
    """In its body as in its join; the task counts as cancelled once."""
    ended = []

    async def block(in_body, running):
        async with Commander() as commander:
            commander.call_handler(hang(running).at_terminate(lambda _: ended.append(in_body)))
            if in_body:
                await asyncio.Event().wait()

    async with asyncio.timeout(5):
        for in_body in (True, False):
            running = asyncio.Event()
            task = asyncio.create_task(block(in_body, running))
            await running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
    assert ended == [True, False]


async def test_further_cancels_do_not_abandon_the_wait():
    """A block that is cancelled again and again still waits for its tree."""
    cleaning, release, running = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @handler
    async def careful(node):
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await release.wait()

    async def block():
        async with Commander() as commander:
            nodes.append(commander.call_handler(careful()))
            await asyncio.Event().wait()

    nodes = []
    async with asyncio.timeout(5):
        task = asyncio.create_task(block())
        await running.wait()
        task.cancel()
        await cleaning.wait()
        for _ in range(3):
            task.cancel()
            await settled()
            assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert nodes[0].state == "cancelled"


async def test_a_timeout_around_a_block_raises_timeout_error():
    """`asyncio.timeout` takes back the cancellation that it made."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), Commander() as commander:
            commander.call_handler(hang())
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("awaits", [True, False])
async def test_a_cancelled_commander_ends_its_block_with_node_cancelled(awaits):
    """It is a node: `commander.cancel` ends the body too, whether or not that awaits again."""
    async with asyncio.timeout(5):
        with pytest.raises(NodeCancelled, match="the whole of it"):
            async with Commander() as commander:
                node = commander.call_handler(hang())
                commander.cancel("the whole of it")
                if awaits:
                    await asyncio.Event().wait()
    assert (commander.state, node.state) == ("cancelled", "cancelled")
    assert asyncio.current_task().cancelling() == 0


async def test_cancelling_a_node_in_its_final_callbacks_ends_it():
    """An async callback that waits is cancelled; the node does not hang."""
    entered = asyncio.Event()

    async def stuck(node):
        entered.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        seen = []
        node = give().at_end(stuck).at_done(lambda _: seen.append("done"))
        commander.call_handler(node)
        await entered.wait()
        node.cancel("stuck")
        with pytest.raises(NodeCancelled):
            await node
    assert seen == ["done"]


async def test_cancelling_from_a_childs_callback_reaches_the_parent():
    """While the tree is walking up: the parent ends cancelled, once."""
    seen = []

    @handler
    async def parent(node):
        child = node.call_handler(give())
        child.at_end(lambda each: each.parent.cancel("by the child"))

    async with asyncio.timeout(5), Commander() as commander:
        node = parent().at_terminate(lambda _: seen.append("terminate"))
        node.at_end(lambda _: seen.append("end"))
        with pytest.raises(NodeCancelled, match="by the child"):
            await commander.run(node)
    assert seen == ["terminate"]
