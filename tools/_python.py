"""`PythonKernel`: a Python session that a model may use, a real Jupyter kernel."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..commander import Node, ToolError, current_node
from ..commander.waiting import outlast
from ._extra import import_extra
from ._tool import tool
from .results import Illustrated
from .toolkits import Toolkit

if TYPE_CHECKING:
    from ._kernel import Kernel, Output

__all__ = ["PythonKernel", "ResourceLimits"]


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What the kernel's process may use, set by the system; None is no limit.

    `memory` is in bytes of data, `cpu` in seconds for the whole session, `file_size` in bytes for
    each file. They hold for each process that the code starts, not for their sum; systems without
    `setrlimit` (Windows) have none of them.
    """

    memory: int | None = 4 * 2**30
    cpu: int | None = 3600
    file_size: int | None = 2**30
    open_files: int | None = 1024

    def by_name(self) -> dict[str, int]:
        """Return those that are set, by the names of the system."""
        found = {
            "RLIMIT_DATA": self.memory,
            "RLIMIT_CPU": self.cpu,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
        }
        return {name: value for name, value in found.items() if value is not None}


class PythonKernel(Toolkit):
    """A tool `python` that runs code in one session: what it defines is there the next time.

    The session is a Jupyter kernel in a process of its own, started by the first call. Calls run
    one after the other. `timeout` is in seconds for each: the code is then interrupted, and if it
    goes on for `grace` seconds more, its process is killed. A cancelled call is stopped in the
    same way. Output beyond `max_output` characters loses its middle; figures come as images.

    The process ends with `aclose` (or `async with`), when the conversation is cancelled (the
    top-level node above a call), and at the commander's end; all that it started ends with it.
    The next call starts a new session and says so.

    It is no sandbox: the code has the files and the network of the user that runs this program.
    See `docs/tools.md`. Environment variables are not passed on, except harmless ones and `env`.
    """

    def __init__(
        self,
        *,
        timeout: float = 60,
        grace: float = 2,
        start_timeout: float = 60,
        max_output: int = 20_000,
        limits: ResourceLimits | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        executable: str = sys.executable,
        approve: bool = False,
    ) -> None:
        self.timeout = timeout
        self.grace = grace
        self.start_timeout = start_timeout
        self.max_output = max_output
        self.limits = limits or ResourceLimits()
        self.cwd = None if cwd is None else os.fspath(cwd)
        self.env = dict(env or {})
        self.executable = executable
        self.approve = approve
        self._kernel: Kernel | None = None
        self._turn = asyncio.Lock()
        self._lost = False
        # The nodes whose end is the session's: the commander and the conversation.
        self._bound: tuple[Node[Any], ...] = ()

    @tool(name="python")
    async def run(self, code: str) -> Illustrated:
        """Run Python code in a session that keeps its variables from call to call.

        The value of the last line, what is printed and matplotlib figures are the result.

        Args:
            code: The code, one or more lines.
        """
        module: Any = await import_extra("._kernel", "the Python tool", "python")
        self._bind()
        async with self._turn:
            kernel = self._kernel
            if kernel is None or not kernel.alive:
                self._lost = self._lost or kernel is not None
                await self._end()
                self._kernel = kernel = await module.Kernel.start(
                    self.executable,
                    limits=self.limits.by_name(),
                    cwd=self.cwd,
                    env=self.env,
                    timeout=self.start_timeout,
                )
            output = module.Output()
            news = "[a new session: earlier variables are lost]\n" if self._lost else ""
            ending = await self._execute(kernel, code, output)
            self._lost = self._kernel is None
            text = f"{news}{output.text(self.max_output)}\n{ending}".strip()
            if ending or output.failed:
                raise ToolError(text)
            return Illustrated(text or "(no output)", output.images)

    async def _execute(self, kernel: Kernel, code: str, output: Output) -> str:
        """Run the code; return how it was ended, if it did not end by itself."""
        done = stopped = False
        try:
            async with asyncio.timeout(self.timeout):
                await kernel.execute(code, output)
            done = True
        except TimeoutError:
            pass
        except ToolError as error:
            return f"[{error}; all variables are lost]"
        finally:
            if not done:  # interrupt or kill it, whatever is cancelled meanwhile
                stopping = asyncio.ensure_future(kernel.stop(output, self.grace))
                interrupted = await outlast(stopping)
                if not (stopped := stopping.result()):
                    await self._end()
                if interrupted is not None:
                    raise interrupted
        if output.flooded:
            return "[stopped: far too much output; the variables are kept]"
        if done:
            return ""
        kept = "interrupted; the variables are kept" if stopped else "killed"
        return f"[not done after {self.timeout:g} s: {kept}]"

    async def _end(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.kill()

    def _bind(self) -> None:
        """Let the session end with the commander, and with a conversation that is cancelled."""
        try:
            node = current_node()
        except LookupError:
            return
        bound = (node.commander, [node, *node.ancestors][-2:][0])
        if bound[0] not in self._bound:
            self._turn = asyncio.Lock()  # another commander may have another loop
            node.at_commander_end(self._close)
        if bound[1] not in self._bound:
            bound[1].at_terminate(self._close)
        self._bound = bound

    async def _close(self, _: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session; twice is harmless, and the next call starts another."""
        self._bound = ()
        self._lost = self._lost or self._kernel is not None
        await self._end()
