"""SQL statements of a run in the journal's database, in one commit with the row about them."""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..commander import ConfigurationError
from ..messages.sqlite import is_file_fault
from ._file import Row
from ._json import canonical

if TYPE_CHECKING:
    from ._state import JournalState

__all__ = ["IN_TRANSACTION", "Transaction", "require_no_transaction"]

LOOP_POLL_SECONDS = 0.25  # between two looks whether the loop of a block is closed

# Whether this code is inside the block of a transaction.
IN_TRANSACTION: ContextVar[bool] = ContextVar("anabranch.in_transaction", default=False)


def require_no_transaction() -> None:
    """Raise `ConfigurationError` inside a transaction."""
    if IN_TRANSACTION.get():
        raise ConfigurationError(
            "a transaction is one commit: nodes, steps, effects, sleeps and signals stand before or"
            " after it"
        )


class _LeftBlock(Exception):
    """The block was left by an exception, so the statements are rolled back."""


class Transaction:
    """One block. If an earlier execution has `done` it, the recorded answers are returned."""

    def __init__(self, ledger: JournalState, ident: bytes) -> None:
        self._ledger = ledger
        self._ident = ident
        self._loop = asyncio.get_running_loop()
        row = ledger.find(ident, "transaction")
        self.done = row is not None
        # The statements, each with its answer.
        self._done: list[Any] = [] if row is None else json.loads(row.value)
        self._at = 0
        # Statements for the writer's thread; None commits, an exception rolls back.
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The end of the transaction, also if the journal fails or the lease is lost.
        self._end: asyncio.Future[int] | None = None

    async def execute(self, sql: str, *params: Any) -> list[list[Any]]:
        """Execute a statement; return its rows, of numbers, texts and None.

        Raises SQLite's errors, `TypeError` for rows with bytes, and `JournalMismatch` if an earlier
        execution has executed another statement here.
        """
        said = self._ledger.keys.cut_text(canonical([sql, list(params)])[0])
        if self.done:
            self._at += 1
            if len(self._done) < self._at or self._done[self._at - 1][0] != said:
                raise self._ledger.mismatch(
                    f"the journal has another statement in the place of {sql!r}"
                )
            return self._done[self._at - 1][1]
        answer: asyncio.Future[list[list[Any]]] = self._loop.create_future()
        self._asked.put((sql, params, answer))
        assert self._end is not None
        await asyncio.wait([answer, self._end], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._end.result()
        rows = self._ledger.keys.cut(await answer)
        self._done.append([said, json.loads(json.dumps(rows))])
        return rows

    @asynccontextmanager
    async def done_once(self) -> AsyncGenerator[None]:
        """Execute the statements of the block, and commit when the block is left."""
        if self.done:
            yield
            return
        ledger = self._ledger
        work = asyncio.ensure_future(ledger.file.transact(ledger.run_id, ledger.fence, self._work))
        self._end = work
        work.add_done_callback(lambda _: None if work.cancelled() else work.exception())
        try:
            yield
        except BaseException as error:
            self._asked.put(_LeftBlock())
            with suppress(_LeftBlock):
                await asyncio.shield(work)
            raise error
        self._asked.put(None)
        await asyncio.shield(work)

    def _work(self, connection: sqlite3.Connection) -> Row:
        """Run in the writer's thread until the block is left, or its loop is closed."""
        while (asked := self._next()) is not None:
            if isinstance(asked, _LeftBlock):
                raise asked
            sql, params, answer = asked
            try:
                rows: Any = [list(row) for row in connection.execute(sql, params)]
                json.dumps(rows)
            except Exception as error:
                if is_file_fault(error) or not connection.in_transaction:
                    raise  # the file has nothing of the block, even if the user catches the error
                self._loop.call_soon_threadsafe(_set, answer, None, error)
            else:
                self._loop.call_soon_threadsafe(_set, answer, rows, None)
        return Row(self._ident, "transaction", json.dumps(self._done).encode())

    def _next(self) -> Any:
        while True:
            try:
                return self._asked.get(timeout=LOOP_POLL_SECONDS)
            except queue.Empty:
                if self._loop.is_closed():  # the block will not be left any more
                    return _LeftBlock()


def _set(answer: asyncio.Future[Any], rows: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(rows)
    else:
        answer.set_exception(error)
