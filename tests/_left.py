"""What a program has left behind: processes below it and threads in it (Linux)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

__all__ = ["alive", "processes", "threads"]


def processes() -> set[int]:
    """Return the ids of the processes below this one, however deep."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for file in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            children = set(map(int, file.read_text().split()))
            waiting += children
            found |= children
    return found


def threads() -> set[str]:
    """Return the ids of this process's threads, those of C libraries too."""
    for thread in threading.enumerate():
        if thread.name.startswith("waitpid"):
            thread.join(5)  # asyncio's own, which ends when it has seen its process end
    return set(os.listdir("/proc/self/task"))


def alive(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
