"""Replies of models in the journal: complete, failed or left early, and replayed from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from ..commander import StreamInterrupted
from ..commander.durable import DurableReply, scope_here, shutdown_check_here
from ._failure import encode_failure, mark
from ._usage import taken
from .errors import JournalError, LeaseLost

if TYPE_CHECKING:
    from ._scope import NodeScope

__all__ = ["ReplyRow"]


class ReplyRow(DurableReply):
    """The rows of one reply, identified by its requester, its request and its ordinal among equals.

    Only a digest of the request is stored. A `reply` row has a complete reply. A `broken` row has
    the part that arrived and how it ended: its `failure`, or how its reader `left` it. With
    partials, `partial` rows have each new part until the reply is complete. A `spent` row has the
    usage of an execution that ended before the reply did.
    """

    def __init__(self, asker: NodeScope, ident: bytes) -> None:
        ledger = asker.ledger
        self._leaves = shutdown_check_here()
        self._broken: dict[str, Any] = {}
        self.earlier_charges = [each for row in ledger.every(ident, "spent") for each in taken(row)]
        self.recorded = None
        if (row := ledger.find(ident, "reply")) is not None:
            self.recorded = row.value.decode()
        elif (row := ledger.find(ident, "broken")) is not None:
            self._broken = json.loads(row.value)
            self.recorded = json.dumps(self._broken["said"])
        # The task that reads it while it arrives; whether a node of its own reads it, as in fork.
        self.reader: asyncio.Task[object] | None = None
        self.is_forked = False
        self.asker = asker
        self._ledger = ledger
        self._ident = ident
        # Set when no more arrives: its failure, None if it is complete or was closed.
        self._over: asyncio.Future[BaseException | None] = self._ledger.loop.create_future()
        self.has_reader = asker.ledger.partials is not None
        # The text that is not written yet, the number of written characters, and the next write.
        self._fresh: list[str] = []
        self._written = 0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def receiving(self) -> Generator[None]:
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
            with suppress(RuntimeError):  # the loop is closed
                # After the row of a reply that was read in a thread.
                self._ledger.loop.call_soon_threadsafe(self._over.set_result, failure)

    async def until_complete(self) -> None:
        """Wait until it is recorded or was closed; raise `StreamInterrupted` if it failed."""
        if (failure := await asyncio.shield(self._over)) is not None:
            raise StreamInterrupted(
                f"the reply because of which this was called has broken off: {failure}"
            ) from failure

    def record(self, text: str) -> None:
        self._in_loop(self._append, text)

    def publish_text(self, text: str) -> None:
        self._in_loop(self._grow, text)

    def record_interruption(self, text: str, error: BaseException) -> None:
        self._in_loop(self._drop)
        said = json.loads(text)
        if self._ledger.suspended or self._leaves():
            # It is requested again; its usage still counts.
            if said["taken"] and self._ledger.trouble is None:
                self._in_loop(self._append_spent, {"taken": said["taken"]})
            return
        ended: dict[str, Any]
        if isinstance(error, Exception):
            ended = {"failure": json.loads(encode_failure(error))}
            mark(error, self._ident)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            ended = {"left": type(error).__name__}
        else:
            return  # it ends the process
        self._in_loop(self._ledger.record, self._ident, "broken", {"said": said, **ended})

    async def finish_replay(self) -> None:
        if "failure" in self._broken:
            raise self._ledger.read_failure(self._broken["failure"], self._ident)
        if self._broken.get("left") == "GeneratorExit":
            raise self._ledger.mismatch(
                "a reply is read on where it was left, and what comes after that is not known"
            )
        if self._broken:
            await asyncio.get_running_loop().create_future()  # until this wait is cancelled as well

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
        else:  # in a thread of the run, whose later calls reach the loop after this one
            with suppress(RuntimeError):  # the loop is closed: the run is suspended
                ledger.loop.call_soon_threadsafe(call_later)

    def _append_spent(self, value: dict[str, Any]) -> None:
        with suppress(LeaseLost, JournalError):  # the run is stopped
            self._ledger.record(self._ident, "spent", value)

    def _append(self, text: str) -> None:
        self._stop()
        kept = self._ledger.append(self._ident, "reply", text.encode())
        self._ledger.talks.hear(self._ledger.last, kept)

    # --- while it grows

    def _grow(self, text: str) -> None:
        self._fresh.append(text)
        if self._timer is None:
            assert self._ledger.partials is not None
            # In an empty context, as the loop keeps a cancelled timer and so would keep the node.
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
        if not self._ledger.suspended:
            with suppress(LeaseLost, JournalError):  # others that need the journal raise it
                self._ledger.record(self._ident, "partial", {"at": at, "text": text})

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
