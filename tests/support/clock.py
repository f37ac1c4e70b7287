"""Clocks that need no waiting: a loop that jumps to its next timer, and a jump in any loop."""

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
    """Run an async test on such a loop; it must not wait for sockets or threads."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def sleep_virtual(seconds: float) -> None:
    """Let so much time pass on the clock of a loop that jumps; refused where it would be real."""
    assert isinstance(asyncio.get_running_loop(), _JumpingLoop | SeededLoop)
    await asyncio.sleep(seconds)


class _Clock:
    """A loop's clock, which can be put forward."""

    def __init__(self, real: Callable[[], float]) -> None:
        self.real = real
        self.ahead = 0.0

    def __call__(self) -> float:
        return self.real() + self.ahead


def install_clock() -> None:
    """Give the running loop a clock for `let_pass`; what reads the clock must come later."""
    loop = asyncio.get_running_loop()
    loop.time = _Clock(loop.time)  # type: ignore[method-assign]


def advance_clock(seconds: float) -> None:
    """Put the running loop's clock forward; what is due by then is done in its next turn."""
    clock = asyncio.get_running_loop().time
    assert isinstance(clock, _Clock)
    clock.ahead += seconds
