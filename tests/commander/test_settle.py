"""`settle` waits for several awaitables and returns each outcome."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import threading
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from support.nodes import give
from support.seeds import seeds

from anabranch import Commander, Job, Node, NodeCancelled, QuorumNotMet, Retry, handler, run, settle
from anabranch.store import Durable, Journal
from anabranch.testing import explore, pause


class Work(Job[int]):
    """Return the number, fail, or cancel itself at a moment that the seed chooses."""

    number: int
    fate: str

    async def task(self) -> int:
        return await step(self, self.number, self.fate)


@handler
async def work(node: Node[Any], number: int, fate: str) -> int:
    return await step(node, number, fate)


async def step(node: Node[Any] | None, number: int, fate: str) -> int:
    await asyncio.sleep(random.randint(0, 3))
    await pause(3)
    if fate == "fails":
        raise KeyError(number)
    if fate == "cancelled" and node is not None:
        node.cancel(f"{number}")
        await asyncio.Event().wait()
    return number


def fits(outcome: object, number: int, fate: str, kind: str) -> bool:
    if fate == "fails":
        return isinstance(outcome, KeyError) and outcome.args == (number,)
    if fate == "cancelled" and kind != "coroutine":
        return isinstance(outcome, NodeCancelled) and outcome.reason == f"{number}"
    return outcome == number


@pytest.mark.parametrize("given", [["a list"], None, work, Work, 3])
async def test_what_cannot_be_awaited_is_refused_before_anything_starts(given: Any) -> None:
    """A missing star is the caller's mistake, not the failure of an awaitable."""
    async with Commander() as commander:
        other = work(1, "ends")
        with pytest.raises(TypeError, match="settle waits for nodes and coroutines, not "):
            await settle(other, given)
        assert other.state == "pending"
        assert commander.children == ()


def test_results_and_failures_come_in_order_and_all_are_waited_for() -> None:
    """New nodes, running nodes and coroutines keep their order, in 300 event orders."""

    async def main() -> str:
        kinds = random.choices(["job", "handler", "started", "coroutine"], k=random.randint(0, 5))
        fates = [random.choice(["ends", "fails", "cancelled"]) for _ in kinds]
        at_least = random.randint(0, len(kinds))

        class Desk(Job[list[int | Exception]]):
            async def task(self) -> list[int | Exception]:
                given: list[Any] = []
                for number, (kind, fate) in enumerate(zip(kinds, fates, strict=True)):
                    if kind == "coroutine":
                        given.append(step(None, number, fate))
                    elif kind == "started":
                        given.append(self.put_job(Work(number, fate)))
                    else:
                        given.append((Work if kind == "job" else work)(number, fate))
                try:
                    return await settle(*given, at_least=at_least)
                finally:
                    assert not self.children

        async with Commander(max_concurrency=2) as commander:
            missed: QuorumNotMet | None = None
            try:
                outcomes: Any = await commander.run(Desk())
            except QuorumNotMet as error:
                missed, outcomes = error, error.outcomes
        completed = sum(isinstance(each, int) for each in outcomes)
        assert (missed is None) == (completed >= at_least)
        if missed is not None:
            failures = tuple(each for each in outcomes if isinstance(each, Exception))
            assert (missed.needed, missed.completed) == (at_least, completed)
            assert missed.failures == failures
            assert pickle.loads(pickle.dumps(missed)).completed == completed
        expected = zip(outcomes, range(9), fates, kinds, strict=False)
        assert len(outcomes) == len(kinds)
        assert all(fits(*each) for each in expected)
        return "met"

    explore(main, seeds(300))


def test_cancelling_it_ends_all_that_it_waits_for() -> None:
    """The cancel comes at a random moment. Earlier failures are dropped and the body continues."""

    async def main() -> str:
        class Desk(Job[str]):
            async def task(self) -> str:
                fates = random.choices(["ends", "fails"], k=4)
                try:
                    async with asyncio.timeout(random.uniform(0, 4)):
                        await settle(*(Work(n, fate) for n, fate in enumerate(fates)))
                except TimeoutError:
                    assert not self.children
                    return "late"
                return "in time"

        async with Commander() as commander:
            return await commander.run(Desk())

    assert set(explore(main, seeds(200))) == {"late", "in time"}


def test_failures_that_a_cancelled_settle_had_collected_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each failure is logged whenever the cancel comes, because no caller receives the outcomes."""

    async def main() -> int:
        caplog.clear()
        nodes = [work(number, "fails") for number in range(3)]
        given = []
        async with Commander() as commander:

            @handler
            async def desk(node: Node[Any]) -> None:
                given.extend(await settle(*nodes))

            task = commander.call_handler(desk())
            await asyncio.sleep(random.uniform(0, 4))
            task.cancel()
        seen = [each for each in given if isinstance(each, KeyError)]
        seen += [each.exc_info[1] for each in caplog.records if each.exc_info]
        failed = [node for node in nodes if node.state == "failed"]
        assert {id(node.error) for node in failed} == {id(each) for each in seen}
        return len(failed)

    assert {0, 1, 2, 3} <= set(explore(main, seeds(100)))


def test_what_can_never_be_met_is_refused() -> None:
    """`at_least` is checked before any awaitable starts."""

    class Desk(Job[None]):
        async def task(self) -> None:
            with pytest.raises(ValueError, match="at_least must be 0 to 1, not 2"):
                await settle(Work(0, "ends"), at_least=2)
            assert not self.children

    run(Desk())


def test_what_may_not_be_awaited_is_raised() -> None:
    """Awaiting an ancestor raises. It does not count as a failed outcome."""

    class Desk(Job[None]):
        async def task(self) -> None:
            with pytest.raises(RuntimeError, match="awaits itself"):
                await settle(self)

    run(Desk())


def test_nodes_that_settle_each_other_end_when_one_is_cancelled() -> None:
    """No node waits for its waiter or an ancestor when the cancel comes at a random moment."""

    async def main() -> str:
        peers: list[Node[None]] = []
        by_timeout = random.random() < 0.5

        class Peer(Job[None]):
            number: int

            async def task(self) -> None:
                await pause(3)
                others = [peer for peer in peers if peer is not self]
                around = [self.parent] if self.number == 0 and self.parent is not None else []
                timeout = random.uniform(0, 4) if by_timeout else None
                async with asyncio.timeout(timeout):
                    await settle(*others, *around)

        class Round(Job[None]):
            async def task(self) -> None:
                peers.extend(Peer(number) for number in range(random.randint(1, 3)))
                for peer in peers:
                    self.put_job(peer)

        async with Commander() as commander:
            commander.put_job(Round())
            await asyncio.sleep(random.uniform(0, 4))
            commander.exit()
        assert all(peer.state in ("cancelled", "failed", "completed") for peer in peers)
        return "ended"

    explore(main, seeds(200))


def test_a_coroutine_that_is_cancelled_before_it_began_is_closed() -> None:
    """Python does not warn about a coroutine that was never awaited."""

    async def main() -> None:
        class Desk(Job[None]):
            async def task(self) -> None:
                if random.random() < 0.5:
                    self.cancel()
                else:
                    asyncio.get_running_loop().call_soon(self.cancel)
                await settle(step(None, 1, "ends"), step(None, 2, "ends"))

        async with Commander() as commander:
            desk = commander.put_job(Desk())
        assert desk.state == "cancelled"

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        explore(main, seeds(50))
        gc.collect()
    assert not warned


async def test_a_node_of_another_loop_is_refused() -> None:
    """The refusal comes first, so a cancel of the waiter never touches another loop's node."""
    ready: Future[Node[Any]] = Future()
    over = threading.Event()

    class There(Job[None]):
        async def task(self) -> None:
            ready.set_result(self)
            await asyncio.to_thread(over.wait)

    there = threading.Thread(target=lambda: run(There()))
    there.start()
    try:
        node = await asyncio.wrap_future(ready)
        async with asyncio.timeout(5), Commander() as commander:
            with pytest.raises(RuntimeError, match="belongs to another thread's event loop"):
                await settle(Work(0, "ends"), node)
            assert not commander.children
    finally:
        over.set()
        there.join()


async def test_outside_a_tree_it_says_so() -> None:
    """Without a current node, the awaitables would have no parent."""
    with pytest.raises(LookupError, match=r"settle needs a tree.*async with Commander"):
        await settle(Work(0, "ends"))


async def test_too_few_say_what_the_others_failed_with() -> None:
    """The message names each error class once, even if an error's text cannot be read."""

    class Unspeakable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    async def fails(error: Exception) -> None:
        raise error

    async with Commander():
        with pytest.raises(QuorumNotMet) as caught:
            errors = [Unspeakable(), KeyError("a"), KeyError("b")]
            await settle(asyncio.sleep(0), *map(fails, errors), at_least=2)
    assert str(caught.value) == (
        "1 of the 2 children needed have completed; 3 failed: Unspeakable, KeyError"
    )


# --- some at a time, with options


def test_at_most_so_many_run_at_once_and_in_their_order() -> None:
    """All turns are used while nodes wait, in 200 event orders. Running nodes count, too."""

    async def main() -> str:
        at_once, number = random.randint(1, 4), random.randint(0, 9)
        fates = [random.choice(["ends", "ends", "fails", "cancelled"]) for _ in range(number)]
        running, begun = 0, list[int]()

        def count(change: int) -> None:
            nonlocal running
            running += change
            assert running <= at_once

        @handler
        async def counted(node: Node[Any], number: int, fate: str) -> int:
            count(1)
            begun.append(number)
            return await step(node, number, fate)

        class Desk(Job[list[int | Exception]]):
            async def task(self) -> list[int | Exception]:
                nodes = [
                    counted(n, fate).at_done(lambda _: count(-1)) for n, fate in enumerate(fates)
                ]
                try:
                    return await settle(*nodes, at_once=at_once)
                finally:
                    assert not self.children

        async with Commander(max_concurrency=random.choice([None, 1])) as commander:
            outcomes: list[Any] = await commander.run(Desk())
        assert (begun if at_once == 1 else sorted(begun)) == [*range(number)]
        assert all(map(fits, outcomes, range(9), fates, ["handler"] * number))
        return "met"

    explore(main, seeds(200))


def test_a_cancel_starts_no_further_node_and_closes_coroutines() -> None:
    async def main() -> str:
        begun: list[int] = []

        async def one(number: int) -> int:
            begun.append(number)
            return await step(None, number, "ends")

        class Desk(Job[str]):
            async def task(self) -> str:
                try:
                    async with asyncio.timeout(random.uniform(0, 4)):
                        await settle(*(one(number) for number in range(6)), at_once=2)
                except TimeoutError:
                    assert not self.children
                    count = len(begun)
                    await asyncio.sleep(5)  # of the virtual clock
                    assert len(begun) == count
                return "met"

        async with Commander() as commander:
            return await commander.run(Desk())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explore(main, seeds(100))
        gc.collect()


async def test_each_node_is_tried_again_and_has_its_timeout() -> None:
    tries: dict[int, int] = {}

    @handler
    async def shaky(node: Node[Any], number: int) -> int:
        tries[number] = tries.get(number, 0) + 1
        if number == 2:
            await asyncio.Event().wait()
        if tries[number] <= number:
            raise ConnectionError(number)
        return number

    async with Commander() as commander:
        again = Retry(attempts=2, on=ConnectionError, backoff=0)
        nodes = [shaky(each) for each in (0, 1, 2, 3)]
        zero, one, two, three = await settle(*nodes, at_once=1, retry=again, timeout=0.01)
        assert (zero, one) == (0, 1)
        assert isinstance(two, TimeoutError)
        assert isinstance(three, ConnectionError)
        assert tries == {0: 1, 1: 2, 2: 1, 3: 2}
        late, soon = await settle(asyncio.Event().wait(), asyncio.sleep(0, 1), timeout=0.01)
        assert isinstance(late, TimeoutError)
        assert soon == 1
        assert commander.children == ()


async def test_options_that_nothing_could_obey_are_refused() -> None:
    async with Commander() as commander:
        for at_once in (0, -1, 1.5, "2"):
            with pytest.raises(ValueError, match="at_once must be a whole number from 1 on"):
                await settle(give(1), at_once=at_once)  # type: ignore[arg-type]
        coroutine = asyncio.sleep(0)
        with pytest.raises(TypeError, match=r"runs only once. Pass a node, such as .*agent.call"):
            await settle(give(1), coroutine, retry=Retry())
        coroutine.close()
        with pytest.raises(TypeError, match="retry must be"):
            await settle(give(1), retry=3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timeout must be"):
            await settle(give(1), timeout="3")  # type: ignore[arg-type]
        started = commander.call_handler(give(1))
        with pytest.raises(TypeError, match="has started: pass its retry= and timeout= where"):
            await settle(started, give(1), timeout=3)
        assert commander.children == (started,)
        assert await settle(started, at_once=1) == [1]


class Fetch(Durable[int]):
    number: int

    async def task(self) -> int:
        FETCHED.append(self.number)
        if self.number == 3 and FETCHED.count(3) == 1:
            await asyncio.Event().wait()
        if self.number == 5 and FETCHED.count(3) == 1:
            LAST_FETCHED.set()
        return self.number


class Fetches(Durable[int]):
    async def task(self) -> int:
        found = await settle(*(Fetch(number) for number in range(6)), at_once=2, at_least=6)
        return sum(each for each in found if isinstance(each, int))


FETCHED: list[int] = []
LAST_FETCHED = asyncio.Event()


async def test_a_durable_run_resumes_in_the_middle_of_the_turns(tmp_path: Path) -> None:
    """The second execution replays the others and fetches only the one that was interrupted."""
    FETCHED.clear()
    LAST_FETCHED.clear()
    async with asyncio.timeout(10), Journal(tmp_path / "runs.db") as journal, Commander():
        call = asyncio.ensure_future(journal.run(Fetches(), run_id="r"))
        await LAST_FETCHED.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert await journal.run(Fetches(), run_id="r") == 15
    assert sorted(set(FETCHED)) == [0, 1, 2, 3, 4, 5]
    assert FETCHED.count(3) == 2
    assert FETCHED.count(0) == FETCHED.count(4) == 1
