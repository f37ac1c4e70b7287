"""The small local model that all tests of this process share, downloaded at the first use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from anabranch.backends._local import LocalEngine, Work
from anabranch.backends._local_model import Model, ModelFile
from anabranch.messages import Delta, Message, Request

__all__ = [
    "CountingRunner",
    "Tool",
    "count_chunks",
    "make_request",
    "open_shared_engine",
    "story_request",
    "wait_idle",
]


@dataclass
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]


@contextmanager
def open_shared_engine() -> Generator[LocalEngine]:
    """Keep the model from being freed when a test closes its backend."""
    engine = LocalEngine.open(ModelFile.parse(None, None))
    yield engine
    asyncio.run(engine.close())


class CountingRunner:
    """A wrapper of the real engine that counts the chunks it yields."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.chunks = 0
        self.under_way = 0  # replies that the engine is making
        self.most_at_once = 0

    def send_chat_completion_request(self, request: Any) -> Any:
        answer = self.runner.send_chat_completion_request(request)
        return answer if hasattr(answer, "choices") else self._count(answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def _count(self, chunks: Iterator[Any]) -> Iterator[Any]:
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            for chunk in chunks:
                self.chunks += 1
                yield chunk
        finally:
            self.under_way -= 1


@asynccontextmanager
async def count_chunks(engine: LocalEngine) -> AsyncIterator[CountingRunner]:
    """Count the chunks that the model of `engine` yields inside the block."""
    models: list[Any] = []
    await _served(engine, models.append)
    (model,) = models
    model._runner = drawn = CountingRunner(model._runner)
    try:
        yield drawn
    finally:
        model._runner = drawn.runner


async def wait_idle(engine: LocalEngine) -> None:
    """Return once the owner thread has asked for work and found none."""
    await _served(engine, lambda _: None)


async def _served(engine: LocalEngine, see: Callable[[Model], None]) -> None:
    def answer(model: Model) -> Generator[Delta | None, None, None]:
        see(model)
        yield None

    async with aclosing(engine.run(Work(answer, lambda _: None))) as deltas:
        assert [delta async for delta in deltas] == []


def make_request(question: str, *tools: Tool, **options: Any) -> Request:
    """Return a request with one question."""
    return Request([Message(role="user", content=question)], tools, options)


def story_request(story: str = "a fox", **options: Any) -> Request:
    """Return a request for a long text of any quality.

    The system message replaces the default examples, which improve answers but take the model a
    second to read.
    """
    return Request(
        [
            Message(role="system", content="You tell stories."),
            Message(role="user", content=f"Tell me a long story about {story}."),
        ],
        options=options,
    )
