"""One session's Python: it has a kernel while it is in use, and says when that is a new one.

`Interpreter` is used by any loop; what is awaited inside runs on the loop of `_kernel_loop`. This
module needs the extra `python`, see `_kernel`.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..commander import ToolError
from ..commander.waiting import outlast
from ._effect import is_forgotten
from ._kernel import Kernel, Output
from ._kernel_loop import ask, submit
from .results import Illustrated

if TYPE_CHECKING:
    from ._python import PythonKernel

__all__ = ["Interpreter"]

ENDED, KILLED = "the earlier process had ended", "the earlier process was killed"


class Interpreter:
    """Runs code for one session, one call at a time; its kernel starts with the first call."""

    def __init__(self, settings: PythonKernel) -> None:
        self._settings = settings
        self._begin()

    def _begin(self, lost: str = "") -> None:
        self._process = os.getpid()
        self._kernel: Kernel | None = None
        # Why the kernel of earlier calls is gone, until the model has been told.
        self._lost = lost
        self._called = False
        self._closings = 0  # a call that was there before one of them does not start a kernel anew
        self._callers = 0  # that have their turn or wait for it
        self._turn = asyncio.Lock()
        self._starting: asyncio.Task[Kernel] | None = None
        self._ends = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self.used = 0.0  # the loop's time at the end of the last call

    @property
    def unused(self) -> bool:
        """Whether it has a kernel that nobody uses now."""
        return self._kernel is not None and not self._callers

    async def run(self, code: str) -> Illustrated:
        """Run code; raise `ToolError` with what it said if it failed or was ended."""
        if self._process != os.getpid():  # a fork has none of the kernels of its parent
            self._begin("the program was forked" if self._called else "")
        if not self._called and is_forgotten():
            self._lost = "the program was started again"
        self._called = True
        return await ask(self._run(code))

    def close(self) -> Future[None] | None:
        """Begin to end the kernel; the future, if there is one, is done when it has ended."""
        if self._process != os.getpid() or not self._called:
            return None
        return submit(self._close())

    # --- on the kernels' loop

    async def _run(self, code: str) -> Illustrated:
        loop, settings, closings = asyncio.get_running_loop(), self._settings, self._closings
        self._callers += 1
        try:
            async with self._turn:
                if self._timer is not None:
                    self._timer.cancel()
                try:
                    kernel = await self._started(closings)
                    output = Output(settings.figures.save)
                    lost = self._lost
                    ending = await self._execute(kernel, code, output)
                    if self._kernel is not None:
                        self._lost = ""
                finally:
                    self.used = loop.time()
                    if settings.idle is not None and self._kernel is not None:
                        own = weakref.ref[Interpreter](self)
                        self._timer = loop.call_later(settings.idle, _drop, own)
        finally:
            self._callers -= 1
            settings.pool.look_again()
        news = f"[a new session, earlier variables are lost: {lost}]\n" if lost else ""
        text = f"{news}{output.text(settings.max_output)}\n{ending}".strip()
        if ending or output.failed:
            raise ToolError(text)
        return Illustrated(text or "(no output)", output.parts, output.files)

    async def _started(self, closings: int) -> Kernel:
        """Return the kernel, a new one if there is none; raise `ToolError` if `end` comes first.

        `closings` are those before the call.
        """
        kernel = self._kernel
        if kernel is not None and kernel.alive:
            return kernel
        await self.end(ENDED)  # or wait until it has ended: until then it has its place in the pool
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

    async def _execute(self, kernel: Kernel, code: str, output: Output) -> str:
        """Run the code; return how it was ended, if it did not end by itself."""
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
            if not done:  # interrupt or kill it, whatever is cancelled meanwhile
                stopping = asyncio.ensure_future(kernel.stop(output, settings.grace))
                interrupted = await outlast(stopping)
                if not (stopped := stopping.result()):
                    await self.end(KILLED if kernel.alive else ENDED)
                if interrupted is not None:
                    raise interrupted
        if output.flooded:
            return "[stopped: far too much output; the variables are kept]"
        if done:
            return ""
        kept = "interrupted; the variables are kept" if stopped else "killed"
        return f"[not done after {settings.timeout:g} s: {kept}]"

    async def _close(self) -> None:
        self._closings += 1
        await self.end("the earlier one was closed")

    async def end(self, why: str) -> None:
        """End the kernel, also one that only starts; the next call says why.

        Whoever ends it at the same time waits for the same end.
        """
        async with self._ends:
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.wait((self._starting,))
            kernel, self._kernel = self._kernel, None
            if self._timer is not None:
                self._timer.cancel()
            if kernel is not None:
                self._lost = why
                try:
                    await kernel.kill()
                finally:
                    self._settings.pool.leave(self)

    async def end_unused(self) -> None:
        """End a kernel that nobody has used for long, unless a block keeps it."""
        if self.unused and not self._settings.interpreters.shared:
            await self.end(f"the earlier one was not used for {self._settings.idle:g} s")


def _drop(interpreter: weakref.ref[Interpreter]) -> None:
    if (found := interpreter()) is not None:
        submit(found.end_unused())
