"""Replies of models in the journal: complete, failed or left early, and replayed from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from ..commander import Node, StreamInterrupted
from ..commander.durable import (
    IS_ASIDE,
    TEXT_GATE,
    DurableReply,
    charge_again,
    charges_of,
    scope_here,
    shutdown_check_here,
)
from ..messages import Usage
from ._failure import attach_idents, encode_failure
from .errors import JournalError, LeaseLost

if TYPE_CHECKING:
    from ._checksums import Row
    from ._scope import NodeScope

__all__ = ["ReplyRow", "charge_recorded", "usage_below", "usage_in_row"]


class ReplyRow(DurableReply):
    """The rows of one reply, identified by its requester, a digest of its request and its ordinal.

    The request itself is not stored. A `reply` row has a complete reply. A `broken` row has
    the part that arrived and how it ended: its `failure`, or how its reader `left` it. With
    partials, `partial` rows have each new part until the reply is complete. A `spent` row has the
    usage of an execution that ended before the reply did.
    """

    def __init__(self, requester: NodeScope, ident: bytes) -> None:
        execution = requester.execution
        self._leaves = shutdown_check_here()
        self._broken: dict[str, Any] = {}
        self.earlier_charges: Sequence[tuple[str, Usage]] = [
            each for row in execution.find_all(ident, "spent") for each in usage_in_row(row)
        ]
        self.recorded = None
        if (row := execution.find(ident, "reply")) is not None:
            self.recorded = row.value.decode()
        elif (row := execution.find(ident, "broken")) is not None:
            self._broken = json.loads(row.value)
            self.recorded = json.dumps(self._broken["said"])
        # The task that reads it while it arrives, and whether that is the task of another node than
        # the requester, as in `fork`.
        self.reader: asyncio.Task[object] | None = None
        self.is_forked: bool = False
        self.requester = requester
        self._execution = execution
        self._ident = ident
        # Set at the end of the stream: its failure, None if it is complete or was closed.
        self._over: asyncio.Future[BaseException | None] = self._execution.loop.create_future()
        self.has_reader: bool = requester.execution.partial_seconds is not None
        # The text that no row has yet, the number of written characters, and the next write.
        self._unwritten: list[str] = []
        self._written = 0
        self._timer: asyncio.TimerHandle | None = None
        self._gate = TEXT_GATE.get()
        self._is_aside = IS_ASIDE.get()

    @contextmanager
    def receiving(self) -> Generator[None]:
        failure: BaseException | None = None
        with suppress(RuntimeError):  # no asyncio task: another library's loop reads it
            self.reader = asyncio.current_task()
            self.is_forked = scope_here() is not self.requester
        self._execution.growing_replies.append(self)
        try:
            yield
        except Exception as error:
            failure = error
            raise
        finally:
            self._execution.growing_replies.remove(self)
            with suppress(RuntimeError):  # the loop is closed
                # Through the loop: so the row of a reply that was read in a thread comes first.
                self._execution.loop.call_soon_threadsafe(self._over.set_result, failure)

    async def until_complete(self) -> None:
        """Wait until the reply is recorded or closed; raise `StreamInterrupted` if it failed."""
        if (failure := await asyncio.shield(self._over)) is not None:
            raise StreamInterrupted(
                f"the reply that made this call was interrupted: {failure}"
            ) from failure

    def record(self, text: str) -> None:
        self._in_loop(self._append, text)

    def publish_text(self, text: str) -> None:
        self._in_loop(self._grow, text)

    def record_interruption(self, text: str, error: BaseException) -> None:
        self._in_loop(self._drop)
        reply = json.loads(text)
        if self._execution.suspended or self._leaves():
            # The next execution requests it again; its usage still counts.
            if reply["taken"] and self._execution.stop_error is None:
                self._in_loop(self._append_spent, {"taken": reply["taken"]})
            return
        ending: dict[str, Any]
        if isinstance(error, Exception):
            ending = {"failure": json.loads(encode_failure(error))}
            attach_idents(error, self._ident)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            ending = {"left": type(error).__name__}
        else:
            return  # it ends the process
        self._in_loop(self._execution.record, self._ident, "broken", {"said": reply, **ending})

    async def finish_replay(self) -> None:
        if "failure" in self._broken:
            raise self._execution.read_failure(self._broken["failure"], self._ident)
        if self._broken.get("left") == "GeneratorExit":
            raise self._execution.park(
                "the reply was closed early in an earlier execution, and is read further now"
            )
        if self._broken:
            await asyncio.get_running_loop().create_future()  # until its reader is cancelled again

    def _in_loop(self, function: Callable[..., object], *args: object) -> None:
        execution = self._execution

        def call_later() -> None:
            with suppress(LeaseLost, JournalError):
                function(*args)

        try:
            here = asyncio.get_running_loop() is execution.loop
        except RuntimeError:
            here = False
        if here:
            function(*args)
        else:  # in a thread of the run: calls reach the loop in their order
            with suppress(RuntimeError):  # the loop is closed: the run is suspended
                execution.loop.call_soon_threadsafe(call_later)

    def _append_spent(self, value: dict[str, Any]) -> None:
        with suppress(LeaseLost, JournalError):  # the run is stopped
            self._execution.record(self._ident, "spent", value)

    def _append(self, text: str) -> None:
        self._stop()
        if self._is_aside:
            text = f'{text[:-1]},"aside":true}}'
        recorded = self._execution.append(self._ident, "reply", text.encode())
        self._execution.conversations.note_reply(self._execution.last_number, recorded)

    # --- partial replies

    def _grow(self, text: str) -> None:
        self._unwritten.append(text)
        if self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        assert self._execution.partial_seconds is not None
        # In an empty context: the loop holds a cancelled timer, whose context holds the node.
        self._timer = self._execution.loop.call_later(
            self._execution.partial_seconds, self._write, context=Context()
        )

    def _write(self) -> None:
        self._timer = None
        if self._gate is not None and not self._gate.is_open:
            self._start_timer()
            return
        text = "".join(self._unwritten)
        self._unwritten.clear()
        self._append_partial(self._written, text)
        self._written += len(text)

    def _drop(self) -> None:
        self._stop()
        if self._written:
            self._append_partial(0, "")

    def _append_partial(self, at: int, text: str) -> None:
        if not self._execution.suspended:
            with suppress(LeaseLost, JournalError):  # code that needs the journal raises it
                value: dict[str, Any] = {"at": at, "text": text}
                if self._is_aside:
                    value["aside"] = True
                self._execution.record(self._ident, "partial", value)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# --- usage, which a later execution counts again


def usage_in_row(row: Row) -> list[tuple[str, Usage]]:
    """Return the usage in a row of a reply (`reply`, `broken` or `spent`), by account."""
    value = json.loads(row.value)
    reply = value["said"] if row.kind == "broken" else value
    return [(account, Usage(**usage)) for account, usage in reply["taken"]]


def usage_below(node: Node[Any]) -> dict[str, Any]:
    """Return the usage of the replies below `node`, by account."""
    return {
        account: usage.model_dump(mode="json", exclude_defaults=True)
        for account, usage in charges_of(node).items()
        if isinstance(usage, Usage)
    }


def charge_recorded(usage: dict[str, Any], node: Node[Any]) -> None:
    """Charge `node` with the result of `usage_below`."""
    for account, fields in usage.items():
        charge_again(account, Usage(**fields), node)
