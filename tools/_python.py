"""`PythonKernel`: a Python session for a model, in a Jupyter kernel."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..commander.kinds import checked
from ._tool import tool
from .results import Illustrated
from .sessions import PerSession
from .toolkits import Toolkit, import_extra

if TYPE_CHECKING:
    from ._interpreter import Interpreter

__all__ = ["FigureFolder", "KernelPool", "PythonKernel", "ResourceLimits"]


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of the operating system for each process of the kernel; None means no limit.

    `memory` is in bytes of data, `cpu` in seconds for the whole session, `file_size` in bytes for
    each file. They apply to each process that the code starts, not to their sum. Windows has none
    of them.
    """

    memory: int | None = 4 * 2**30
    cpu: int | None = 3600
    file_size: int | None = 2**30
    open_files: int | None = 1024

    def by_name(self) -> dict[str, int]:
        """Return the limits that are set, by their names in `setrlimit`."""
        found = {
            "RLIMIT_DATA": self.memory,
            "RLIMIT_CPU": self.cpu,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
        }
        return {name: value for name, value in found.items() if value is not None}


class PythonKernel(Toolkit):
    """A tool `python` that runs code in a session, which keeps its variables between calls.

        agent = Agent(backend, tools=[PythonKernel(timeout=30)])

    Code runs in a Jupyter kernel, a separate process that starts with the first call. Each session
    of an agent or `ToolExecutor` has its own kernel, until the session is reset or the agent, the
    executor or this toolkit is closed. Callers without sessions share one until `aclose`. Inside
    `async with` all callers share one, until the end of the block. A kernel outlives commanders and
    event loops. It ends with its owner or with the program, however that ends, and so do all
    processes that its code started.

    An unused kernel ends after `idle` seconds. At most `max_kernels` run: one more replaces the
    least recently used one, or waits while all are busy. None means no limit. Neither limit applies
    to the kernel of an `async with` block. The model learns when a new kernel replaces another.

    Calls of one session run one after the other. After `timeout` seconds, or when a call is
    cancelled, the code is interrupted. If it still runs `grace` seconds later, its process is
    killed. Output is shortened in the middle to `max_output` characters. Figures are returned as
    images and saved in the folder `figures`, by default a new temporary one.

    This is not a sandbox: the code can use the files and the network of the program's user. See
    `docs/builtin-tools.md`. The code sees only harmless environment variables, and `env`.
    """

    @checked
    def __init__(
        self,
        *,
        timeout: float = 60,
        grace: float = 2,
        start_timeout: float = 60,
        idle: float | None = None,
        max_kernels: int | None = None,
        max_output: int = 20_000,
        figures: str | os.PathLike[str] | None = None,
        limits: ResourceLimits | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        executable: str = sys.executable,
        approve: bool = False,
    ) -> None:
        if (idle is not None and idle <= 0) or (max_kernels is not None and max_kernels < 1):
            raise ValueError(f"idle={idle!r}, max_kernels={max_kernels!r} must be positive or None")
        self.timeout = timeout
        self.grace = grace
        self.start_timeout = start_timeout
        self.idle = idle
        self.pool: KernelPool = KernelPool(max_kernels)
        self.max_output = max_output
        self.figures: FigureFolder = FigureFolder(figures)
        self.limits: ResourceLimits = limits or ResourceLimits()
        self.cwd: str | None = None if cwd is None else os.fspath(cwd)
        self.env: dict[str, str] = dict(env or {})
        self.executable = executable
        self.approve = approve

        def make() -> Interpreter:
            from ._interpreter import Interpreter

            return Interpreter(self)

        self.interpreters: PerSession[Interpreter] = PerSession(
            make, lambda interpreter: interpreter.close()
        )

    @tool(name="python")
    async def run(self, code: str) -> Illustrated:
        """Run Python code in a session that keeps its variables from call to call.

        The value of the last line, what is printed and matplotlib figures are the result; figures
        are saved, and the result says where.

        Args:
            code: The code, one or more lines.
        """
        await import_extra("._interpreter", "the Python tool", "python")
        return await self.interpreters.get().run(code)


class FigureFolder:
    """Saves figures in a folder, each under its own number; never overwrites a file.

    The first figure creates the folder. Without a name it is a new temporary one, which only the
    user can read.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self._numbers = count(1)

    def save(self, image: bytes, extension: str) -> Path:
        """Write one figure and return its path; raise `OSError` if it cannot be written."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="anabranch-figures-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = self.folder / f"figure-{next(self._numbers)}.{extension}"
            try:
                with path.open("xb") as file:
                    file.write(image)
            except FileExistsError:
                continue
            return path

    def __reduce__(self) -> tuple[type[FigureFolder], tuple[Path | None]]:
        return FigureFolder, (self.folder,)


class KernelPool:
    """The interpreters that have a kernel or start one, at most `max_kernels`."""

    def __init__(self, max_kernels: int | None) -> None:
        self.max_kernels = max_kernels
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        # Weak references: an interpreter that is collected ends its kernel.
        self._running: WeakSet[Interpreter] = WeakSet()
        self._changed = asyncio.Event()

    async def make_room(self, newcomer: Interpreter) -> None:
        """Add an interpreter; first end the least recently used idle one, or wait for one."""
        if self._process != os.getpid():  # kernels belong to the parent process
            self._reset()
        while self.max_kernels is not None and len(self._running - {newcomer}) >= self.max_kernels:
            if idle := [each for each in self._running if each.is_idle]:
                oldest = min(idle, key=lambda each: each.last_used)
                await oldest.end(f"only {self.max_kernels} may run, and others were used since")
            else:
                self._changed.clear()
                await self._changed.wait()
        self._running.add(newcomer)

    def leave(self, interpreter: Interpreter) -> None:
        """Remove an interpreter whose kernel has ended."""
        self._running.discard(interpreter)
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Wake the waiting interpreters: a kernel has become idle or ended."""
        self._changed.set()

    def __reduce__(self) -> tuple[type[KernelPool], tuple[int | None]]:
        return KernelPool, (self.max_kernels,)
