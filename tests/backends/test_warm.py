"""Warm a model before there is a question, and report its progress."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

import pytest
from support.waiting import settle_loop

from anabranch import Commander, Node, handler
from anabranch.backends import Backend, Fallback
from anabranch.backends._local import LocalEngine, Work
from anabranch.backends._local_model import (
    Model,
    ModelFile,
    _first_messages,
    _free_cores,
    _shared_tokens,
)
from anabranch.backends._request_events import progress_listener
from anabranch.backends._request_fit import Chat
from anabranch.messages import Delta, Message, ProgressEvent, Request
from anabranch.testing import ScriptedBackend
from tests.backends.test_local_engine import an_engine, saying, texts

ASK = Request([Message(role="user", content="Hello")])


def warming(engine: LocalEngine, answer: Any) -> AsyncGenerator[Delta, None]:
    return engine.run(Work(answer, lambda _: None, gives_way=True))


async def test_warming_a_model_that_is_always_ready_asks_it_nothing() -> None:
    """S19: harmless for every backend, also twice, and nothing is charged."""
    backend = ScriptedBackend(otherwise="Hi.")
    async with Commander() as commander:
        for _ in range(2):
            await backend.warm(ASK)
            await Fallback([backend]).warm(ASK)
        assert not commander.usage()
    assert not backend.requests


async def test_a_request_takes_over_from_a_warming(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the current piece only."""
    reached, go_on = threading.Event(), threading.Event()
    pieces = 0

    def read(_: Any) -> Generator[ProgressEvent, None, None]:
        nonlocal pieces
        while True:
            pieces += 1
            yield ProgressEvent("reading", pieces, 1000)
            reached.set()
            go_on.wait(30)

    async with an_engine(monkeypatch) as engine:

        async def warm() -> None:
            async with aclosing(warming(engine, read)) as deltas:
                assert [delta async for delta in deltas] == []

        async with asyncio.TaskGroup() as group:
            group.create_task(warm())
            await asyncio.to_thread(reached.wait, 30)
            asked = group.create_task(texts(engine, saying("yes")))
            await settle_loop()
            go_on.set()
            assert await asked == ["yes"]
    assert pieces == 2


async def test_a_warming_that_is_cancelled_stops_at_the_next_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then the model is free for requests."""
    reached, closed = threading.Event(), threading.Event()

    def read(_: Any) -> Generator[ProgressEvent, None, None]:
        try:
            while True:
                reached.set()
                yield ProgressEvent("reading", 1, 2)
        finally:
            closed.set()

    async with an_engine(monkeypatch) as engine:

        async def warm() -> None:
            async with aclosing(warming(engine, read)) as deltas:
                async for _ in deltas:
                    pass

        task = asyncio.create_task(warm())
        await asyncio.to_thread(reached.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await texts(engine, saying("free")) == ["free"]
        assert closed.is_set()


async def test_who_waits_is_told_how_many_are_served_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warming is not counted, because it gives way."""
    reached, go_on = threading.Event(), threading.Event()

    def slow(_: Any) -> Generator[Delta, None, None]:
        reached.set()
        go_on.wait(30)
        yield Delta(text="slow")

    heard: list[ProgressEvent] = []

    async with an_engine(monkeypatch) as engine:

        async def ask(work: Work) -> None:
            async with aclosing(engine.run(work)) as deltas:
                async for _ in deltas:
                    pass

        async with asyncio.TaskGroup() as group:
            group.create_task(texts(engine, slow))
            await asyncio.to_thread(reached.wait, 30)
            group.create_task(ask(Work(saying(), lambda _: None, gives_way=True)))
            await settle_loop()
            group.create_task(ask(Work(saying("b"), lambda _: None, heard.append)))
            await settle_loop()
            go_on.set()
    assert heard == [ProgressEvent("queued", 0, 1), ProgressEvent("reading")]


async def test_all_who_wait_are_told_that_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request, and one that arrives during the loading."""
    loading, go_on = threading.Event(), threading.Event()
    first: list[ProgressEvent] = []
    second: list[ProgressEvent] = []

    def load(*_: Any) -> object:
        loading.set()
        go_on.wait(30)
        return object()

    async with an_engine(monkeypatch) as engine:
        monkeypatch.setattr("anabranch.backends._local.Model", load)

        async def ask(heard: list[ProgressEvent]) -> None:
            async with aclosing(engine.run(Work(saying(), lambda _: None, heard.append))) as deltas:
                async for _ in deltas:
                    pass

        async with asyncio.TaskGroup() as group:
            group.create_task(ask(first))
            await asyncio.to_thread(loading.wait, 30)
            group.create_task(ask(second))
            await settle_loop()
            go_on.set()
    assert first == second == [ProgressEvent("loading"), ProgressEvent("reading")]


async def test_what_a_model_is_busy_with_is_told_of_its_request() -> None:
    """S19: with the number of the request, between it and its first delta."""

    class Busy(Backend):
        async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
            tell = progress_listener()
            await asyncio.to_thread(tell, ProgressEvent("reading", 5, 10))
            await settle_loop()
            yield Delta(text="Hi.", finish_reason="stop", done=True)

    @handler
    async def ask(node: Node[Any]) -> None:
        await Busy("busy").complete(ASK)

    async with Commander() as commander:
        events = commander.events(["request", "working", "first_chunk"])
        await commander.call_handler(ask())
    told = [event async for event in events]
    assert [event.kind for event in told] == ["request", "working", "first_chunk"]
    assert told[1].data == ProgressEvent("reading", 5, 10, told[0].data.number)


# --- reading in pieces, without a model


class Reader:
    """An engine that counts a token for each character."""

    def __init__(self) -> None:
        self.prompts: list[list[dict[str, str]]] = []

    def tokenize_text(self, text: str, *_: Any) -> list[int]:
        return [0] * len(text)

    def max_sequence_length(self) -> int:
        return 8192

    def send_chat_completion_request(self, request: list[dict[str, str]]) -> Any:
        self.prompts.append(request)

        class Answer:
            class usage:  # noqa: N801 - as the engine names it
                prompt_tokens, completion_tokens = 100, 1

        return Answer()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    """Return a model whose engine is a `Reader`."""

    def load(_: ModelFile) -> Reader:
        return Reader()

    def request(messages: Chat, *_: Any, **__: Any) -> Chat:
        return messages

    monkeypatch.setattr("anabranch.backends._local_model._load", load)
    monkeypatch.setattr("anabranch.backends._local_model._request", request)

    return Model(ModelFile("nowhere", "none.gguf"), lambda _: None)


def chat(*texts_of_it: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant" if place % 2 else "user", "content": text}
        for place, text in enumerate(texts_of_it)
    ]


def test_a_prompt_is_read_in_pieces_that_grow_and_never_twice(model: Model) -> None:
    """Each piece begins as the prompt does; pieces read before are skipped."""
    long = chat("a" * 900, "b" * 300, "c" * 100)
    steps = list(model.read(long, whole=True))

    prompts = model._runner.prompts
    assert 1 < len(prompts) <= 7
    assert prompts[-1] == long
    sizes = [sum(len(message["content"]) for message in prompt) for prompt in prompts]
    assert sizes == sorted(sizes)
    for prompt in prompts:
        for whole, part in zip(long, prompt, strict=False):
            assert whole["content"].startswith(part["content"])
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert list(model.read(long, whole=True)) == []  # twice is free
    list(model.read(chat("a" * 900, "b" * 300, "d" * 300), whole=True))
    assert len(model._runner.prompts) <= len(prompts) + 2  # only the new part


def test_reading_may_be_left_at_every_piece_and_goes_on_there(model: Model) -> None:
    """Pieces read so far are not read again."""
    long = chat("word " * 300)
    for _ in range(20):
        reading = model.read(long, whole=True)
        next(reading, None)
        next(reading, None)
        reading.close()
    assert model._runner.prompts[-1] == long
    assert len(model._runner.prompts) <= 7


def test_the_engine_is_begun_anew_before_it_has_kept_too_much(model: Model) -> None:
    """It never frees the state of a prompt itself."""
    first = model._runner
    for number in range(200):
        list(model.read(chat(f"{number} " * 40), whole=True))
    assert model._runner is not first
    assert len(model._runner.prompts) <= 130


@pytest.mark.parametrize("texts_of_it", [(), ("",), ("", ""), ("x",), ("x", "")])
def test_odd_conversations_are_read(model: Model, texts_of_it: tuple[str, ...]) -> None:
    """Also empty ones."""
    list(model.read(chat(*texts_of_it), whole=True))
    list(model.read(chat(*texts_of_it)))


def test_what_is_too_long_is_left_to_the_request(model: Model) -> None:
    """It is refused at once, instead of being read for a minute first."""
    assert list(model.read(chat("a" * 9000))) == []
    assert not model._runner.prompts


@pytest.mark.parametrize(
    ("cores", "usable", "load", "free"),
    [(2, 2, 0.2, 2), (2, 2, 1.2, 1), (2, 2, 30.0, 1), (64, 8, 32.0, 4), (64, 8, 0.0, 8)],
)
def test_a_busy_machine_gives_the_model_fewer_threads(
    monkeypatch: pytest.MonkeyPatch, cores: int, usable: int, load: float, free: int
) -> None:
    """Its threads wait for each other in busy loops: one too many makes all slow."""
    monkeypatch.setattr("os.cpu_count", lambda: cores)

    def affinity(_: int) -> range:
        return range(usable)

    monkeypatch.setattr("os.sched_getaffinity", affinity, raising=False)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert _free_cores() == free


def test_how_much_two_conversations_share() -> None:
    """Equal messages, and the beginning of the first that differs."""
    one, two = chat("abc", "defgh", "x"), chat("abc", "defxx", "x")
    assert _shared_tokens(one, [8, 10, 6], two) == 11
    assert _shared_tokens(one, [8, 10, 6], chat("zzz")) == 0
    assert _shared_tokens(one, [8, 10, 6], one) == 24
    assert _first_messages(one, [8, 10, 6], 100) == one


async def test_leaving_a_request_that_loads_leaves_the_loading_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fetching continues if another request waits for the weights."""
    from anabranch.backends._weights import Progress

    fetching, go_on = threading.Event(), threading.Event()
    loads = 0

    def load(_: Any, report: Any) -> object:
        nonlocal loads
        loads += 1
        fetching.set()
        go_on.wait(30)
        report(Progress("fetching", 1, 2))
        return object()

    async with an_engine(monkeypatch) as engine:
        monkeypatch.setattr("anabranch.backends._local.Model", load)
        leaver = asyncio.create_task(texts(engine, saying("never")))
        await asyncio.to_thread(fetching.wait, 30)
        stayer = asyncio.create_task(texts(engine, saying("said")))
        await settle_loop()
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        go_on.set()
        assert await stayer == ["said"]
    assert loads == 1
