"""Find the child processes and threads that a program has left behind (Linux)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from support.waiting import block_until

__all__ = ["child_processes", "find_leaks", "has_exited", "thread_ids"]


def find_leaks(count: Callable[[], set[int]], before: set[int]) -> set[int]:
    """Return the ids from `count` that are not in `before`, after some time for them to end."""
    block_until(lambda: count() <= before)
    return count() - before


def has_exited(pid: int) -> bool:
    """Return whether a process has exited or is a zombie, after some time for it to end."""
    return block_until(lambda: not _alive(pid))


def child_processes(of: int | None = None) -> set[int]:
    """Return the ids of all descendants of a process, by default of this one."""
    found: set[int] = set()
    waiting = [of or os.getpid()]
    while waiting:
        for file in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                children = set(map(int, file.read_text().split()))
            except OSError:
                continue  # it ended during the loop
            waiting += children
            found |= children
    return found


def thread_ids() -> set[int]:
    """Return the ids of this process's threads, including those of C libraries."""
    for thread in threading.enumerate():
        if thread.name.startswith("waitpid"):
            thread.join(5)  # asyncio's, which ends after its process
    return set(map(int, os.listdir("/proc/self/task")))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
