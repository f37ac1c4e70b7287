"""`PythonKernel`: a Python session that a model may use, a real Jupyter kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..commander.kinds import checked
from ._extra import import_extra
from ._figures import Figures
from ._kernel_pool import Pool
from ._tool import tool
from .results import Illustrated
from .sessions import PerSession
from .toolkits import Toolkit

if TYPE_CHECKING:
    from ._interpreter import Interpreter

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
    """A tool `python` that runs code; what it defines is there the next time, in that session.

    Code runs in a Jupyter kernel, a process of its own, started by a session's first call. Entered
    with `async with` there is one, until the end of the block, for all who use it. Given to an
    agent or a `ToolExecutor`, each of their sessions has its own, until it is reset or they or this
    are closed; used by anybody else, there is one until `aclose`. It outlives commanders and loops,
    and goes with its owner; at the latest it ends with the program, however that ends, and all that
    the code started ends with it.

    Of kernels that no block keeps, one that was not used for `idle` seconds is ended; at most
    `most` run, and one more takes the place of that which was used least lately. None is no limit.
    A new kernel in the place of one that is gone is told to the model.

    Calls of one session run one after the other. `timeout` is in seconds for each: the code is then
    interrupted, and if it goes on for `grace` seconds more, its process is killed. A cancelled call
    is stopped in the same way. Output beyond `max_output` characters loses its middle. Figures come
    as images and are saved in the folder `figures`, by default a new one among the temporary files.

    It is no sandbox: the code has the files and the network of the user that runs this program.
    See `docs/builtin-tools.md`. Environment variables are not passed on, except harmless ones and
    `env`.
    """

    @checked
    def __init__(
        self,
        *,
        timeout: float = 60,
        grace: float = 2,
        start_timeout: float = 60,
        idle: float | None = None,
        most: int | None = None,
        max_output: int = 20_000,
        figures: str | os.PathLike[str] | None = None,
        limits: ResourceLimits | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        executable: str = sys.executable,
        approve: bool = False,
    ) -> None:
        if (idle is not None and idle <= 0) or (most is not None and most < 1):
            raise ValueError(f"idle={idle!r}, most={most!r}: too few; None is no limit")
        self.timeout = timeout
        self.grace = grace
        self.start_timeout = start_timeout
        self.idle = idle
        self.pool = Pool(most)
        self.max_output = max_output
        self.figures = Figures(figures)
        self.limits = limits or ResourceLimits()
        self.cwd = None if cwd is None else os.fspath(cwd)
        self.env = dict(env or {})
        self.executable = executable
        self.approve = approve

        def make() -> Interpreter:
            from ._interpreter import Interpreter

            return Interpreter(self)

        self.interpreters = PerSession(make, lambda interpreter: interpreter.close())

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
