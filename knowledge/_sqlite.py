"""An index in an SQLite file: words by FTS5, vectors beside the pieces.

The tables are created in one transaction. A document is added in one and removed in one, so a kill
leaves the file as it was before. Several processes may use one file.
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

from ..messages.sqlite import MEMORY, DatabaseFile, is_same_file
from ._pieces import Piece
from ._store import Document, Found, Maker, Source, other_maker
from ._vectors import Vectors
from ._words import apart, words_of
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
    # Its words are those of `apart`: they are given, and never read from the table of pieces.
    """create virtual table words using fts5(
        heading, text, content = '', tokenize = 'porter unicode61 remove_diacritics 2'
    )""",
    "insert into words(words, rank) values ('rank', 'bm25(2.0, 1.0)')",
    # Who makes the vectors, and how often the file was changed.
    "create table about (name text primary key, value) without rowid",
    "insert into about values ('changes', 0)",
)
MIGRATIONS = [TABLES]  # the index of each is the version of the file that it changes
APPLICATION = 0x416E614B  # "AnaK"
_ELSEWHERE = "name a file that this user may write"
_REMEDIES = {
    sqlite3.SQLITE_READONLY: _ELSEWHERE,
    sqlite3.SQLITE_PERM: _ELSEWHERE,
    sqlite3.SQLITE_CANTOPEN: _ELSEWHERE,
    sqlite3.SQLITE_CORRUPT: (
        "put a copy from a backup in its place, or move it away and add the documents again"
    ),
}


class SqliteStore:
    """One file, or ":memory:". Calls run in a thread, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file = DatabaseFile(
            name=name,
            noun="an index",
            error=KnowledgeError,
            application=APPLICATION,
            migrations=MIGRATIONS,
            remedies=_REMEDIES,
            pragmas=["page_size = 16384"],  # only one piece with its vector would fit into 4096
        )
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        # Closes the connection of a store that is never closed, when it is collected or at exit.
        self._closer: weakref.finalize[[], SqliteStore] | None = None
        self._stat: os.stat_result | None = None  # of the file that is open
        self._inherited: list[sqlite3.Connection] = []
        # All vectors, and the value of `changes` when they were read.
        self._vectors: tuple[int, Vectors] | None = None
        _stores.add(self)

    def reset(self) -> None:
        """Reset in a fork: the connection is the parent's, and a thread of it may hold the lock."""
        self._lock = threading.Lock()
        if self._connection is not None:
            self._inherited.append(self._connection)  # closing it would end both connections
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

    async def sources(self) -> list[Source]:
        statement = """select name, origin, digest, count(piece.id), added
            from source left join piece on piece.source = source.id
            group by source.id order by name, origin"""
        return await self._call(lambda sql: [Source(*row) for row in sql.execute(statement)])

    async def maker(self) -> Maker | None:
        return await self._call(_maker)

    async def by_words(self, question: str, most: int) -> list[int]:
        if not (words := words_of(question)):
            return []
        asked = " OR ".join(f'"{word}"' for word in words)
        statement = "select rowid from words where words match ? order by rank limit ?"
        return await self._call(
            lambda sql: [row for (row,) in sql.execute(statement, (asked, most))]
        )

    async def by_vector(self, vector: bytes, most: int) -> list[int]:
        return await self._call(lambda sql: self._read_vectors(sql).nearest(vector, most))

    async def read(self, numbers: Sequence[int]) -> list[Found]:
        statement = """select piece.id, name, heading, text, line, page
            from piece join source on piece.source = source.id where piece.id = ?"""

        def read_all(sql: sqlite3.Connection) -> list[Found]:
            rows = (sql.execute(statement, (number,)).fetchone() for number in numbers)
            return [Found(row[0], row[1], Piece(*row[2:])) for row in rows if row is not None]

        return await self._call(read_all)

    # The rest runs in a thread.

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
                self._stat = None if self._name == MEMORY else os.stat(self._name)
            elif self._stat is not None and not is_same_file(self._name, self._stat):
                why = "was taken away or replaced while it was open"
                raise KnowledgeError(self._name, why, "put it back, or close it and open it anew")
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
            _check_maker(self._name, sql, document.maker)
        _remove(sql, document.origin)
        values = document.origin, document.name, document.digest, time.time()
        insert = "insert into source (origin, name, digest, added) values (?, ?, ?, ?) returning id"
        (source,) = sql.execute(insert, values).fetchone()
        vectors = document.vectors or [None] * len(document.pieces)
        for piece, vector in zip(document.pieces, vectors, strict=True):
            insert = """insert into piece (source, heading, text, line, page, vector)
                values (?, ?, ?, ?, ?, ?) returning id"""
            (number,) = sql.execute(insert, (source, *piece, vector)).fetchone()
            words = number, apart(piece.heading), apart(piece.text)
            sql.execute("insert into words (rowid, heading, text) values (?, ?, ?)", words)

    def _read_vectors(self, sql: sqlite3.Connection) -> Vectors:
        (changes,) = sql.execute("select value from about where name = 'changes'").fetchone()
        if self._vectors is None or self._vectors[0] != changes:
            maker = _maker(sql)
            rows = sql.execute("select id, vector from piece where vector is not null")
            self._vectors = changes, Vectors(rows, 0 if maker is None else maker.size)
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
            (number, apart(heading), apart(text)),
        )
    sql.execute("delete from piece where source = ?", found)
    sql.execute("delete from source where id = ?", found)
    return 1


def _maker(sql: sqlite3.Connection) -> Maker | None:
    found = dict(sql.execute("select name, value from about where name in ('embedder', 'size')"))
    return Maker(found["embedder"], found["size"]) if found else None


def _check_maker(name: str, sql: sqlite3.Connection, maker: Maker | None) -> None:
    """Refuse vectors of another embedding model than that of the index."""
    before = _maker(sql)
    if before is None and maker is not None:
        values = [("embedder", maker.embedder), ("size", maker.size)]
        sql.executemany("insert into about values (?, ?)", values)
    elif before != maker:
        raise other_maker(name, before, maker)
