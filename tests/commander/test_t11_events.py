"""T11: the event stream of a tree."""

import asyncio
import time
from typing import Any

import pytest
from support.nodes import fail, give

from anabranch.commander import Commander, Retry, emit
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T11")


@handler
async def parent(node):
    node.call_handler(give())


class Flaky(Job[None]):
    errors: list[BaseException]

    async def task(self):
        if self.errors:
            raise self.errors.pop()


async def kinds_of(node, **options):
    """Run a node and return the kinds of its events."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            events = commander.events()
            commander.put_job(node, **options) if isinstance(node, Job) else (
                commander.call_handler(node, **options)
            )
        return [event async for event in events if event.node_id == node.node_id]


async def test_a_plain_node_is_put_started_and_completed():
    """The events come in this order."""
    assert [event.kind for event in await kinds_of(give())] == ["put", "started", "completed"]


async def test_a_node_with_children_is_joining_in_between():
    """`joining` comes once after the body, also when the body returns a node."""

    @handler
    async def returning(node):
        return give()

    @handler
    async def both(node):
        node.call_handler(give())
        return give()

    for kind in (parent, returning, both):
        events = [event.kind for event in await kinds_of(kind())]
        assert events == ["put", "started", "joining", "completed"]


async def test_a_failed_node_says_with_what():
    """The event's data is the exception."""
    error = ValueError()
    events = await kinds_of(fail(error))
    assert [event.kind for event in events] == ["put", "started", "failed"]
    assert events[-1].data is error


async def test_a_cancelled_node_says_why():
    """The event's data is the reason. A node that never ran does not emit `started`."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            events = commander.events()
            commander.call_handler(give()).cancel("not wanted")
        seen = [(event.kind, event.data) async for event in events if event.node_id]
    assert seen == [("put", None), ("cancelled", "not wanted")]


async def test_a_retried_node_starts_again():
    """`retried` comes between the attempts, with the error of the failed one."""
    error = ValueError()
    events = await kinds_of(Flaky([error]), retry=Retry(attempts=2))
    kinds = [event.kind for event in events]
    assert kinds == ["put", "started", "retried", "started", "completed"]
    assert events[2].data is error


async def test_events_carry_ids_names_and_times():
    """Each event has the ids of the node and its parent. Times never decrease."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            events = commander.events()
            before = time.time()
            node = parent()
            await commander.run(node)
        seen = [event async for event in events]
    child = [event for event in seen if event.name == "give"]
    own = [event for event in seen if event.name == "parent"]
    assert {event.node_id for event in own} == {node.node_id}
    assert {event.parent_id for event in own} == {commander.node_id}
    assert {event.parent_id for event in child} == {node.node_id}
    assert all(before - 1 <= event.time <= time.time() + 1 for event in seen)
    clocks = [event.clock for event in seen]
    assert clocks == sorted(clocks)


async def test_events_come_in_the_order_in_which_they_happen():
    """A child ends before its parent does."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            events = commander.events()
            await commander.run(parent())
        order = [(event.name, event.kind) async for event in events if event.node_id]
    assert order == [
        ("parent", "put"),
        ("parent", "started"),
        ("give", "put"),
        ("parent", "joining"),
        ("give", "started"),
        ("give", "completed"),
        ("parent", "completed"),
    ]


async def test_a_listener_may_follow_live():
    """The listener wakes up for each event, and its loop ends with the commander."""
    seen, started = [], asyncio.Event()

    async def listen(events):
        async for event in events:
            seen.append(event.kind)
            if event.kind == "started":
                started.set()

    async with asyncio.timeout(5):
        async with Commander() as commander:
            listener = asyncio.create_task(listen(commander.events()))
            release = asyncio.Event()

            @handler
            async def body(node):
                await release.wait()

            commander.call_handler(body())
            await started.wait()
            assert seen == ["put", "started"]
            release.set()
        await listener
    assert seen[2:3] == ["completed"]


async def test_a_listener_hears_only_the_kinds_it_asked_for():
    """Text and other products of nodes reach the listeners that asked for them."""

    @handler
    async def talks(node):
        emit(node, "text", "hello")
        emit(node, "tool_call", {"name": "x"})

    async with asyncio.timeout(5):
        async with Commander() as commander:
            text = commander.events(["text"])
            ends = commander.events({"completed", "failed"})
            await commander.run(talks())
        assert [event.data async for event in text] == ["hello"]
        assert [event.name async for event in ends if event.node_id] == ["talks"]


@pytest.mark.parametrize("kinds", ["text", ["text", "retry"], {"tool_calls"}])
async def test_a_kind_of_event_that_there_is_not_is_refused(kinds: Any) -> None:
    """An unknown kind raises at once and adds no listener. A string does too."""
    async with Commander() as commander:
        with pytest.raises(
            ValueError, match=r"unknown kind of event .*; the kinds are put, started"
        ):
            commander.events(kinds)
        assert not commander._tree.listeners


async def test_a_listener_hears_what_happens_after_it_was_made():
    """A listener may be made before the block. After the end it stops at once."""
    commander = Commander()
    early = commander.events()
    async with asyncio.timeout(5):
        async with commander:
            await commander.run(give())
            late = commander.events(["put"])
            await commander.run(parent())
        names = [event.name async for event in late]
        assert names == ["parent", "give"]
        assert (await anext(early)).name == "give"
        assert [event async for event in commander.events()] == []


async def test_a_slow_listener_is_told_how_many_it_missed():
    """The oldest events are dropped. A `missed` event in their place gives the number."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            events = commander.events(["completed", "missed"], capacity=3)
            for number in range(10):
                await commander.run(give(number))
            first = await anext(events)
            assert (first.kind, first.data) == ("missed", 7)
            assert events.missed == 7
            kept = [(await anext(events)).node_id for _ in range(3)]
            assert kept == [8, 9, 10]
            for number in range(5):
                await commander.run(give(number))
            assert [(await anext(events)).kind for _ in range(2)] == ["missed", "completed"]
            assert events.missed == 9


async def test_a_slow_listener_never_slows_the_tree():
    """An unread listener does not block the tree. A fast one beside it misses no event."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            slow, fast = commander.events(capacity=1), commander.events()
            for _ in range(100):
                await commander.run(give())
        assert len([event async for event in fast if event.node_id]) == 300
        missed, last = [event async for event in slow]
        assert missed.data == slow.missed
        assert missed.data >= 299
        assert last.kind != "missed"


async def test_a_closed_listener_hears_no_more():
    """Buffered events can still be read. Closing twice is harmless."""
    async with asyncio.timeout(5), Commander() as commander:
        events = commander.events()
        await commander.run(give())
        events.close()
        events.close()
        await commander.run(give())
        assert [event.kind async for event in events] == ["put", "started", "completed"]


async def test_a_listener_without_room_is_refused():
    """Such a listener could never receive an event."""
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        Commander().events(capacity=0)


async def test_an_event_cannot_be_changed():
    """All listeners share the same object."""
    async with asyncio.timeout(5), Commander() as commander:
        one, two = commander.events(), commander.events()
        await commander.run(give())
        event, other = await anext(one), await anext(two)
        assert (event.kind, event.node_id, event.clock) == (other.kind, other.node_id, other.clock)
        with pytest.raises(AttributeError):
            event.kind = "failed"
