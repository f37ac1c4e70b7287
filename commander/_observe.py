"""Waiting for an end without taking part in it: no failure is taken, no cancel gives it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._record import DONE
from ._waits import begin_wait

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["observe", "outlast"]


def observe(node: Node[Any]) -> asyncio.Future[None]:
    """Return a future that is done when the node is; unlike awaiting, it takes no failure."""
    future = begin_wait(node)
    if node._n_state in DONE:
        future.set_result(None)
        return future

    def closed(_: Node[Any]) -> None:
        if not future.done():
            future.set_result(None)

    if node._n_after is None:
        node._n_after = []
    node._n_after.append(("closed", closed))
    return future


async def outlast(
    ended: asyncio.Future[Any], on_cancel: Callable[[], object] | None = None
) -> asyncio.CancelledError | None:
    """Wait for `ended`, however often the wait is cancelled; call `on_cancel` each time.

    Returns the last cancellation. The outcome of `ended` is not looked at.
    """
    try:
        if not ended.done():
            await asyncio.wait((ended,))
    except asyncio.CancelledError as error:
        return await _outlast_shielded(ended, error, on_cancel)
    return None


async def _outlast_shielded(
    ended: asyncio.Future[Any],
    interrupted: asyncio.CancelledError,
    on_cancel: Callable[[], object] | None,
) -> asyncio.CancelledError:
    from anyio import CancelScope

    if on_cancel is not None:
        on_cancel()
    with CancelScope(shield=True):  # a scope of anyio's would cancel this again at every turn
        while not ended.done():
            try:
                await asyncio.wait((ended,))
            except asyncio.CancelledError as error:
                interrupted = error
                if on_cancel is not None:
                    on_cancel()
    return interrupted
