"""The processes of a kernel: a guard, and its child, an ordinary Jupyter kernel with limits.

Runs as a script with any Python that has `ipykernel`, and imports nothing else of this package.

The guard ends the kernel and all processes that it started: on request, when the kernel ends, and
when the program ends in any way. It kills only its own children, which no other process can have
waited for, so a process number is never reused for a stranger's process.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"

# The program accepts messages of up to 64 MiB; a longer one would break the connection.
MAX_MESSAGE_BYTES = 32 * 2**20
MAX_TEXT_CHARS = 4 * 2**20


def main() -> None:
    """Read the program's process number, the limits and the folder from the arguments.

    Other arguments are the kernel's.
    """
    parent, limits, folder = int(sys.argv.pop(1)), json.loads(sys.argv.pop(1)), sys.argv.pop(1)

    def run_kernel() -> None:
        with suppress(ImportError):  # Windows has no `resource`
            set_limits(limits)
        sys.path.insert(0, "")  # the working directory, as in any interactive session
        cut_long_messages()
        from ipykernel import kernelapp

        kernelapp.launch_new_instance()

    if os.name == "posix":
        guard(parent, run_kernel, folder)
    else:
        run_kernel()


# --- the kernel


def set_limits(limits: dict[str, int]) -> None:
    """Set soft and hard resource limits by name; never raise an existing limit."""
    import resource

    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            _, hard = resource.getrlimit(kind)
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (allowed, allowed))


def cut_long_messages() -> None:
    """Make the kernel shorten or drop messages that are too long to arrive."""
    from jupyter_client import session

    patched: Any = session.Session
    serialize_message, send_message = patched.serialize, patched.send

    def serialize(self: Any, message: dict[str, Any], ident: Any = None) -> list[bytes]:
        frames: list[bytes] = serialize_message(self, message, ident)
        content: Any = message.get("content")
        for shorten in (shorten_texts, leave_out):
            if sum(map(len, frames)) > MAX_MESSAGE_BYTES and isinstance(content, dict):
                shorter = {
                    **message,
                    "metadata": {},
                    "content": shorten(cast("dict[str, Any]", content)),
                }
                frames = serialize_message(self, shorter, ident)
        return frames

    def send(self: Any, stream: Any, message: Any, *args: Any, **options: Any) -> Any:
        buffers: list[Any] = options.get("buffers") or []
        if sum(memoryview(each).nbytes for each in buffers) > MAX_MESSAGE_BYTES:
            del options["buffers"]
        return send_message(self, stream, message, *args, **options)

    patched.serialize, patched.send = serialize, send


def shorten_texts(value: Any) -> Any:
    """Return message content with long texts shortened and large images removed."""
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        head, tail = value[: MAX_TEXT_CHARS // 2], value[-MAX_TEXT_CHARS // 2 :]
        return f"{head}\n[... {len(value) - MAX_TEXT_CHARS} characters left out ...]\n{tail}"
    if isinstance(value, list):
        return [shorten_texts(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        values = cast("dict[str, Any]", value)
        if "text/plain" in values and any(
            len(str(each)) > MAX_TEXT_CHARS for key, each in values.items() if key != "text/plain"
        ):  # an image cannot be shortened
            text = shorten_texts(values["text/plain"])
            return {"text/plain": f"{text}\n[the rest of the result is left out: too large]"}
        return {key: shorten_texts(each) for key, each in values.items()}
    return value


def leave_out(content: dict[str, Any]) -> dict[str, Any]:
    """Return content for any kind of message that reports the omission."""
    text = "[an output is left out: too large]\n"
    notice = {"name": "stdout", "text": text, "data": {"text/plain": text}, "traceback": [text]}
    return {**notice, "status": content.get("status", "ok"), "metadata": {}}


# --- the guard


def guard(parent: int, run_kernel: Callable[[], None], folder: str) -> None:
    """Fork the kernel, and end it with all its descendants. Then exit as the kernel did."""
    # The program writes "i" to interrupt the kernel; "q" or the end of the pipe ends it.
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if LINUX:  # orphans of the kernel become children of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signals = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    handlers = [signal.signal(each, wake_up) for each in signals]
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    guard_pid = os.getpid()
    kernel = os.fork()
    if kernel == 0:
        signal.set_wakeup_fd(-1)
        for each, handler in zip(signals, handlers, strict=True):
            signal.signal(each, handler)
        for each in (control, wake_read, wake_write):
            os.close(each)
        os.setsid()
        if LINUX:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == guard_pid:
            run_kernel()
        os._exit(0)
    is_requested = True
    try:
        is_requested = watch(parent, kernel, control, wake_read)
    finally:
        status = end_all(kernel)
        if is_requested:  # otherwise the program reads there why the kernel has ended
            shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # end by the same signal, without a core dump of this process
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def wake_up(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number is read from the wake-up pipe."""


def watch(parent: int, kernel: int, control: int, wake_read: int) -> bool:
    """Pass interrupts on until it is time to end; return False if the kernel ended first."""
    watched = [control, wake_read]
    pause, parent_pid = None, os.getppid()
    try:
        watched.append(os.pidfd_open(parent))
    except (AttributeError, OSError):  # not supported here: poll the parent's number instead
        pause = 1.0
    while True:
        ready = select.select(watched, [], [], pause)[0]
        if watched[2:] and watched[2] in ready:
            return True
        if wake_read in ready:
            if set(os.read(wake_read, 4096)) - {signal.SIGCHLD}:
                return True
            if has_ended(kernel):
                return False
        if control in ready:
            orders = os.read(control, 4096)
            if not orders or b"q" in orders:
                return True
            os.kill(kernel, signal.SIGINT)
        if pause is not None and os.getppid() != parent_pid:
            return True


def has_ended(kernel: int) -> bool:
    """Return whether the kernel has ended, and leave it a zombie; reap other children."""
    if not hasattr(os, "waitid"):  # macOS adopts no orphans, so only the kernel can have ended
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (child := os.waitid(os.P_ALL, 0, flags)) is not None:
        if child.si_pid == kernel:
            return True
        os.waitpid(child.si_pid, 0)
    return False


def end_all(kernel: int) -> int:
    """Kill all descendants until none is left; return the kernel's exit status.

    On systems without adoption of orphans, processes that left the kernel's process group survive.
    """
    status = 0
    children: list[int] = [kernel]
    with suppress(OSError):
        # The kernel is not reaped yet, so its number still names its process group.
        os.killpg(kernel, signal.SIGKILL)
    while True:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            pid, child_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == kernel:
            status = child_status
        children = []
        for file in Path("/proc/self/task").glob("*/children"):
            with suppress(OSError):
                children += map(int, file.read_text().split())


if __name__ == "__main__":
    main()
