"""The four timeouts of a request; `enforce_timeouts` applies three of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from ..commander.errors import BackendUnavailable
from ..messages import Delta

__all__ = ["Arrival", "Timeouts", "enforce_timeouts"]

Arrival: TypeAlias = Delta | list[Delta]
"""One delta, or several that arrived together."""

_CLOSE_SECONDS = 1.0  # seconds until the server closes the connection after the end


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Four limits in seconds, each for one attempt; None means unlimited.

        connect("openai:gpt-5", timeouts=Timeouts(first_token=30))

    `connect`: until the connection is open (TLS included). `first_token`: from sending the request
    to the first delta. `between_tokens`: from one delta to the next, without the time that the
    reader takes. `whole`: from sending to the last delta.
    """

    connect: float | None = 10.0
    first_token: float | None = 120.0
    between_tokens: float | None = 60.0
    whole: float | None = 600.0


class _DeadlineTimer:
    """Cancels the waiting task when a wait takes too long, with one timer for many waits.

    A timer per delta would cost more than the delta. So the timer fires at the earliest deadline it
    was set for, and then checks whether the deadline has moved.
    """

    __slots__ = ("_cancelling", "_loop", "_task", "_timer", "_when", "fired")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None  # the task that waits now, if any
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._cancelling = 0
        self.fired = False

    def start(self, when: float) -> None:
        self._when = when
        # The loop is passed, because finding it would cost more than the rest of this method.
        task = self._task = asyncio.current_task(self._loop)
        self._cancelling = task.cancelling() if task else 0
        timer = self._timer
        if timer is None or timer.when() > when:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(when, self._check_deadline)

    def stop(self) -> None:
        self._task = None

    def close(self) -> None:
        self._task = None
        if self._timer is not None:
            self._timer.cancel()

    def take_back(self) -> bool:
        """Return whether the cancellation just caught came only from this timer; if so, undo it."""
        task = asyncio.current_task()
        return self.fired and task is not None and task.uncancel() <= self._cancelling

    def _check_deadline(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._loop.time() < self._when:
            self._timer = self._loop.call_at(self._when, self._check_deadline)
            return
        self.fired = True
        self._task.cancel()


async def enforce_timeouts(
    source: AsyncGenerator[Arrival, None], timeouts: Timeouts
) -> AsyncGenerator[Arrival, None]:
    """Pass deltas on; raise `BackendUnavailable` if one is late. Closes `source`."""
    never = float("inf")
    clock = asyncio.get_running_loop().time
    end = clock() + (never if timeouts.whole is None else timeouts.whole)
    patience = never if timeouts.first_token is None else timeouts.first_token
    between = never if timeouts.between_tokens is None else timeouts.between_tokens
    bounded = min(end, patience, between) < never
    expected = "first token"
    timer = _DeadlineTimer()
    try:
        async with aclosing(source):
            while True:
                try:
                    if bounded:
                        timer.start(min(clock() + patience, end))
                    arrived = await anext(source)
                except StopAsyncIteration:
                    return
                finally:
                    timer.stop()
                yield arrived
                last = arrived[-1] if isinstance(arrived, list) else arrived
                patience, expected = (_CLOSE_SECONDS if last.done else between), "next token"
    except asyncio.CancelledError:
        if not timer.take_back():
            raise
    finally:
        timer.close()
    if clock() >= end:
        raise BackendUnavailable(f"the reply was not complete within {timeouts.whole:g} s")
    raise BackendUnavailable(f"no {expected} within {patience:g} s")
