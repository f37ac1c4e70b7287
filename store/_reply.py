"""Replies of models: whole, broken off or left early in the journal, and played from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from ..commander import StreamInterrupted
from ..commander.kept import KeptReply
from ..commander.scope import leaves_here, scope_here
from ._failure import encode_failure, mark
from ._usage import taken
from .errors import JournalError, LeaseLost

if TYPE_CHECKING:
    from ._scope import NodeScope

__all__ = ["ReplyRow"]


class ReplyRow(KeptReply):
    """The row of one reply, found by who asked for it, by its request and by how many were alike.

    The request itself is not written, only a digest of it. A `reply` is whole. One that is `broken`
    says what had come, and how it ended: its `failure`, or `left`, by which its reader left it.
    Where partials are asked for, what is said until it is whole stands in rows of its own, each
    with what is new. What it took in lives that ended before it did is `spent`.
    """

    def __init__(self, asker: NodeScope, ident: bytes) -> None:
        ledger = asker.ledger
        self._leaves = leaves_here()
        self._broken: dict[str, Any] = {}
        self.spent = [each for row in ledger.every(ident, "spent") for each in taken(row)]
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
        self.hears = asker.ledger.partials is not None
        # What was heard and is not written yet; how many characters are; what will write it.
        self._fresh: list[str] = []
        self._written = 0
        self._timer: asyncio.TimerHandle | None = None

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

    def hear(self, text: str) -> None:
        self._in_loop(self._grow, text)

    def break_off(self, text: str, error: BaseException) -> None:
        self._in_loop(self._drop)
        said = json.loads(text)
        if self._ledger.suspended or self._leaves():
            # It is asked for again; what it has taken is spent.
            if said["taken"] and self._ledger.trouble is None:
                self._in_loop(self._append_spent, json.dumps({"taken": said["taken"]}).encode())
            return
        ended: dict[str, Any]
        if isinstance(error, Exception):
            ended = {"failure": json.loads(encode_failure(error))}
            mark(error, self._ident)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            ended = {"left": type(error).__name__}
        else:
            return  # it ends the process
        value = json.dumps({"said": said, **ended}).encode()
        self._in_loop(self._ledger.append, self._ident, "broken", value)

    async def end(self) -> None:
        if "failure" in self._broken:
            raise self._ledger.read_failure(
                json.dumps(self._broken["failure"]).encode(), self._ident
            )
        if self._broken.get("left") == "GeneratorExit":
            raise self._ledger.mismatch(
                "a reply is read on where it was left, and what comes after that is not known"
            )
        if self._broken:
            await asyncio.get_running_loop().create_future()  # until this wait is cancelled too

    def _in_loop(self, function: Callable[..., object], *args: object) -> None:
        ledger = self._ledger

        def call_later() -> None:
            with suppress(LeaseLost, JournalError):
                function(*args)

        try:
            here = asyncio.get_running_loop() is ledger.loop
        except RuntimeError:
            here = False
        if here:
            function(*args)
        else:  # a thread of the run's asked; whatever it does next reaches the loop after this
            with suppress(RuntimeError):  # the loop is closed: the run is suspended
                ledger.loop.call_soon_threadsafe(call_later)

    def _append_spent(self, value: bytes) -> None:
        with suppress(LeaseLost, JournalError):  # the run is left, for whatever reason
            self._ledger.append(self._ident, "spent", value)

    def _append(self, text: str) -> None:
        self._stop()
        kept = self._ledger.append(self._ident, "reply", text.encode())
        self._ledger.talks.hear(self._ledger.last, kept)

    # --- while it grows

    def _grow(self, text: str) -> None:
        self._fresh.append(text)
        if self._timer is None:
            assert self._ledger.partials is not None
            # In no context: the loop keeps a timer that is cancelled, and would keep the node.
            self._timer = self._ledger.loop.call_later(
                self._ledger.partials, self._write, context=Context()
            )

    def _write(self) -> None:
        self._timer = None
        text = "".join(self._fresh)
        self._fresh.clear()
        self._append_partial(self._written, text)
        self._written += len(text)

    def _drop(self) -> None:
        self._stop()
        if self._written:
            self._append_partial(0, "")

    def _append_partial(self, at: int, text: str) -> None:
        value = json.dumps({"at": at, "text": text}).encode()
        if not self._ledger.suspended:
            with suppress(LeaseLost, JournalError):  # whoever needs the journal is told
                self._ledger.append(self._ident, "partial", value)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
