"""The small model that the tests in this process share, loaded once and fetched if need be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from anabranch.backends._local_engine import Engine
from anabranch.backends._local_model import Source
from anabranch.dispatch import Message, Request

__all__ = ["Tool", "ask", "small_model"]


@dataclass
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def small_model() -> Iterator[Engine]:
    """Keep the model from being freed when a test closes its backend."""
    engine = Engine.open(Source.parse(None, None))
    yield engine
    asyncio.run(engine.close())


def ask(question: str, *tools: Tool, **options: Any) -> Request:
    """Make a request of one question."""
    return Request([Message(role="user", content=question)], tools, options)
