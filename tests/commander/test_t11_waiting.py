"""T11: listeners that ask for it receive the waits of nodes, at a bounded cost."""

import asyncio

import pytest
from support.clock import sleep_virtual, virtual_time
from support.nodes import hang
from support.seeds import example_count

from anabranch.commander import Commander
from anabranch.commander import _wait_events as module
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T11")

WAITING = ["waiting"]


@handler
async def stands(node, first, second):
    await first.wait()
    await second.wait()


@handler
async def joins(node, count):
    for _ in range(count):
        node.call_handler(hang())


class Waits(Job[None]):
    async def task(self):
        await asyncio.Event().wait()


def end(commander):
    for node in commander.children:
        node.cancel()


def read(events):
    """Return the buffered events."""
    found = []
    while (event := events._listener.next()) is not None:
        found.append(event)
    return found


def waits_of(commander):
    return record_of(commander).tree.wait_publisher


@virtual_time
async def test_a_wait_is_told_once_and_again_where_it_has_changed():
    """A longer duration is not a change. Short waits are not published."""
    first, second = asyncio.Event(), asyncio.Event()
    async with Commander(slow_after=None) as commander:
        events = commander.events(WAITING)
        node = commander.call_handler(stands(first, second), claim=True)
        await sleep_virtual(0.2)
        assert read(events) == []
        await sleep_virtual(60)
        [event] = read(events)
        assert (event.kind, event.node_id) == ("waiting", node.node_id)
        assert event.data.at.startswith("test_t11_waiting.py:")
        assert event.data.text.startswith("is running")
        first.set()
        await sleep_virtual(60)
        [again] = read(events)
        assert again.data.at != event.data.at
        second.set()


@virtual_time
async def test_all_kinds_of_waits_are_told():
    """Waits for nodes, for a slot and for children are published."""
    async with Commander(max_concurrency=1, slow_after=None) as commander:
        events = commander.events(WAITING)
        jobs = commander.put_job(Waits()), commander.put_job(Waits())
        joining = commander.call_handler(joins(30), claim=True)
        await sleep_virtual(5)
        found = {event.node_id: event.data for event in read(events)}
        assert len(found) == 33
        texts = sorted(found[job.node_id].text for job in jobs)
        assert texts[0].startswith("is pending")
        assert texts[0].endswith("waits for one of 1 slots")
        assert texts[1].startswith("is running, stands at test_t11_waiting.py:")
        assert found[joining.node_id].state == "joining"
        # The full list of thousands would be published again for each child that ends.
        assert len(found[joining.node_id].waits_for) == 20
        assert found[joining.node_id].more == 10
        end(commander)


@virtual_time
async def test_nobody_looks_unless_the_kind_is_named():
    """A listener to all kinds does not ask for waits. The search stops with the last that does."""
    async with Commander(slow_after=None) as commander:
        node = commander.call_handler(hang(), claim=True)
        everything = commander.events()
        await sleep_virtual(10)
        assert waits_of(commander) is None
        assert "waiting" not in {event.kind for event in read(everything)}
        for _ in range(2):
            events = commander.events(WAITING)
            await sleep_virtual(10)
            assert [event.node_id for event in read(events)] == [node.node_id]
            events.close()
            await sleep_virtual(100)  # on a busy machine search and pause take long
            assert waits_of(commander) is None
        end(commander)


@virtual_time
async def test_looking_ends_with_the_commander():
    """No timer remains in the loop."""
    commander = Commander(slow_after=None)
    events = commander.events(WAITING)
    async with commander:
        assert waits_of(commander) is not None
        commander.call_handler(hang(), claim=True)
        await sleep_virtual(1)
        end(commander)
    assert waits_of(commander) is None
    assert [event.kind async for event in events] == ["waiting"]
    assert [timer for timer in asyncio.get_running_loop()._scheduled if not timer._cancelled] == []


@virtual_time
async def test_nodes_may_end_and_begin_between_two_looks(monkeypatch):
    """Ended nodes are not published. New ones come in the next round."""
    monkeypatch.setattr(module, "MAX_LOOK_SECONDS", -1.0)  # one node per search
    async with Commander(slow_after=None) as commander:
        events = commander.events(WAITING)
        old = [commander.call_handler(hang(), claim=True) for _ in range(10)]
        await sleep_virtual(module.PERIOD_SECONDS * 3.5)
        told = {event.node_id for event in read(events)}
        assert 0 < len(told) < 10
        for node in old:
            node.cancel()
        new = [commander.call_handler(hang(), claim=True) for _ in range(10)]
        await sleep_virtual(60)
        assert {event.node_id for event in read(events)} == {each.node_id for each in new}
        end(commander)


@virtual_time
async def test_a_look_takes_a_bounded_part_of_the_time(monkeypatch):
    """The bound holds for any number of nodes, and for nodes that are slow to explain."""
    now, slow, begun = 0.0, 0.001, []
    explain = module.explain_one

    def explain_one(record, *arguments):
        nonlocal now
        if not begun or begun[-1][0] != asyncio.get_running_loop().time():
            begun.append([asyncio.get_running_loop().time(), 0.0])
        now += slow
        begun[-1][1] += slow
        return explain(record, *arguments)

    monkeypatch.setattr(module, "perf_counter", lambda: now)
    monkeypatch.setattr(module, "explain_one", explain_one)
    async with Commander(slow_after=None) as commander:
        events = commander.events(WAITING)
        for _ in range(100):
            commander.call_handler(hang(), claim=True)
        await sleep_virtual(60)
        assert len(read(events)) == 100
        assert max(took for _, took in begun) < module.MAX_LOOK_SECONDS + 2 * slow
        begun.clear()
        slow = 1.0
        await sleep_virtual(600)
        assert sum(took for _, took in begun) == pytest.approx(600 * module.MAX_LOOP_SHARE, abs=2)
        end(commander)


@virtual_time
async def test_thousands_of_nodes_are_told():
    """Each node is published once, after some time."""
    count = example_count(1_000, 10_000)
    async with Commander(slow_after=None) as commander:
        events = commander.events(WAITING, capacity=count + 1)
        commander.call_handler(joins(count), claim=True)
        told = []
        while len(told) < count + 1:
            await sleep_virtual(1)
            told += [event.node_id for event in read(events)]
        assert sorted(told) == list(range(1, count + 2))
        end(commander)
