"""The Python interpreter of one session: its kernel starts, ends and restarts here.

An `Interpreter` can be used from any event loop; its coroutines run on the loop of `_kernel_loop`.
Needs the extra `python`.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..commander import ToolError
from ..commander.waiting import wait_shielded
from ._effect import is_after_restart
from ._kernel import Kernel, KernelOutput
from ._kernel_loop import run_on_kernel_loop, submit
from .results import Illustrated

if TYPE_CHECKING:
    from ._python import PythonKernel

__all__ = ["Interpreter"]

PROCESS_ENDED = "the earlier process had ended"
PROCESS_KILLED = "the earlier process was killed"


class Interpreter:
    """Runs code for one session, one call at a time; its kernel starts with the first call."""

    def __init__(self, settings: PythonKernel) -> None:
        self._settings = settings
        self._reset()

    def _reset(self, lost_reason: str = "") -> None:
        self._process = os.getpid()
        self._kernel: Kernel | None = None
        # Why the variables of earlier calls are lost; empty once the model has read it.
        self._lost_reason = lost_reason
        self._called = False
        # Counts `close`: a call that began before one must not start a kernel after it.
        self._closings = 0
        self._callers = 0  # that run or wait for their turn
        self._turn = asyncio.Lock()
        self._starting: asyncio.Task[Kernel] | None = None
        self._ending_lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self.last_used: float = 0.0  # the loop's time at the end of the last call

    @property
    def is_idle(self) -> bool:
        """Whether the kernel runs and no call uses it or waits for it."""
        return self._kernel is not None and not self._callers

    async def run(self, code: str) -> Illustrated:
        """Run code; raise `ToolError` with its output if the code failed or was stopped."""
        if self._process != os.getpid():  # in a fork the kernel is the parent's
            self._reset("the program was forked" if self._called else "")
        if not self._called and is_after_restart():
            self._lost_reason = "the program was started again"
        self._called = True
        return await run_on_kernel_loop(self._run(code))

    def close(self) -> Future[None] | None:
        """Start to end the kernel; return a future that is done when it has ended.

        Returns None if no call was made.
        """
        if self._process != os.getpid() or not self._called:
            return None
        return submit(self._close())

    # --- on the loop of the kernels

    async def _run(self, code: str) -> Illustrated:
        loop, settings, closings = asyncio.get_running_loop(), self._settings, self._closings
        self._callers += 1
        try:
            async with self._turn:
                if self._timer is not None:
                    self._timer.cancel()
                try:
                    kernel = await self._running_kernel(closings)
                    output = KernelOutput(settings.figures.save)
                    lost_reason = self._lost_reason
                    ending = await self._execute(kernel, code, output)
                    if self._kernel is not None:
                        self._lost_reason = ""
                finally:
                    self.last_used = loop.time()
                    if settings.idle is not None and self._kernel is not None:
                        reference = weakref.ref[Interpreter](self)
                        self._timer = loop.call_later(settings.idle, _end_if_idle, reference)
        finally:
            self._callers -= 1
            settings.pool.wake_waiting()
        news = (
            f"[a new session, earlier variables are lost: {lost_reason}]\n" if lost_reason else ""
        )
        text = f"{news}{output.text(settings.max_output)}\n{ending}".strip()
        if ending or output.failed:
            raise ToolError(text)
        return Illustrated(text or "(no output)", output.parts, output.files)

    async def _running_kernel(self, closings: int) -> Kernel:
        """Return the running kernel, a new one if needed; raise `ToolError` if `end` comes first.

        `closings` is the count of closings before the call.
        """
        kernel = self._kernel
        if kernel is not None and kernel.is_alive:
            return kernel
        # Wait for the end of the last kernel: until then it occupies a place in the pool.
        await self.end(PROCESS_ENDED)
        if closings != self._closings:
            raise ToolError("Python was closed before this ran")
        self._starting = asyncio.ensure_future(self._start())
        try:
            return await self._starting
        except asyncio.CancelledError:
            calling = asyncio.current_task()
            if calling is None or calling.cancelling():
                raise
            raise ToolError("Python was closed while it started") from None
        finally:
            self._starting = None

    async def _start(self) -> Kernel:
        settings = self._settings
        if not settings.interpreters.shared:
            await settings.pool.make_room(self)
        try:
            self._kernel = await Kernel.start(
                settings.executable,
                limits=settings.limits.by_name(),
                cwd=settings.cwd,
                env=settings.env,
                timeout=settings.start_timeout,
            )
        except BaseException:
            settings.pool.leave(self)
            raise
        return self._kernel

    async def _execute(self, kernel: Kernel, code: str, output: KernelOutput) -> str:
        """Run the code; return how it was stopped, "" if it ended by itself."""
        settings = self._settings
        done = stopped = False
        try:
            async with asyncio.timeout(settings.timeout):
                await kernel.execute(code, output)
            done = True
        except TimeoutError:
            pass
        except ToolError as error:
            return f"[{error}; all variables are lost]"
        finally:
            if not done:  # a timeout or a cancel: stop the code before either continues
                stopping = asyncio.ensure_future(kernel.stop(output, settings.grace))
                interrupted = await wait_shielded(stopping)
                if not (stopped := stopping.result()):
                    await self.end(PROCESS_KILLED if kernel.is_alive else PROCESS_ENDED)
                if interrupted is not None:
                    raise interrupted
        if output.is_too_long:
            return "[stopped: too much output; the variables are kept]"
        if done:
            return ""
        outcome = "interrupted; the variables are kept" if stopped else "killed"
        return f"[not finished after {settings.timeout:g} s: {outcome}]"

    async def _close(self) -> None:
        self._closings += 1
        await self.end("the earlier one was closed")

    async def end(self, why: str) -> None:
        """End the kernel, even while it starts; the next call reports `why`.

        Concurrent callers wait for the same end.
        """
        async with self._ending_lock:
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.wait((self._starting,))
            kernel, self._kernel = self._kernel, None
            if self._timer is not None:
                self._timer.cancel()
            if kernel is not None:
                self._lost_reason = why
                try:
                    await kernel.kill()
                finally:
                    self._settings.pool.leave(self)

    async def end_unused(self) -> None:
        """End an idle kernel, unless an `async with` block shares it."""
        if self.is_idle and not self._settings.interpreters.shared:
            await self.end(f"the earlier one was not used for {self._settings.idle:g} s")


def _end_if_idle(reference: weakref.ref[Interpreter]) -> None:
    if (interpreter := reference()) is not None:
        submit(interpreter.end_unused())
