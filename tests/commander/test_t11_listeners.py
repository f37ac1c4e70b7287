"""T11: listeners can be added and removed, and cost no more than the events they receive."""

import asyncio
import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import give, hang
from support.waiting import settle_loop, wait_until

from anabranch.commander import Commander, Event
from anabranch.commander._record import record_of

pytestmark = pytest.mark.contract("T11")


async def listen(commander, stop=None):
    """Read events until one of the kind `stop` comes. Leave the iterator to the collector."""
    async for event in commander.events():
        if event.kind == stop:
            break


async def test_a_listener_that_was_left_early_is_gone():
    """An `async for` left by break, a cancelled task and an unused listener are all removed."""
    async with asyncio.timeout(5), Commander() as commander:
        left = [asyncio.create_task(listen(commander, "started")) for _ in range(50)]
        stays = [asyncio.create_task(listen(commander)) for _ in range(50)]
        for _ in range(50):
            commander.events({"failed"})  # no event of this kind ever happens
        await settle_loop()
        await commander.run(give())
        await asyncio.gather(*left)
        await settle_loop()
        assert len(record_of(commander).tree.listeners) == 50
        for task in stays:
            task.cancel()
        await asyncio.wait(stays)
        stays.clear()
        task = None
        gc.collect()  # exceptions raised in these frames may refer to them
        await settle_loop()
        assert record_of(commander).tree.listeners == []


async def test_a_listener_that_somebody_waits_for_stays():
    """No variable refers to the iterator or its task, but the events still arrive."""
    heard = []

    async def listens():
        async for event in commander.events(["completed"]):
            heard.append(event.name)  # noqa: PERF401 - each on arrival

    async with asyncio.timeout(5), Commander() as commander:
        task = weakref.ref(asyncio.create_task(listens()))
        await settle_loop()
        gc.collect()
        assert task() is not None
        await commander.run(give())
        await wait_until(lambda: heard)  # at once, or a millisecond after the previous wake-up
        assert heard == ["give"]


async def test_a_listener_may_be_dropped_by_any_thread_and_after_the_end():
    """A thread drops the last reference while the loop runs, or after the end."""
    async with asyncio.timeout(10):
        async with Commander() as commander:
            held = [commander.events() for _ in range(20)]
            kept = commander.events()
            thread = threading.Thread(target=held.clear)
            thread.start()
            for _ in range(200):
                await commander.run(give())
            thread.join()
            await settle_loop()
            assert len(record_of(commander).tree.listeners) == 1
        assert sum([event.kind == "completed" async for event in kept]) == 201
    del kept
    Commander().events()


def test_a_listener_may_be_dropped_when_its_loop_was_closed():
    """No loop is left to notify."""

    async def opened():
        await commander.__aenter__()

    loop, commander = asyncio.new_event_loop(), Commander(slow_after=None)
    loop.run_until_complete(opened())
    events = commander.events()
    loop.close()
    del events


async def test_a_second_reader_of_one_listener_is_refused_and_takes_nothing():
    """The first reader continues and receives every event."""
    async with asyncio.timeout(5), Commander() as commander:
        events = commander.events(["completed"])
        first = asyncio.create_task(anext(events))
        await settle_loop()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(events)
        await commander.run(give())
        assert (await first).kind == "completed"


async def test_a_listener_that_nobody_reads_holds_what_it_may_and_no_more():
    """The buffer is bounded, and contains the newest events."""
    async with asyncio.timeout(20), Commander() as commander:
        events = commander.events(["completed", "missed"], capacity=10)
        most = 0
        for number in range(1, 201):
            await commander.run(give(number))
            most = max(most, len(events._listener.buffer) / len(Event._fields))
        assert most <= 2 * 10
        assert events.missed == (await anext(events)).data == 190
        assert (await anext(events)).node_id == 191


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8))
def test_each_event_is_read_once_and_in_order_or_counted_as_missed(room, steps):
    """Any order of writes and reads works. The oldest events are missed first."""

    async def main():
        async with Commander() as commander:
            events = commander.events(["completed", "missed"], capacity=room)
            unread, sent, missed = [], 0, 0
            for writes, reads in steps:
                for _ in range(writes):
                    sent += 1
                    await commander.run(give())
                    unread.append(sent)
                if reads and (gap := max(0, len(unread) - room)):
                    del unread[:gap]
                    missed += gap
                    assert (await anext(events)).data == gap
                    assert events.missed == missed
                for _ in range(min(reads, len(unread))):
                    assert (await anext(events)).node_id == unread.pop(0)

    asyncio.run(main())


async def test_a_listener_hears_nothing_in_a_loop_that_is_not_the_trees():
    """Waking it from another thread would be unsafe, so it is refused."""
    async with asyncio.timeout(5), Commander() as commander:
        events = commander.events()
        node = commander.call_handler(hang())
        await settle_loop()
        while (await anext(events)).kind != "started":
            pass

        async def elsewhere():
            with pytest.raises(RuntimeError, match="listener on that loop"):
                await anext(events)

        await asyncio.to_thread(asyncio.run, elsewhere())
        node.cancel()
        assert (await anext(events)).kind == "cancelled"
