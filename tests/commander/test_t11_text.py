"""T11: the labelled text of a tree, for a reader in its block and for a slow reader."""

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import give, hang
from support.seeds import example_count, seeds

from anabranch.commander import Commander, Event, _events, current_node, emit
from anabranch.commander._record import record_of
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T11")


@handler
async def talk(node, draw, depth=2):
    """Emit text at intervals, and call nodes like this one, also at the top and at the end."""
    for _ in range(draw.randint(0, 3)):
        emit(node, "text", draw.choice("abc"))
        for _ in range(draw.randint(0, 2)):
            await asyncio.sleep(0)
        if depth and draw.random() < 0.4:
            parent = draw.choice([node, node.commander])
            node.call_handler(talk(draw, depth - 1), parent=parent)
    if depth and draw.random() < 0.3:
        node.at_end(lambda ended: ended.call_handler(talk(draw, depth - 1), parent=ended.commander))


# --- in the block


@pytest.mark.parametrize("seed", seeds(example_count(40, 1000)))
async def test_events_end_in_the_block_when_all_nodes_have_ended(seed):
    """This holds for all kinds and putters. The block continues and may read again."""
    draw = Random(seed)
    async with asyncio.timeout(10), Commander() as commander:
        for kinds in draw.choices([["text"], ["failed"], ["text", "completed"], None], k=3):
            reader, beside = commander.events(kinds), commander.events(kinds)
            for _ in range(draw.randint(0, 3)):
                commander.call_handler(talk(draw))
            read = [event async for event in reader]
            assert not record_of(commander).children
            assert [await anext(beside) for _ in read] == read
            with pytest.raises(StopAsyncIteration):
                await anext(beside)
            assert await commander.call_handler(give(1)) == 1


@pytest.mark.parametrize("kinds", [["text"], None])
@pytest.mark.parametrize("leave", ["exit", "drain", "at once"])
async def test_events_end_in_the_block_after_exit(kinds, leave):
    """Hanging nodes are cancelled, so no further event can happen."""
    async with asyncio.timeout(10), Commander() as commander:
        for _ in range(3):
            commander.call_handler(hang())
        if leave == "at once":
            commander.exit()
        elif leave == "exit":
            asyncio.get_running_loop().call_soon(commander.exit)
        else:
            draining = asyncio.create_task(commander.drain(timeout=0.01))
        async for _ in commander.events(kinds):
            pass
        if leave == "drain":
            assert await draining is False
    assert commander.state in ("completed", "cancelled")


async def test_a_task_beside_the_block_hears_all_to_the_end():
    """A reader outside the block does not delay its end, so it also waits while no node runs."""
    names = []

    async def listen():
        async for event in commander.events(["completed"]):
            names.append(event.name)  # noqa: PERF401 - each on arrival

    async with asyncio.timeout(10):
        async with Commander() as commander:
            listening = asyncio.create_task(listen())
            for _ in range(3):
                await commander.run(give())
                async for _ in commander.events():
                    pass
        await listening
    assert names == ["give", "give", "give", "Commander"]


# --- a slow reader


@given(
    st.integers(1, 6),
    st.sampled_from([["text"], ["text", "tool_call"], ["text", "tool_call", "missed"]]),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["text", "tool_call", "read"]))),
)
def test_a_slow_reader_of_text_has_all_of_it(room, kinds, steps):
    """Each node's text arrives complete, and in order with the other events of that node."""

    async def main():
        async with Commander() as commander:
            events = commander.events(kinds, capacity=room)
            nodes = [commander.call_handler(hang()) for _ in range(4)]
            ids = [node.node_id for node in nodes]
            sent, read = [], []
            for number, (node, kind) in enumerate(steps):
                if kind != "read":
                    emit(nodes[node], kind, f"{number} ")
                    if kind in kinds:
                        sent.append((ids[node], kind, f"{number} "))
                elif events._listener._count_unread():
                    read.append(_plain(await anext(events)))
                unread = len(events._listener.buffer) // len(Event._fields)
                assert unread <= 4 * max(room, len(steps)) + 4
            commander.exit()
            read += [_plain(event) async for event in events]
            gaps = [each[2] for each in read if each[1] == "missed"]
            calls = [each for each in read if each[1] == "tool_call"]
            assert len(calls) + events.missed == sum(e[1] == "tool_call" for e in sent)
            if "missed" in kinds:
                assert sum(gaps) == events.missed
            else:
                assert not gaps
            for of in ids:
                said = [each for each in sent if each[0] == of and each in calls + _texts(sent)]
                had = [each for each in read if each[0] == of]
                assert "".join(e[2] for e in had) == "".join(e[2] for e in said)

    asyncio.run(main())


def _plain(event):
    return event.node_id, event.kind, event.data


def _texts(events):
    return [each for each in events if each[1] == "text"]


@pytest.mark.parametrize("speakers", [1, 7, 300])
@pytest.mark.parametrize("writes", [2, 10, 5000])
async def test_merging_text_costs_little_however_slow_the_reader_is(monkeypatch, speakers, writes):
    """Each event is examined a few times, and the buffer stays near its limit."""
    looked, condense = 0, _events._condense

    def counting(fields, room):
        nonlocal looked
        looked += len(fields) // len(Event._fields)
        return condense(fields, room)

    monkeypatch.setattr(_events, "_condense", counting)
    async with asyncio.timeout(20), Commander() as commander:
        events = commander.events(["text"], capacity=10)
        nodes = [commander.call_handler(hang()) for _ in range(speakers)]
        said = dict.fromkeys((node.node_id for node in nodes), "")
        had = dict(said)
        for number in range(20_000):
            node = nodes[number % speakers]
            emit(node, "text", f"{number},")
            said[node.node_id] += f"{number},"
            if number % writes == 0:
                event = await anext(events)
                had[event.node_id] += event.data
            assert len(events._listener.buffer) <= 8 * len(Event._fields) * max(10, speakers)
        commander.exit()
        async for event in events:
            had[event.node_id] += event.data
        assert had == said
        assert events.missed == 0
        assert looked <= 4 * 20_000


async def test_what_was_missed_elsewhere_is_told_to_those_who_ask():
    """Text readers receive no number in place of text. Every reader can ask for the count."""
    async with asyncio.timeout(5), Commander() as commander:
        text, asked = commander.events(["text"]), commander.events(["text", "missed"])
        every = commander.events()
        record = record_of(commander)
        _events.relay(record.tree, Event("missed", record, 0.0, 7))
        emit(current_node(), "text", "hi")
        assert [event.data async for event in text] == ["hi"]
        assert [event.data async for event in asked] == [7, "hi"]
        assert [event.data async for event in every] == [7, "hi"]
        assert text.missed == asked.missed == every.missed == 7
