"""Replies of models: whole in the journal, and played from there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ..commander.scope import KeptReply
from .errors import LeaseLost

if TYPE_CHECKING:
    from ._ledger import Ledger

__all__ = ["ReplyRow"]


class ReplyRow(KeptReply):
    """The row of one reply, found by who asked for it, by its request and by how many were alike.

    The request itself is not written, only a digest of it.
    """

    def __init__(self, ledger: Ledger, ident: bytes) -> None:
        row = ledger.find(ident, "reply")
        self.recorded = None if row is None else row.value.decode()
        self._ledger = ledger
        self._ident = ident

    def keep(self, text: str) -> None:
        ledger = self._ledger
        try:
            here = asyncio.get_running_loop() is ledger.loop
        except RuntimeError:
            here = False
        if here:
            self._append(text)
        else:  # a thread of the run's asked; whatever it does next reaches the loop after this
            with suppress(RuntimeError):  # the loop is closed: the run is suspended
                ledger.loop.call_soon_threadsafe(self._append_if_owned, text)

    def _append_if_owned(self, text: str) -> None:
        with suppress(LeaseLost):
            self._append(text)

    def _append(self, text: str) -> None:
        number = self._ledger.append(self._ident, "reply", text.encode())
        self._ledger.talks.hear(number, text)
