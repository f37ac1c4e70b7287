"""Pass a branch of text on as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any

from ..commander import Node, emit
from ..dispatch.pouring import pour
from ._handler import handler
from ._view import ConsoleView

__all__ = ["show"]


@handler
async def show(
    node: Node[Any],
    texts: AsyncIterable[str],
    write: Callable[[str], Awaitable[object] | object] | None = None,
) -> str:
    """Give each text to `write`, plain or async, as it arrives; return all of it.

    Without `write` it goes to the standard output. Each piece is also an event of kind `text`. What
    `write` raises is raised, a `CancelledError` of its own as a `RuntimeError`: nobody asks for the
    result of a node that was cancelled, and the text would be lost in silence.
    """
    write = write or ConsoleView().write
    said: list[str] = []

    def give(text: str) -> object:
        emit(node, "text", text)
        said.append(text)
        return write(text)

    try:
        await pour(texts, give)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # meant for this node
            raise
        raise RuntimeError(f"{write!r:.200} raised CancelledError by itself") from error
    return "".join(said)
