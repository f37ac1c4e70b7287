"""The kernel's own processes: a guard, and below it an ordinary Jupyter kernel with limits.

Run as a script, by its path, with any Python that has `ipykernel`; it imports nothing of ours.

The guard ends the kernel and all that it started when it is told to, when the kernel ends, and when
the program that it works for is gone, however that ended. It kills only its own children, which no
one else can have waited for: so a number is never a stranger's.
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

# A message that is longer breaks the connection: the other end takes 64 MiB.
LONGEST_MESSAGE = 32 * 2**20
LONGEST_TEXT = 4 * 2**20


def main() -> None:
    """Take the program's number, the limits and the folder; leave other arguments to the kernel."""
    parent, limits, folder = int(sys.argv.pop(1)), json.loads(sys.argv.pop(1)), sys.argv.pop(1)

    def be_kernel() -> None:
        with suppress(ImportError):  # there are no limits on this system
            limit(limits)
        sys.path.insert(0, "")  # the working directory, as in any session
        cut_long_messages()
        from ipykernel import kernelapp

        kernelapp.launch_new_instance()

    if os.name == "posix":
        guard(parent, be_kernel, folder)
    else:
        be_kernel()


# --- the kernel


def limit(limits: dict[str, int]) -> None:
    """Set resource limits by name, soft and hard; none is ever raised."""
    import resource

    for name, value in limits.items():
        which = getattr(resource, name, None)
        if which is not None:
            _, hard = resource.getrlimit(which)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (most, most))


def cut_long_messages() -> None:
    """Let no message be too long to arrive: its texts lose their middle, else it is left out."""
    from jupyter_client import session

    patched: Any = session.Session
    whole, sent = patched.serialize, patched.send

    def serialize(self: Any, message: dict[str, Any], ident: Any = None) -> list[bytes]:
        frames: list[bytes] = whole(self, message, ident)
        content: Any = message.get("content")
        for shorten in (shorten_texts, leave_out):
            if sum(map(len, frames)) > LONGEST_MESSAGE and isinstance(content, dict):
                shorter = {
                    **message,
                    "metadata": {},
                    "content": shorten(cast("dict[str, Any]", content)),
                }
                frames = whole(self, shorter, ident)
        return frames

    def send(self: Any, stream: Any, message: Any, *args: Any, **options: Any) -> Any:
        buffers: list[Any] = options.get("buffers") or []
        if sum(memoryview(each).nbytes for each in buffers) > LONGEST_MESSAGE:
            del options["buffers"]
        return sent(self, stream, message, *args, **options)

    patched.serialize, patched.send = serialize, send


def shorten_texts(value: Any) -> Any:
    """Return what is sent without the middle of its texts and without what has no text."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        head, tail = value[: LONGEST_TEXT // 2], value[-LONGEST_TEXT // 2 :]
        return f"{head}\n[... {len(value) - LONGEST_TEXT} characters left out ...]\n{tail}"
    if isinstance(value, list):
        return [shorten_texts(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        values = cast("dict[str, Any]", value)
        if "text/plain" in values and any(
            len(str(each)) > LONGEST_TEXT for key, each in values.items() if key != "text/plain"
        ):  # a picture without its middle is none
            text = shorten_texts(values["text/plain"])
            return {"text/plain": f"{text}\n[what it shows is left out: too large]"}
        return {key: shorten_texts(each) for key, each in values.items()}
    return value


def leave_out(content: dict[str, Any]) -> dict[str, Any]:
    """Return the news that something was left out, as text of any kind of message."""
    text = "[something is left out: too large]\n"
    said = {"name": "stdout", "text": text, "data": {"text/plain": text}, "traceback": [text]}
    return {**said, "status": content.get("status", "ok"), "metadata": {}}


# --- the guard


def guard(parent: int, be_kernel: Callable[[], None], folder: str) -> None:
    """Fork the kernel, and end it with all below it; ends this process as the kernel ended."""
    control = os.dup(0)  # "i" interrupts the kernel; "q", or its end, ends it
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if LINUX:  # whatever the code leaves behind becomes a child of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signals = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = [signal.signal(each, wake_up) for each in signals]
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    guarding = os.getpid()
    kernel = os.fork()
    if kernel == 0:
        signal.set_wakeup_fd(-1)
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
        for each in (control, woken, wake):
            os.close(each)
        os.setsid()
        if LINUX:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == guarding:
            be_kernel()
        os._exit(0)
    told = True
    try:
        told = watch(parent, kernel, control, woken)
    finally:
        status = end_all(kernel)
        if told:  # or else the program reads there why the kernel has ended
            shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # end by the same signal, without a core of this process
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # of SIGKILL there is no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def wake_up(number: int, frame: FrameType | None) -> None:
    """Do nothing: that a signal has come is read from the pipe."""


def watch(parent: int, kernel: int, control: int, woken: int) -> bool:
    """Pass interrupts on until it is time to end; False if the kernel has ended by itself."""
    watched = [control, woken]
    pause, above = None, os.getppid()
    try:
        watched.append(os.pidfd_open(parent))
    except (AttributeError, OSError):  # not on this system
        pause = 1.0
    while True:
        ready = select.select(watched, [], [], pause)[0]
        if watched[2:] and watched[2] in ready:
            return True
        if woken in ready:
            if set(os.read(woken, 4096)) - {signal.SIGCHLD}:
                return True
            if ended(kernel):
                return False
        if control in ready:
            orders = os.read(control, 4096)
            if not orders or b"q" in orders:
                return True
            os.kill(kernel, signal.SIGINT)
        if pause is not None and os.getppid() != above:
            return True


def ended(kernel: int) -> bool:
    """Tell whether the kernel has ended, and leave it a zombie; its orphans are laid to rest."""
    if not hasattr(os, "waitid"):  # macOS: no orphans come here, so it can only be the kernel
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (child := os.waitid(os.P_ALL, 0, flags)) is not None:
        if child.si_pid == kernel:
            return True
        os.waitpid(child.si_pid, 0)
    return False


def end_all(kernel: int) -> int:
    """Kill all below this process until nothing is left; return the kernel's exit status.

    Where orphans do not come here, what left the kernel's process group goes on.
    """
    status = 0
    children: list[int] = [kernel]
    with suppress(OSError):
        os.killpg(kernel, signal.SIGKILL)  # it has not been waited for: the number is still its own
    while True:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            pid, how = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == kernel:
            status = how
        children = []
        for file in Path("/proc/self/task").glob("*/children"):
            with suppress(OSError):
                children += map(int, file.read_text().split())


if __name__ == "__main__":
    main()
