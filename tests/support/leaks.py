"""What a program has left behind: processes below it and threads in it (Linux)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from support.waiting import block_until

__all__ = ["child_processes", "find_leaks", "has_exited", "thread_ids"]


def find_leaks(count: Callable[[], set[int]], before: set[int]) -> set[int]:
    """Return what `count` finds and `before` has not, once the system had time to take it away."""
    block_until(lambda: count() <= before)
    return count() - before


def has_exited(pid: int) -> bool:
    """Tell whether a process does not exist or is a zombie, once it had time to go away."""
    return block_until(lambda: not _alive(pid))


def child_processes(of: int | None = None) -> set[int]:
    """Return the ids of the processes below one, however deep; below this one if none is named."""
    found: set[int] = set()
    waiting = [of or os.getpid()]
    while waiting:
        for file in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                children = set(map(int, file.read_text().split()))
            except OSError:
                continue  # it has ended meanwhile
            waiting += children
            found |= children
    return found


def thread_ids() -> set[int]:
    """Return the ids of this process's threads, those of C libraries too."""
    for thread in threading.enumerate():
        if thread.name.startswith("waitpid"):
            thread.join(5)  # asyncio's own, which ends when it has seen its process end
    return set(map(int, os.listdir("/proc/self/task")))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
