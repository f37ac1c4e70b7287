"""T6: timeouts, retries and restarts."""

import asyncio
from contextlib import suppress

import pytest
from support.clock import sleep_virtual, virtual_time
from support.nodes import fail, give, hang
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled, Restart, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T6")

SHORT = 0.02


class Flaky(Job[str]):
    """A job that fails with each of `errors` in turn, then succeeds."""

    errors: list[BaseException]

    async def task(self):
        if self.errors:
            raise self.errors.pop(0)
        return "made it"


# --- timeout


async def test_a_timeout_fails_the_node_with_the_builtin_timeout_error():
    """at_exception runs, not at_terminate. The awaiter's error carries the node's path."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        node = hang().at_exception(lambda each: seen.append(type(each.error)))
        node.at_terminate(lambda _: seen.append("terminate"))
        with pytest.raises(TimeoutError) as caught:
            await commander.run(node, timeout=SHORT)
        assert node.state == "failed"
        assert caught.value.__notes__ == [f"anabranch: failed in {node.path}"]
        assert node.path in str(caught.value)
    assert seen == [TimeoutError]


async def test_a_timeout_counts_for_the_whole_subtree():
    """The body has returned. The hanging child is cancelled and ends first."""
    ended = []

    @handler
    async def parent(node):
        node.call_handler(hang().at_terminate(lambda _: ended.append("child")))

    async with asyncio.timeout(5), Commander() as commander:
        node = parent().at_exception(lambda _: ended.append("parent"))
        with pytest.raises(TimeoutError):
            await commander.run(node, timeout=SHORT)
    assert ended == ["child", "parent"]


@virtual_time
@pytest.mark.parametrize("policy", ["collect", "isolate"])
async def test_a_timeout_ends_the_wait_for_children_of_a_failed_body(policy):
    """The body's failure is the `__cause__`. The next attempt has the full timeout."""
    began, failures = [], []

    @handler
    async def parent(node):
        began.append(asyncio.get_running_loop().time())
        node.call_handler(hang())
        failures.append(ValueError("body"))
        raise failures[-1]

    options = {"timeout": 10, "retry": Retry(attempts=2), "policy": policy}
    async with asyncio.timeout(60), Commander() as commander:
        node = parent().at_exception(lambda each: began.append(type(each.error)))
        with pytest.raises(TimeoutError) as caught:
            await commander.run(node, **options)
        assert caught.value.__cause__ is failures[1]
    assert began == [0, 10, TimeoutError]


@virtual_time
async def test_the_failure_of_a_body_stays_where_it_has_cancelled_the_children():
    """Under `fail_fast` the node fails with the body's error, however long the clean-up takes."""

    @handler
    async def careful(node):
        try:
            await asyncio.Event().wait()
        finally:
            await sleep_virtual(20)

    @handler
    async def parent(node):
        node.call_handler(careful())
        await settle_loop()
        raise ValueError

    async with asyncio.timeout(60), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent(), timeout=10)


@virtual_time
async def test_a_timeout_does_not_cut_final_callbacks_short():
    """The timeout ends with the last attempt. An ancestor's timeout cancels callbacks."""
    seen = []

    async def slow(node):
        try:
            await sleep_virtual(30)
            seen.append("whole")
        except asyncio.CancelledError:
            seen.append("cut")
            raise

    @handler
    async def parent(node):
        node.call_handler(give().at_end(slow))

    async with asyncio.timeout(120), Commander() as commander:
        assert await commander.run(give(1).at_end(slow), timeout=10) == 1
        with pytest.raises(TimeoutError):
            await commander.run(hang().at_exception(slow), timeout=10)
        with pytest.raises(TimeoutError):
            await commander.run(parent(), timeout=10)
    assert seen == ["whole", "whole", "cut"]


@virtual_time
async def test_a_timeout_waits_for_the_clean_up():
    """The node ends after its body."""
    cleaned = []

    @handler
    async def careful(node):
        try:
            await asyncio.Event().wait()
        finally:
            await sleep_virtual(SHORT)
            cleaned.append(node.state)

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(TimeoutError):
            await commander.run(careful(), timeout=SHORT)
    assert cleaned == ["running"]


async def test_a_body_that_swallows_its_timeout_fails_all_the_same():
    """The node's time is used up."""

    @handler
    async def stubborn(node):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(TimeoutError):
            await commander.run(stubborn(), timeout=SHORT)


@virtual_time
async def test_a_timeout_starts_with_the_body_and_not_with_the_put():
    """A job that waits in the queue longer than its timeout still has all of it."""
    release = asyncio.Event()

    class Holder(Job[None]):
        async def task(self):
            await release.wait()

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        commander.put_job(Holder())
        await settle_loop()
        late = commander.put_job(Flaky([]), timeout=SHORT)
        await sleep_virtual(SHORT * 2)
        assert late.state == "pending"
        release.set()
        assert await late == "made it"


@virtual_time
async def test_a_node_that_is_done_in_time_knows_no_timeout():
    """The timer is removed with the node."""
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(give(1), timeout=SHORT)
        assert await node == 1
        await sleep_virtual(SHORT * 2)
        assert node.state == "completed"


async def test_a_childs_timeout_leaves_its_parent_be():
    """The parent can catch the error like any other."""

    @handler
    async def parent(node):
        try:
            await node.call_handler(hang(), timeout=SHORT)
        except TimeoutError:
            return "caught"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "caught"


async def test_a_timeout_can_be_recovered_from():
    """A timeout is a failure like others."""
    async with asyncio.timeout(5), Commander() as commander:
        node = hang().at_exception(lambda each: each.recover("plan b"))
        assert await commander.run(node, timeout=SHORT) == "plan b"


async def test_a_timeout_is_for_each_attempt_and_can_be_retried():
    """The first attempt hangs. The second has the full timeout again."""
    tries = []

    class Slow(Job[int]):
        async def task(self):
            tries.append(1)
            if len(tries) == 1:
                await asyncio.Event().wait()
            return len(tries)

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(Slow(), timeout=SHORT, retry=Retry(attempts=2)) == 2


# --- retry


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_attempts_includes_the_first(attempts):
    """With n attempts, the node survives n - 1 failures."""
    async with asyncio.timeout(5), Commander() as commander:
        enough = [ValueError(number) for number in range(attempts - 1)]
        assert await commander.run(Flaky(enough), retry=Retry(attempts=attempts)) == "made it"
        too_many = [ValueError(number) for number in range(attempts)]
        with pytest.raises(ValueError, match=str(attempts - 1)):
            await commander.run(Flaky(too_many), retry=Retry(attempts=attempts))


@pytest.mark.parametrize("on", [KeyError, (KeyError, OSError), lambda error: "again" in str(error)])
async def test_on_says_what_is_tried_again(on):
    """`on` takes a type, several types or a predicate. Other failures are final."""
    async with asyncio.timeout(5), Commander() as commander:
        job = Flaky([KeyError("again")])
        assert await commander.run(job, retry=Retry(on=on)) == "made it"
        job = Flaky([ValueError("not this")])
        with pytest.raises(ValueError):
            await commander.run(job, retry=Retry(on=on))


async def test_a_retried_node_keeps_its_place_its_path_and_its_callbacks():
    """The id and the parent stay. The retry runs before jobs put during the pause."""
    paths, order = [], []

    class Paths(Job[None]):
        async def task(self):
            paths.append((self.path, self.parent, self.node_id))
            order.append("flaky")
            if len(paths) < 3:
                raise ValueError

    class Other(Job[None]):
        async def task(self):
            order.append("other")

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        job = commander.put_job(Paths(), retry=Retry(attempts=3))
        job.at_end(lambda _: order.append("end"))
        others = [commander.put_job(Other()) for _ in range(2)]
        await job
        assert len({*paths}) == 1
        await asyncio.gather(*others)
    assert order.count("end") == 1


async def test_an_attempt_starts_with_no_children_of_the_earlier_one_alive():
    """fail_fast cancels the earlier children, collect lets them finish."""
    alive = []

    @handler
    async def slow(node, release):
        try:
            await release.wait()
        finally:
            await asyncio.sleep(0)

    @handler
    async def parent(node, tries, release):
        alive.append(len(node.children))
        tries.append(node.call_handler(slow(release)))
        await settle_loop()
        if len(tries) == 1:
            asyncio.get_running_loop().call_soon(release.set)
            raise ValueError
        release.set()
        return [child.state for child in tries]

    async with asyncio.timeout(5), Commander() as commander:
        for policy, first in (("fail_fast", "cancelled"), ("collect", "completed")):
            node = parent([], asyncio.Event())
            states = await commander.run(node, retry=Retry(attempts=2), policy=policy)
            assert states[0] == first
    assert alive == [0, 0, 0, 0]


async def test_at_start_runs_at_each_attempt_and_the_final_callbacks_once():
    """The final callbacks follow the last attempt, with at_exception only if that failed."""
    seen = []

    def watched(job):
        for moment in ("start", "end", "exception", "done"):
            getattr(job, f"at_{moment}")(lambda _, moment=moment: seen.append(moment))
        return job

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(watched(Flaky([ValueError()] * 2)), retry=Retry(attempts=3))
        assert seen == ["start", "start", "start", "end", "done"]
        seen.clear()
        with pytest.raises(ValueError):
            await commander.run(watched(Flaky([ValueError()] * 2)), retry=Retry(attempts=2))
        assert seen == ["start", "start", "exception", "done"]


async def test_a_childs_failure_is_a_reason_to_retry_its_parent():
    """The whole subtree is retried."""
    tries = []

    @handler
    async def parent(node):
        tries.append(1)
        node.call_handler(fail(ValueError()) if len(tries) == 1 else give())
        return len(tries)

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent(), retry=Retry(attempts=2)) == 2


async def test_a_retried_node_is_pending_between_its_attempts_and_takes_no_part_of_the_first():
    """The result and the error of the failed attempt are cleared."""
    seen = []

    async with asyncio.timeout(5), Commander() as commander:
        job = commander.put_job(Flaky([ValueError()]), retry=Retry(backoff=SHORT, jitter=0))
        job.at_start(lambda each: seen.append((each.state, each.error, each.result)))
        assert await job == "made it"
    assert seen == [("running", None, None)] * 2


async def test_a_node_cancelled_between_two_attempts_is_not_tried_again():
    """The node ends without waiting for the backoff."""
    seen, failed = [], asyncio.Event()

    class Bad(Job[None]):
        async def task(self):
            seen.append("attempt")
            asyncio.get_running_loop().call_soon(failed.set)
            raise ValueError

    async with asyncio.timeout(5), Commander() as commander:
        job = commander.put_job(Bad(), retry=Retry(backoff=3600, max_backoff=3600, jitter=0))
        await failed.wait()
        await settle_loop()
        assert job.state == "pending"
        job.at_terminate(lambda _: seen.append("terminate"))
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
    assert seen == ["attempt", "terminate"]


async def test_a_cancelled_node_is_never_tried_again():
    """The error that its clean-up raised would match `on`."""
    tries = []

    class Bad(Job[None]):
        async def task(self):
            tries.append(1)
            self.cancel()
            raise ValueError

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(NodeCancelled):
            await commander.run(Bad(), retry=Retry(attempts=5))
    assert tries == [1]


async def test_an_attempt_sees_the_context_of_the_put_and_not_of_the_attempt_before():
    """Each attempt runs in a fresh copy of the context."""
    from contextvars import ContextVar

    variable, seen = ContextVar("variable", default="fresh"), []

    @handler
    async def body(node):
        seen.append(variable.get())
        variable.set("used")
        if len(seen) < 3:
            raise ValueError

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(body(), retry=Retry(attempts=3))
    assert seen == ["fresh"] * 3


def test_backoff_grows_to_its_ceiling_and_stops_in_time():
    """Without jitter the pause is backoff * factor ** n, up to max_backoff and `within`."""
    retry = Retry(attempts=9, backoff=1, factor=3, max_backoff=10, jitter=0, within=30)
    starts, delays = [0.0], []
    while (delay := retry.next_delay(ValueError(), starts, starts[-1])) is not None:
        delays.append(delay)
        starts.append(starts[-1] + delay)
    assert delays == [1, 3, 9, 10]


def test_jitter_draws_between_its_share_and_the_whole():
    """Full jitter reaches towards zero. A share of 0.5 stays above half."""
    for jitter, least in ((1.0, 0.0), (0.5, 5.0)):
        retry = Retry(attempts=2, backoff=10, jitter=jitter)
        delays = [retry.next_delay(ValueError(), [0.0], 0.0) or 0.0 for _ in range(200)]
        assert all(least <= delay <= 10 for delay in delays)
        assert max(delays) - min(delays) > (10 - least) / 2


def test_impossible_settings_are_refused():
    """The constructor raises, not the first failure."""
    for settings in ({"attempts": 0}, {"jitter": 1.5}):
        with pytest.raises(ValueError):
            Retry(**settings)


# --- restart


async def test_restart_keeps_a_node_alive_through_failures():
    """The node restarts up to `max` times within the window, then fails."""
    async with asyncio.timeout(5), Commander() as commander:
        job = Flaky([ValueError()] * 3)
        assert await commander.run(job, retry=Restart(max=3)) == "made it"
        with pytest.raises(ValueError):
            await commander.run(Flaky([ValueError()] * 4), retry=Restart(max=3))


def test_restart_forgets_what_is_older_than_the_window():
    """With rare failures the node restarts without end, and its list of starts stays short."""
    restart, starts = Restart(max=2, within=60), [0.0]
    for hour in range(1, 1000):
        now = hour * 3600.0
        assert restart.next_delay(ValueError(), starts, now) == 0
        starts.append(now)
    assert len(starts) <= 3


# --- at_retry


async def test_at_retry_runs_between_a_failed_attempt_and_the_next():
    """It runs in the order added, before at_start, with the last error. Not at first."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        first, second = ValueError("a"), OSError("b")
        job = Flaky([first, second])
        job.at_start(lambda node: seen.append(("start", node.error)))
        job.at_retry(lambda node: seen.append(("one", node.error)))

        async def two(node):
            await settle_loop()
            seen.append(("two", node.error))

        job.at_retry(two)
        assert await commander.run(job, retry=Retry(attempts=3)) == "made it"
    assert seen == [
        ("start", None),
        *[("one", first), ("two", first), ("start", None)],
        *[("one", second), ("two", second), ("start", None)],
    ]


async def test_no_at_retry_runs_after_the_last_attempt_nor_for_a_cancelled_node():
    """It runs only before a further attempt, so never without a retry."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        for retry in (None, Retry(attempts=1), Retry(on=OSError)):
            job = Flaky([ValueError(), ValueError()]).at_retry(seen.append)
            with pytest.raises(ValueError):
                await commander.run(job, retry=retry)
        waiting = Flaky([ValueError()]).at_retry(seen.append)
        commander.put_job(waiting, claim=True, retry=Retry(backoff=60, jitter=0))
        await settle_loop()
        waiting.cancel()
        with pytest.raises(NodeCancelled):
            await waiting
    assert seen == []


async def test_an_at_retry_that_raises_fails_the_attempt():
    """The attempt counts. The body and at_start do not run, the other at_retry callbacks do."""
    seen = []

    def refuse(_):
        seen.append("refuse")
        raise KeyError("no")

    async with asyncio.timeout(5), Commander() as commander:
        job = Flaky([ValueError()]).at_retry(refuse).at_retry(lambda _: seen.append("other"))
        job.at_start(lambda _: seen.append("start"))
        with pytest.raises(KeyError):
            await commander.run(job, retry=Retry(attempts=3))
    assert seen == ["start", *["refuse", "other"] * 2]
    assert job.errors == []


async def test_a_callback_that_cancels_its_node_before_the_body_keeps_the_body_from_beginning():
    """This holds at a retry and at the start, for plain and async callbacks."""
    async with asyncio.timeout(5), Commander() as commander:

        async def give_up(node):
            node.cancel("enough")
            with suppress(asyncio.CancelledError):
                await settle_loop()

        for callback in (give_up, lambda node: node.cancel("enough")):
            job = Flaky([ValueError(), ValueError()]).at_retry(callback)
            with pytest.raises(NodeCancelled, match="enough"):
                await commander.run(job, retry=Retry(attempts=3))
            assert len(job.errors) == 1
            job = Flaky([ValueError()]).at_start(callback)
            with pytest.raises(NodeCancelled, match="enough"):
                await commander.run(job)
            assert len(job.errors) == 1


async def test_at_retry_sees_none_where_a_restart_follows_a_success():
    """`Restart(always=True)` also restarts a successful body. `node.error` is then None."""
    seen = []
    async with asyncio.timeout(5), Commander() as commander:
        job = Flaky([ValueError()]).at_retry(lambda node: seen.append(repr(node.error)))
        await commander.run(job, retry=Restart(max=2, always=True))
    assert seen == ["ValueError()", "None"]
