"""Recordings equal their trees: nodes, parents, ends and sums, for any tree and through gaps."""

import asyncio
import contextlib
import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import example_count, seeds
from support.tree_world import World
from support.waiting import block_until, wait_until

from anabranch import Commander, Message, Node, handler
from anabranch.backends import Limits, Price
from anabranch.commander import act_as
from anabranch.commander._record import record_of
from anabranch.commander.errors import NodeClosed
from anabranch.messages import Request, Usage
from anabranch.testing import ScriptedBackend, explore, pause
from anabranch.tracing import Trace, _event_thread, read, record
from tests.commander.test_model import draw

pytestmark = pytest.mark.contract("S1")

ENDS = ("completed", "failed", "cancelled")


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def check_ends(file: Path) -> Trace:
    """Check that each node in the recording has one end; return its trace."""
    said = lines_of(file)
    put = Counter(line["n"] for line in said if line.get("e") == "put")
    ends = Counter(line["n"] for line in said if line.get("e") in ENDS)
    del ends[0]
    assert set(put.values()) <= {1}
    assert ends == put
    trace = read(file)
    assert {node.number for node in trace} == {*put}
    assert not any(node.is_open or node.state == "lost" for node in trace)
    for node in trace:
        assert all(interval.end is not None for interval in node.intervals)
        assert all(request.end is not None for request in node.requests)
    return trace


# --- S1 and S2: any tree


class Recorded(World):
    """A random program whose tree is recorded from its first node on."""

    file: Path

    def put(self, parent: Any, a: int, b: int) -> Any:
        if not self.parts and not hasattr(self, "recorder"):
            self.recorder = record(self.commander, self.file)
            self.recorder.__enter__()
        return super().put(parent, a, b)

    make = put


def play(file: Path, seed: int) -> None:
    program, setting = draw(seed)
    random.seed(seed)
    world = Recorded(program, seed, **setting)
    world.file = file
    try:
        world.play()
        compare(world, check_ends(file))
    finally:
        world.close()


def compare(world: World, trace: Trace) -> None:
    nodes = {node.number: node for node in trace}
    for part in world.parts:
        node = part.node
        if not node.node_id:  # it was never put
            continue
        found = nodes[node.node_id]
        assert found.state == node.state
        assert node.parent is not None
        assert found.parent is not None
        assert found.parent.number == node.parent.node_id
        assert found.label == record_of(node).label


@pytest.mark.contract("S2")
@pytest.mark.parametrize("part", range(4))
def test_recordings_equal_random_programs(part: int, tmp_path: Path) -> None:
    """S1, S2: each node has its own end, once, below its parent."""
    for seed in seeds(example_count(200, 4000))[part::4]:
        try:
            play(tmp_path / "run.jsonl", seed)
        except BaseException as error:
            error.add_note(f"play(..., {seed})")
            raise


# --- S5: sums


PRICES = {"a": Price(1.0, 4.0), "b": Price(2.0, 3.0, 0.5)}


@handler
async def work(node: Node, plan: Any) -> None:
    """Send requests to some models, and let others do more below, also in nested commanders."""
    asks, below, how = plan
    for model, size in asks:
        await pause_here()
        said = Message(
            role="assistant", content="x", usage=Usage(input_tokens=size, output_tokens=size + 1)
        )
        await ScriptedBackend(said, model=model).complete(
            Request([Message(role="user", content="hi")])
        )
    for place, each in enumerate(below):
        child = work(each)
        if place % 2:
            act_as(child, f"agent {len(each[0])}", place)
        if how == "nested":
            async with Commander() as inner:
                await inner.call_handler(child)
        else:
            node.call_handler(child, claim=True)
    if how == "fails":
        raise ValueError("no")


async def pause_here() -> None:
    try:
        await pause()
    except RuntimeError:
        await asyncio.sleep(0)


ASKS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=3)
HOW = st.sampled_from(["plain", "nested", "fails"])
PLANS = st.recursive(
    st.tuples(ASKS, st.just(()), HOW),
    lambda below: st.tuples(ASKS, st.lists(below, max_size=3), HOW),
    max_leaves=8,
)


async def record_plans(plans: Any, file: Path, **options: Any) -> tuple[Any, Trace]:
    async with Commander() as commander:
        with record(commander, file, prices=PRICES, **options) as recorder:
            for plan in plans:
                commander.call_handler(work(plan), claim=True)
            while children := commander.children:
                await asyncio.wait([asyncio.ensure_future(_over(each)) for each in children])
        used = commander.usage()
        return used, recorder.trace()


async def _over(node: Node) -> None:
    with contextlib.suppress(Exception):
        await node


def check_sums(used: dict[str, Usage], trace: Trace) -> None:
    assert trace.usage() == used
    assert trace.executions[-1].usage == used
    by_agent = trace.usage_by_agent()
    total: dict[str, Usage] = {}
    for spent in by_agent.values():
        for model, amount in spent.items():
            total[model] = total.get(model, Usage()) + amount
    assert total == used
    asked: dict[str, Usage] = {}
    for node in trace:
        for request in node.requests:
            for model, amount in request.usage.items():
                asked[model] = asked.get(model, Usage()) + amount
    known = {model: amount for model, amount in used.items() if model in PRICES}
    money = sum(PRICES[model].of(amount) for model, amount in known.items())
    assert trace.cost(used) == (pytest.approx(money) if known else None)


@pytest.mark.contract("S5")
@settings(max_examples=example_count(40, 400))
@given(plans=st.lists(PLANS, max_size=3))
def test_sums_equal_the_trees(plans: Any, tmp_path_factory: Any) -> None:
    """S5: over nodes, per agent, per model, in cost; nested commanders included."""
    file = tmp_path_factory.getbasetemp() / "sums.jsonl"
    used, trace = asyncio.run(record_plans(plans, file))
    check_sums(used, trace)


@pytest.mark.contract("S5")
async def test_each_agents_sum_is_the_usage_of_its_nodes(tmp_path: Path) -> None:
    """S5: its own and all below it, up to the next agent's."""

    async with Commander() as commander, record(commander, tmp_path / "r") as recorder:
        inner = ([("a", 5)], [], "plain")
        first = work(([("a", 1)], [([("b", 2)], [], "plain"), ([("a", 3)], [inner], "plain")], ""))
        act_as(first, "first")
        await commander.call_handler(first)
        trace = recorder.trace()
    assert {name: {m: u.input_tokens for m, u in used.items()} for name, used in
            trace.usage_by_agent().items()} == {
        "first": {"a": 1, "b": 2},
        "agent 1": {"a": 8},
    }  # fmt: skip
    assert [node.session for node in trace if node.own_agent == "agent 1"] == ["1"]


@pytest.mark.contract("S5")
async def test_prices_of_limits_above_are_used(tmp_path: Path) -> None:
    """S5: if the caller gives none."""
    async with Commander() as commander, record(commander, tmp_path / "r") as recorder:
        limits = Limits(prices={"a": Price(1.0, 2.0)})
        await commander.call_handler(work(([("a", 1_000_000)], [], "")), limits=limits)
        trace = recorder.trace()
    assert trace.cost(trace.usage()) == pytest.approx(3.0, rel=1e-3)


# --- gaps


class Blocked:
    """Blocks the event thread until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        handed = _event_thread.EventThread._hand_over

        def hand_over(feed: Any, item: Any) -> None:
            self.open.wait(30)
            handed(feed, item)

        monkeypatch.setattr(_event_thread.EventThread, "_hand_over", hand_over)


@pytest.mark.contract("S2")
@pytest.mark.contract("S5")
@pytest.mark.parametrize("most", [0, 1, 20, 10_000])
async def test_sums_and_parents_are_right_after_gaps(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1, S2, S5: losses are reported; living nodes, their parents and sums equal the tree's."""
    monkeypatch.setattr(_event_thread, "MAX_QUEUED_EVENTS", most)
    monkeypatch.setattr(_event_thread, "BATCH_SECONDS", 0.0)
    file = tmp_path / "run.jsonl"
    plan: Any = ([("a", 3), ("b", 4)], [([("a", 1)], [], "plain")] * 3, "plain")
    used, trace = await record_plans([plan] * 5, file)
    assert trace.usage() == used
    assert not any(node.is_open for node in trace)
    assert (trace.missed > 0) == (most < 10_000)


@pytest.mark.contract("S5")
@pytest.mark.contract("S7")
async def test_a_blocked_writer_loses_only_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1, S5, S7: the tree continues; then the recording has its nodes, parents and sums again."""
    monkeypatch.setattr(_event_thread, "MAX_QUEUED_EVENTS", 10)
    monkeypatch.setattr(_event_thread, "BATCH_SECONDS", 0.0)
    blocked = Blocked(monkeypatch)
    go = asyncio.Event()

    @handler
    async def chain(node: Node, depth: int) -> None:
        await work(([("a", depth)], [], "plain"))
        if depth:
            node.call_handler(chain(depth - 1), claim=True)
        else:
            await go.wait()

    async with Commander() as commander, record(commander, tmp_path / "r") as recorder:
        top = commander.call_handler(chain(20))
        await wait_until(lambda: recorder._thread._missed > 50)
        blocked.open.set()
        await wait_until(lambda: not recorder._thread._missed)
        trace = recorder.trace()
        alive = {node.number: node for node in trace if node.is_open}
        real = {each.node_id: each for each in commander.tree() if each.node_id}
        assert {*alive} == {*real}
        for number, each in real.items():
            assert alive[number].state == each.state
            assert alive[number].parent is not None
            assert alive[number].parent.number == each.parent_id
        assert trace.usage() == commander.usage()
        go.set()
        await top
        trace = recorder.trace()
    assert not any(node.is_open for node in trace)
    assert {node.state for node in trace} <= {"completed", "lost"}
    assert trace.missed > 50


def test_a_tree_that_closes_with_queued_events_is_complete(tmp_path: Path) -> None:
    """S1: for any order of the loop's steps."""

    async def main() -> None:
        file = tmp_path / "run.jsonl"
        async with Commander() as commander, record(commander, file):
            for number in range(4):
                commander.call_handler(work(([("a", number)], [([], [], "plain")], "plain")))
            await pause()
            with contextlib.suppress(NodeClosed):
                commander.call_handler(work(([], [], "plain"))).cancel()
        check_ends(file)

    explore(main, seeds(example_count(60, 1000)))


def test_a_seeded_loop_does_not_wait_for_the_writer(tmp_path: Path) -> None:
    """Virtual time stays virtual: a recorded tree may sleep for a day."""

    async def main() -> None:
        async with Commander() as commander, record(commander, tmp_path / "r"):
            for _ in range(4):
                await asyncio.sleep(3600)

    explore(main, range(2), patience=600)  # this wait would happen for each hour


# --- bodies that block


async def test_a_body_that_blocks_the_loop_is_recorded(tmp_path: Path) -> None:
    """The node, the time and the line; once, as soon as the loop runs again."""

    @handler
    async def blocks(node: Node) -> bool:
        return block_until(lambda: commander._watch._looks._blocked)  # type: ignore[union-attr]

    async with Commander(slow_after=0.02) as commander:
        with record(commander, tmp_path / "r") as recorder:
            assert await commander.call_handler(blocks())
            await wait_until(lambda: any(node.slow for node in recorder.trace()))
    (node,) = recorder.trace()
    ((_, seconds, line),) = node.slow
    assert seconds > 0.02
    assert line.startswith("waiting.py:")
    assert node.name == "blocks"
