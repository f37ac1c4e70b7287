"""The CPU time of a node's own steps, for a commander that was asked to measure it."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from time import thread_time
from types import coroutine
from typing import Any

from ._record import Record
from ._stack import mark_driver

__all__ = ["cpu_note", "measured"]


@mark_driver
@coroutine
def measured(record: Record, work: Awaitable[Any]) -> Generator[Any, Any, Any]:
    """Await `work` and add the CPU seconds of its steps to `record`."""

    async def wait() -> Any:
        return await work

    body = wait()
    step: Any = body.send
    argument: Any = None
    try:
        while True:
            begun = thread_time()
            try:
                on = step(argument)
            except StopIteration as end:
                return end.value
            finally:
                record.cpu = (record.cpu or 0.0) + thread_time() - begun
            try:
                yield on
                step, argument = body.send, None
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is for the body
                step, argument = body.throw, error
    finally:
        argument = None  # or it and this frame, which its traceback holds, would be a circle
        body.close()


def cpu_note(seconds: float | None) -> str:
    """Say how much CPU time a node has taken; nothing if it is not measured."""
    return "" if seconds is None else f", {seconds:.3f} s CPU"
