"""The thread of a local model and its queue, without a model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.waiting import settle_loop

from anabranch.backends._engine import Ticket, _Mailbox
from anabranch.backends._local import LocalEngine, Work
from anabranch.backends._local_model import ModelFile
from anabranch.commander import BackendError
from anabranch.messages import Delta

Steps = Generator[Delta | None, None, None]
Answer = Callable[[Any], Steps]


@asynccontextmanager
async def an_engine(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[LocalEngine, None]:
    """Open an engine without a model: the work makes the deltas."""
    monkeypatch.setattr("anabranch.backends._local.Model", lambda *_: object())
    engine = LocalEngine.open(ModelFile("nowhere", "none.gguf"))
    try:
        async with asyncio.timeout(30):
            yield engine
    finally:
        await engine.close()


def run(engine: LocalEngine, answer: Answer) -> AsyncGenerator[Delta, None]:
    return engine.run(Work(answer, lambda _: None))


async def texts(engine: LocalEngine, answer: Answer) -> list[str]:
    async with aclosing(run(engine, answer)) as deltas:
        return [delta.text async for delta in deltas]


def saying(*words: str) -> Answer:
    def work(_: Any) -> Steps:
        for word in words:
            yield Delta(text=word)

    return work


async def test_deltas_arrive_in_order_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if they are made much faster than the loop turns."""
    words = [str(number) for number in range(20_000)]
    async with an_engine(monkeypatch) as engine:
        assert await texts(engine, saying(*words)) == words


async def test_requests_are_served_first_come_first_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One at a time."""
    order: list[str] = []

    def noting(name: str) -> Answer:
        def work(_: Any) -> Steps:
            order.append(f"{name} begins")
            yield Delta(text=name)
            order.append(f"{name} ends")

        return work

    async with an_engine(monkeypatch) as engine:
        await asyncio.gather(*(texts(engine, noting(name)) for name in "abc"))

    assert order == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


async def test_a_request_that_is_left_while_it_waits_never_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The requests behind it are served."""
    go_on, begun, started = threading.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(_: Any) -> Steps:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(30)
        yield Delta(text="slow")

    def never(_: Any) -> Steps:
        started.set()
        yield Delta()

    async with an_engine(monkeypatch) as engine:
        first = asyncio.create_task(texts(engine, slow))
        await begun.wait()
        second = asyncio.create_task(texts(engine, never))
        third = asyncio.create_task(texts(engine, saying("third")))
        await settle_loop()
        second.cancel()
        await asyncio.wait([second])
        go_on.set()
        assert await first == ["slow"]
        assert await third == ["third"]

    assert not started.is_set()


async def test_leaving_waits_until_the_work_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing runs after the reader has left."""
    stopped = threading.Event()

    def endless(_: Any) -> Steps:
        try:
            while True:
                yield Delta(text="on and on")
        finally:
            stopped.set()

    async with an_engine(monkeypatch) as engine:
        async with aclosing(run(engine, endless)) as deltas:
            await anext(deltas)
        assert stopped.is_set()


async def test_work_that_has_said_nothing_yet_is_stopped_where_it_offers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example between the steps of choosing a tool. Leaving does not wait for it."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    stopped = threading.Event()

    def silent(_: Any) -> Steps:
        try:
            loop.call_soon_threadsafe(begun.set)
            while True:
                yield None
        finally:
            stopped.set()

    async with an_engine(monkeypatch) as engine:
        reader = asyncio.create_task(texts(engine, silent))
        await begun.wait()
        reader.cancel()
        await asyncio.wait([reader])
        assert await texts(engine, saying("next")) == ["next"]
        assert stopped.is_set()


async def test_an_error_comes_after_what_was_made_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It becomes a `BackendError`, and does not affect the next request."""

    def failing(_: Any) -> Steps:
        yield Delta(text="first")
        raise LookupError("gone")

    async with an_engine(monkeypatch) as engine:
        heard: list[str] = []
        with pytest.raises(BackendError, match="LookupError"):
            async with aclosing(run(engine, failing)) as deltas:
                async for delta in deltas:
                    heard.append(delta.text)  # noqa: PERF401 - kept although it raises
        assert heard == ["first"]
        assert await texts(engine, saying("next")) == ["next"]


async def test_a_model_that_did_not_load_is_tried_again_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network may be up again."""
    failures = [OSError("no network")]

    def load(*_: object) -> object:
        if failures:
            raise failures.pop()
        return object()

    async with an_engine(monkeypatch) as engine:
        monkeypatch.setattr("anabranch.backends._local.Model", load)
        with pytest.raises(BackendError, match="no network"):
            await texts(engine, saying("a"))
        assert await texts(engine, saying("b")) == ["b"]


async def test_one_source_has_one_engine_and_the_last_to_close_ends_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Earlier ones do not end it."""
    async with an_engine(monkeypatch) as engine:
        again = LocalEngine.open(ModelFile("nowhere", "none.gguf"))
        assert again is engine
        await again.close()
        assert await texts(engine, saying("still here")) == ["still here"]
    assert not engine._thread.is_alive()


def test_an_engine_serves_one_loop_after_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A loop that ended during a reply does not stop the thread."""
    monkeypatch.setattr("anabranch.backends._local.Model", lambda *_: object())
    engine = LocalEngine.open(ModelFile(str(tmp_path), "none.gguf"))
    assert asyncio.run(texts(engine, saying("one"))) == ["one"]
    assert asyncio.run(texts(engine, saying("two"))) == ["two"]
    asyncio.run(engine.close())


def test_every_request_of_a_loop_that_was_closed_is_left() -> None:
    """Even if a wake-up was pending when it was closed."""

    async def two() -> list[Ticket[None]]:
        mailbox = _Mailbox()
        return [Ticket(None, mailbox) for _ in range(2)]

    loop = asyncio.new_event_loop()
    tickets = loop.run_until_complete(two())
    tickets[0].put(Delta(text="a"))
    loop.close()
    for ticket in tickets:
        ticket.put(Delta(text="b"))
    assert [ticket.left for ticket in tickets] == [True, True]
