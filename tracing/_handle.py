"""What all have in common that follow a tree: their end, and how each makes lines of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ..backends.limits import Price
from ..commander import Event
from ._feed import Feed, Gap
from ._line import Lines

__all__ = ["Handle", "LineSink"]


class Handle:
    """Follows a tree until it ends, or until `close`; a block, plain or async, lets it end too.

    Leaving the block ends it once nothing runs in the tree any more.
    """

    _feed: Feed

    @property
    def error(self) -> BaseException | None:
        """Why it ended before the tree did, None if it did not."""
        return self._feed.error

    def close(self) -> None:
        """Follow no more; in any thread. Closing twice is harmless."""
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.leave()


class LineSink(ABC):
    """Makes the lines of a recording, in the feed's thread, and puts them somewhere."""

    def __init__(self, *, content: bool, prices: Mapping[str, Price] | None) -> None:
        self._content = content
        self._prices = prices
        self._lines: Lines | None = None  # once the first line was put
        self._last = 0.0

    @abstractmethod
    def put(self, lines: list[str]) -> None:
        """Take the next lines."""

    def begin(self, start: float, epoch: float) -> None:
        """Make the first line, before any event is taken."""
        self._last = start
        lines = Lines(start, epoch, content=self._content, prices=self._prices)
        self.put([lines.head()])
        self._lines = lines

    def take(self, events: list[Event]) -> None:
        """Take events, in order."""
        assert self._lines is not None
        self._last = self._lines.clock_of(events[-1])
        self.put(self._lines.of(events))

    def take_gap(self, gap: Gap) -> None:
        """Take note of what was missed."""
        assert self._lines is not None
        self._last = gap.clock
        self.put([self._lines.gap(gap)])

    def end(self, usage: dict[str, Any] | None) -> None:
        """Take the end."""
        if self._lines is not None:
            self.put(self._lines.end(self._last, usage))
