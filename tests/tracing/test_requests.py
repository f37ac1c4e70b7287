"""Events of requests to models: each request starts once and ends once, for any end."""

import asyncio
import gc
from collections import Counter
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.spans import CollectedSpans
from support.waiting import run_turns, settle_loop, wait_until

from anabranch import BackendUnavailable, Commander, Message, Node, handler
from anabranch.backends import Backend, Fallback
from anabranch.backends._cassette import CassetteBackend
from anabranch.commander import Event
from anabranch.commander.tap import Tap
from anabranch.messages import Delta, ReplyEvent, Request, RequestEvent, Usage
from anabranch.store import Durable, Journal, Live, live
from anabranch.testing import ScriptedBackend
from anabranch.tracing import otel, record

pytestmark = pytest.mark.contract("S1")

REQUEST = Request([Message(role="user", content="hi")])
KINDS = ("request", "first_chunk", "reply", "charged", "charged_again")


class SeenRequests:
    """The events of a tree's requests."""

    def __init__(self, commander: Commander) -> None:
        self.events: list[Event] = []
        self._tap = Tap(commander, 100, lambda: None, KINDS, self._take)

    def _take(self) -> None:
        self.events += self._tap.take()

    def of(self, kind: str) -> list[Event]:
        self._take()
        return [event for event in self.events if event.kind == kind]

    @property
    def asked(self) -> list[RequestEvent]:
        return [event.data for event in self.of("request")]

    @property
    def replied(self) -> list[ReplyEvent]:
        return [event.data for event in self.of("reply")]

    def check(self) -> None:
        """Check that each request has one reply after it, from the same node."""
        begun = {event.data.number: event.node_id for event in self.of("request")}
        ended = {event.data.number: event.node_id for event in self.of("reply")}
        assert begun == ended
        assert len(begun) == len(self.asked) == len(self.replied)
        order = [e.data.number if e.kind == "reply" else -1 for e in self.events]
        for event in self.of("request"):
            place = self.events.index(event)
            assert event.data.number not in order[:place]


@handler
async def ask(node: Node, backend: Backend) -> str | None:
    return (await backend.complete(REQUEST)).content


async def events_of(work) -> SeenRequests:
    """Run a handler in a tree, and return its events."""
    async with asyncio.timeout(20), Commander() as commander:
        told = SeenRequests(commander)
        node = commander.call_handler(work)
        await asyncio.wait([asyncio.ensure_future(_outcome(node))])
        node = None
    await settle_loop()
    told.check()
    return told


async def _outcome(node: Node) -> object:
    try:
        return await node
    except BaseException as error:
        return type(error)


async def test_a_complete_reply():
    """S1: model, options, counts; the time to the first chunk, the deltas, and the charge."""
    backend = ScriptedBackend("Hello there", model="m")
    backend.default_options = {"temperature": 0.5}
    told = await events_of(ask(backend))
    (asked,), (replied,) = told.asked, told.replied
    assert (asked.provider, asked.model, asked.options) == ("scripted", "m", {"temperature": 0.5})
    assert (asked.messages, asked.tools, asked.replayed) == (1, (), False)
    assert replied.first_chunk is not None
    assert replied.chunks == len(replied.deltas) > 1
    assert (replied.finish_reason, replied.error, replied.left) == ("stop", None, False)
    assert {"m": replied.usage["m"]} == told.of("charged")[0].data
    assert len(told.of("first_chunk")) == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_a_reply_that_fails(begun: bool):
    """S1: before and after its first chunk, with the reader's error."""
    failure = BackendUnavailable("gone")
    told = await events_of(ask(ScriptedBackend(["a", failure] if begun else failure)))
    (replied,) = told.replied
    assert type(replied.error).__name__ in ("BackendUnavailable", "StreamInterrupted")
    assert not replied.left
    assert (replied.first_chunk is not None) == begun == bool(told.of("first_chunk"))


@pytest.mark.parametrize("begun", [False, True])
async def test_a_reply_whose_node_is_cancelled(begun: bool):
    """S1: it is left, without an error, before and after the first chunk."""
    never = asyncio.Event()
    backend = ScriptedBackend([*(["a"] if begun else []), never])
    async with asyncio.timeout(5), Commander() as commander:
        told = SeenRequests(commander)
        node = commander.call_handler(ask(backend))
        await run_turns(20)
        node.cancel("enough")
    told.check()
    assert [(each.left, each.error) for each in told.replied] == [(True, None)]


async def test_a_stream_that_is_left_early():
    """S1: also by a reader that never closes it, as soon as it is collected."""
    backend = ScriptedBackend(otherwise="one two three")

    @handler
    async def closes(node: Node) -> None:
        async with aclosing(backend.stream(REQUEST)) as deltas:
            async for _ in deltas:
                return

    @handler
    async def forgets(node: Node) -> None:
        async for _ in backend.stream(REQUEST):
            break
        gc.collect()
        await run_turns(3)

    for work in (closes(), forgets()):
        (replied,) = (await events_of(work)).replied
        assert replied.left
        assert replied.chunks == 1


async def test_a_stream_that_is_never_read_is_no_request():
    """The backend sends nothing."""

    @handler
    async def makes(node: Node) -> None:
        await ScriptedBackend("x").stream(REQUEST).aclose()
        ScriptedBackend("x").stream(REQUEST)

    assert (await events_of(makes())).events == []


async def test_a_reply_that_outlives_its_node_has_an_event():
    """S1: of the node that sent the request, although it has ended."""
    kept = []

    @handler
    async def leaves(node: Node) -> None:
        kept.append(ScriptedBackend("one two three").stream(REQUEST))
        await anext(kept[0])

    async with asyncio.timeout(5), Commander() as commander:
        told = SeenRequests(commander)
        node = commander.call_handler(leaves())
        await node
        await kept[0].aclose()
        told.check()
        assert told.of("reply")[0].node_id == node.node_id


async def test_a_stream_read_in_a_thread():
    """S1: `stream_sync` in the thread of a plain tool, read completely and left."""
    backend = ScriptedBackend(otherwise="one two three")

    def reads() -> int:
        return sum(1 for _ in backend.stream_sync(REQUEST))

    def leaves() -> None:
        stream = backend.stream_sync(REQUEST)
        next(stream)
        stream.close()

    @handler
    async def works(node: Node) -> None:
        await node.in_thread(reads)
        await node.in_thread(leaves)

    told = await events_of(works())
    assert [each.left for each in told.replied] == [False, True]


async def test_many_at_once_on_one_node():
    """S1: each has its own number, first chunk and usage."""
    backend = ScriptedBackend(otherwise="one two three", seed=3)

    @handler
    async def asks(node: Node) -> None:
        await asyncio.gather(*(backend.complete(REQUEST) for _ in range(20)))

    told = await events_of(asks())
    assert len({each.number for each in told.asked}) == 20
    assert Counter(e.data for e in told.of("first_chunk")) == {a.number: 1 for a in told.asked}
    total = sum((each.usage["scripted"] for each in told.replied), Usage())
    assert total == sum((event.data["scripted"] for event in told.of("charged")), Usage())


async def test_a_fallback_has_events_of_each_backend():
    """S1: of the failed one and of the one that answers, but none of itself."""
    down = ScriptedBackend(BackendUnavailable("down"), model="first")
    up = ScriptedBackend("hello", model="second")
    told = await events_of(ask(Fallback([down, up])))
    assert [(a.model, r.error is None) for a, r in zip(told.asked, told.replied, strict=True)] == [
        ("first", False),
        ("second", True),
    ]


async def test_a_cassette_has_events_of_recorded_and_played_requests(tmp_path):
    """S1: one for each: of the recorded backend, or of the cassette."""
    file = tmp_path / "tape.jsonl"
    told = await events_of(ask(CassetteBackend(file, record=ScriptedBackend("hello", model="m"))))
    assert [(each.provider, each.model) for each in told.asked] == [("scripted", "m")]
    told = await events_of(ask(CassetteBackend(file)))
    assert [each.provider for each in told.asked] == ["cassette"]
    assert told.replied[0].finish_reason == "stop"


class Eager(ScriptedBackend):
    """Makes the stream of its base at the call, and is not a generator."""

    def stream(self, request: Request):
        return super().stream(request)


class Late(ScriptedBackend):
    """A generator that reads the stream of its base."""

    async def stream(self, request: Request):
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                yield delta


class Both(Late, Eager):
    """Both of them."""


@pytest.mark.parametrize("kind", [Eager, Late, Both])
async def test_a_backend_that_uses_its_base_is_one_request(kind: type[ScriptedBackend]):
    """S1: for each way to pass the reply on."""
    told = await events_of(ask(kind("hello")))
    assert len(told.asked) == 1
    assert told.replied[0].usage == told.of("charged")[0].data


@pytest.mark.contract("S2")
async def test_requests_of_a_backends_nodes_belong_to_these_nodes():
    """S1, S2: for example, if the backend is an agent."""
    inner = ScriptedBackend("inner", model="inner")

    class Agentlike(ScriptedBackend):
        async def stream(self, request: Request):
            yield Delta(text=await ask(inner))
            yield Delta(finish_reason="stop", done=True)

    told = await events_of(ask(Agentlike("never", model="outer")))
    assert [each.model for each in told.asked] == ["outer", "inner"]
    outer, within = told.of("request")
    assert within.parent_id == outer.node_id
    assert [dict(each.usage) for each in told.replied] == [told.of("charged")[0].data, {}]


class Twice(Durable[str]):
    backend: Live[Backend] = live()
    go_on: Live[asyncio.Event] = live()

    async def task(self) -> str:
        said = [(await self.backend.complete(REQUEST)).content or "" for _ in range(2)]
        await self.go_on.wait()
        return " ".join(said)


@pytest.mark.contract("S5")
async def test_a_reply_from_a_journal_is_marked(tmp_path):
    """S1, S5: its event has `replayed`, and the usage that is charged again."""
    go_on = asyncio.Event()
    given = {"backend": ScriptedBackend("one", "two"), "go_on": go_on}
    lives: list[SeenRequests] = []
    async with asyncio.timeout(10), Journal(tmp_path / "runs.db") as journal:
        for _ in range(2):
            async with Commander() as commander:
                lives.append(SeenRequests(commander))
                run = asyncio.ensure_future(journal.run(Twice(), run_id="r", live=given))
                await wait_until(lambda: len(lives[-1].replied) == 2)
                if go_on.is_set():
                    assert await run == "one two"
                else:  # the run is suspended
                    run.cancel()
                    await asyncio.wait([run])
                    go_on.set()
    for told in lives:
        told.check()
    assert [[each.replayed for each in told.asked] for told in lives] == [[False] * 2, [True] * 2]
    assert [each.usage for each in lives[0].replied] == [each.usage for each in lives[1].replied]
    assert len(lives[0].of("charged")) == 2
    assert [event.data for event in lives[1].of("charged_again")] == [
        each.usage for each in lives[1].replied
    ]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["whole", "fails", "breaks", "left", "cancelled"]), max_size=8))
def test_any_mixture_of_ends_has_all_events(ends: list[str]):
    """S1: for sequential and concurrent requests in one tree."""

    async def main() -> None:
        async with Commander() as commander:
            told = SeenRequests(commander)
            for end in ends:
                commander.call_handler(one(end), claim=True)
            await run_turns(50)
            for node in commander.children:
                node.cancel()
        told.check()
        assert len(told.asked) == len(ends)

    @handler
    async def one(node: Node, end: str) -> None:
        never = asyncio.Event()
        script = {
            "whole": "hello you",
            "fails": BackendUnavailable("no"),
            "breaks": ["a", BackendUnavailable("no")],
            "left": "hello you",
            "cancelled": ["a", never],
        }
        async with aclosing(ScriptedBackend(script[end]).stream(REQUEST)) as deltas:
            async for _ in deltas:
                if end == "left":
                    return

    asyncio.run(main())


@pytest.mark.parametrize("content", [False, True])
async def test_an_unknown_finish_reason_is_content(content: bool, tmp_path):
    """In spans and in recordings."""
    kept = CollectedSpans()
    delta = Delta(text="plums", finish_reason="plums are ripe")
    backend = ScriptedBackend([delta], model="m")

    async with (
        Commander() as commander,
        record(commander, tmp_path / "r", content=content) as recorder,
        otel(commander, tracer_provider=kept.provider, content=content) as spans,
    ):
        await commander.call_handler(ask(backend))
        assert spans.flush()
    found = "plums are ripe" if content else "other"
    [request] = [request for node in recorder.trace() for request in node.requests]
    assert request.finish_reason == found
    attributes = kept.named("chat m").attributes
    assert attributes["gen_ai.response.finish_reasons"] == (found,)
    assert content or "ripe" not in kept.text() + (tmp_path / "r").read_text()
