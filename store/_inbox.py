"""What is sent to a run from elsewhere, also from other processes: signals, answers, a cancel."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._file import Letter
    from ._ledger import Ledger

__all__ = ["LOOK", "NOTE", "Inbox"]

# Seconds after which a long wait looks at the wall's clock again, which may have been set.
LOOK = 60.0
NOTE = "note"
"""The kind of letters that are kept beside a run, for whoever looks at it."""


class Inbox:
    """Letters by kind and name, in the order in which they came; each is taken once."""

    def __init__(self) -> None:
        self._letters: defaultdict[tuple[str, str], deque[Letter]] = defaultdict(deque)
        self._came = asyncio.Event()
        self._last = 0

    async def read(self, ledger: Ledger) -> list[Letter]:
        """Look for new letters, and return them; those that were taken already are left out."""
        came = await ledger.file.letters(ledger.run_id, self._last)
        self._last = max([self._last, *(letter.id for letter in came)])
        new = [
            letter._replace(value=ledger.keys.cut_json(letter.value))
            for letter in came
            if letter.kind != NOTE and letter.id not in ledger.taken  # notes are for others
        ]
        for letter in new:
            self._letters[letter.kind, letter.name].append(letter)
        waiting, self._came = self._came, asyncio.Event()
        waiting.set()
        return new

    async def take(self, kind: str, name: str, due: float | None = None) -> Letter | None:
        """Wait for a letter, and take it; whoever waits longest is first.

        None if none has been sent until `due`, by the wall's clock.
        """
        letters = self._letters[kind, name]
        while not letters:
            left = LOOK if due is None else min(LOOK, due - time.time())
            if left <= 0:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._came.wait()
        return letters.popleft() if due is None or letters[0].time <= due else None
