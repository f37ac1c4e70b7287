"""A durable run is one trace over all of its processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from support.spans import CollectedSpans
from support.waiting import block_until

from anabranch import Agent, Commander, Job
from anabranch.commander import Retry
from anabranch.store import Durable, Journal
from anabranch.testing import ScriptedBackend
from anabranch.tracing import otel

pytestmark = pytest.mark.contract("S2")

PROGRAM = """
import asyncio, json, os, sys
from anabranch import Agent, Commander, Job
from anabranch.store import Durable, Journal
from anabranch.testing import ScriptedBackend
from anabranch.tracing import otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

journal, spans, hangs = sys.argv[1:]

class Writes(SpanExporter):
    def export(self, found):
        with open(spans, "a") as file:
            for span in found:
                about = [span.context.trace_id, span.context.span_id]
                parent = span.parent and [span.parent.trace_id, span.parent.span_id]
                file.write(json.dumps([os.getpid(), span.name, about, parent]) + "\\n")
        return SpanExportResult.SUCCESS
    def shutdown(self): pass

class Leaf(Job[int]):
    async def task(self): return 1

class Load(Durable[int]):
    async def task(self):
        return await self.put_job(Leaf())

class Pack(Durable[str]):
    async def task(self):
        backend = ScriptedBackend("Packed.", otherwise="Packed again.", model="m1")
        said = await Agent(backend, name="packer")("Pack it")
        if hangs == "hangs":
            await asyncio.Event().wait()
        return said.content

class Order(Durable[str]):
    async def task(self):
        await self.put_job(Load())
        said = await self.put_job(Pack())
        await self.put_job(Leaf())
        return said

async def main():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Writes()))
    async with Journal(journal) as kept, Commander() as c, otel(c, tracer_provider=provider):
        print(await kept.run(Order(), run_id="order-A"))

asyncio.run(main())
"""


def read(file: Path) -> list[Any]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_two_processes_of_a_run_are_one_trace(tmp_path: Path) -> None:
    """The first one is killed; it has exported its part once, below the root of the second."""
    file = tmp_path / "spans"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "runs.db"), str(file)]
    first = subprocess.Popen([*command, "hangs"])
    try:
        assert block_until(
            lambda: any(name.startswith("invoke_agent") for _, name, *_ in read(file))
        )
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    said = subprocess.check_output([*command, "ends"], text=True, timeout=60)
    assert said == "Packed.\n"
    spans = read(file)
    assert len({pid for pid, *_ in spans}) == 2
    assert len({about[0] for *_, about, _ in spans}) == 1
    named = {tuple(about): name for _, name, about, _ in spans}
    for (
        _,
        name,
        about,
        _,
    ) in spans:  # also of nodes that run again
        assert named[tuple(about)] == name
    for pid, name, _, parent in spans:
        if parent is None:
            assert (name, pid) == ("invoke_workflow Order", spans[-1][0])
        else:
            assert tuple(parent) in named, name
    names = [name for _, name, *_ in spans]
    for once in ("invoke_workflow Order", "Load", "Pack", "chat m1"):
        assert names.count(once) == 1, once
    load = [(pid, name) for pid, name, *_ in spans if name == "Load"]
    assert load == [(first.pid, "Load")]


class Leaf(Job[int]):
    async def task(self) -> int:
        return 1


# The place at which a body stops, if any; the event is set when the body is there.
stop: asyncio.Event | None = None


@pytest.fixture(autouse=True)
def _goes_on() -> Generator[None]:
    yield
    globals()["stop"] = None


async def go_on() -> None:
    if stop is not None:
        stop.set()
        await asyncio.Event().wait()


class Order(Durable[int]):
    async def task(self) -> int:
        await self.put_job(Leaf())
        await go_on()
        return 1


async def live(path: Path, kept: CollectedSpans, job: Any, *, stops: bool = False) -> None:
    """Execute a run once, to its end or until it stops and is suspended."""
    global stop
    stop = asyncio.Event() if stops else None
    async with (
        Journal(path) as journal,
        Commander() as commander,
        otel(commander, tracer_provider=kept.provider) as spans,
    ):
        run = asyncio.ensure_future(journal.run(job, run_id="a"))
        if stop is not None:
            await stop.wait()
            run.cancel()
        with suppress(asyncio.CancelledError):
            await run
    assert spans.flush()
    assert spans.error is None


async def test_a_suspended_run_has_one_span_for_all_executions(tmp_path: Path) -> None:
    """It ends with the run, and each id exists once."""
    kept = CollectedSpans()
    await live(tmp_path / "runs.db", kept, Order(), stops=True)
    assert [span.name for span in kept.ended] == ["Leaf"]
    await live(tmp_path / "runs.db", kept, Order())
    order = kept.named("invoke_workflow Order")
    assert "anabranch.cancelled" not in order.attributes
    assert order.attributes["anabranch.run.id"] == "a"
    assert {span.parent and span.parent.span_id for span in kept.ended} == {
        None,
        order.context.span_id,
    }
    assert len({span.context.trace_id for span in kept.ended}) == 1


async def test_an_ended_run_has_no_second_span(tmp_path: Path) -> None:
    """Its outcome is recorded, so nothing runs."""
    kept = CollectedSpans()
    for _ in "12":
        await live(tmp_path / "runs.db", kept, Order())
    assert len(kept.ended) == 2
    kept.check()


async def test_children_of_another_attempt_have_other_ids(tmp_path: Path) -> None:
    """A retried node has one span; each of its children has another one."""
    kept = CollectedSpans()
    tries: list[int] = []

    class Twice(Durable[int]):
        async def task(self) -> int:
            await self.put_job(Leaf())
            tries.append(1)
            if len(tries) < 3:
                raise KeyError("not yet")
            return 1

    class Top(Durable[int]):
        async def task(self) -> int:
            return await self.put_job(Twice(), retry=Retry(attempts=3))

    await live(tmp_path / "runs.db", kept, Top())
    kept.check()
    assert sorted(span.name for span in kept.ended) == [
        *["Leaf"] * 3,
        "Twice",
        "invoke_workflow Top",
    ]
    assert len({span.context.trace_id for span in kept.ended}) == 1


async def test_a_run_links_to_the_span_around_it(tmp_path: Path) -> None:
    """The run is a separate trace, because its next execution may start below another span."""
    kept = CollectedSpans()
    with kept.provider.get_tracer("test").start_as_current_span("around") as around:
        await live(tmp_path / "runs.db", kept, Order())
    order = kept.named("invoke_workflow Order")
    assert order.parent is None
    assert order.context.trace_id != around.get_span_context().trace_id
    assert [link.context for link in order.links] == [around.get_span_context()]


async def test_a_replayed_reply_has_no_second_span(tmp_path: Path) -> None:
    """The execution that sent the request has made it."""
    kept = CollectedSpans()

    class Asks(Durable[str]):
        async def task(self) -> str:
            backend = ScriptedBackend("Yes.", otherwise="No.", model="m1")
            said = await Agent(backend, name="writer")("Go")
            await go_on()
            return said.content

    await live(tmp_path / "runs.db", kept, Asks(), stops=True)
    await live(tmp_path / "runs.db", kept, Asks())
    assert [span.name for span in kept.ended].count("chat m1") == 1


async def test_another_providers_tracer_has_its_own_ids(tmp_path: Path) -> None:
    """A tracer whose ids cannot be set is used unchanged: each execution is then a trace."""
    kept = CollectedSpans()

    class Other(trace.TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
            tracer = kept.provider.get_tracer("inner")

            class Wraps(trace.Tracer):
                def start_span(self, *args: Any, **kwargs: Any) -> trace.Span:
                    return tracer.start_span(*args, **kwargs)

                start_as_current_span = tracer.start_as_current_span

            return Wraps()

    async with Journal(tmp_path / "runs.db") as journal:
        for _ in "12":
            async with Commander() as commander:
                with otel(commander, tracer_provider=Other()) as spans:
                    await journal.run(Order(), run_id="a")
            assert spans.flush()
    kept.check()
    assert kept.parents() == {"Leaf": "invoke_workflow Order", "invoke_workflow Order": None}
