"""What nobody takes, or takes too slowly: taps that are full, disks that are slow, full, broken."""

import pytest
from _nodes import give

from anabranch import Commander, Job
from anabranch.commander.tap import Tap
from anabranch.tracing import read, record


class Leaf(Job[None]):
    async def task(self) -> None:
        pass


class Fan(Job[None]):
    """Puts its children without a pause, so that nothing else happens meanwhile."""

    size: int

    async def task(self) -> None:
        for _ in range(self.size):
            self.put_job(Leaf())


# --- taps


@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
async def test_a_tap_that_takes_when_it_is_called_loses_nothing(capacity):
    """All events come once, in order, however many come before the loop turns."""
    heard = []

    def hear():
        heard.extend(tap.take())

    async with Commander() as commander:
        tap = Tap(commander, capacity, hear, ["put", "completed", "missed"])
        await commander.run(Fan(500))
    hear()
    assert [event.node_id for event in heard if event.kind == "put"] == [*range(1, 502)]
    assert sorted(event.node_id for event in heard if event.kind == "completed") == [*range(502)]
    assert tap.missed == 0


async def test_a_tap_that_takes_late_is_told_what_it_has_lost():
    """The newest stay; those before them are counted, in one event in their place."""
    async with Commander() as commander:
        tap = Tap(commander, 10, lambda: None, ["put"])
        for _ in range(100):
            await commander.run(give())
        events = [*tap.take()]
    assert events[0].kind == "missed"
    assert events[0].data == tap.missed
    assert [event.node_id for event in events[1:]] == [*range(events[0].data + 1, 101)]


async def test_a_body_that_puts_many_at_once_is_recorded_whole(tmp_path):
    """More than a tap holds, in one turn of the loop: nothing is missed."""
    file = tmp_path / "run.jsonl"
    async with Commander(slow_after=None) as commander, record(commander, file):
        await commander.run(Fan(20_000))
    trace = read(file)
    assert trace.missed == 0
    assert len(trace) == 20_001
    assert {node.state for node in trace} == {"completed"}
