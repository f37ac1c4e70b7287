"""Names the body that blocks the loop (contract T12).

One daemon thread per process looks at the watched loops from outside. While a loop runs a task, it
is asked for a sign of life; if none comes in time, the stack of its thread shows who holds it. A
tree pays nothing for this, and an idle loop is left asleep.
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

# Where bodies, callbacks and predicates are called. Each function there has a `record`, for whose
# node it does so: it need not be the one whose task it is, as the last child to end also ends its
# parent.
CALLERS = tuple(each.__code__.co_filename for each in (_body.spawn, _end.finish))


class BlockDetector:
    """Watches the running loop, in the thread that makes it, until it is closed.

    `after` is in seconds. Each block is reported once, however many watch the loop: after the
    shortest of their times.
    """

    def __init__(self, after: float) -> None:
        if after <= 0:
            raise ValueError(f"slow_after must be above 0 seconds or None, not {after!r}")
        self.after = after
        self._looks = _watcher.add(asyncio.get_running_loop(), after)
        self._closed = False

    def close(self) -> None:
        """Stop watching."""
        if not self._closed:
            self._closed = True
            _watcher.remove(self._looks, self.after)

    def look(self, now: float) -> None:
        """Ask the loop for a sign of life, or report that none has come."""
        self._looks.look(now)


class _Looks:
    """What all watches of a loop have in common."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.times = Counter[float]()  # of all watches
        self.after = math.inf  # the shortest of them
        # Whether the loop has been asked for a sign of life that has not come yet.
        self._asked = False
        # The task seen to run since then, and since when: a turn of the loop runs many tasks, and
        # may be long without any of them blocking it.
        self._task: ref[asyncio.Task[Any]] | None = None
        self._since = 0.0
        self._reported = False
        # Whom it has reported, the line, and since when; told when the loop has time again. Other
        # tasks may have run in that turn since.
        self._blocked: tuple[Record, str, float] | None = None

    def look(self, now: float) -> None:
        if asyncio.current_task(self.loop) is None:
            return
        if not self._asked:
            try:
                # The loop's thread may run on in this call: no task may be held here meanwhile, or
                # its node would outlive its end.
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed, perhaps at this moment
                return
            self._asked = True
        task = asyncio.current_task(self.loop)
        if task is None:
            return
        if self._task is None or self._task() is not task:
            # No longer than it lives: its context leads to its node.
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
            what = (
                "%s is held up for more than %g s: %s is loaded, which is needed for the first time"
            )
            log(
                logging.WARNING,
                f"{what}; import it before to avoid that",
                record.path,
                self.after,
                loaded,
            )
            return
        what = "%s blocks the event loop for more than %g s at %s:%d"
        log(logging.WARNING, what, record.path, self.after, code.co_filename, line)

    def _find_blocker(self) -> tuple[Record, CodeType, int, str] | None:
        """Return the node that blocks the loop, its function and line, and the module it loads.

        The line is of the user's own code, else of a package. None if the loop runs something else,
        or the engine itself is at work: closing a chain of many thousands takes its time. The
        module is one that this package imports by itself, else "".
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
        # Between two lines a running frame has no number.
        return record, at.f_code, at.f_lineno or at.f_code.co_firstlineno, loaded


class _Watcher:
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
            left_behind = self._thread is None or not self._thread.is_alive()  # as by a fork
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
            # Woken when one is added: it may want to be looked at more often.
            self._changed.wait(min((looks.after / 4 for looks in loops), default=None))
            self._changed.clear()


def _in_main_interpreter() -> bool:
    """Say whether a daemon thread may be started: a subinterpreter cannot end while it runs."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        with suppress(ImportError, AttributeError):
            module: Any = import_module(name)
            return module.get_current() == module.get_main()
    return True


_watcher = _Watcher()
