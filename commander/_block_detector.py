"""Finds the body that blocks the event loop (contract T12).

One daemon thread per process checks the event loops. While a loop runs a task, the thread schedules
a callback on it. If the callback does not run in time, the thread reads the stack of the loop's
thread to find the body. Nodes cost nothing extra, and the thread does not wake an idle loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from . import _body, _end
from ._event import Blocked
from ._events import publish
from ._frames import ROOT, is_library, is_python
from ._record import Record
from ._report import log
from .thread import frames_of_thread, local_in

__all__ = ["BlockDetector"]

# The files that call bodies, callbacks and predicates. Each function there that calls one has a
# local variable `record`, the node that it runs. The detector reads that and not the task's node,
# because the task of the last child also runs the callbacks of its parent.
CALLERS = tuple(each.__code__.co_filename for each in (_body.spawn, _end.finish))


class BlockDetector:
    """Reports bodies that block the running loop, until `close`.

    `after` is in seconds. Each block is reported once. If the loop has several detectors, the
    shortest `after` counts.
    """

    def __init__(self, after: float) -> None:
        if after <= 0:
            raise ValueError(f"slow_after must be above 0 seconds or None, not {after!r}")
        self.after = after
        self._looks = _watcher.add(asyncio.get_running_loop(), after)
        self._closed = False

    def close(self) -> None:
        """Stop reporting; a second call does nothing."""
        if not self._closed:
            self._closed = True
            _watcher.remove(self._looks, self.after)

    def look(self, now: float) -> None:
        """Schedule the callback on the loop, or report that it has not run in time."""
        self._looks.look(now)


class _Looks:
    """Checks one loop for all its detectors. A look is one check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.times = Counter[float]()  # `after` of all detectors
        self.after = math.inf  # the shortest of these times
        # Whether the callback is scheduled and has not run.
        self._asked = False
        # The running task, and when it was first seen. A late callback alone proves nothing: many
        # short tasks in one turn of the loop delay it too.
        self._task: ref[asyncio.Task[Any]] | None = None
        self._since = 0.0
        self._reported = False
        # The reported node, the line, and the start. `_answer` publishes them on the loop's thread.
        self._blocked: tuple[Record, str, float] | None = None

    def look(self, now: float) -> None:
        if asyncio.current_task(self.loop) is None:
            return
        if not self._asked:
            try:
                # Hold no reference to the task here. The loop's thread may run during this call,
                # and the reference would keep a node alive after its end.
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop was closed, perhaps since the first line
                return
            self._asked = True
        # Read again, because the loop may have switched tasks since the first line.
        task = asyncio.current_task(self.loop)
        if task is None:
            return
        if self._task is None or self._task() is not task:
            # A weak reference, because the task's context refers to its node.
            self._task, self._since, self._reported = ref(task), now, False
        elif now - self._since > self.after and not self._reported:
            self._reported = True
            self._report()

    def _answer(self) -> None:
        blocked, self._blocked = self._blocked, None
        if blocked is not None and blocked[0].tree.listeners:
            record, line, since = blocked
            publish(record, "slow", Blocked(time.monotonic() - since, line))
        self._task = None
        self._asked = False

    def _report(self) -> None:
        found = self._find_blocker()
        if found is None:
            return
        record, code, line, loaded = found
        where = f"{Path(code.co_filename).name}:{line} in {code.co_name}"
        self._blocked = record, where, self._since
        if loaded:
            what = "%s waits more than %g s for the import of %s: import it at the program's start"
            log(logging.WARNING, what, record.path, self.after, loaded)
            return
        what = "%s blocks the event loop for more than %g s at %s:%d"
        log(logging.WARNING, what, record.path, self.after, code.co_filename, line)

    def _find_blocker(self) -> tuple[Record, CodeType, int, str] | None:
        """Return the node that blocks the loop, its function, its line, and a module name.

        The line is in the user's own code if there is any on the stack, else in a package. The
        module is the one that Anabranch imports at the moment, or "". Returns None if no body
        blocks the loop: the engine may be busy itself, such as with the end of a long chain.
        """
        own: FrameType | None = None
        package: FrameType | None = None
        loaded = ""
        importing = ""
        record: Any = None
        for frame in frames_of_thread(self.thread):
            file = frame.f_code.co_filename
            if file in CALLERS:
                record = local_in(frame, "record")
                break
            if file.startswith("<frozen importlib"):
                importing = local_in(frame, "name") or importing
            elif importing and own is None and file.startswith(ROOT):
                loaded = importing
            if own is None and not is_library(file) and not file.startswith(ROOT):
                own = frame
            if package is None and not is_python(file):
                package = frame
        at = own or package
        if at is None or not isinstance(record, Record):
            return None
        # Between two lines, `f_lineno` of a running frame is None.
        return record, at.f_code, at.f_lineno or at.f_code.co_firstlineno, loaded


class _Watcher:
    """The daemon thread of this process, and the loops that it checks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[asyncio.AbstractEventLoop, _Looks] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()

    def add(self, loop: asyncio.AbstractEventLoop, after: float) -> _Looks:
        with self._lock:
            looks = self._loops.get(loop)
            if looks is None:
                looks = self._loops[loop] = _Looks(loop)
            looks.thread = threading.get_ident()
            looks.times[after] += 1
            is_sooner = after < looks.after
            looks.after = min(looks.times)
            left_behind = self._thread is None or not self._thread.is_alive()  # by a fork
            if left_behind and _in_main_interpreter():
                self._thread = threading.Thread(target=self._run, name="anabranch", daemon=True)
                self._thread.start()
        if is_sooner:
            self._changed.set()
        return looks

    def remove(self, looks: _Looks, after: float) -> None:
        with self._lock:
            looks.times[after] -= 1
            if not looks.times[after]:
                del looks.times[after]
            if looks.times:
                looks.after = min(looks.times)
            else:
                del self._loops[looks.loop]

    def _run(self) -> None:
        while True:
            with self._lock:
                loops = tuple(self._loops.values())
            now = time.monotonic()
            for looks in loops:
                looks.look(now)
            # `add` sets the event, because a new loop may need more frequent checks.
            self._changed.wait(min((looks.after / 4 for looks in loops), default=None))
            self._changed.clear()


def _in_main_interpreter() -> bool:
    """Return whether a daemon thread may be started. It would prevent a subinterpreter's exit."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        with suppress(ImportError, AttributeError):
            module: Any = import_module(name)
            return module.get_current() == module.get_main()
    return True


_watcher = _Watcher()
