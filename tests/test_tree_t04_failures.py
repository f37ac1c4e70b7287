"""T4: where results and failures go, and that none is lost."""

import asyncio
import concurrent.futures
import logging

import pytest
from _until import settled

from anabranch.commander import Commander, NodeCancelled, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job

NOTE = "anabranch: failed in "


@handler
async def give(node, value=None):
    return value


@handler
async def fail(node, error, after=None):
    if after is not None:
        await after.wait()
    raise error


@handler
async def hang(node, running=None):
    if running is not None:
        running.set()
    await asyncio.Event().wait()


@handler
async def drop(node, value=None):
    """Await the value and drop what comes of it."""
    try:
        await value
    except Exception:
        return


def notes(error):
    return [note for note in getattr(error, "__notes__", []) if note.startswith(NOTE)]


# --- awaiting


async def test_awaiting_a_node_gives_its_result_now_or_after_its_end():
    """As often as one likes, from several tasks at once."""
    release = asyncio.Event()

    @handler
    async def later(node):
        await release.wait()
        return 5

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(later())
        waiters = [asyncio.ensure_future(node) for _ in range(3)]
        await settled()
        release.set()
        assert await asyncio.gather(*waiters) == [5, 5, 5]
        assert (await node, await node) == (5, 5)


async def test_awaiting_a_node_raises_its_exception_now_or_after_its_end():
    """The very same object each time."""
    release, error = asyncio.Event(), ValueError()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(fail(error, release))
        waiters = [asyncio.ensure_future(node) for _ in range(3)]
        await settled()
        release.set()
        assert await asyncio.gather(*waiters, return_exceptions=True) == [error] * 3
        with pytest.raises(ValueError) as caught:
            await node
    assert caught.value is error


async def test_a_result_that_is_an_exception_or_none_is_a_result():
    """Nothing that a body returns is taken for a failure."""
    error = ValueError()
    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(give(error)) is error
        assert await commander.run(give(None)) is None


# --- who gets a failure


async def test_a_failure_is_handed_to_those_who_await_the_node_at_that_moment(caplog):
    """The parent, under fail_fast, awaits it: it may catch it and goes on unharmed."""

    @handler
    async def parent(node):
        sibling = node.call_handler(give("unharmed"))
        with pytest.raises(ValueError):
            await fail(ValueError())
        return await sibling

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"
    assert caplog.records == []


async def test_somebody_elses_await_takes_the_failure_too(caplog):
    """A sibling awaits the failing node; the parent knows nothing of it and completes."""
    release = asyncio.Event()

    @handler
    async def parent(node):
        bad = node.call_handler(fail(ValueError(), release))
        node.call_handler(drop(bad).at_start(lambda _: release.set()))
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"
    assert caplog.records == []


async def test_a_thread_safe_future_counts_as_an_awaiter(caplog):
    """The failure arrives in the future and nowhere else."""
    async with asyncio.timeout(5), Commander(policy="fail_fast") as commander:
        future = commander.call_handler_threadsafe(fail(ValueError("x")))
        with pytest.raises(ValueError, match="x"):
            await asyncio.wrap_future(future)
    assert caplog.records == []


async def test_an_awaiter_whose_own_wait_was_cancelled_does_not_count():
    """It gave up before the failure: that goes to the parent's policy."""
    release = asyncio.Event()

    @handler
    async def parent(node):
        bad = node.call_handler(fail(ValueError(), release))
        waiter = asyncio.ensure_future(drop_it(bad))
        await settled()
        waiter.cancel()
        await asyncio.wait([waiter])
        release.set()
        await asyncio.Event().wait()

    async def drop_it(node):
        await node

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent())


async def test_an_awaiter_cancelled_in_the_turn_of_the_failure_does_not_count():
    """The failure had been handed to it, but its wait raises CancelledError: the policy gets it."""
    taken = []

    @handler
    async def parent(node):
        async def wait_for(bad):
            try:
                await bad
            except ValueError:
                taken.append("failure")
                raise

        bad = node.call_handler(fail(ValueError(), release))
        waiter = asyncio.ensure_future(wait_for(bad))
        bad.at_done(lambda _: loop.call_soon(waiter.cancel))
        await settled()
        release.set()
        await asyncio.wait([waiter])
        assert waiter.cancelled()
        await asyncio.Event().wait()

    loop, release = asyncio.get_running_loop(), asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent())
    assert taken == []


async def test_of_two_awaiters_one_cancelled_the_other_still_takes_the_failure(caplog):
    """In the very turn of the failure; the parent is not brought down."""

    @handler
    async def parent(node):
        bad = node.call_handler(fail(ValueError(), release))
        waiters = [asyncio.ensure_future(bad) for _ in range(2)]
        bad.at_done(lambda _: loop.call_soon(waiters[0].cancel))
        await settled()
        release.set()
        await asyncio.wait(waiters)
        assert waiters[0].cancelled()
        assert isinstance(waiters[1].exception(), ValueError)
        return "unharmed"

    loop, release = asyncio.get_running_loop(), asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"
    assert caplog.records == []


async def test_a_job_cancelled_while_it_waits_for_its_place_has_not_taken_the_failure(caplog):
    """Under a limit the awaiter needs its place again first; cancelled there, it saw nothing."""
    release, busy, failed, ended = asyncio.Event(), asyncio.Event(), asyncio.Event(), []

    class Busy(Job[None]):
        async def task(self):
            busy.set()
            await asyncio.Event().wait()

    class Waiter(Job[None]):
        async def task(self):
            await bad

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        bad = commander.call_handler(fail(ValueError("seen by nobody"), release))
        bad.at_done(lambda _: failed.set())
        waiter = commander.put_job(Waiter().at_terminate(lambda _: ended.append("waiter")))
        commander.put_job(Busy())
        await busy.wait()
        release.set()
        await failed.wait()
        await settled()
        assert (bad.state, waiter.state) == ("failed", "running")
        waiter.cancel()
        with pytest.raises(NodeCancelled):
            await waiter
        commander.exit()
    (record,) = caplog.records
    assert bad.path in record.getMessage()
    assert ended == ["waiter"]


async def test_a_future_cancelled_in_the_turn_of_the_failure_has_not_taken_it(caplog):
    """It is logged, as nobody else gets it."""
    async with asyncio.timeout(5), Commander() as commander:
        node = fail(ValueError())
        node.at_done(lambda _: future.cancel())
        future: concurrent.futures.Future[None] = commander.call_handler_threadsafe(node)
        await settled()
    (record,) = caplog.records
    assert node.path in record.getMessage()


# --- policies


async def test_fail_fast_cancels_the_other_children_and_the_body():
    """It waits for them, and the parent fails with the same exception."""
    order, error, running, release = [], ValueError(), asyncio.Event(), asyncio.Event()

    async def clean_up(name):
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
            order.append(name)

    @handler
    async def sibling(node):
        running.set()
        await clean_up("sibling")

    @handler
    async def parent(node):
        node.call_handler(sibling().at_terminate(lambda _: order.append("terminated")))
        node.call_handler(fail(error, running))
        await clean_up("body")

    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        run = asyncio.create_task(commander.run(node))
        await settled()
        assert (order, run.done()) == ([], False)
        release.set()
        with pytest.raises(ValueError) as caught:
            await run
        order.append("parent")
    assert caught.value is error
    assert node.error is error
    assert sorted(order[:3]) == ["body", "sibling", "terminated"]
    assert order[3] == "parent"


async def test_fail_fast_is_the_default_for_nodes_and_cancels_children_of_a_failing_body():
    """The body's own failure brings its children down just as well."""
    ended = []

    @handler
    async def parent(node):
        running = asyncio.Event()
        node.call_handler(hang(running).at_terminate(lambda _: ended.append("child")))
        await running.wait()
        raise ValueError

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent())
    assert ended == ["child"]


async def test_fail_fast_goes_up_the_tree_with_the_same_exception(caplog):
    """Through generations whose bodies have long returned, up to the commander, which logs it."""
    error = ValueError()

    @handler
    async def parent(node, depth):
        node.call_handler(parent(depth - 1) if depth else fail(error))

    async with asyncio.timeout(5), Commander() as commander:
        top = commander.call_handler(parent(5))
        below = commander.call_handler(give("isolated"))
    assert top.error is error
    assert below.state == "completed"
    assert len(caplog.records) == 1
    assert len(notes(error)) == 1
    assert notes(error)[0].count("parent#") == 6


async def test_a_body_cancelled_by_fail_fast_cannot_complete():
    """It swallows the CancelledError and returns: the node has failed all the same."""

    @handler
    async def parent(node):
        node.call_handler(fail(ValueError()))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"

    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        with pytest.raises(ValueError):
            await commander.run(node)
        assert (node.state, node.result) == ("failed", None)


async def test_of_two_failures_under_fail_fast_the_second_is_logged(caplog):
    """The parent can fail with one only."""
    release = asyncio.Event()

    @handler
    async def stubborn(node):
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("second")

    @handler
    async def parent(node):
        node.call_handler(stubborn().at_start(lambda _: release.set()))
        node.call_handler(fail(ValueError("first"), release))

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError, match="first"):
            await commander.run(parent())
    (record,) = caplog.records
    assert "stubborn" in record.getMessage()
    assert isinstance(record.exc_info[1], KeyError)


async def test_collect_lets_the_others_finish():
    """Neither a failing child nor a failing body disturbs those that still run."""
    release, ended = asyncio.Event(), []

    @handler
    async def slow(node):
        await release.wait()
        ended.append("slow")

    @handler
    async def parent(node):
        node.call_handler(slow())
        bad = node.call_handler(fail(ValueError()))
        bad.at_done(lambda _: loop.call_soon(release.set))
        await release.wait()
        ended.append("body")

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5), Commander() as commander:
        job = commander.call_handler(parent(), policy="collect", claim=True)
        with pytest.raises(ExceptionGroup):
            await job
    assert sorted(ended) == ["body", "slow"]


async def test_collect_always_raises_an_exception_group():
    """For one failure as for many; the members are the failures themselves."""
    errors = [ValueError(1), KeyError(2), ValueError(3)]

    @handler
    async def parent(node, errors):
        for error in errors:
            node.call_handler(fail(error))

    async with asyncio.timeout(5), Commander() as commander:
        for some in (errors[:1], errors):
            with pytest.raises(ExceptionGroup) as caught:
                await commander.run(parent(some), policy="collect")
            assert [*caught.value.exceptions] == some


async def test_collect_adds_the_bodys_own_failure_to_the_group():
    """First the body's, then the children's."""
    own, other = ValueError("body"), ValueError("child")

    @handler
    async def parent(node):
        node.call_handler(fail(other))
        raise own

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ExceptionGroup) as caught:
            await commander.run(parent(), policy="collect")
    assert [*caught.value.exceptions] == [own, other]


async def test_collect_counts_no_failure_that_somebody_awaited():
    """It is theirs; the node completes."""

    @handler
    async def parent(node):
        await drop(fail(ValueError()))
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent(), policy="collect") == "unharmed"


async def test_isolate_records_the_failure_and_goes_on(caplog):
    """The body, the other children and the result are untouched; the log has it."""
    error = ValueError()

    @handler
    async def parent(node):
        node.call_handler(fail(error))
        other = node.call_handler(give("unharmed"))
        return await other

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent(), policy="isolate") == "unharmed"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info[1] is error
    assert "fail#" in record.getMessage()


async def test_isolate_is_the_default_of_the_commander(caplog):
    """A top-level failure neither ends the block nor the other nodes."""
    async with asyncio.timeout(5), Commander() as commander:
        commander.call_handler(fail(ValueError()))
        other = commander.call_handler(give(1))
        await settled()
    assert other.state == "completed"
    assert len(caplog.records) == 1


async def test_a_commander_may_fail_fast(caplog):
    """The block is cancelled and raises the failure, unwrapped; the rest ends before."""
    error, running, ended = ValueError(), asyncio.Event(), []

    async with asyncio.timeout(5):
        with pytest.raises(ValueError) as caught:
            async with Commander(policy="fail_fast") as commander:
                commander.call_handler(hang(running).at_terminate(lambda _: ended.append(1)))
                commander.call_handler(fail(error, running))
                await asyncio.Event().wait()
        assert caught.value is error
        assert ended == [1]
        assert asyncio.current_task().cancelling() == 0
    assert caplog.records == []


async def test_a_commander_may_collect():
    """Its block raises a group of what nobody awaited."""
    error = ValueError()
    async with asyncio.timeout(5):
        with pytest.raises(ExceptionGroup) as caught:
            async with Commander(policy="collect") as commander:
                commander.call_handler(fail(error))
                assert await commander.run(give(1)) == 1
    assert [*caught.value.exceptions] == [error]


async def test_policy_is_an_argument_of_the_put_and_an_attribute_of_the_class():
    """The attribute sets the default, the argument overrides it."""

    class Gathers(Job[None]):
        policy = "collect"

        async def task(self):
            self.call_handler(fail(ValueError()))

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ExceptionGroup):
            await commander.run(Gathers())
        with pytest.raises(ValueError):
            await commander.run(Gathers(), policy="fail_fast")


async def test_an_unknown_policy_is_refused_with_the_list_of_those_there_are():
    """In a class, in a put, and for a commander; nothing is started."""
    with pytest.raises(ValueError, match=r"fail_fast.*collect.*isolate"):
        Commander(policy="fail_slow")
    with pytest.raises(ValueError, match="fail_slow"):

        class Bad(Job[None]):
            policy = "fail_slow"

    async with asyncio.timeout(5), Commander() as commander:
        node = give()
        with pytest.raises(ValueError, match="fail_slow"):
            commander.call_handler(node, policy="fail_slow")
        assert node.parent is None


# --- claim


async def test_a_claimed_failure_waits_for_its_awaiter():
    """The putter is busy elsewhere when the child fails, and takes the failure later."""

    @handler
    async def parent(node):
        failed = asyncio.Event()
        bad = node.call_handler(fail(ValueError()).at_done(lambda _: failed.set()), claim=True)
        await failed.wait()
        await settled()
        assert bad.state == "failed"
        with pytest.raises(ValueError):
            await bad
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"


@pytest.mark.parametrize(
    ("policy", "kind"), [("fail_fast", ValueError), ("collect", ExceptionGroup)]
)
async def test_a_claimed_failure_untaken_at_the_join_follows_the_policy(policy, kind):
    """The body is not disturbed, but the node fails."""
    through = []

    @handler
    async def parent(node):
        failed = asyncio.Event()
        node.call_handler(fail(ValueError()).at_done(lambda _: failed.set()), claim=True)
        await failed.wait()
        await settled()
        through.append("body")

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(kind):
            await commander.run(parent(), policy=policy)
    assert through == ["body"]


async def test_a_claimed_failure_untaken_at_the_join_is_logged_under_isolate(caplog):
    """By a node as by the commander, at the join and not before."""
    async with asyncio.timeout(5), Commander() as commander:
        ended = asyncio.Event()
        commander.call_handler(fail(ValueError()).at_done(lambda _: ended.set()), claim=True)
        await ended.wait()
        await settled()
        assert caplog.records == []
    assert len(caplog.records) == 1


async def test_a_claimed_failure_that_is_taken_late_is_not_kept():
    """Commanders live long: what was claimed and has been awaited leaves nothing behind."""
    async with asyncio.timeout(5), Commander() as commander:
        for _ in range(3):
            ended = asyncio.Event()
            node = fail(ValueError()).at_done(lambda _, ended=ended: ended.set())
            commander.call_handler(node, claim=True)
            await ended.wait()
            await settled()
            with pytest.raises(ValueError):
                await node
        assert not commander._n_failures  # white box: nothing public tells


# --- returned nodes


async def test_the_failure_of_a_returned_node_is_its_parents():
    """The parent's state, error and at_exception say so."""
    seen, error = [], ValueError()

    @handler
    async def parent(node):
        return fail(error)

    async with asyncio.timeout(5), Commander() as commander:
        node = parent().at_exception(lambda each: seen.append(each.error))
        with pytest.raises(ValueError):
            await commander.run(node)
        assert node.error is error
    assert seen == [error]


# --- the note


async def test_the_exception_carries_one_note_with_the_path_of_the_node_that_failed_first():
    """However far it travels, awaited or not."""
    error, paths = ValueError(), []

    @handler
    async def awaiting(node):
        await fail(error).at_exception(lambda each: paths.append(each.path))

    @handler
    async def joining(node):
        node.call_handler(awaiting())

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(joining())
        with pytest.raises(ValueError):
            await commander.run(fail(error))
    assert error.__notes__ == [NOTE + paths[0]]
    assert paths[0].startswith("Commander/joining#1/awaiting#2/fail#")


async def test_a_group_carries_the_path_of_its_collector_and_its_members_carry_theirs():
    """One note each."""

    @handler
    async def parent(node):
        node.call_handler(fail(ValueError()))

    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        with pytest.raises(ExceptionGroup) as caught:
            await commander.run(node, policy="collect")
    assert notes(caught.value) == [NOTE + node.path]
    assert notes(caught.value.exceptions[0]) == [NOTE + node.path + "/fail#2"]


# --- none is lost


async def test_a_failure_that_nobody_awaits_is_logged_with_its_path_and_traceback(caplog):
    """On the logger `anabranch`, as an error."""
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(fail(ValueError("lost?")))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("anabranch", logging.ERROR)
    assert node.path in record.getMessage()
    assert record.exc_info[1].__traceback__ is not None
    assert "lost?" in caplog.text
    assert "raise error" in caplog.text


async def test_a_failure_during_cancellation_is_logged(caplog):
    """The node ends cancelled; what its clean-up raised is not lost."""

    @handler
    async def stubborn(node, running):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in clean-up")

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(stubborn(running))
        await running.wait()
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("by_child", [False, True])
async def test_a_failure_overtaken_by_a_cancel_is_logged(by_child, caplog):
    """The node has failed and waits for a slow child when it is cancelled: it ends cancelled."""
    failed, release = asyncio.Event(), asyncio.Event()

    @handler
    async def slow(node, running):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            failed.set()
            await release.wait()

    @handler
    async def parent(node):
        running = asyncio.Event()
        node.call_handler(slow(running))
        await running.wait()
        if not by_child:
            raise ValueError("overtaken")
        node.call_handler(fail(ValueError("overtaken")))

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(parent())
        await failed.wait()
        node.cancel()
        release.set()
        with pytest.raises(NodeCancelled):
            await node
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ValueError)


async def test_a_failure_whose_callback_is_cancelled_is_logged(caplog):
    """A failed node is cancelled in its async at_exception: it ends cancelled."""
    entered = asyncio.Event()

    async def callback(node):
        entered.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(fail(ValueError()).at_exception(callback))
        await entered.wait()
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ValueError)


async def test_an_awaited_failure_is_not_logged(caplog):
    """Nor one that a callback recovered from, nor one that a retry made good."""

    class Flaky(Job[int]):
        tries: list[int]

        async def task(self):
            self.tries.append(1)
            if len(self.tries) < 3:
                raise ValueError
            return len(self.tries)

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(fail(ValueError()))
        commander.call_handler(fail(ValueError()).at_exception(lambda node: node.recover(1)))
        assert await commander.run(Flaky([]), retry=Retry(attempts=3)) == 3
    assert caplog.records == []
