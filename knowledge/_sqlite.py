"""An index in an SQLite file: words by FTS5, vectors beside the pieces.

The tables are created in one transaction. A document is added in one and removed in one, so a kill
does not change the file. Several processes may use one file.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import anyio.to_thread

from ..files.sqlite import MEMORY, DatabaseFile, is_same_file
from ._pieces import DocumentPiece
from ._store import (
    Document,
    IndexedDocument,
    StoredPiece,
    VectorSpace,
    extract_words,
    separate_words,
    vector_space_error,
)
from ._vectors import Vectors
from .errors import KnowledgeError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["SqliteStore"]

T = TypeVar("T")

TABLES = (
    """create table source (
        id integer primary key, origin text not null unique, name text not null,
        digest text not null, added real not null
    ) strict""",
    """create table piece (
        id integer primary key autoincrement, source integer not null, heading text not null,
        text text not null, line integer not null, page integer not null, vector blob
    ) strict""",
    "create index piece_source on piece (source)",
    # Its words come from `separate_words`; the table does not store the text.
    """create virtual table words using fts5(
        heading, text, content = '', tokenize = 'porter unicode61 remove_diacritics 2'
    )""",
    "insert into words(words, rank) values ('rank', 'bm25(2.0, 1.0)')",
    # The vector space, and the number of changes, which tells whether cached vectors are current.
    "create table about (name text primary key, value) without rowid",
    "insert into about values ('changes', 0)",
)
# The position of each is the version of the file that it upgrades.
MIGRATIONS = [TABLES]
APPLICATION_ID = 0x416E614B  # "AnaK"
_WRITABLE_FILE = "give a file that this user may write"
_REMEDIES = {
    sqlite3.SQLITE_READONLY: _WRITABLE_FILE,
    sqlite3.SQLITE_PERM: _WRITABLE_FILE,
    sqlite3.SQLITE_CANTOPEN: _WRITABLE_FILE,
    sqlite3.SQLITE_CORRUPT: ("restore a backup, or move the file away and add the documents again"),
}


class SqliteStore:
    """A store in one file or in `":memory:"`. Calls run in a thread, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file = DatabaseFile(
            name=name,
            noun="an index",
            error=KnowledgeError,
            application=APPLICATION_ID,
            migrations=MIGRATIONS,
            remedies=_REMEDIES,
            pragmas=["page_size = 16384"],  # 4096 has room for one piece and its vector only
        )
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        # Closes the connection when the store is collected, or at exit.
        self._closer: weakref.finalize[[], SqliteStore] | None = None
        self._file_stat: os.stat_result | None = None  # of the open file
        self._inherited: list[sqlite3.Connection] = []
        # All vectors, and the value of `changes` when they were read.
        self._vectors: tuple[int, Vectors] | None = None
        _stores.add(self)

    def reset(self) -> None:
        """Reset the store in a fork, which has the parent's connection and a copy of its lock."""
        self._lock = threading.Lock()
        if self._connection is not None:
            self._inherited.append(self._connection)  # closing it would also end the parent's
            self._connection = None
            if self._closer is not None:
                self._closer.detach()

    async def close(self) -> None:
        await anyio.to_thread.run_sync(self._close)

    async def put(self, document: Document) -> None:
        await self._call(lambda sql: self._put(sql, document), writes=True)

    async def rename(self, origin: str, name: str) -> None:
        statement = "update source set name = ? where origin = ?"
        await self._call(lambda sql: sql.execute(statement, (name, origin)), writes=True)

    async def remove(self, origins: Sequence[str]) -> int:
        def remove_all(sql: sqlite3.Connection) -> int:
            return sum(_remove(sql, origin) for origin in origins)

        return await self._call(remove_all, writes=True) if origins else 0

    async def sources(self) -> list[IndexedDocument]:
        statement = """select name, origin, digest, count(piece.id), added
            from source left join piece on piece.source = source.id
            group by source.id order by name, origin"""
        return await self._call(
            lambda sql: [IndexedDocument(*row) for row in sql.execute(statement)]
        )

    async def vector_space(self) -> VectorSpace | None:
        return await self._call(_vector_space)

    async def search_words(self, question: str, limit: int) -> list[int]:
        if not (words := extract_words(question)):
            return []
        query = " OR ".join(f'"{word}"' for word in words)
        statement = "select rowid from words where words match ? order by rank limit ?"
        return await self._call(
            lambda sql: [row for (row,) in sql.execute(statement, (query, limit))]
        )

    async def search_vectors(self, vector: bytes, limit: int) -> list[int]:
        return await self._call(lambda sql: self._read_vectors(sql).nearest(vector, limit))

    async def read(self, numbers: Sequence[int]) -> list[StoredPiece]:
        statement = """select piece.id, name, heading, text, line, page
            from piece join source on piece.source = source.id where piece.id = ?"""

        def read_all(sql: sqlite3.Connection) -> list[StoredPiece]:
            rows = (sql.execute(statement, (number,)).fetchone() for number in numbers)
            return [
                StoredPiece(row[0], row[1], DocumentPiece(*row[2:]))
                for row in rows
                if row is not None
            ]

        return await self._call(read_all)

    # --- in a thread

    async def _call(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> T:
        def call() -> T:
            with self._lock, self._transaction(writes=writes) as connection:
                return work(connection)

        return await anyio.to_thread.run_sync(call)

    @contextmanager
    def _transaction(self, *, writes: bool) -> Generator[sqlite3.Connection]:
        try:
            if self._connection is None:
                if self._name != MEMORY:
                    self._file.require_place()
                self._connection = self._file.connect()
                self._closer = weakref.finalize(self, self._connection.close)
                self._file_stat = None if self._name == MEMORY else os.stat(self._name)
            elif self._file_stat is not None and not is_same_file(self._name, self._file_stat):
                why = "was removed or replaced while it was open"
                raise KnowledgeError(
                    self._name, why, "put the file back, or close the index and open it again"
                )
            sql = self._connection
            sql.execute("begin immediate" if writes else "begin")
            try:
                yield sql
                if writes:
                    sql.execute("update about set value = value + 1 where name = 'changes'")
                sql.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):
                    sql.execute("rollback")
                raise
        except (sqlite3.Error, OSError) as error:
            raise self._file.explain(error) from error

    def _close(self) -> None:
        with self._lock:
            self._vectors = None
            if self._closer is not None:
                self._closer()
            self._connection = None

    def _put(self, sql: sqlite3.Connection, document: Document) -> None:
        if document.pieces:
            _check_vector_space(self._name, sql, document.vector_space)
        _remove(sql, document.origin)
        values = document.origin, document.name, document.digest, time.time()
        insert = "insert into source (origin, name, digest, added) values (?, ?, ?, ?) returning id"
        (source,) = sql.execute(insert, values).fetchone()
        vectors = document.vectors or [None] * len(document.pieces)
        for piece, vector in zip(document.pieces, vectors, strict=True):
            insert = """insert into piece (source, heading, text, line, page, vector)
                values (?, ?, ?, ?, ?, ?) returning id"""
            (number,) = sql.execute(insert, (source, *piece, vector)).fetchone()
            words = number, separate_words(piece.heading), separate_words(piece.text)
            sql.execute("insert into words (rowid, heading, text) values (?, ?, ?)", words)

    def _read_vectors(self, sql: sqlite3.Connection) -> Vectors:
        (changes,) = sql.execute("select value from about where name = 'changes'").fetchone()
        if self._vectors is None or self._vectors[0] != changes:
            vector_space = _vector_space(sql)
            rows = sql.execute("select id, vector from piece where vector is not null")
            self._vectors = changes, Vectors(rows, 0 if vector_space is None else vector_space.size)
        return self._vectors[1]


_stores = weakref.WeakSet[SqliteStore]()


def _reset_all() -> None:
    for store in _stores:
        store.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


def _remove(sql: sqlite3.Connection, origin: str) -> int:
    if (
        found := sql.execute("select id from source where origin = ?", (origin,)).fetchone()
    ) is None:
        return 0
    for number, heading, text in sql.execute(
        "select id, heading, text from piece where source = ?", found
    ).fetchall():
        sql.execute(
            "insert into words (words, rowid, heading, text) values ('delete', ?, ?, ?)",
            (number, separate_words(heading), separate_words(text)),
        )
    sql.execute("delete from piece where source = ?", found)
    sql.execute("delete from source where id = ?", found)
    return 1


def _vector_space(sql: sqlite3.Connection) -> VectorSpace | None:
    found = dict(sql.execute("select name, value from about where name in ('embedder', 'size')"))
    return VectorSpace(found["embedder"], found["size"]) if found else None


def _check_vector_space(
    name: str, sql: sqlite3.Connection, vector_space: VectorSpace | None
) -> None:
    """Refuse vectors of another vector space than that of the index; set it with the first ones."""
    before = _vector_space(sql)
    if before is None and vector_space is not None:
        values = [("embedder", vector_space.embedder), ("size", vector_space.size)]
        sql.executemany("insert into about values (?, ?)", values)
    elif before != vector_space:
        raise vector_space_error(name, before, vector_space)
