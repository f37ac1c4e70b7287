"""One Jupyter kernel in its own process: start, execute, interrupt, kill.

A guard process (`_kernel_main`) is its parent and ends it with this program. All methods run on the
loop of `_kernel_loop`. Needs the extra `python`, so `_python` imports it at the first use.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import ipykernel  # noqa: F401  # pyright: ignore[reportUnusedImport] - fail early
import zmq
import zmq.asyncio
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import write_connection_file

from ..commander.errors import ConfigurationError, ToolError
from ..commander.process import describe_exit
from ..commander.waiting import wait_shielded
from ..messages import Part
from ._kernel_loop import submit
from .results import shorten

__all__ = ["Kernel", "KernelDied", "KernelOutput"]

KERNEL_SCRIPT = Path(__file__).with_name("_kernel_main.py")
# A longer message breaks the connection, so a kernel cannot fill this program's memory.
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_IMAGE_CHARS = 8 * 2**20
MAX_IMAGES = 16
# Code that writes more characters than this is interrupted.
MAX_OUTPUT_CHARS = 8 * 2**20
ANSI_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# The only variables that a kernel inherits: model-written code must not see the user's API keys.
INHERITED_VARIABLES = """HOME LANG LANGUAGE LC_ALL LC_CTYPE LD_LIBRARY_PATH LOGNAME PATH PYTHONPATH
    SHELL SYSTEMROOT TEMP TERM TMP TMPDIR TZ USER USERPROFILE VIRTUAL_ENV"""


class KernelDied(ToolError):
    """The process of the kernel ended unexpectedly."""


class KernelOutput:
    """The output of a piece of code so far: text, figures, and the error that ended it.

    `save` stores the bytes of a figure with a file extension, and returns the path.
    """

    def __init__(self, save: Callable[[bytes, str], Path]) -> None:
        self._save = save
        self.files: list[str] = []
        self.parts: list[Part] = []
        self.failed = False
        self._texts: list[str] = []
        self._length = 0

    @property
    def is_too_long(self) -> bool:
        """Whether the code has written so much that it should be interrupted."""
        return self._length > MAX_OUTPUT_CHARS

    def take(self, kind: str, content: Mapping[str, Any]) -> None:
        """Add one message of the kernel."""
        if kind == "stream":
            self._add(content.get("text", ""))
        elif kind == "error":
            self.failed = True
            self._add("\n".join(map(str, content.get("traceback", ()))))
        elif kind in ("execute_result", "display_data"):
            data = content.get("data", {})
            for media_type in ("image/png", "image/jpeg"):
                if not isinstance(image := data.get(media_type), str):
                    continue
                if len(image.strip()) > MAX_IMAGE_CHARS or len(self.parts) == MAX_IMAGES:
                    self._add("[figure left out: too large, or too many figures]\n")
                else:
                    self._take_figure("".join(image.split()), media_type)
                return
            self._add(str(data.get("text/plain", "")) + "\n")

    def _take_figure(self, image: str, media_type: str) -> None:
        try:
            part = Part.from_url(f"data:{media_type};base64,{image}")
        except ConfigurationError as error:  # the code chooses the bytes
            self._add(f"[figure left out: {error}]\n")
            return
        self.parts.append(part)
        try:
            where = str(self._save(part.data or b"", media_type.partition("/")[2]))
            self.files.append(where)
        except (OSError, ValueError) as error:
            where = f"not saved: {error}"
        self._add(f"[figure {len(self.parts)}: {where}]\n")

    def _add(self, text: str) -> None:
        if not self.is_too_long:
            self._texts.append(text)
        self._length += len(text)

    def text(self, limit: int) -> str:
        """Return the text, shortened in the middle to `limit` characters."""
        return shorten(ANSI_CODE.sub("", "".join(self._texts)).rstrip(), limit)


class Kernel:
    """A running kernel, made by `start` and ended by `kill`. One execution at a time."""

    def __init__(self, process: asyncio.subprocess.Process, folder: str) -> None:
        self._process = process
        self._folder = folder
        self._log = Path(folder, "log")
        self._parent = os.getpid()
        context = zmq.asyncio.Context()
        context.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        # Its methods are added at run time, so they have no types.
        self._client: Any = AsyncKernelClient(
            connection_file=f"{folder}/connection.json", context=context
        )
        self._client.load_connection_file()
        self._client.start_channels(stdin=False, hb=False)  # the heartbeat needs a thread
        # Ends the process when the object is collected without `kill`.
        parts = process, self._client, folder
        self._finalizer = weakref.finalize(self, _end_collected, self._parent, *parts)
        self._finalizer.atexit = False  # `_end_with_program` waits, which a finalizer cannot
        KERNELS.add(self)

    @classmethod
    async def start(
        cls,
        executable: str,
        *,
        limits: Mapping[str, int],
        cwd: str | None,
        env: Mapping[str, str],
        timeout: float,
    ) -> Kernel:
        """Start a kernel; raise `ToolError` if it is not ready in `timeout` seconds.

        A cancel ends the process before it continues.
        """
        launching = asyncio.ensure_future(cls._launch(executable, limits, cwd, env))
        interrupted = await wait_shielded(launching)
        if interrupted is not None and launching.exception() is not None:
            raise interrupted
        kernel = launching.result()
        ready = False
        try:
            if interrupted is not None:
                raise interrupted
            async with asyncio.timeout(timeout):
                await kernel._while_alive(kernel._client.wait_for_ready(timeout=timeout))
            ready = True
        except (TimeoutError, RuntimeError, KernelDied):
            end = kernel._log.read_text("utf-8", "replace").strip()[-500:]
            raise ToolError(
                f"Python did not start: {end or 'its process wrote no error'}"
            ) from None
        finally:
            if not ready:
                await kernel.kill()
        return kernel

    @classmethod
    async def _launch(
        cls, executable: str, limits: Mapping[str, int], cwd: str | None, env: Mapping[str, str]
    ) -> Kernel:
        """Start the process. Must not be cancelled: the new process would be lost."""
        folder = tempfile.mkdtemp(prefix="anabranch-")
        file = f"{folder}/connection.json"
        key = os.urandom(16).hex().encode()
        if os.name == "posix":  # Unix sockets in a folder that only this user can enter
            write_connection_file(file, key=key, transport="ipc", ip=f"{folder}/s")
        else:
            write_connection_file(file, key=key)
        guard = (str(KERNEL_SCRIPT), str(os.getpid()), json.dumps(dict(limits)), folder)
        variables = {
            name: os.environ[name] for name in INHERITED_VARIABLES.split() if name in os.environ
        }
        # An empty profile: no startup file of the user runs.
        profile = {"IPYTHONDIR": f"{folder}/ipython"}
        try:
            with Path(folder, "log").open("wb") as log:  # noqa: ASYNC230 - opened for the process
                process = await asyncio.create_subprocess_exec(
                    executable,
                    "-P",
                    *guard,
                    "-f",
                    file,
                    "--HistoryManager.enabled=False",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=cwd,
                    env={**variables, "PYTHONUNBUFFERED": "1", **profile, **env},
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ToolError(f"Python did not start: {error}") from None
        try:
            return cls(process, folder)
        except BaseException:  # out of files or sockets
            if process.stdin is not None:
                process.stdin.close()  # closing this pipe ends the guard
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the process runs and is a child of this process: a fork must not use it."""
        return self._process.returncode is None and self._parent == os.getpid()

    async def execute(self, code: str, output: KernelOutput) -> None:
        """Run `code` and add to `output` as it comes; return when the kernel is idle again.

        Raises `KernelDied` if the process ends. A cancel leaves the code running; `stop` interrupts
        it.
        """
        request = self._client.execute(code, allow_stdin=False)

        async def follow() -> None:
            interrupted = False
            while True:
                message = await self._client.get_iopub_msg()
                output.take(message["msg_type"], message["content"])
                if output.is_too_long and not interrupted:
                    interrupted = True
                    self.interrupt()
                state = message["content"].get("execution_state")
                if state == "idle" and message["parent_header"].get("msg_id") == request:
                    break
            while (await self._client.get_shell_msg())["parent_header"].get("msg_id") != request:
                pass

        await self._while_alive(follow())

    async def stop(self, output: KernelOutput, grace: float) -> bool:
        """Interrupt the running code; return False if it still runs after `grace` seconds.

        Its last output is added to `output`.
        """
        if not self.is_alive:
            return False
        self.interrupt()
        try:
            async with asyncio.timeout(grace):
                # Requests run in order, so this one ends after the interrupted one.
                await self.execute("", output)
        except (TimeoutError, KernelDied):
            return False
        return True

    async def _while_alive(self, work: Coroutine[Any, Any, None]) -> None:
        """Await `work`; raise `KernelDied` if the process ends first."""
        working = asyncio.ensure_future(work)
        dying = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
            if not working.done() or working.cancelled():  # cancelled when its connection closed
                raise KernelDied(f"the Python process ended ({describe_exit(await dying)})")
            await working
        finally:
            working.cancel()
            dying.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the running code."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(b"i")

    async def kill(self) -> None:
        """Kill the process and everything it started, and close the sockets. Twice is harmless.

        A cancel waits until that is done.
        """
        self._finalizer.detach()
        ending = asyncio.ensure_future(_end(self._process, self._client, self._folder))
        interrupted = await wait_shielded(ending)
        ending.result()
        if interrupted is not None:
            raise interrupted


async def _end(process: asyncio.subprocess.Process, client: Any, folder: str) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(b"q")
        process.stdin.close()
    if os.name == "nt" and process.returncode is None:  # Windows has no guard
        process.kill()
    await process.wait()
    client.stop_channels()
    client.context.destroy(linger=0)
    shutil.rmtree(folder, ignore_errors=True)  # normally the guard removes it


def _end_collected(parent: int, *parts: Any) -> None:
    """End a kernel that was collected without `kill`; runs in any thread."""
    if parent == os.getpid():  # in a fork it is the parent's kernel
        submit(_end(*parts))


@atexit.register
def _end_with_program() -> None:
    """Wait up to 5 seconds until all kernels have ended: no process outlives the program."""
    if kernels := [each for each in KERNELS if each.is_alive]:
        wait([submit(each.kill()) for each in kernels], timeout=5)


KERNELS: weakref.WeakSet[Kernel] = weakref.WeakSet()
