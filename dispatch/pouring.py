"""What a room needs that passes on what comes, item by item, and does nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from inspect import isawaitable
from typing import TypeVar

from ._channel import Channel

__all__ = ["pour"]

T = TypeVar("T")


async def pour(items: AsyncIterable[T], take: Callable[[T], object]) -> None:
    """Give each item to `take`, plain or async, as it comes.

    Those of a reply's branch are given to it where they arrive, which spares a task's turn for
    each: `take` runs in the context of this task, but perhaps not in this task.
    """
    if isinstance(items, Channel):
        await items.pour(take)
        return
    async for item in items:
        if isawaitable(taken := take(item)):
            await taken
