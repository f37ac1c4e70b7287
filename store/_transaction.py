"""SQL statements of a run in the journal's database, in one commit with their journal entry."""

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
from ..files.sqlite import is_file_fault
from ._journal_file import Row
from ._json import canonical

if TYPE_CHECKING:
    from ._execution import Execution

__all__ = ["IN_TRANSACTION", "Transaction", "require_no_transaction"]

LOOP_POLL_SECONDS = 0.25  # between two checks whether the loop of a block is closed

# Whether this code is inside the block of a transaction.
IN_TRANSACTION: ContextVar[bool] = ContextVar("anabranch.in_transaction", default=False)


def require_no_transaction() -> None:
    """Raise `ConfigurationError` inside a transaction."""
    if IN_TRANSACTION.get():
        raise ConfigurationError(
            "a transaction is one commit, which can contain no nodes, steps, effects, sleeps or"
            " signals: move this before or after the block"
        )


class _LeftBlock(Exception):
    """The block was left by an exception, so the statements are rolled back."""


class Transaction:
    """One `self.durable.transaction()`: a later execution gets the recorded answers."""

    def __init__(self, execution: Execution, ident: bytes) -> None:
        self._execution = execution
        self._ident = ident
        self._loop = asyncio.get_running_loop()
        row = execution.find(ident, "transaction")
        self.is_done = row is not None
        # The statements, each with its answer.
        self._answers: list[Any] = [] if row is None else json.loads(row.value)
        self._position = 0
        # Statements for the file's thread; None commits, an exception rolls back.
        self._statements: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Done at the end of the transaction, also if the journal fails or the lease is lost.
        self._end: asyncio.Future[int] | None = None

    async def execute(self, sql: str, *params: Any) -> list[list[Any]]:
        """Execute a statement; return its rows, of numbers, texts and None.

        Raises SQLite's errors, `TypeError` for rows with bytes, and `JournalMismatch` if an earlier
        execution has executed another statement here.
        """
        statement = self._execution.keys.cut_text(canonical([sql, list(params)])[0])
        if self.is_done:
            self._position += 1
            if (
                len(self._answers) < self._position
                or self._answers[self._position - 1][0] != statement
            ):
                raise self._execution.park(
                    f"the recorded transaction has another statement instead of {sql!r}"
                )
            return self._answers[self._position - 1][1]
        answer: asyncio.Future[list[list[Any]]] = self._loop.create_future()
        self._statements.put((sql, params, answer))
        assert self._end is not None
        await asyncio.wait([answer, self._end], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._end.result()
        rows = self._execution.keys.cut(await answer)
        self._answers.append([statement, json.loads(json.dumps(rows))])
        return rows

    @asynccontextmanager
    async def done_once(self) -> AsyncGenerator[None]:
        """Execute the statements of the block, and commit when the block is left."""
        if self.is_done:
            yield
            return
        execution = self._execution
        work = asyncio.ensure_future(
            execution.file.transact(execution.run_id, execution.fence, self._work)
        )
        self._end = work
        # Retrieves the exception, which asyncio would log if a cancel ends the wait for `work`.
        work.add_done_callback(lambda _: None if work.cancelled() else work.exception())
        try:
            yield
        except BaseException as error:
            self._statements.put(_LeftBlock())
            with suppress(_LeftBlock):
                # Shielded: a cancel of this wait must not cancel `work`, which has to roll back.
                await asyncio.shield(work)
            raise error
        self._statements.put(None)
        await asyncio.shield(work)  # the thread commits, also if this wait is cancelled

    def _work(self, connection: sqlite3.Connection) -> Row:
        """Execute the statements in the file's thread until the block or its loop ends."""
        while (item := self._next()) is not None:
            if isinstance(item, _LeftBlock):
                raise item
            sql, params, answer = item
            try:
                rows: Any = [list(row) for row in connection.execute(sql, params)]
                json.dumps(rows)
            except Exception as error:
                if is_file_fault(error) or not connection.in_transaction:
                    raise  # already rolled back, so the block must fail even if it catches this
                self._loop.call_soon_threadsafe(_set, answer, None, error)
            else:
                self._loop.call_soon_threadsafe(_set, answer, rows, None)
        return Row(self._ident, "transaction", json.dumps(self._answers).encode())

    def _next(self) -> Any:
        while True:
            try:
                return self._statements.get(timeout=LOOP_POLL_SECONDS)
            except queue.Empty:
                if self._loop.is_closed():  # the block cannot end any more
                    return _LeftBlock()


def _set(answer: asyncio.Future[Any], rows: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(rows)
    else:
        answer.set_exception(error)
