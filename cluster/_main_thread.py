"""The main thread of a Ray task: it waits for the tree that the task drives.

Ray lends out the CPUs of a task that waits in its main thread by a call of Ray's. So while the tree
waits for something that may need CPUs itself, that is the call in which the main thread waits.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ._protocol import TaskResult
from ._ray import import_ray

__all__ = ["MainThread", "lend_while_waiting"]

# Ray ends a wait when one of the tasks has ended. What is not waited for any more has been
# cancelled and ends soon; if it does not, the main thread looks after so many seconds.
LOOK = 1.0


class MainThread:
    """What the main thread waits for: the end of the tree."""

    current: MainThread | None = None
    """That of the task which this process runs; None elsewhere."""

    def __init__(self) -> None:
        # What is left to be reported, once the tree is over.
        self.result: TaskResult | None = None
        # Set when `result` is, or there is more to wait for.
        self._news = threading.Event()
        # The Ray tasks that the tree itself waits for; each thread may change it.
        self._awaited: set[Any] = set()

    def end(self, result: TaskResult) -> None:
        """Say that the tree is over."""
        self.result = result
        self._news.set()

    @contextmanager
    def lend(self, task: Any) -> Generator[None, None, None]:
        """See `lend_while_waiting`."""
        self._awaited.add(task)
        self._news.set()
        try:
            yield
        finally:
            self._awaited.discard(task)

    def wait(self, *, lending: bool) -> None:
        """Wait until the tree is over. Raises what Ray raises where the task was cancelled."""
        while self.result is None:
            if not (lending and self._awaited):
                self._news.wait()
                self._news.clear()
                continue
            ended, _ = import_ray().wait([*self._awaited], timeout=LOOK, fetch_local=False)
            self._awaited.difference_update(ended)


@contextmanager
def lend_while_waiting(task: Any) -> Generator[None, None, None]:
    """Lend out, inside a Ray task, its CPUs while its tree waits for `task`, a call of Ray's.

    So those who wait for others that need CPUs never take up all there are.
    """
    if (main := MainThread.current) is None:
        yield
    else:
        with main.lend(task):
            yield
