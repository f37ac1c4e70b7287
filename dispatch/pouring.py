"""Pass the items of a stream to a function, for packages that do nothing else with them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from inspect import isawaitable
from typing import TypeVar

from ._channel import Channel

__all__ = ["pour"]

T = TypeVar("T")


async def pour(items: AsyncIterable[T], take: Callable[[T], object]) -> None:
    """Call `take`, plain or async, with each item as it arrives.

    The pump of a reply calls `take` itself for the items of a branch, so that no item has to wake
    a task. `take` then runs with this task's context variables, but perhaps in another task.
    """
    if isinstance(items, Channel):
        await items.pour(take)
        return
    async for item in items:
        if isawaitable(value := take(item)):
            await value
