"""Replies of models: whole, broken off or left early in the journal, and played from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..commander import StreamInterrupted
from ..commander.scope import KeptReply, leaves_here, scope_here
from ._failure import encode_failure, mark
from .errors import JournalError, LeaseLost

if TYPE_CHECKING:
    from ._scope import NodeScope

__all__ = ["ReplyRow"]


class ReplyRow(KeptReply):
    """The row of one reply, found by who asked for it, by its request and by how many were alike.

    The request itself is not written, only a digest of it. A `reply` is whole. One that is `broken`
    says what had come, and how it ended: its `failure`, or `left`, by which its reader left it.
    """

    def __init__(self, asker: NodeScope, ident: bytes) -> None:
        ledger = asker.ledger
        self._leaves = leaves_here()
        self._broken: dict[str, Any] = {}
        self.recorded = None
        if (row := ledger.find(ident, "reply")) is not None:
            self.recorded = row.value.decode()
        elif (row := ledger.find(ident, "broken")) is not None:
            self._broken = json.loads(row.value)
            self.recorded = json.dumps(self._broken["said"])
        # The task that reads it while it is coming, and whether a node of its own does, as fork's.
        self.reader: asyncio.Task[object] | None = None
        self.is_forked = False
        self.asker = asker
        self._ledger = ledger
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
        self._in_loop(self._append, text)

    def break_off(self, text: str, error: BaseException, redact: Callable[[str], str]) -> None:
        if self._ledger.suspended or self._leaves():
            return  # it is asked again
        ended: dict[str, Any]
        if isinstance(error, Exception):
            ended = {"failure": json.loads(redact(encode_failure(error).decode()))}
            mark(error, self._ident)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            ended = {"left": type(error).__name__}
        else:
            return  # it ends the process
        self._in_loop(self._append_broken, json.dumps({"said": json.loads(text), **ended}))

    async def end(self) -> None:
        if "failure" in self._broken:
            raise self._ledger.failure(json.dumps(self._broken["failure"]).encode(), self._ident)
        if self._broken.get("left") == "GeneratorExit":
            raise self._ledger.mismatch(
                "a reply is read on where it was left, and what comes after that is not known"
            )
        if self._broken:
            await asyncio.get_running_loop().create_future()  # until this wait is cancelled too

    def _in_loop(self, append: Callable[[str], None], text: str) -> None:
        ledger = self._ledger
        try:
            here = asyncio.get_running_loop() is ledger.loop
        except RuntimeError:
            here = False
        if here:
            append(text)
        else:  # a thread of the run's asked; whatever it does next reaches the loop after this
            with suppress(RuntimeError):  # the loop is closed: the run is suspended
                ledger.loop.call_soon_threadsafe(self._append_if_owned, append, text)

    def _append_if_owned(self, append: Callable[[str], None], text: str) -> None:
        with suppress(LeaseLost, JournalError):
            append(text)

    def _append(self, text: str) -> None:
        number = self._ledger.append(self._ident, "reply", text.encode())
        self._ledger.talks.hear(number, text)

    def _append_broken(self, text: str) -> None:
        self._ledger.append(self._ident, "broken", text.encode())
