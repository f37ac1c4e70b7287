"""Each started span ends exactly once, and no exporter delays or fails a node."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import INVALID_SPAN, StatusCode, get_current_span
from support.seeds import example_count, seeds
from support.spans import CollectedSpans
from support.tree_world import COMMANDS, STEPS, World
from support.waiting import wait_until

from anabranch import Commander, Job
from anabranch.commander import Event, quorum
from anabranch.commander.remote import EventSource, Origin
from anabranch.testing import Deadlock, SeededLoop
from anabranch.tracing import _event_thread, otel
from anabranch.tracing._event_thread import Gap
from anabranch.tracing._spans import SpanSink

pytestmark = pytest.mark.contract("S1")

PROGRAMS = example_count(300, 6_000)
NODE = "anabranch.node.id"


class Leaf(Job[int]):
    async def task(self) -> int:
        return 1


class Fan(Job[None]):
    width: int

    async def task(self) -> None:
        for _ in range(self.width):
            self.put_job(Leaf())


class Gate(Job[None]):
    """Puts a leaf for each signal, until it must end."""

    async def task(self) -> None:
        self.told: asyncio.Queue[bool] = asyncio.Queue()
        while await self.told.get():
            self.put_job(Leaf())


# --- random programs


class SpanWorld(World):
    """A random program with spans, which are closed at some step or at the end."""

    kept: CollectedSpans | None = None
    close_at = -1

    def put(self, parent: Any, a: int, b: int) -> Any:
        if self.kept is None:
            self.kept = CollectedSpans()
            self.events = self.commander.events(capacity=100_000)
            self.spans = otel(self.commander, tracer_provider=self.kept.provider)
        return super().put(parent, a, b)

    make = put

    async def do(self, name: str, a: int, b: int, c: int) -> None:
        self.close_at -= 1
        if self.close_at == 0:
            self.spans.close()
        await super().do(name, a, b, c)


def play(seed: int) -> None:
    chance = random.Random(seed)
    random.seed(seed)  # the random delay of retries
    names = [*STEPS, *COMMANDS, *COMMANDS, "new", "new", "fail", "cancel", "return"]
    program = [
        (chance.choice(names), *(chance.randrange(1000) for _ in "abc"))
        for _ in range(chance.choice((5, 10, 30)))
    ]
    world = SpanWorld(
        program,
        seed,
        limit=chance.choice((None, 1)),
        policy=chance.choice(("isolate", "collect", "fail_fast", quorum(2))),
        ending=chance.choice((0, 0, 0, 1, 2, 3, 4, 5)),
    )
    closed = chance.random() < 0.3
    world.close_at = chance.randrange(1, 10) if closed else -1
    try:
        world.play()
        assert world.kept is not None
        assert world.spans.flush(30)
        check(world, closed=closed)
    finally:
        world.close()


def check(world: SpanWorld, *, closed: bool) -> None:
    kept, events = world.kept, []
    assert kept is not None
    while (event := world.events._listener.next()) is not None:
        events.append(event)
    kept.check()
    assert world.spans.error is None
    parents = {event.node_id: event.parent_id for event in events if event.kind == "put"}
    numbers = {span.context.span_id: span.attributes[NODE] for span in kept.ended}
    for span in kept.ended:
        above = None if span.parent is None else numbers[span.parent.span_id]
        assert parents[span.attributes[NODE]] == (above or 0)
    if not closed:
        assert sorted(numbers.values()) == sorted(parents)
        ends = {event.node_id: event for event in events}
        for span in kept.ended:
            event = ends[span.attributes[NODE]]
            assert span.end_time == int(event.time * 1e9)
            assert ("error.type" in span.attributes) == (event.kind == "failed")
            assert ("anabranch.cancelled" in span.attributes) == (event.kind == "cancelled")
            assert "anabranch.incomplete" not in span.attributes


@pytest.mark.parametrize("part", range(3))
def test_every_span_ends_once_in_random_programs(part: int) -> None:
    """For each kind of end; its parent is the tree's; also if `otel` is closed in the middle."""
    for seed in seeds(PROGRAMS)[part::3]:
        try:
            play(seed)
        except Exception as error:
            error.add_note(f"play({seed})")
            raise


def test_spans_do_not_delay_a_seeded_loop() -> None:
    """Their thread never calls into the loop: the clock jumps, and a deadlock is found at once."""

    async def main() -> None:
        kept = CollectedSpans()
        async with Commander() as commander, otel(commander, tracer_provider=kept.provider):
            await asyncio.Event().wait()

    loop = SeededLoop(patience=1e9)
    try:
        with pytest.raises(Deadlock):
            loop.run_until_complete(main())
    finally:
        loop.close()


# --- close, and gaps


async def test_open_spans_end_at_the_close() -> None:
    """With a mark; later nodes have no span."""
    kept = CollectedSpans()
    async with Commander() as commander:
        with otel(commander, tracer_provider=kept.provider) as spans:
            gate = commander.put_job(Gate())
            await asyncio.sleep(0)
            spans.close()
            gate.told.put_nowait(True)
            gate.told.put_nowait(False)
    spans.close()
    assert spans.flush()
    kept.check()
    assert [span.attributes["anabranch.incomplete"] for span in kept.ended] == [True]


async def test_nodes_that_run_before_the_start_have_spans() -> None:
    """From there on, so that their later children have a parent."""
    kept = CollectedSpans()
    async with Commander() as commander:
        gate = commander.put_job(Gate())
        await asyncio.sleep(0)
        with otel(commander, tracer_provider=kept.provider) as spans:
            gate.told.put_nowait(True)
            gate.told.put_nowait(False)
    assert spans.flush()
    kept.check()
    assert kept.parents() == {"Leaf": "invoke_workflow Gate", "invoke_workflow Gate": None}
    assert kept.named("invoke_workflow Gate").attributes["anabranch.incomplete"] is True


async def test_spans_continue_after_the_block_until_no_node_runs() -> None:
    """Running nodes have complete spans."""
    kept = CollectedSpans()
    async with Commander() as commander:
        async with otel(commander, tracer_provider=kept.provider) as spans:
            gate = commander.put_job(Gate())
            await asyncio.sleep(0)
        gate.told.put_nowait(True)
        gate.told.put_nowait(False)
        await gate
        await wait_until(lambda: len(kept.ended) == 2)
    assert spans.flush()
    kept.check()
    assert kept.parents() == {"Leaf": "invoke_workflow Gate", "invoke_workflow Gate": None}


class Holds(CollectedSpans):
    """A processor that blocks at each start of a span while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.holds = threading.Event()
        super().__init__()

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if not self.open.is_set():
            self.holds.set()
            self.open.wait()
        super().on_start(span)


async def test_after_a_gap_parents_and_ends_are_the_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that ended in the gap have ended; nodes that started in it can be parents."""
    monkeypatch.setattr(_event_thread, "MAX_QUEUED_EVENTS", 20)
    monkeypatch.setattr(_event_thread, "MAX_BATCH_EVENTS", 8)
    kept = Holds()
    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        stays, ends = commander.put_job(Gate()), commander.put_job(Gate())
        await wait_until(lambda: len(kept.started) == 2)
        kept.open.clear()
        commander.put_job(Leaf())
        await wait_until(kept.holds.is_set)
        await commander.put_job(Fan(50))  # more than the queue holds
        unseen = commander.put_job(Gate())
        ends.told.put_nowait(False)
        await ends
        kept.open.set()

        def seen() -> bool:
            commander.put_job(Leaf())
            started = [span.attributes.get(NODE) for span in kept.started]
            ended = [span.attributes[NODE] for span in kept.ended]
            return unseen.node_id in started and ends.node_id in ended

        await wait_until(seen)
        for gate in (unseen, stays):
            before = len(kept.ended)
            gate.told.put_nowait(True)
            gate.told.put_nowait(False)
            await gate
            await wait_until(lambda before=before: len(kept.ended) > before)
    assert spans.flush()
    kept.check()
    assert spans.error is None
    numbers = {span.context.span_id: span.attributes[NODE] for span in kept.ended}
    assert len({*numbers.values()}) == len(numbers)
    by_number = {span.attributes[NODE]: span for span in kept.ended}
    incomplete = {
        number for number, span in by_number.items() if "anabranch.incomplete" in span.attributes
    }
    assert {ends.node_id, unseen.node_id} <= incomplete
    assert stays.node_id not in incomplete
    parents = [numbers[span.parent.span_id] for span in kept.ended if span.parent is not None]
    assert {stays.node_id, unseen.node_id} <= {*parents}


# --- broken processors and exporters


@pytest.mark.parametrize("error", [ValueError("full"), SystemExit("out"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["on_start", "on_end"])
async def test_an_error_of_a_processor_affects_no_node(
    error: BaseException, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once; earlier processors get each complete span."""

    class Broken(SpanProcessor):
        pass

    def fail(*_: Any, **__: Any) -> None:
        raise error

    setattr(Broken, moment, fail)
    kept = CollectedSpans()
    kept.provider.add_span_processor(Broken())
    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        await commander.put_job(Fan(5))
    assert spans.flush()
    assert len(kept.started) == 6
    assert spans.error is error
    assert caplog.text.count("cannot make or export a span") == 1
    if moment == "on_end":
        kept.check()


async def test_an_internal_error_ends_only_the_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even one that would end a program."""

    def fail(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(SpanSink, "take", fail)
    async with Commander() as commander:
        with otel(commander, tracer_provider=CollectedSpans().provider) as spans:
            await commander.put_job(Fan(5))
    assert spans.flush()
    assert isinstance(spans.error, SystemExit)


async def test_no_context_is_attached_in_the_thread_that_makes_spans() -> None:
    """A processor sees no current span."""
    seen: list[Any] = []

    class Looks(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            seen.append(get_current_span())

        def on_end(self, span: Any) -> None:
            seen.append(get_current_span())

    kept = CollectedSpans()
    kept.provider.add_span_processor(Looks())
    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        await commander.put_job(Fan(2))
    assert spans.flush()
    assert seen == [INVALID_SPAN] * 6


BLOCKED = """
import asyncio, threading
from anabranch import Commander, Job
from anabranch.testing import Deadlock, SeededLoop
from anabranch.tracing import _event_thread, otel
from anabranch.tracing._event_thread import Gap
from anabranch.tracing._spans import SpanSink
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
_event_thread.FLUSH_SECONDS = 0.2
class Leaf(Job[int]):
    async def task(self): return 1
class Stuck(SpanExporter):
    def export(self, spans): threading.Event().wait()
    def shutdown(self): pass
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Stuck()))
async def main():
    async with Commander() as c, otel(c, tracer_provider=provider):
        for _ in range(100):
            await c.put_job(Leaf())
    print("done")
asyncio.run(main())
"""


def test_an_exporter_that_blocks_for_ever_delays_neither_nodes_nor_the_end() -> None:
    """The program waits for it for a limited time."""
    said = subprocess.check_output([sys.executable, "-c", BLOCKED], text=True, timeout=60)
    assert said == "done\n"


LEAVES_AT_ONCE = """
import asyncio, sys
from anabranch import Commander, Job
from anabranch.tracing import otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
class Leaf(Job[int]):
    async def task(self): return 1
class Writes(SpanExporter):
    def export(self, spans):
        with open(sys.argv[1], "a") as file:
            file.writelines(f"{span.name}\\n" for span in spans)
        return SpanExportResult.SUCCESS
    def shutdown(self): pass
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Writes()))
async def main():
    async with Commander() as c, otel(c, tracer_provider=provider):
        for _ in range(500):
            c.put_job(Leaf())
asyncio.run(main())
"""


def test_a_program_that_ends_at_once_exports_all_spans(tmp_path: Path) -> None:
    """The provider's shutdown, which accepts no more spans, comes last."""
    file = tmp_path / "spans"
    program = [sys.executable, "-W", "error", "-c", LEAVES_AT_ONCE, str(file)]
    subprocess.run(program, check=True, timeout=60)
    assert file.read_text().split("\n") == ["invoke_workflow Leaf"] * 500 + [""]


async def test_a_remote_error_that_cannot_be_pickled_has_its_type() -> None:
    """The event has its `repr` only: the span fails like any other."""
    kept = CollectedSpans()
    sink = SpanSink(kept.provider, None, content=False)
    source = EventSource(7, 0, "far", Origin(0.0, "there"), "Commander/far#7")
    sink.begin(0.0, Gap(0, (), {}, 0.0))
    sink.take([Event("put", source, 1.0), Event("failed", source, 2.0, "Odd('sk-plum')")])
    assert sink.error is None
    [span] = kept.ended
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "Odd"
    assert "plum" not in kept.text()
