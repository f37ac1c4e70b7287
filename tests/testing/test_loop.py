"""The seeded loop: only legal orders, a virtual clock, deadlock detection, real threads."""

import asyncio
import contextvars
import itertools
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler
from anabranch.testing import (
    Deadlock,
    SeededLoop,
    VirtualClock,
    _loop,
    advance,
    explore,
    pause,
    run_seeded,
)
from anabranch.tracing import read, record


async def three_tasks() -> tuple[int, ...]:
    order: list[int] = []

    async def step(number: int) -> None:
        for _ in range(2):
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(step(number))
    return tuple(order)


def test_the_same_seed_gives_the_same_order() -> None:
    """So a run can be replayed."""
    assert explore(three_tasks, range(50)) == explore(three_tasks, range(50))


def test_seeds_reach_every_order_within_a_turn_and_no_other() -> None:
    """3! orders in each of two turns. No task runs twice before all others have run once."""
    orders = set(explore(three_tasks, range(1000)))

    assert len(orders) == 36
    assert all(set(order[:3]) == {0, 1, 2} for order in orders)


@pytest.mark.parametrize("program", range(50))
def test_without_a_seed_the_order_is_asyncios_own(program: int) -> None:
    """Shown by a random program of tasks and callbacks that start others.

    The clock is still virtual.
    """

    async def main() -> list[tuple[int, int]]:
        chance, order = random.Random(program), list[tuple[int, int]]()

        async def step(number: int) -> None:
            async with asyncio.TaskGroup() as group:
                for turn in range(chance.randint(1, 4)):
                    order.append((number, turn))
                    asyncio.get_running_loop().call_soon(order.append, (number, -turn))
                    if number < 40 and chance.random() < 0.4:
                        group.create_task(step(2 * number + turn))
                    await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number in range(1, 6):
                group.create_task(step(number))
        return order

    async def late() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_seeded(main, seed=None) == asyncio.run(main())
    assert run_seeded(late, seed=None) == 3600


def test_callbacks_keep_their_places_among_themselves_and_among_tasks() -> None:
    """Every seed keeps the order that `call_soon` promises."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        seen: list[str] = []

        async def task(name: str) -> None:
            seen.append(name)

        loop.call_soon(seen.append, "first")
        tasks = [loop.create_task(task(name)) for name in "ab"]
        loop.call_soon(seen.append, "second")
        tasks += [loop.create_task(task(name)) for name in "cd"]
        loop.call_soon(seen.append, "third")
        await asyncio.wait(tasks)
        return seen

    for seen in explore(main, range(100)):
        assert [name for name in seen if len(name) > 1] == ["first", "second", "third"]
        assert set(seen[1:3]) == {"a", "b"}
        assert set(seen[4:6]) == {"c", "d"}


def test_the_clock_jumps_to_the_next_timer() -> None:
    """A day passes at once, and timers fire in the order of their times."""

    async def main() -> tuple[list[int], float]:
        loop = asyncio.get_running_loop()
        fired: list[int] = []
        for hours in (24, 1, 5):
            loop.call_later(hours * 3600, fired.append, hours)
        await asyncio.sleep(86_400)
        return fired, loop.time()

    began = time.monotonic()
    assert run_seeded(main) == ([1, 5, 24], 86_400)
    assert time.monotonic() - began < 5


def test_advance_lets_timers_fall_due_without_an_idle_moment() -> None:
    """`advance` stands for a body that computes for a long time."""

    async def main() -> str:
        try:
            async with asyncio.timeout(1):
                advance(2)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        except TimeoutError:
            return "timed out"
        return "in time"

    assert run_seeded(main) == "timed out"
    with pytest.raises(ValueError, match="forward"):
        VirtualClock().advance(-1)


def test_a_deadlock_is_named_and_the_tree_drawn() -> None:
    """The error names the place of each node."""

    @handler
    async def stuck(node: object) -> None:
        await asyncio.get_running_loop().create_future()

    @handler
    async def waits(node: object) -> None:
        await stuck()

    async def main() -> None:
        async with Commander() as commander:
            await commander.run(waits())

    with pytest.raises(Deadlock) as caught:
        run_seeded(main)

    text = str(caught.value)
    assert "waits#1 running" in text
    assert "stuck#2 is running, stands at test_loop.py" in text


def test_a_deadlock_is_found_in_a_tree_that_is_recorded(tmp_path: Path) -> None:
    """The timers of a recorder only inspect nodes, so they do not hide the deadlock."""

    @handler
    async def stuck(node: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with Commander() as commander, record(commander, tmp_path / "run.jsonl"):
            await commander.run(stuck())

    with pytest.raises(Deadlock, match="stuck#1 running"):
        run_seeded(main)
    assert '"e":"waiting"' in (tmp_path / "run.jsonl").read_text()
    assert [node.name for node in read(tmp_path / "run.jsonl")] == ["stuck"]


def test_who_acts_on_what_a_node_waits_for_is_no_deadlock() -> None:
    """The listener gets the events of later inspections, and acts on one."""

    @handler
    async def stuck(node: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> str:
        async with Commander() as commander:
            waiting = commander.events(["waiting"])
            node = commander.call_handler(stuck())
            event = await anext(waiting)
            node.cancel("seen")
            return event.name

    assert run_seeded(main) == "stuck"


def test_a_deadlock_without_a_tree_names_the_tasks() -> None:
    """The loop runs any asyncio code."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"locks.py:\d+ in wait"):
        run_seeded(main)


def test_a_run_without_end_is_given_up() -> None:
    """A ticker that never stops does not hang the test."""

    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)  # the fault under test

    with pytest.raises(TimeoutError, match="seed 7"):
        run_seeded(main, 7, turns=100)


def test_a_failure_under_explore_says_how_to_replay_it() -> None:
    """The note contains the seed. The replay fails in the same way."""

    async def main() -> None:
        order = await three_tasks()
        assert order[0] != 2, order

    with pytest.raises(AssertionError) as caught:
        explore(main)

    (note,) = caught.value.__notes__
    seed = int(note.rpartition("seed=")[2].rstrip(")"))
    with pytest.raises(AssertionError) as again:
        run_seeded(main, seed)
    assert str(again.value) == str(caught.value)


def test_random_is_seeded_inside_and_as_before_outside() -> None:
    """Jitter is replayed too, and the caller's generator keeps its state."""

    async def main() -> float:
        return random.random()

    before = random.getstate()
    assert run_seeded(main, 1) == run_seeded(main, 1) != run_seeded(main, 2)
    assert random.getstate() == before


def test_what_a_callback_raises_fails_the_run() -> None:
    """asyncio would only log the error."""

    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run_seeded(main)


def test_tasks_that_are_left_are_cancelled_and_waited_for() -> None:
    """Their clean-up runs, as under `asyncio.run`."""
    cleaned: list[str] = []

    async def left() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            cleaned.append("up")

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(left())
        await asyncio.sleep(1)
        return task

    assert run_seeded(main).cancelled()
    assert cleaned == ["up"]


def test_a_thread_calls_in_and_the_clock_stands_still_meanwhile() -> None:
    """Milliseconds of real work do not consume a second of virtual timeout."""

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        release = threading.Event()
        called = loop.create_future()

        def work() -> None:
            release.wait(5)
            loop.call_soon_threadsafe(called.set_result, "called")

        threading.Thread(target=work).start()
        loop.call_soon(release.set)
        async with asyncio.timeout(1000):
            return await called, loop.time()

    assert run_seeded(main) == ("called", 0)


def test_a_pool_at_rest_does_not_hold_the_clock() -> None:
    """Worker threads of asyncio and of the tree stay alive.

    The clock waits only while they work.
    """

    @handler
    async def blocking(node: "Commander") -> str:
        return await node.in_thread(lambda: "done")

    async def main() -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        first = await loop.run_in_executor(ThreadPoolExecutor(1), lambda: "done")
        async with Commander() as commander:
            second = await commander.run(blocking(), timeout=1000)
            await asyncio.sleep(86_400)
        return first, second

    began = time.monotonic()
    assert run_seeded(main) == ("done", "done")
    assert time.monotonic() - began < 5


def test_a_thread_that_waits_for_an_event_does_not_hold_the_clock() -> None:
    """It continues only when another thread sets the event. From then on it is at work."""

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        asked, over = threading.Event(), threading.Event()

        def work() -> None:
            while not over.is_set():
                asked.wait()
                asked.clear()
                loop.call_soon_threadsafe(answers.popleft().set_result, "answer")

        answers = deque[asyncio.Future[str]]()
        threading.Thread(target=work).start()
        said = ""
        for number in range(200):
            await asyncio.sleep(1000)
            answers.append(loop.create_future())
            answer = answers[0]
            if number == 199:
                over.set()
            asked.set()
            said = await answer
        return said, loop.time()

    assert run_seeded(main, patience=60) == (
        "answer",
        200_000,
    )  # without hours of real time


class Sly(queue.Queue[Callable[[], object]]):
    """A queue that gets an item, which its thread takes at once, while the loop checks for work."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.taken = threading.Event()
        self.calls = 0
        self.is_asked = False
        super().__init__()

    @property
    def unfinished_tasks(self) -> int:
        if not self.is_asked and threading.current_thread() is threading.main_thread():
            self.is_asked = True
            self.put(self.work)
            self.taken.wait(5)
        return self.calls

    @unfinished_tasks.setter
    def unfinished_tasks(self, calls: int) -> None:
        self.calls = calls


class WorkerThread(threading.Thread):
    """A thread that waits for work as anyio's threads do."""

    def __init__(self, queue: Sly) -> None:
        super().__init__()
        self.queue = queue

    def run(self) -> None:
        work = self.queue.get()
        self.queue.taken.set()
        work()


def test_a_thread_that_takes_its_work_at_this_moment_is_at_work() -> None:
    """Although it looked idle before, and the queue is already empty."""
    over = threading.Event()

    async def main() -> str:
        loop = asyncio.get_running_loop()
        called = loop.create_future()

        def work() -> None:
            over.wait(0.1)
            loop.call_soon_threadsafe(called.set_result, "called")

        WorkerThread(Sly(work)).start()
        return await called

    assert run_seeded(main) == "called"


def test_a_process_that_was_stopped_has_not_waited_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During the stop, a working thread could not call in either."""
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))

    async def main() -> str:
        loop = asyncio.get_running_loop()
        called = loop.create_future()
        seen = threading.Event()

        def work() -> None:
            seen.wait(0.1)
            loop.call_soon_threadsafe(called.set_result, "called")

        threading.Thread(target=work).start()
        return await called

    assert run_seeded(main) == "called"


def test_a_deadlock_names_the_threads_that_are_still_at_work() -> None:
    """The patience may have been too short for them."""
    over = threading.Event()

    async def main() -> None:
        threading.Thread(target=over.wait, args=(60,), name="slow one").start()
        await asyncio.get_running_loop().create_future()

    try:
        with pytest.raises(Deadlock, match=r"patience= is too short.*\n  slow one at .* in wait"):
            run_seeded(main, patience=0.05)
    finally:
        over.set()


def test_other_threads_change_no_order() -> None:
    """Their callbacks run at the start of a turn."""

    async def main() -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def disturb() -> None:
            while not stop.is_set():
                loop.call_soon_threadsafe(int)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            return await three_tasks()
        finally:
            stop.set()
            thread.join()

    assert explore(main, range(20)) == explore(three_tasks, range(20))


def test_pause_waits_for_a_number_of_turns_that_the_seed_chooses() -> None:
    """So a test's own steps can happen at any moment."""

    async def main() -> tuple[str, ...]:
        seen: list[str] = []

        async def task(name: str) -> None:
            await pause()
            seen.append(name)

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(task(name))
        return tuple(seen)

    assert len(set(explore(main, range(200)))) == 6


async def test_outside_the_loop_the_helpers_say_so() -> None:
    """`pause` and `advance` need the seeded loop."""
    with pytest.raises(RuntimeError, match="run_seeded"):
        advance(1)
    with pytest.raises(RuntimeError, match="run_seeded"):
        await pause()
    with pytest.raises(RuntimeError, match="running"):
        run_seeded(three_tasks)


def test_context_reaches_main_and_what_threads_hand_in() -> None:
    """As in asyncio, a callback runs in the context of its caller."""
    variable = contextvars.ContextVar("variable", default="unset")

    async def main() -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        seen = loop.create_future()

        def work() -> None:
            variable.set("thread")
            loop.call_soon_threadsafe(lambda: seen.set_result(variable.get()))

        threading.Thread(target=work).start()
        return variable.get(), await seen

    variable.set("caller")
    assert run_seeded(main) == ("caller", "thread")


def test_a_cancelled_node_gives_the_same_error_under_every_order() -> None:
    """Both outcomes of the race occur, and no other."""

    @handler
    async def leaf(node: object) -> str:
        await pause()
        return "completed"

    @handler
    async def root(node: Commander) -> str:
        child = node.call_handler(leaf(), claim=True)
        await pause()
        child.cancel()
        try:
            return await child
        except NodeCancelled:
            return "cancelled"

    async def main() -> str:
        async with Commander() as commander:
            return await commander.run(root())

    assert set(explore(main, range(200))) == {"completed", "cancelled"}


def test_a_pool_thread_that_looks_idle_while_it_begins_a_call_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For an instant it has taken the call, but still waits where idle threads wait."""
    monkeypatch.setattr(_loop, "is_at_work", lambda _: False)

    async def main() -> float:
        await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.1), 60)
        return asyncio.get_running_loop().time()

    assert run_seeded(main) < 60


def test_a_call_in_a_pool_that_waits_for_an_event_is_not_waited_for() -> None:
    """The loop waits for the thread that will set the event, if one is at work."""
    event = threading.Event()

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        calls = [loop.run_in_executor(None, event.wait) for _ in range(2)]
        give_up = time.monotonic() + 30
        while (waited_for := loop._may_be_called()) and time.monotonic() < give_up:
            time.sleep(0.001)  # noqa: ASYNC251 - the loop is to have nothing else to do
        event.set()
        await asyncio.gather(*calls)
        return waited_for

    assert not run_seeded(main)
