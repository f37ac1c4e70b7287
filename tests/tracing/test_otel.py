"""A tree as spans: names, attributes and parents, and content only if requested."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from support.spans import CollectedSpans

from anabranch import Agent, Commander, Job, Message, Node, ToolCall, handler, tool
from anabranch.commander import Actor, Retry
from anabranch.commander.remote import Event, EventSource, Origin, relay
from anabranch.messages import Request, Usage
from anabranch.testing import ScriptedBackend
from anabranch.tracing import otel

pytestmark = pytest.mark.contract("S2")

KEY = "sk-proj-Zm9vYmFyYmF6cXV4MTIz"
CALL = ToolCall(id="c1", name="look_up", arguments={"word": "plum"})


class Leaf(Job[int]):
    async def task(self) -> int:
        return 1


class Branch(Job[int]):
    async def task(self) -> int:
        return await self.put_job(Leaf())


class Tree(Job[int]):
    async def task(self) -> int:
        return await self.put_job(Branch())


class Fails(Job[int]):
    async def task(self) -> int:
        raise ValueError(f"the key {KEY} is wrong")


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a fruit"


def make_agent(*replies: Any, **options: Any) -> Agent:
    replies = replies or (Message(role="assistant", tool_calls=[CALL]), "A plum is a fruit.")
    backend = ScriptedBackend(*replies, size=None, model="m1", **options)
    return Agent(backend, tools=[look_up], name="writer")


async def test_each_node_has_a_span_with_the_trees_parents() -> None:
    """Top-level nodes are roots and workflows; the commander has no span."""
    kept = CollectedSpans()
    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        await commander.put_job(Tree())
    assert spans.flush()
    kept.check()
    assert kept.parents() == {
        "Leaf": "Branch",
        "Branch": "invoke_workflow Tree",
        "invoke_workflow Tree": None,
    }
    leaf, branch, top = kept.ended
    assert top.start_time <= branch.start_time <= leaf.start_time
    assert leaf.end_time <= branch.end_time <= top.end_time
    assert {span.kind for span in kept.ended} == {SpanKind.INTERNAL}
    assert {span.status.status_code for span in kept.ended} == {StatusCode.UNSET}
    assert dict(top.attributes) == {
        "anabranch.node.id": 1,
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "Tree",
    }


async def test_the_top_is_below_the_span_that_was_current() -> None:
    """It is read once; a node keeps the current span of the code that put it."""
    kept = CollectedSpans()
    tracer = kept.provider.get_tracer("test")
    seen: list[Any] = []

    @handler
    async def look(node: Node[None]) -> None:
        seen.append(trace.get_current_span())

    make = partial(otel, tracer_provider=kept.provider)
    with tracer.start_as_current_span("around") as around:
        async with Commander() as commander, make(commander) as spans:
            await commander.call_handler(look())
            with tracer.start_as_current_span("later") as later:
                await commander.put_job(Leaf())
                await commander.call_handler(look())
    assert spans.flush()
    assert seen == [around, later]
    for name in ("invoke_workflow look", "invoke_workflow Leaf"):
        for span in kept.ended:
            if span.name == name:
                assert span.parent is not None
                assert span.parent.span_id == around.get_span_context().span_id


async def test_an_agents_call_its_requests_and_its_tools_have_the_conventions_names() -> None:
    """Options, tokens, the session and the call's id, under their standard names."""
    kept = CollectedSpans()
    usage = Usage(input_tokens=39, output_tokens=6, cached_input_tokens=8, reasoning_tokens=3)
    asks = Message(role="assistant", tool_calls=[CALL], usage=usage)
    agent = make_agent(
        asks,
        "A plum is a fruit.",
        temperature=0.5,
        max_tokens=99,
        top_k=5,
        response_format={"type": "text"},
    )
    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        await agent("What is a plum?", session_id="s-1")
    assert spans.flush()
    kept.check()
    call = kept.named("invoke_agent writer")
    whose = {"gen_ai.agent.name": "writer", "gen_ai.conversation.id": "s-1"}
    named = {"anabranch.node.id": 1, "gen_ai.operation.name": "invoke_agent"}
    assert dict(call.attributes) == named | whose
    first, second = (span for span in kept.ended if span.name == "chat m1")
    assert first.kind == SpanKind.CLIENT
    said = dict(first.attributes)
    assert 0 <= said.pop("gen_ai.response.time_to_first_chunk") < 60
    assert said == whose | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "m1",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 99,
        "gen_ai.request.top_k": 5.0,
        "gen_ai.output.type": "text",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 39,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 8,
        "gen_ai.usage.reasoning.output_tokens": 3,
    }
    assert second.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    ran = dict(kept.named("execute_tool look_up").attributes)
    del ran["anabranch.node.id"]
    assert ran == whose | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look_up",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
    }
    assert "plum" not in kept.text()


async def test_content_has_the_conventions_format_and_no_key() -> None:
    """Messages, arguments, results and errors, only if requested."""
    kept, bare = CollectedSpans(), CollectedSpans()
    call = ToolCall(id="c1", name="look_up", arguments={"word": KEY})
    agent = make_agent(Message(role="assistant", tool_calls=[call]), f"Not {KEY}.")
    async with Commander() as commander:
        with (
            otel(commander, tracer_provider=kept.provider, content=True) as spans,
            otel(commander, tracer_provider=bare.provider) as without,
        ):
            await agent(f"My key is {KEY}")
            with pytest.raises(ValueError, match="wrong"):
                await commander.put_job(Fails())
    assert spans.flush()
    assert without.flush()
    assert KEY not in kept.text() + bare.text()
    assert "fruit" not in bare.text()
    assert "My key" not in bare.text()
    assert "wrong" not in bare.text()
    first, second = (span.attributes for span in kept.ended if span.name == "chat m1")
    asked = [{"role": "user", "parts": [{"type": "text", "content": "My key is ***"}]}]
    assert json.loads(first["gen_ai.input.messages"]) == asked
    called = {"type": "tool_call", "id": "c1", "name": "look_up", "arguments": {"word": "***"}}
    said = {"role": "assistant", "parts": [called]}
    assert json.loads(first["gen_ai.output.messages"]) == [said | {"finish_reason": "tool_calls"}]
    (offered,) = json.loads(first["gen_ai.tool.definitions"])
    assert (offered["name"], offered["type"]) == ("look_up", "function")
    answer = {"type": "tool_call_response", "id": "c1", "response": "*** is a fruit"}
    told = json.loads(second["gen_ai.input.messages"])
    assert told == [*asked, said, {"role": "tool", "parts": [answer]}]
    ran = kept.named("execute_tool look_up").attributes
    assert json.loads(ran["gen_ai.tool.call.arguments"]) == {"word": "***"}
    assert ran["gen_ai.tool.call.result"] == "*** is a fruit"
    (raised,) = kept.named("invoke_workflow Fails").events
    assert raised.attributes["exception.message"] == "the key *** is wrong"
    assert "in task" in raised.attributes["exception.stacktrace"]


async def test_a_span_has_the_end_of_its_node() -> None:
    """A failure has its type and its line; a cancel is not an error; each retry is an event."""
    kept = CollectedSpans()
    tries: list[int] = []

    class Twice(Job[int]):
        async def task(self) -> int:
            tries.append(1)
            if len(tries) < 3:
                raise KeyError("not yet")
            return 1

    class Waits(Job[None]):
        async def task(self) -> None:
            await asyncio.Event().wait()

    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        with pytest.raises(ValueError, match="wrong"):
            await commander.put_job(Fails())
        await commander.put_job(Twice(), retry=Retry(attempts=3))
        waits = commander.put_job(Waits())
        await asyncio.sleep(0)
        waits.cancel("secretly")
    assert spans.flush()
    kept.check()
    failed = kept.named("invoke_workflow Fails")
    assert failed.status.status_code == StatusCode.ERROR
    assert failed.status.description is None
    assert failed.attributes["error.type"] == "ValueError"
    (raised,) = failed.events
    assert raised.name == "exception"
    assert {*raised.attributes} == {"exception.type", "anabranch.at"}
    assert "in task" in raised.attributes["anabranch.at"]
    twice = kept.named("invoke_workflow Twice")
    assert [event.name for event in twice.events] == ["anabranch.retried"] * 2
    assert twice.events[0].attributes["exception.type"] == "KeyError"
    assert twice.status.status_code == StatusCode.UNSET
    cancelled = kept.named("invoke_workflow Waits")
    assert cancelled.attributes["anabranch.cancelled"] is True
    assert "anabranch.cancel.reason" not in cancelled.attributes
    assert cancelled.status.status_code == StatusCode.UNSET


async def test_failed_requests_and_tools_are_errors() -> None:
    """With the type of the failure, and the status of the call."""
    kept = CollectedSpans()
    calls = [ToolCall(id="c1", name="look_up", arguments={"no": 1})]
    agent = make_agent(Message(role="assistant", tool_calls=calls), ConnectionError("down"))
    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        with pytest.raises(ConnectionError):
            await agent("Go")
    assert spans.flush()
    kept.check()
    ran = kept.named("execute_tool look_up")
    assert (ran.attributes["error.type"], ran.status.status_code) == ("invalid", StatusCode.ERROR)
    failed = [span for span in kept.ended if span.name == "chat m1"][1]
    assert failed.attributes["error.type"] == "ConnectionError"
    assert failed.status.status_code == StatusCode.ERROR


async def test_an_abandoned_stream_ends_with_its_node_at_the_latest() -> None:
    """A closed stream ends then; one that was never closed ends with the node."""
    kept = CollectedSpans()
    backend = ScriptedBackend("one two three", "one two three", size=4, model="m1")
    streams: list[AsyncGenerator[Any, None]] = []

    class Closes(Job[None]):
        async def task(self) -> None:
            stream = backend.stream(Request([Message(role="user", content="Go")]))
            await anext(stream)
            await stream.aclose()

    class Forgets(Job[None]):
        async def task(self) -> None:
            stream = backend.stream(Request([Message(role="user", content="Go")]))
            await anext(stream)
            streams.append(stream)

    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        await commander.put_job(Closes())
        await commander.put_job(Forgets())
    assert spans.flush()
    await streams[0].aclose()
    kept.check()
    closed, forgotten = (span for span in kept.ended if span.name == "chat m1")
    for chat in (closed, forgotten):
        assert chat.attributes["anabranch.left"] is True
        assert chat.status.status_code == StatusCode.UNSET
        assert "gen_ai.response.time_to_first_chunk" in chat.attributes
    assert forgotten.end_time == kept.named("invoke_workflow Forgets").end_time


async def test_a_remote_node_has_its_machines_name() -> None:
    """Its times, parents and agents are the same as for a local node."""
    kept = CollectedSpans()
    go_on = asyncio.Event()

    class Away(Job[None]):
        async def task(self) -> None:
            await go_on.wait()

    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        node = commander.put_job(Away())
        await asyncio.sleep(0)
        origin = Origin(1_790_000_000.0, "other")
        writer = Actor("writer", "s-1")
        first = EventSource(100, node.node_id, "call", origin, "call", writer)
        second = EventSource(101, 100, "respond", origin, "respond", writer)
        for kind, source, clock in [
            ("put", first, 1.0),
            ("started", first, 1.5),
            ("put", second, 2.0),
            ("completed", second, 3.0),
            ("completed", first, 4.0),
        ]:
            relay(node, Event(kind, source, clock))  # type: ignore[arg-type]
        go_on.set()
    assert spans.flush()
    kept.check()
    assert kept.parents() == {
        "respond": "invoke_agent writer",
        "invoke_agent writer": "invoke_workflow Away",
        "invoke_workflow Away": None,
    }
    call = kept.named("invoke_agent writer")
    assert call.attributes["host.name"] == "other"
    assert call.attributes["anabranch.pending"] == 0.5
    assert call.start_time == 1_790_000_001 * 10**9
    assert call.end_time == 1_790_000_004 * 10**9


async def test_a_sampler_that_drops_everything_causes_no_failure() -> None:
    """It makes no spans."""
    kept = CollectedSpans(sampler=ALWAYS_OFF)
    async with Commander() as commander:
        with otel(commander, tracer_provider=kept.provider, content=True) as spans:
            await make_agent()("What is a plum?")
    assert spans.flush()
    assert (kept.started, kept.ended, spans.error) == ([], [], None)


async def test_requests_are_measured() -> None:
    """Their durations and tokens, with a meter provider."""
    reader, kept = InMemoryMetricReader(), CollectedSpans()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    said = Message(role="assistant", content="Hi.", usage=Usage(input_tokens=7, output_tokens=2))
    async with Commander() as commander:
        with otel(commander, tracer_provider=kept.provider, meter_provider=meters) as spans:
            await make_agent(said)("Hello")
    assert spans.flush()
    data = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics  # type: ignore[union-attr]
    found = {metric.name: metric.data.data_points for metric in scope.metrics}
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "m1",
    }
    (took,) = found["gen_ai.client.operation.duration"]
    assert took.attributes == about
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum
        for point in found["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": 7, "output": 2}


async def test_it_is_called_inside_the_block() -> None:
    """Else the error names the right place."""
    with pytest.raises(RuntimeError, match="must be called inside the block"):
        otel(Commander())


async def test_a_missing_provider_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the remedy."""
    with caplog.at_level(logging.WARNING):
        async with Commander() as commander:
            with otel(commander) as spans:
                await commander.put_job(Leaf())
    assert spans.flush()
    assert "the spans are lost, because no tracer provider is set" in caplog.text


def test_without_the_extra_the_error_names_it() -> None:
    """The rest of the package works."""
    program = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from anabranch import Commander, MissingExtra
from anabranch.tracing import otel, record
async def main():
    async with Commander() as c:
        try: otel(c)
        except MissingExtra as error: print(error)
asyncio.run(main())
"""
    said = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert said == "otel(commander) needs an extra: pip install 'anabranch[otel]'\n"


def test_only_the_api_is_imported_and_only_on_use() -> None:
    """Spans need neither the SDK nor the package of the conventions."""
    program = """
import sys
import anabranch.tracing
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
import anabranch.tracing._spans
assert not [n for n in sys.modules if n.startswith(("opentelemetry.sdk", "opentelemetry.semconv"))]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
