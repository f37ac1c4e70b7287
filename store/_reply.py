"""Replies of models: whole in the journal, and played from there."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..commander import StreamInterrupted
from ..commander.scope import KeptReply, scope_here
from .errors import LeaseLost

if TYPE_CHECKING:
    from ._scope import NodeScope

__all__ = ["ReplyRow"]


class ReplyRow(KeptReply):
    """The row of one reply, found by who asked for it, by its request and by how many were alike.

    The request itself is not written, only a digest of it.
    """

    def __init__(self, asker: NodeScope, ident: bytes) -> None:
        row = asker.ledger.find(ident, "reply")
        self.recorded = None if row is None else row.value.decode()
        # The task that reads it while it is coming, and whether a node of its own does, as fork's.
        self.reader: asyncio.Task[object] | None = None
        self.is_forked = False
        self.asker = asker
        self._ledger = asker.ledger
        self._ident = ident
        # What it broke off with, None if it is whole or was closed; set once it comes no more.
        self._over: asyncio.Future[BaseException | None] = self._ledger.loop.create_future()

    @contextmanager
    def coming(self) -> Generator[None]:
        failure: BaseException | None = None
        with suppress(RuntimeError):  # another library's loop reads it
            self.reader = asyncio.current_task()
            self.is_forked = scope_here() is not self.asker
        self._ledger.coming.append(self)
        try:
            yield
        except Exception as error:
            failure = error
            raise
        finally:
            self._ledger.coming.remove(self)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
                # Behind the row of one that was read in a thread.
                self._ledger.loop.call_soon_threadsafe(self._over.set_result, failure)

    async def whole(self) -> None:
        """Wait until it is kept, or was closed; raise `StreamInterrupted` if it broke off."""
        if (failure := await asyncio.shield(self._over)) is not None:
            raise StreamInterrupted(
                f"the reply because of which this was called has broken off: {failure}"
            ) from failure

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
