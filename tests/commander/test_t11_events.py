"""T11: the stream of what happens to nodes."""

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
    """Run a node and return all its own events."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            events = commander.events()
            commander.put_job(node, **options) if isinstance(node, Job) else (
                commander.call_handler(node, **options)
            )
        return [event async for event in events if event.node_id == node.node_id]


async def test_a_plain_node_is_put_started_and_completed():
    """In this order."""
    assert [event.kind for event in await kinds_of(give())] == ["put", "started", "completed"]


async def test_a_node_with_children_is_joining_in_between():
    """Once, when its body is over; also when it hands over to the node that it returns."""

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
    """The event's data is the reason; one that never ran has not started."""
    async with asyncio.timeout(5):
        async with Commander() as commander:
            events = commander.events()
            commander.call_handler(give()).cancel("not wanted")
        seen = [(event.kind, event.data) async for event in events if event.node_id]
    assert seen == [("put", None), ("cancelled", "not wanted")]


async def test_a_retried_node_starts_again():
    """`retried` stands between the attempts, with the error of the one that failed."""
    error = ValueError()
    events = await kinds_of(Flaky([error]), retry=Retry(attempts=2))
    kinds = [event.kind for event in events]
    assert kinds == ["put", "started", "retried", "started", "completed"]
    assert events[2].data is error


async def test_events_carry_ids_names_and_times():
    """Of the node and of its parent; the clock never goes back."""
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
    """It is woken as things happen, and its loop ends with the commander."""
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
    """Text and other products of nodes come to those who want them."""

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
    """A listener that could hear nothing is an error at once and is not kept; so is a string."""
    async with Commander() as commander:
        with pytest.raises(
            ValueError, match=r"unknown kind of event .*; the kinds are put, started"
        ):
            commander.events(kinds)
        assert not commander._tree.listeners


async def test_a_listener_hears_what_happens_after_it_was_made():
    """Before the block is entered it may be made too; after the end it is over at once."""
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
    """The oldest give way; a `missed` event in their place says how many."""
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
    """Nobody reads at all, and everything ends; a fast one beside it misses nothing."""
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
    """What it has is still read; closing twice is harmless; the commander forgets it."""
    async with asyncio.timeout(5), Commander() as commander:
        events = commander.events()
        await commander.run(give())
        events.close()
        events.close()
        await commander.run(give())
        assert [event.kind async for event in events] == ["put", "started", "completed"]


async def test_a_listener_without_room_is_refused():
    """It could hear nothing."""
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        Commander().events(capacity=0)


async def test_an_event_cannot_be_changed():
    """Each listener gets the same."""
    async with asyncio.timeout(5), Commander() as commander:
        one, two = commander.events(), commander.events()
        await commander.run(give())
        event, other = await anext(one), await anext(two)
        assert (event.kind, event.node_id, event.clock) == (other.kind, other.node_id, other.clock)
        with pytest.raises(AttributeError):
            event.kind = "failed"
