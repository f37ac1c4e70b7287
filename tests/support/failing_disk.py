"""A SQLite connection that fails from a chosen statement on, before or after its execution."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.store import _file_thread, _open_file

__all__ = ["FailingDisk"]


class FailingDisk:
    """Counts statements once it is `armed`, and fails every statement after a number of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None  # statements until the failure; None for no failure
        self.done = False  # whether the first failing statement is executed nevertheless
        self.kind = sqlite3.SQLITE_IOERR
        connect = _open_file.connect
        monkeypatch.setattr(_file_thread, "connect", lambda name: _Faulty(self, connect(name)))

    def fail_after(self, statements: int, *, done: bool = False) -> None:
        self.left, self.done = statements, done

    def mend(self) -> None:
        self.left = None

    def through(self, statement: Callable[[], Any]) -> Any:
        if self.left is None:
            return statement()
        self.left -= 1
        if self.left >= 0:
            return statement()
        if self.left == -1 and self.done:
            statement()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self.kind
        raise error


class _Faulty:
    def __init__(self, disk: FailingDisk, connection: sqlite3.Connection) -> None:
        self._disk = disk
        self._connection = connection

    def execute(self, *arguments: Any) -> Any:
        return self._disk.through(lambda: self._connection.execute(*arguments))

    def executemany(self, *arguments: Any) -> Any:
        return self._disk.through(lambda: self._connection.executemany(*arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
