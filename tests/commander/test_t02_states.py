"""T2: the states of a node, and which callbacks run when."""

import asyncio

import pytest
from support.nodes import fail, give, hang

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T2")

MOMENTS = ("start", "end", "exception", "terminate", "done", "commander_end")


def watch(node, seen):
    """Record each callback of `node` with the state it saw."""
    for moment in MOMENTS:
        getattr(node, f"at_{moment}")(lambda each, moment=moment: seen.append((moment, each.state)))
    return node


async def test_a_node_goes_from_pending_over_running_and_joining_to_completed():
    """Each state appears at the contract's moment, and `.state` is a string."""
    running, release, seen = asyncio.Event(), asyncio.Event(), []

    @handler
    async def child(node):
        running.set()
        await release.wait()

    @handler
    async def parent(node):
        seen.append(node.state)
        node.call_handler(child())

    node = parent()
    seen.append(node.state)
    async with asyncio.timeout(5), Commander() as commander:
        commander.call_handler(node)
        seen.append(node.state)
        await running.wait()
        seen.append(node.state)
        release.set()
        await node
        seen.append(node.state)
    assert seen == ["pending", "pending", "running", "joining", "completed"]
    assert all(type(state) is str for state in seen)


async def test_a_completed_node_runs_start_end_and_done():
    """at_exception and at_terminate do not run. Final callbacks see the state `joining`."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        node = watch(give(1), seen)
        assert await commander.run(node) == 1
        assert seen == [("start", "running"), ("end", "joining"), ("done", "joining")]
    assert node.state == "completed"
    assert (node.result, node.error) == (1, None)
    assert seen[3:] == [("commander_end", "completed")]


async def test_a_failed_node_runs_start_exception_and_done():
    """at_end and at_terminate do not run."""
    seen, error = [], ValueError("no")
    async with asyncio.timeout(5), Commander() as commander:
        node = watch(fail(error), seen)
        with pytest.raises(ValueError, match="no"):
            await commander.run(node)
        assert seen == [("start", "running"), ("exception", "joining"), ("done", "joining")]
    assert node.state == "failed"
    assert node.result is None
    assert node.error is error
    assert seen[3:] == [("commander_end", "failed")]


async def test_a_cancelled_node_runs_start_terminate_and_done():
    """at_end and at_exception do not run."""
    seen, running = [], asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(watch(hang(running), seen))
        await running.wait()
        node.cancel("enough")
        with pytest.raises(NodeCancelled, match="enough"):
            await node
        assert seen == [("start", "running"), ("terminate", "joining"), ("done", "joining")]
    assert node.state == "cancelled"
    assert node.result is None
    assert isinstance(node.error, NodeCancelled)
    assert seen[3:] == [("commander_end", "cancelled")]


async def test_a_node_cancelled_while_pending_runs_no_at_start():
    """The node changes from pending to cancelled without having run."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(watch(give(), seen))
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
    assert seen == [
        ("terminate", "joining"),
        ("done", "joining"),
        ("commander_end", "cancelled"),
    ]


async def test_a_node_that_is_cancelled_twice_terminates_once():
    """The second call and its reason change nothing."""
    seen, running = [], asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(watch(hang(running), seen))
        await running.wait()
        node.cancel("first")
        node.cancel("second")
        with pytest.raises(NodeCancelled, match="first"):
            await node
        node.cancel("third")
        assert node.error.reason == "first"
    assert [moment for moment, _ in seen].count("terminate") == 1


async def test_a_parent_that_fails_by_its_child_runs_at_exception():
    """at_terminate does not run, although fail_fast cancelled the parent's body."""
    seen = []

    @handler
    async def parent(node):
        node.call_handler(fail(ValueError()))
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(watch(parent(), seen))
    assert [moment for moment, _ in seen] == ["start", "exception", "done", "commander_end"]


async def test_callbacks_may_be_async():
    """Each async callback ends before the next callback begins."""
    seen = []

    def slow(name):
        async def callback(node):
            seen.append(name)
            await asyncio.sleep(0)
            seen.append(name)

        return callback

    async with asyncio.timeout(5), Commander() as commander:
        node = give().at_start(slow("start")).at_end(slow("end")).at_done(slow("done"))
        node.at_commander_end(slow("commander_end"))
        await commander.run(node)
    assert seen == [name for name in ("start", "end", "done", "commander_end") for _ in range(2)]


async def test_a_callback_that_returns_a_node_is_not_waited_for():
    """`lambda node: node.put_job(...)` puts the next round, and the node ends without it."""
    release, ended = asyncio.Event(), []

    @handler
    async def next_round(node):
        await release.wait()
        ended.append("second")

    async with asyncio.timeout(5), Commander() as commander:
        first = give().at_end(lambda node: node.call_handler(next_round(), parent=node.commander))
        await commander.run(first)
        ended.append("first")
        release.set()
    assert ended == ["first", "second"]


async def test_at_start_runs_before_the_body_and_a_failing_one_replaces_it():
    """The body does not run. The other at_start callbacks and at_exception do."""
    seen = []

    @handler
    async def body(node):
        seen.append("body")

    def refuse(node):
        raise ValueError("refused")

    async with asyncio.timeout(5), Commander() as commander:
        node = body().at_start(refuse).at_start(lambda _: seen.append("second start"))
        node.at_exception(lambda each: seen.append(str(each.error)))
        with pytest.raises(ValueError, match="refused"):
            await commander.run(node)
    assert seen == ["second start", "refused"]


async def test_at_commander_end_runs_when_the_commander_closes():
    """The callbacks run last, in the order of the nodes' ends."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        commander.at_done(lambda _: seen.append("commander done"))
        for name in "ab":
            node = give().at_commander_end(lambda _, name=name: seen.append(name))
            await commander.run(node)
        assert seen == []
    assert seen == ["commander done", "a", "b"]


async def test_at_commander_end_runs_for_nodes_that_failed_or_never_ran():
    """The callback runs for every node that entered the tree."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        node = fail(ValueError()).at_commander_end(lambda each: seen.append(each.state))
        with pytest.raises(ValueError):
            await commander.run(node)
        pending = give().at_commander_end(lambda each: seen.append(each.state))
        commander.call_handler(pending).cancel()
    assert seen == ["failed", "cancelled"]


async def test_at_commander_end_runs_when_the_block_is_left_by_an_exception():
    """The callback also runs when the block or its join is cancelled."""
    seen, running = [], asyncio.Event()

    async def left_by_error():
        async with Commander() as commander:
            await commander.run(give().at_commander_end(lambda _: seen.append("error")))
            raise ValueError

    async def joining():
        async with Commander() as commander:
            commander.call_handler(hang(running).at_commander_end(lambda _: seen.append("join")))

    async with asyncio.timeout(5):
        with pytest.raises(ValueError):
            await left_by_error()
        task = asyncio.create_task(joining())
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert seen == ["error", "join"]


async def test_recover_ends_the_node_completed_with_the_value():
    """at_exception and at_done run, at_end does not. The awaiter receives the value."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        node = fail(ValueError())
        watch(node.at_exception(lambda each: each.recover("plan b")), seen)
        assert await commander.run(node) == "plan b"
        assert (node.state, node.result, node.error) == ("completed", "plan b", None)
    assert [moment for moment, _ in seen] == ["start", "exception", "done", "commander_end"]


async def test_recover_works_in_an_async_callback_and_for_a_childs_failure():
    """A parent that failed by fail_fast completes with the recovered value."""

    async def plan_b(node):
        await asyncio.sleep(0)
        node.recover("plan b")

    @handler
    async def parent(node):
        node.call_handler(fail(ValueError()))
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent().at_exception(plan_b)) == "plan b"


async def test_recover_keeps_the_failure_from_the_parent():
    """The failure of an unawaited node does not reach its parent under fail_fast."""

    class Parent(Job[str]):
        async def task(self):
            self.call_handler(fail(ValueError())).at_exception(lambda each: each.recover(None))
            return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(Parent()) == "unharmed"


async def test_recover_is_refused_where_nothing_has_failed():
    """Outside callbacks, in at_end, in at_terminate and after the end it is a `RuntimeError`."""
    refused = []

    def attempt(node):
        with pytest.raises(RuntimeError, match="recover"):
            node.recover(1)
        refused.append(node.state)

    @handler
    async def body(node):
        attempt(node)

    async with asyncio.timeout(5), Commander() as commander:
        ended = body().at_end(attempt)
        attempt(ended)
        await commander.run(ended)
        attempt(ended)
        stopped = commander.call_handler(give().at_terminate(attempt))
        stopped.cancel()
    assert refused == ["pending", "running", "joining", "completed", "joining"]


@pytest.mark.parametrize("later", [False, True])
async def test_recover_is_for_at_exception_alone(later):
    """In at_done it is refused, plain or async, before and after. A second call is too."""
    said = []

    def attempt(node):
        try:
            node.recover(len(said))
        except RuntimeError as error:
            said.append("twice" if "already" in str(error) else "refused")
        else:
            said.append("recovered")

    async def attempt_later(node):
        await asyncio.sleep(0)
        attempt(node)

    callback = attempt_later if later else attempt
    async with asyncio.timeout(5), Commander() as commander:
        lost = fail(ValueError()).at_done(callback)
        with pytest.raises(ValueError):
            await commander.run(lost)
        saved = fail(ValueError()).at_done(callback).at_exception(callback)
        saved.at_done(callback).at_exception(callback)
        assert await commander.run(saved) == 2
    assert said == ["refused", "refused", "recovered", "refused", "twice"]


async def test_recover_is_refused_for_what_a_callback_of_the_end_has_raised():
    """at_exception does not run for such a failure."""
    refused = []

    def raises(node):
        raise ValueError

    def attempt(node):
        with pytest.raises(RuntimeError, match="recover"):
            node.recover(1)
        refused.append(node.error)

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(give().at_end(raises).at_end(attempt).at_done(attempt))
    assert len(refused) == 2


async def test_a_callback_added_while_callbacks_run_still_runs():
    """The new callback runs after those already scheduled."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        node = give().at_end(lambda each: each.at_done(lambda _: seen.append("added")))
        await commander.run(node)
    assert seen == ["added"]


async def test_a_callback_added_to_a_done_node_is_refused():
    """The callback would never run."""
    async with asyncio.timeout(5), Commander() as commander:
        node = give()
        await commander.run(node)
        for moment in MOMENTS:
            with pytest.raises(RuntimeError, match="never run"):
                getattr(node, f"at_{moment}")(print)


async def test_each_way_of_adding_a_callback_returns_the_node():
    """Calls that add callbacks can be chained."""
    node = give()
    for moment in MOMENTS:
        assert getattr(node, f"at_{moment}")(print) is node
