"""`live`: the trace of a tree in this process, while it runs."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ..backends import Price
from ..commander import Commander
from ..commander.tap import require_here
from ._feed import Feed
from ._handle import Handle, LineSink
from ._line import CONTENT_KINDS, KINDS
from ._trace import Trace, feed_lines

__all__ = ["LiveTrace", "live"]


def live(
    commander: Commander, *, content: bool = False, prices: Mapping[str, Price] | None = None
) -> LiveTrace:
    """Follow the tree of `commander`, which has been entered, from now on, without a file.

        async with Commander() as c:
            seen = live(c)
            ...
            print(seen.trace().usage_by_agent())

    It has what a recording would have: see `record` for `content` and `prices`.
    """
    return LiveTrace(commander, content=content, prices=prices)


class LiveTrace(Handle):
    """A trace that grows with its tree; `live` makes it."""

    def __init__(
        self, commander: Commander, *, content: bool, prices: Mapping[str, Price] | None
    ) -> None:
        require_here(commander, "live(commander, ...)")
        self._lines = _Lines(content, prices)
        kinds = CONTENT_KINDS if content else KINDS
        self._feed = Feed(commander, self._lines, kinds, name="a live trace", wait=1.0)
        self._lines.begin(self._feed.start, self._feed.epoch)
        self._trace = Trace()
        self._reading = threading.Lock()

    def trace(self) -> Trace:
        """Return the trace as far as it is known here, a twentieth of a second late at most.

        It is the same one each time, and changes in this call alone: between two calls it can be
        read at leisure, in the thread that makes them. Any thread may, and one thread should.
        """
        with self._reading:
            feed_lines(self._trace, (f"{line}\n" for line in self._lines.take_all()), "the tree")
            self._trace.live = not (self._trace.lives and self._trace.lives[-1].ended)
            return self._trace

    def flush(self) -> None:
        """Wait until the trace can have all that happened before this call."""
        self._feed.flush()


class _Lines(LineSink):
    """Keeps lines until somebody reads them: the feed's thread never waits for a reader."""

    def __init__(self, content: bool, prices: Mapping[str, Price] | None) -> None:
        super().__init__(content=content, prices=prices)
        self._lock = threading.Lock()
        self._unread: list[str] = []

    def take_all(self) -> list[str]:
        """Return what has not been read yet."""
        with self._lock:
            lines, self._unread = self._unread, []
        return lines

    def put(self, lines: list[str]) -> None:
        with self._lock:
            self._unread += lines
