"""Clocks without real waiting: a loop that jumps to its next timer, and a jump in any loop."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from anabranch.testing import SeededLoop

__all__ = ["advance_clock", "install_clock", "sleep_virtual", "virtual_time"]


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop that jumps; the test must not wait for sockets or threads."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def sleep_virtual(seconds: float) -> None:
    """Sleep on the virtual clock of a loop that jumps; refuse to sleep in real time."""
    assert isinstance(asyncio.get_running_loop(), _JumpingLoop | SeededLoop)
    await asyncio.sleep(seconds)


class _Clock:
    """A loop's clock that a test can advance."""

    def __init__(self, real: Callable[[], float]) -> None:
        self.real = real
        self.ahead = 0.0

    def __call__(self) -> float:
        return self.real() + self.ahead


def install_clock() -> None:
    """Install a clock for `advance_clock` in the running loop, before other code reads the time."""
    loop = asyncio.get_running_loop()
    loop.time = _Clock(loop.time)  # type: ignore[method-assign]


def advance_clock(seconds: float) -> None:
    """Advance the running loop's clock; timers that fall due run in its next turn."""
    clock = asyncio.get_running_loop().time
    assert isinstance(clock, _Clock)
    clock.ahead += seconds
