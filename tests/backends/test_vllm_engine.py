"""The loop and thread of the vLLM engine, without vLLM. `tests/vllm_engine` tests the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.backends._vllm_engine import VLLMEngine
from anabranch.commander import BackendUnavailable, ConfigurationError
from anabranch.messages import Delta

Work = Callable[[Any], AsyncGenerator[Delta, None]]


class Model:
    """Stands for a loaded model: it can only be shut down."""

    def __init__(self) -> None:
        self.llm = SimpleNamespace(shutdown=self.shut_down)
        self.shut = threading.Event()

    def shut_down(self) -> None:
        self.shut.set()


@asynccontextmanager
async def an_engine(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[VLLMEngine, None]:
    monkeypatch.setattr("anabranch.backends._vllm_engine._load", lambda _: Model())
    engine = VLLMEngine.open({"model": "none"})
    async with asyncio.timeout(30):
        await engine.loaded()
        yield engine


def saying(*words: str) -> Work:
    async def work(_: Any) -> AsyncGenerator[Delta, None]:
        for word in words:
            yield Delta(text=word)

    return work


async def texts(engine: VLLMEngine, work: Work) -> list[str]:
    async with aclosing(engine.run(work)) as deltas:
        return [delta.text async for delta in deltas]


async def endless(_: Any) -> AsyncGenerator[Delta, None]:
    while True:
        yield Delta(text="on")
        await asyncio.sleep(0)


async def test_requests_of_any_loop_are_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets all its deltas."""
    words = [[f"{name}{number}" for number in range(2000)] for name in "abc"]
    async with an_engine(monkeypatch) as engine:
        *here, there = await asyncio.gather(
            *(texts(engine, saying(*each)) for each in words[:2]),
            asyncio.to_thread(lambda: asyncio.run(texts(engine, saying(*words[2])))),
        )
        assert [*here, there] == words
        await engine.close()


async def test_leaving_cancels_the_work_and_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests continue."""
    stopped: list[str] = []

    async def work(_: Any) -> AsyncGenerator[Delta, None]:
        try:
            yield Delta(text="first")
            await asyncio.Event().wait()
        finally:
            stopped.append("stopped")

    async with an_engine(monkeypatch) as engine:
        async with aclosing(engine.run(work)) as deltas:
            await anext(deltas)
        assert stopped == ["stopped"]
        assert await texts(engine, saying("next")) == ["next"]
        await engine.close()


async def test_work_that_is_left_before_it_began_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving returns at any moment."""
    async with an_engine(monkeypatch) as engine:
        for turns in range(40):
            reader = asyncio.create_task(texts(engine, endless))
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])
        assert engine._tickets == set()
        await engine.close()


async def test_the_last_to_close_breaks_off_what_is_being_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is shut down and the thread has ended; no request waits or starts."""
    async with an_engine(monkeypatch) as engine:
        model: Any = engine.model
        assert VLLMEngine.open({"model": "none"}) is engine
        await engine.close()
        assert not model.shut.is_set()

        async with aclosing(engine.run(endless)) as deltas:
            await anext(deltas)
            await engine.close()
            with pytest.raises(BackendUnavailable, match="closed"):
                async for _ in deltas:
                    pass
        assert model.shut.is_set()
        assert not engine._thread.is_alive()
        with pytest.raises(BackendUnavailable, match="closed"):
            await texts(engine, saying("late"))


async def test_work_that_begins_as_the_engine_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two reaches the loop first."""
    async with an_engine(monkeypatch) as engine:
        readers = [asyncio.create_task(texts(engine, endless)) for _ in range(20)]
        await asyncio.sleep(0)  # they have begun; most of the work has not
        await engine.close()
        ends = await asyncio.gather(*readers, return_exceptions=True)

    assert all(isinstance(end, BackendUnavailable) for end in ends)


async def test_a_model_that_does_not_load_is_tried_again_by_another_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All waiting requests get the error."""

    def fail(_: Any) -> Any:
        raise ConfigurationError("no such model")

    monkeypatch.setattr("anabranch.backends._vllm_engine._load", fail)
    first = VLLMEngine.open({"model": "none"})
    with pytest.raises(ConfigurationError, match="no such"):
        await first.loaded()
    assert first.dead
    await first.close()

    async with an_engine(monkeypatch) as second:
        assert second is not first
        assert await texts(second, saying("there")) == ["there"]
        await second.close()
