"""Open, read and close the source of a reply: deltas, chunks or SDK objects, async or blocking."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import isawaitable, iscoroutine, isgenerator
from typing import Any, TypeAlias, cast

from ..commander import BadResponse
from ..messages import ChunkReader, Delta
from ..messages.text import quote

__all__ = [
    "Source",
    "check_source",
    "close_source",
    "discard_source",
    "open_source",
    "to_delta",
]

logger = logging.getLogger("anabranch")

Source: TypeAlias = (
    AsyncIterable[Any] | Iterable[Any] | Awaitable[AsyncIterable[Any]] | Awaitable[Iterable[Any]]
)
"""An iterable of deltas, wire chunks or SDK chunk objects, async or blocking, or an awaitable that
returns one."""

# How many items the thread of a blocking source may be ahead of the loop.
_MAX_ITEMS_AHEAD = 256


def to_delta(item: object, chunks: ChunkReader) -> Delta | None:
    """Convert an item of a source: a delta, a wire chunk as a mapping, or an SDK's object."""
    return item if isinstance(item, Delta) else chunks.read(_chunk(item))


def _chunk(item: object) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item)
    dump = getattr(item, "model_dump", None)
    chunk = dump() if callable(dump) else None
    if not isinstance(chunk, Mapping):
        raise BadResponse(
            f"a source must yield deltas or chat-completions chunks, not {quote(item)}"
        )
    return cast("Mapping[str, Any]", chunk)


def check_source(source: object) -> None:
    """Raise `TypeError` if `source` is neither iterable nor awaitable."""
    if not (hasattr(source, "__aiter__") or hasattr(source, "__iter__") or isawaitable(source)):
        raise TypeError(f"a source must be an iterable or an async iterable, not {source!r:.80}")


async def open_source(source: Any) -> AsyncIterable[Any]:
    """Return the source as an async iterable; a thread reads a blocking one."""
    if not hasattr(source, "__aiter__") and isawaitable(source):
        source = await source
        check_source(source)
    return source if hasattr(source, "__aiter__") else _BlockingSource(source)


async def close_source(source: Any) -> None:
    """Close a source, read or unread, if it can be closed.

    A failure to close is only logged as a warning: the reply that was read stays valid.
    """
    await _finish_close(source, _begin_close(source))


def discard_source(source: Any) -> None:
    """Close an unread source: at once, or in a task if its close is async."""
    closing = _begin_close(source)
    if closing is None:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError as error:  # without a loop in this thread, the close cannot be awaited
        if iscoroutine(closing):
            closing.close()
        _warn(source, error)
        return
    task = loop.create_task(_finish_close(source, closing))
    _discarding.add(task)
    task.add_done_callback(_discarding.discard)


_discarding: set[asyncio.Task[None]] = set()  # strong references: the loop has only weak ones


def _begin_close(source: Any) -> Awaitable[Any] | None:
    """Call the close method of a source; return its result if that must be awaited."""
    try:
        close = getattr(source, "aclose", None) or getattr(source, "close", None)
        if close is None and isinstance(source, asyncio.Future):
            close = source.cancel
        closing = None if close is None else close()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a source is user code
        _warn(source, error)
        return None
    return closing if isawaitable(closing) else None


async def _finish_close(source: Any, closing: Awaitable[Any] | None) -> None:
    try:
        if closing is not None:
            await closing
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # a cancellation of this task, not one that the close raised
        _warn(source, error)
    except Exception as error:  # noqa: BLE001 - a source is user code
        _warn(source, error)


def _warn(source: Any, error: BaseException) -> None:
    logger.warning(
        "cannot close the source of a reply, a %s", type(source).__name__, exc_info=error
    )


class _BlockingSource(AsyncIterator[Any]):
    """Reads a blocking iterable in a thread, at most `_MAX_ITEMS_AHEAD` items ahead of the loop."""

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._failure: BaseException | None = None
        self._is_over = False  # the thread has ended
        self._closed = False  # the reader wants no more items
        self._notice: asyncio.Future[None] | None = None  # the loop waits for the thread
        self._room = threading.Semaphore(_MAX_ITEMS_AHEAD)
        read = partial(copy_context().run, self._read)
        threading.Thread(target=read, name="anabranch-source", daemon=True).start()

    async def __anext__(self) -> Any:
        while not self._items:
            if not self._is_over:
                await self._wait_for_thread()
            elif not self._items:  # again: the thread may have added its last item in between
                raise self._failure or StopAsyncIteration
        self._room.release()
        return self._items.popleft()

    async def aclose(self) -> None:
        """Close the iterable and wait for the thread, a second at most.

        Python cannot close a generator while it runs. The thread closes it after its next item.
        """
        self._closed = True  # before the release: a thread that waits for room checks it then
        self._room.release()
        if not isgenerator(self._source):
            await close_source(self._source)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while not self._is_over:
                    await self._wait_for_thread()

    async def _wait_for_thread(self) -> None:
        """Wait until there is an item, or the thread has ended."""
        # Set before the test: if the thread adds an item after the test, it sees the future.
        self._notice = self._loop.create_future()
        if not self._is_over and (self._closed or not self._items):
            await self._notice
        self._notice = None

    def _read(self) -> None:
        """Read the iterable, in the thread."""
        try:
            for item in self._source:
                self._items.append(item)  # before the notice, which makes the loop look for it
                self._notify()
                self._room.acquire()  # waits while the loop is too far behind
                if self._closed:
                    break
            if isgenerator(self._source):
                self._source.close()
        except BaseException as error:  # noqa: BLE001 - the loop raises it to the reader
            self._failure = error
        self._is_over = True  # last: the loop then takes the remaining items and the failure
        self._notify()

    def _notify(self) -> None:
        if self._notice is not None:
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._notice is not None and not self._notice.done():
            self._notice.set_result(None)
