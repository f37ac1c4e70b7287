"""One Jupyter kernel in a process of its own: start, execute, interrupt, kill.

A guard stands between it and this program (`_kernel_main`). All methods run on the loop of
`_kernel_loop`. This module needs the extra `python`; only `_python.py` imports it, when it is
first used.
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

import ipykernel  # noqa: F401  # pyright: ignore[reportUnusedImport] - the child process needs it
import zmq
import zmq.asyncio
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import write_connection_file

from ..commander.errors import ConfigurationError, ToolError
from ..commander.process import describe_exit
from ..commander.waiting import outlast
from ..messages import Part
from ._kernel_loop import submit
from .results import shorten

__all__ = ["Kernel", "KernelDied", "Output"]

MAIN = Path(__file__).with_name("_kernel_main.py")
# What one message may hold; a longer one breaks the connection instead of filling our memory.
MAX_MESSAGE = 64 * 2**20
MAX_IMAGE = 8 * 2**20
MAX_IMAGES = 16
# So many characters of output more than are shown stop the code.
FLOOD = 8 * 2**20
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A model's code has no business with the keys in our environment.
INHERITED = """HOME LANG LANGUAGE LC_ALL LC_CTYPE LD_LIBRARY_PATH LOGNAME PATH PYTHONPATH SHELL
    SYSTEMROOT TEMP TERM TMP TMPDIR TZ USER USERPROFILE VIRTUAL_ENV"""


class KernelDied(ToolError):
    """The kernel's process ended by itself."""


class Output:
    """What a piece of code has shown so far: text, figures, and the error that ended it.

    `save` takes the bytes of a figure and the ending for its file, and returns the path.
    """

    def __init__(self, save: Callable[[bytes, str], Path]) -> None:
        self._save = save
        self.files: list[str] = []
        self.parts: list[Part] = []
        self.failed = False
        self._texts: list[str] = []
        self._length = 0

    @property
    def flooded(self) -> bool:
        """Whether there is so much that the code should be stopped."""
        return self._length > FLOOD

    def take(self, kind: str, content: Mapping[str, Any]) -> None:
        """Take one message of the kernel's."""
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
                if len(image.strip()) > MAX_IMAGE or len(self.parts) == MAX_IMAGES:
                    self._add("[a figure left out: too large or too many]\n")
                else:
                    self._take_figure("".join(image.split()), media_type)
                return
            self._add(str(data.get("text/plain", "")) + "\n")

    def _take_figure(self, image: str, media_type: str) -> None:
        try:
            part = Part.from_url(f"data:{media_type};base64,{image}")
        except ConfigurationError as error:  # the code may call anything an image
            self._add(f"[a figure left out: {error}]\n")
            return
        self.parts.append(part)
        try:
            where = str(self._save(part.data or b"", media_type.partition("/")[2]))
            self.files.append(where)
        except (OSError, ValueError) as error:
            where = f"not saved: {error}"
        self._add(f"[figure {len(self.parts)}: {where}]\n")

    def _add(self, text: str) -> None:
        if not self.flooded:
            self._texts.append(text)
        self._length += len(text)

    def text(self, limit: int) -> str:
        """Return the text, its middle left out where it is longer than `limit` characters."""
        return shorten(ANSI.sub("", "".join(self._texts)).rstrip(), limit)


class Kernel:
    """A kernel that runs; made by `start`, ended by `kill`. One execution at a time."""

    def __init__(self, process: asyncio.subprocess.Process, folder: str) -> None:
        self._process = process
        self._folder = folder
        self._log = Path(folder, "log")
        self._parent = os.getpid()
        context = zmq.asyncio.Context()
        context.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        # Its methods are made at run time, untyped.
        self._client: Any = AsyncKernelClient(
            connection_file=f"{folder}/connection.json", context=context
        )
        self._client.load_connection_file()
        self._client.start_channels(stdin=False, hb=False)  # the heartbeat would be a thread
        # In case nobody kills it.
        parts = process, self._client, folder
        self._dropped = weakref.finalize(self, _end_dropped, self._parent, *parts)
        self._dropped.atexit = False  # see `_end_with_program`
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

        Cancelled, it leaves nothing behind.
        """
        launching = asyncio.ensure_future(cls._launch(executable, limits, cwd, env))
        interrupted = await outlast(launching)
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
            raise ToolError(f"Python did not start: {end or 'it says nothing'}") from None
        finally:
            if not ready:
                await kernel.kill()
        return kernel

    @classmethod
    async def _launch(
        cls, executable: str, limits: Mapping[str, int], cwd: str | None, env: Mapping[str, str]
    ) -> Kernel:
        """Start the process; not to be cancelled, or nobody would know of it."""
        folder = tempfile.mkdtemp(prefix="anabranch-")
        file = f"{folder}/connection.json"
        key = os.urandom(16).hex().encode()
        if os.name == "posix":  # sockets in a folder that is ours alone
            write_connection_file(file, key=key, transport="ipc", ip=f"{folder}/s")
        else:
            write_connection_file(file, key=key)
        guard = (str(MAIN), str(os.getpid()), json.dumps(dict(limits)), folder)
        inherited = {name: os.environ[name] for name in INHERITED.split() if name in os.environ}
        # Nothing of the user's own set-up runs.
        own = {"IPYTHONDIR": f"{folder}/ipython"}
        try:
            with Path(folder, "log").open("wb") as log:  # noqa: ASYNC230 - for the process
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
                    env={**inherited, "PYTHONUNBUFFERED": "1", **own, **env},
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ToolError(f"Python did not start: {error}") from None
        try:
            return cls(process, folder)
        except BaseException:  # there are no more files or sockets
            if process.stdin is not None:
                process.stdin.close()  # at that the guard ends
            raise

    @property
    def alive(self) -> bool:
        """Whether the process still runs, and is this program's own: a fork has none."""
        return self._process.returncode is None and self._parent == os.getpid()

    async def execute(self, code: str, output: Output) -> None:
        """Run `code` and fill `output` as it comes; return when the kernel is idle again.

        Raises `KernelDied` if the process ends. Cancelled, the code runs on; `interrupt` stops it.
        """
        request = self._client.execute(code, allow_stdin=False)

        async def follow() -> None:
            interrupted = False
            while True:
                message = await self._client.get_iopub_msg()
                output.take(message["msg_type"], message["content"])
                if output.flooded and not interrupted:
                    interrupted = True
                    self.interrupt()
                state = message["content"].get("execution_state")
                if state == "idle" and message["parent_header"].get("msg_id") == request:
                    break
            while (await self._client.get_shell_msg())["parent_header"].get("msg_id") != request:
                pass

        await self._while_alive(follow())

    async def stop(self, output: Output, grace: float) -> bool:
        """Interrupt the code that runs; False if it goes on for `grace` seconds all the same.

        What it still says is added to `output`.
        """
        if not self.alive:
            return False
        self.interrupt()
        try:
            async with asyncio.timeout(grace):
                # Executed after it: whatever else had been sent by then is over, too.
                await self.execute("", output)
        except (TimeoutError, KernelDied):
            return False
        return True

    async def _while_alive(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` for as long as the process lives; raise `KernelDied` when it does not."""
        working = asyncio.ensure_future(work)
        dying = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
            if not working.done() or working.cancelled():  # by the end of its connection
                raise KernelDied(f"the Python process ended ({describe_exit(await dying)})")
            await working
        finally:
            working.cancel()
            dying.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)

    def interrupt(self) -> None:
        """Raise `KeyboardInterrupt` in the code that runs."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(b"i")

    async def kill(self) -> None:
        """Kill the process and all that it started, and let go of everything. Twice is harmless.

        A cancel meanwhile does not cut it short.
        """
        self._dropped.detach()
        ending = asyncio.ensure_future(_end(self._process, self._client, self._folder))
        interrupted = await outlast(ending)
        ending.result()
        if interrupted is not None:
            raise interrupted


async def _end(process: asyncio.subprocess.Process, client: Any, folder: str) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(b"q")
        process.stdin.close()
    if os.name == "nt" and process.returncode is None:  # there is no guard
        process.kill()
    await process.wait()
    client.stop_channels()
    client.context.destroy(linger=0)
    shutil.rmtree(folder, ignore_errors=True)  # in case the guard was killed


def _end_dropped(parent: int, *parts: Any) -> None:
    """End a kernel that nobody has hold of any more, from any thread."""
    if parent == os.getpid():  # or else it is that of the process which has forked this one
        submit(_end(*parts))


@atexit.register
def _end_with_program() -> None:
    """Wait a while until all kernels have ended, so that a program leaves nothing behind."""
    if kernels := [each for each in KERNELS if each.alive]:
        wait([submit(each.kill()) for each in kernels], timeout=5)


KERNELS: weakref.WeakSet[Kernel] = weakref.WeakSet()
