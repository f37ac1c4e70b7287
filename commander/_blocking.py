"""Blocking work as child nodes: functions in a thread or in a new process."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast

from anyio import CancelScope, from_thread, to_thread

from ._node import Node
from ._report import note, type_name
from .context import send_context
from .errors import WorkerLost
from .process import describe_exit, start_process, wait_for_exit
from .thread import CANCEL_NOTICE, CancelNotice
from .waiting import wait_shielded

__all__ = ["ProcessCall", "ThreadCall", "TreeInMain", "check_cancelled"]

T = TypeVar("T")

# How long descendants of a process that has ended may take to end after SIGTERM, and how often that
# is checked.
LEFTOVER_GRACE_SECONDS = 0.5
LEFTOVER_CHECKS = 20

# Whether the process of a `ProcessCall` has been asked to stop; None in all other processes.
process_is_stopping: bool | None = None
# Whether such a process is running the program's main file, for its definitions.
process_imports_main = False


class TreeInMain(BaseException):
    """The main file, run again in a process of `in_process`, starts a tree at its top level."""


def check_cancelled() -> None:
    """Raise `CancelledError` if the node that this thread or process works for is cancelled.

    For functions run with `in_thread` or `in_process`: call it between steps of long work. Raises
    `RuntimeError` in any other code.
    """
    if process_is_stopping is not None:
        if process_is_stopping:
            raise asyncio.CancelledError
        return
    from_thread.check_cancelled()


class _Call(Node[T], Generic[T], internal=True):
    def __init__(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        name = getattr(function, "__name__", None)
        self._name = name if type(name) is str else type_name(function)
        super().__init__(self._name)
        self._function = function
        self._args = args
        self._kwargs = kwargs


class ThreadCall(_Call[T], internal=True):
    """A node whose body is a plain function in a worker thread of anyio's."""

    def __init__(
        self,
        function: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        abandon: bool,
    ) -> None:
        super().__init__(function, args, kwargs)
        self._abandon = abandon

    async def task(self) -> T:
        """Wait for the thread. After a cancel, notify the thread and wait further."""
        scope = CancelScope()
        notice = CancelNotice()
        interrupt: BaseException | None = None

        async def call() -> T | None:
            nonlocal interrupt
            with scope:
                function = partial(self._function, *self._args, **self._kwargs)
                try:
                    return await to_thread.run_sync(function, abandon_on_cancel=self._abandon)
                except (KeyboardInterrupt, SystemExit) as error:
                    # Raised below, from the node's task: raised here, it would stop the loop at
                    # once, without the node's end.
                    interrupt = error
                    return None
            # `task` has cancelled `scope`, whose block does not raise that.
            raise asyncio.CancelledError

        CANCEL_NOTICE.set(notice)  # the thread has a copy of this context
        # Without the loop's task factory, which may fail or drop the coroutine.
        ended = asyncio.Task(call(), loop=asyncio.get_running_loop())
        CANCEL_NOTICE.set(None)
        try:
            result = await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not ended.done():
                notice.send()
                scope.cancel()
                await wait_shielded(ended)
            if not ended.cancelled():
                ended.exception()  # mark the exception of a cancelled function as retrieved
            if interrupt is None:
                raise
        if interrupt is not None:
            raise interrupt
        return cast("T", result)


class ProcessCall(_Call[T], internal=True):
    """A node whose body is a plain function in a new process."""

    def __init__(
        self,
        function: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        grace: float,
    ) -> None:
        super().__init__(function, args, kwargs)
        self._grace = grace

    async def task(self) -> T:
        """Wait for the process. After a cancel, terminate it, and kill it after the grace period.

        Processes that it has started and not ended are terminated and killed too.
        """
        from multiprocessing.spawn import get_preparation_data  # slow to import, rarely needed

        preparation = get_preparation_data(self._name)
        del preparation["authkey"]  # a secret that only processes of multiprocessing need
        try:
            call = pickle.dumps((self._function, self._args, self._kwargs))
        except Exception as error:
            raise TypeError(
                f"in_process sends {self._name} and its arguments to another process, and "
                f"one of them cannot be pickled: {error}"
            ) from error
        work = pickle.dumps((preparation, call, send_context(pickle.dumps)))
        process = await start_process(
            sys.executable,
            "-c",
            "from anabranch.commander._worker import main; main()",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # its own group: killed whole, and not by the terminal's Ctrl-C
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(ConnectionError):  # it died: its exit status is reported below
                process.stdin.write(len(work).to_bytes(8, "big") + work)
                await process.stdin.drain()
            answer = await _read_answer(process.stdout)
            # It has nothing left to do, but may wait for a process that the function started.
            late = None if answer is None else self._kill_later(process)
            try:
                status = await process.wait()
            finally:
                if late is not None:
                    late.cancel()
        finally:
            # Not earlier: if this pipe closes, the process assumes that its parent has died.
            process.stdin.close()
            if process.returncode is None:
                await self._end(process)
            await _end_group(process)
        return self._answer(answer, status)

    def _kill_later(self, process: asyncio.subprocess.Process) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(self._grace, _signal_group, process, "SIGKILL")

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            process.terminate()
        late = self._kill_later(process)
        await wait_for_exit(process)
        late.cancel()

    def _answer(self, answer: bytes | None, status: int) -> T:
        if answer is None:
            raise WorkerLost(
                self.path, f"its process ended by {describe_exit(status)} without a result"
            )
        succeeded, value, trace = pickle.loads(answer)  # noqa: S301 - our own process wrote it
        if succeeded:
            return value
        note(value, trace)
        raise value


async def _read_answer(stream: asyncio.StreamReader) -> bytes | None:
    """Return the outcome that the process wrote; None if it ended before that was complete.

    Reads by length and not to the end of the pipe, which a descendant may hold open.
    """
    try:
        return await stream.readexactly(int.from_bytes(await stream.readexactly(8), "big"))
    except asyncio.IncompleteReadError:
        return None


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Terminate the descendants of a process that has ended; kill them after a short time."""
    if not _signal_group(process, "SIGTERM"):
        return
    try:
        for _ in range(LEFTOVER_CHECKS):
            await asyncio.sleep(LEFTOVER_GRACE_SECONDS / LEFTOVER_CHECKS)
            if not _signal_group(process):
                return
    finally:
        _signal_group(process, "SIGKILL")


def _signal_group(process: asyncio.subprocess.Process, name: str = "") -> bool:
    """Send a signal to the group of a process; return whether the group has any process.

    Without a name it only checks.
    """
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, getattr(signal, name, 0))
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):  # the latter on macOS, for one that just ended
        return False
    return True
