"""How long a model may take: the four timeouts, and the watch that keeps three of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from ..commander.errors import BackendUnavailable
from ..messages import Delta

__all__ = ["Arrived", "Timeouts", "watch"]

Arrived: TypeAlias = Delta | list[Delta]
"""One delta, or several that came together."""

_AFTER_DONE = 1.0  # seconds that a server may leave the connection open after its last word


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Four limits, in seconds, each for one attempt; None is no limit.

    `connect`: until the connection stands (TLS included). `first_token`: from the sending of the
    request to the first delta. `between_tokens`: from one delta to the next; time that the reader
    takes for itself does not count. `whole`: from the sending to the last delta.
    """

    connect: float | None = 10.0
    first_token: float | None = 120.0
    between_tokens: float | None = 60.0
    whole: float | None = 600.0


class _Watch:
    """Cancels the waiting task when a wait takes too long, with one timer for many waits.

    A timer per delta would cost more than the delta. So the timer is left to fire at the earliest
    deadline it was set for, and then looks whether the deadline has moved on.
    """

    __slots__ = ("_cancelling", "_loop", "_task", "_timer", "_when", "fired")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None  # the task that waits now, if one does
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._cancelling = 0
        self.fired = False

    def start(self, when: float) -> None:
        self._when = when
        # With the loop, as to find it would cost more than all else here.
        task = self._task = asyncio.current_task(self._loop)
        self._cancelling = task.cancelling() if task else 0
        timer = self._timer
        if timer is None or timer.when() > when:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(when, self._ring)

    def stop(self) -> None:
        self._task = None

    def close(self) -> None:
        self._task = None
        if self._timer is not None:
            self._timer.cancel()

    def is_ours(self) -> bool:
        """Whether the cancellation just caught was this watch's alone; if so it is taken back."""
        task = asyncio.current_task()
        return self.fired and task is not None and task.uncancel() <= self._cancelling

    def _ring(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._loop.time() < self._when:
            self._timer = self._loop.call_at(self._when, self._ring)
            return
        self.fired = True
        self._task.cancel()


async def watch(
    source: AsyncGenerator[Arrived, None], timeouts: Timeouts
) -> AsyncGenerator[Arrived, None]:
    """Pass on what comes; raise `BackendUnavailable` when one is late. Closes `source`."""
    never = float("inf")
    clock = asyncio.get_running_loop().time
    end = clock() + (never if timeouts.whole is None else timeouts.whole)
    patience = never if timeouts.first_token is None else timeouts.first_token
    between = never if timeouts.between_tokens is None else timeouts.between_tokens
    bounded = min(end, patience, between) < never
    what = "first token"
    watch = _Watch()
    try:
        async with aclosing(source):
            while True:
                try:
                    if bounded:
                        watch.start(min(clock() + patience, end))
                    arrived = await anext(source)
                except StopAsyncIteration:
                    return
                finally:
                    watch.stop()
                yield arrived
                last = arrived[-1] if isinstance(arrived, list) else arrived
                patience, what = (_AFTER_DONE if last.done else between), "next token"
    except asyncio.CancelledError:
        if not watch.is_ours():
            raise
    finally:
        watch.close()
    if clock() >= end:
        raise BackendUnavailable(f"the reply was not whole within {timeouts.whole:g} s")
    raise BackendUnavailable(f"no {what} within {patience:g} s")
