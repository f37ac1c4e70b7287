"""Where a reply comes from: whatever gives deltas, chunks or SDK objects, async or blocking."""

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
"""What `fork` reads: an iterable of deltas, wire chunks or SDK chunk objects, async or blocking,
or an awaitable that gives one."""

# How many items a blocking source may be ahead of the loop.
_AHEAD = 256


def to_delta(item: object, chunks: ChunkReader) -> Delta | None:
    """Make a delta of a source's item: a wire chunk is a mapping or an SDK's object."""
    return item if isinstance(item, Delta) else chunks.read(_chunk(item))


def _chunk(item: object) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return cast("Mapping[str, Any]", item)
    dump = getattr(item, "model_dump", None)
    chunk = dump() if callable(dump) else None
    if not isinstance(chunk, Mapping):
        raise BadResponse(f"a source gives deltas or chat-completions chunks, not {quote(item)}")
    return cast("Mapping[str, Any]", chunk)


def check_source(source: object) -> None:
    """Raise `TypeError` if `source` is nothing that can be read."""
    if not (hasattr(source, "__aiter__") or hasattr(source, "__iter__") or isawaitable(source)):
        raise TypeError(f"a reply comes from an iterable, async or not; {source!r:.80} is none")


async def open_source(source: Any) -> AsyncIterable[Any]:
    """Return what `async for` can read; a blocking iterable is read in a thread of its own."""
    if not hasattr(source, "__aiter__") and isawaitable(source):
        source = await source
        check_source(source)
    return source if hasattr(source, "__aiter__") else _BlockingSource(source)


async def close_source(source: Any) -> None:
    """Close a source, whether it was read or not; what cannot be closed is left alone.

    One that fails at that is named in a warning and nothing else: what was read of it stands.
    """
    await _finish_close(source, _begin_close(source))


def discard_source(source: Any) -> None:
    """Close a source that nobody will read: at once, or in a task if its close has to wait."""
    closing = _begin_close(source)
    if closing is None:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError as error:  # another thread: there is nothing here to wait in
        if iscoroutine(closing):
            closing.close()
        _warn(source, error)
        return
    task = loop.create_task(_finish_close(source, closing))
    _discarding.add(task)
    task.add_done_callback(_discarding.discard)


_discarding: set[asyncio.Task[None]] = set()  # a loop alone would not keep its tasks


def _begin_close(source: Any) -> Awaitable[Any] | None:
    """Call what closes a source; return what is to be awaited, if anything."""
    try:
        close = getattr(source, "aclose", None) or getattr(source, "close", None)
        if close is None and isinstance(source, asyncio.Future):
            close = source.cancel
        closing = None if close is None else close()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it may raise
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
            raise  # nothing that the close has raised by itself
        _warn(source, error)
    except Exception as error:  # noqa: BLE001 - whatever a source may raise
        _warn(source, error)


def _warn(source: Any, error: BaseException) -> None:
    logger.warning("a reply's source, a %s, did not close", type(source).__name__, exc_info=error)


class _BlockingSource(AsyncIterator[Any]):
    """Reads a blocking iterable in a thread, a little ahead of the loop."""

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._items: deque[Any] = deque()
        self._failure: BaseException | None = None
        self._over = False  # no more items come from the thread
        self._closed = False  # by the reader: no more items are wanted
        self._notice: asyncio.Future[None] | None = None  # the loop waits for it
        self._room = threading.Semaphore(_AHEAD)
        read = partial(copy_context().run, self._read)
        threading.Thread(target=read, name="anabranch-source", daemon=True).start()

    async def __anext__(self) -> Any:
        while not self._items:
            if not self._over:
                await self._wait_for_thread()
            elif not self._items:  # looked at again: the last item may have come in between
                raise self._failure or StopAsyncIteration
        self._room.release()
        return self._items.popleft()

    async def aclose(self) -> None:
        """Close the iterable and wait for the thread, a second at most.

        A generator cannot be closed while it runs: it is once it has given its next item.
        """
        self._closed = True
        self._room.release()
        if not isgenerator(self._source):
            await close_source(self._source)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while not self._over:
                    await self._wait_for_thread()

    async def _wait_for_thread(self) -> None:
        """Wait until there is an item, or the thread has ended."""
        self._notice = self._loop.create_future()
        if not self._over and (self._closed or not self._items):
            await self._notice
        self._notice = None

    def _read(self) -> None:
        """Read the iterable; this is what the thread does."""
        try:
            for item in self._source:
                self._items.append(item)
                self._notify()
                self._room.acquire()
                if self._closed:
                    break
            if isgenerator(self._source):
                self._source.close()
        except BaseException as error:  # noqa: BLE001 - raised in the loop, where it is read
            self._failure = error
        self._over = True
        self._notify()

    def _notify(self) -> None:
        if self._notice is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._notice is not None and not self._notice.done():
            self._notice.set_result(None)
