"""Private names of asyncio that several packages use, each with a fallback if it is missing.

`tests/project/test_private_names.py` lists every private name of Python and of other libraries that
Anabranch uses, and tests it with and without each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

__all__ = ["running_loop", "silence_unfinished"]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# Returns the loop that runs in this thread, or None. The public function raises an exception if no
# loop runs, and every put of a node calls this.
running_loop: Callable[[], asyncio.AbstractEventLoop | None] = getattr(
    asyncio, "_get_running_loop", _running_loop
)


def silence_unfinished(task: asyncio.Task[Any]) -> None:
    """Prevent the warning that asyncio logs when an unfinished task is garbage collected.

    If this Python version lacks the private attribute, asyncio logs the warning.
    """
    with suppress(AttributeError):
        cast("Any", task)._log_destroy_pending = False
