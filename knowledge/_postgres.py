"""The store in PostgreSQL: words by its text search, vectors by pgvector.

Each index is a schema. Its tables have a version, and are created or upgraded under a lock. One
transaction adds a document, so a kill leaves the index as it was.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar
from unicodedata import normalize
from urllib.parse import parse_qsl, urlencode

from ..commander.errors import ConfigurationError, MissingExtra
from ._pieces import DocumentPiece
from ._store import (
    ACCENT_MARKS,
    Document,
    IndexedDocument,
    StoredPiece,
    VectorSpace,
    extract_words,
    separate_words,
    vector_space_error,
)
from .errors import KnowledgeError

__all__ = ["PostgresStore", "is_postgres_address"]

T = TypeVar("T")

# Seconds for a connection and for a statement: a server may have disappeared without closing.
TIMEOUT_SECONDS = 60.0
# For each event loop.
MAX_CONNECTIONS = 10
# Seconds for the server to confirm the end of a connection.
CLOSE_SECONDS = 5.0
# Pieces in one statement.
BATCH_ROWS = 200
# `IDX` is the schema of the index. Each step upgrades the tables by one version.
MIGRATION_STEPS = (
    """
    create table IDX.about (name text primary key, value text not null);
    create table IDX.source (
        id bigint generated always as identity primary key,
        origin text not null unique, name text not null, digest text not null,
        pieces bigint not null, added timestamptz not null default now()
    );
    create table IDX.piece (
        id bigint generated always as identity primary key,
        source bigint not null references IDX.source on delete cascade,
        heading text not null, text text not null, line integer not null, page integer not null,
        words tsvector not null
    );
    create index on IDX.piece (source);
    create index on IDX.piece using gin (words);
    create text search dictionary IDX.stem (template = pg_catalog.snowball, language = english);
    create text search configuration IDX.words (copy = pg_catalog.simple);
    alter text search configuration IDX.words alter mapping for asciiword, word with IDX.stem;
    """,
)
# Created with the first vectors, whose size is part of the type.
CREATE_VECTORS = """create table IDX.vector (
    piece bigint primary key references IDX.piece on delete cascade,
    vector EXT.vector(SIZE) not null
)"""
PUT_SOURCE = """insert into IDX.source (origin, name, digest, pieces) values ($1, $2, $3, $4)
    on conflict (origin) do update set name = $2, digest = $3, pieces = $4, added = now()
    returning id"""
PUT_PIECE = """insert into IDX.piece (source, heading, text, line, page, words)
    values ($1, $2, $3, $4, $5, setweight(to_tsvector('IDX.words', $6), 'A')
        || setweight(to_tsvector('IDX.words', $7), 'B'))"""
PUT_VECTOR = """with made as (PUT_PIECE returning id)
    insert into IDX.vector select id, $8::real[]::EXT.vector from made""".replace(
    "PUT_PIECE", PUT_PIECE
)
# Locks in the order of the origins: otherwise two processes could wait for each other forever.
REMOVE_SOURCES = """with there as (
        select id from IDX.source where origin = any($1) order by origin for update
    ), gone as (delete from IDX.source using there where source.id = there.id returning 1)
    select count(*) from gone"""
# Words in few pieces weigh more, and words in headings weigh more.
SEARCH_WORDS = """with word as materialized (
        select asked, ln(1 + (whole.pieces - those.pieces + 0.5) / (those.pieces + 0.5)) as weight
        from unnest($1::text[]) as text, to_tsquery('IDX.words', text) as asked,
            (select sum(pieces)::float8 as pieces from IDX.source) as whole, lateral
            (select count(*)::float8 as pieces from IDX.piece where words @@ asked) as those
    )
    select id from word, IDX.piece where words @@ asked group by id
    order by sum(weight * ts_rank('{0, 0, 0.7, 1}', words, asked, 1)) desc, id limit $2"""
# Vectors have length one, so the nearest have the greatest inner product.
SEARCH_VECTORS = """select piece from IDX.vector
    order by vector operator(EXT.<#>) (select $1::real[]::EXT.vector), piece limit $2"""
LIST_SOURCES = """select name, origin, digest, pieces, extract(epoch from added)::float8
    from IDX.source order by name collate "C", origin collate "C", id"""
READ_PIECES = """select piece.id, name, heading, text, line, page
    from unnest($1::bigint[]) with ordinality as wanted (id, place)
    join IDX.piece on piece.id = wanted.id join IDX.source on source.id = piece.source
    order by place"""
FIND_EXTENSION = """select quote_ident(nspname) from pg_catalog.pg_extension
    join pg_catalog.pg_namespace on pg_namespace.oid = extnamespace where extname = 'vector'"""
ADDRESS_PATTERN = re.compile(
    r"(postgres(?:ql)?://)(?:([^:@/?#]*)(?::[^@/?#]*)?@)?([^@/?#]*)(/[^@/?#]*)?(?:\?([^@#]*))?"
)
INDEX_NAME = re.compile(r"[a-z0-9_]{1,40}")
# PostgreSQL ignores much longer words, so they are split.
WORD_PATTERN = re.compile(r"[^\W_]{1,500}")
USER_REMEDY = "give the right user and password"
RIGHTS_REMEDY = "ask its owner to grant the permission, or to create the schema"
LOST_TABLES_REMEDY = "drop its schema, if it still exists, and add the documents again"
UNREACHABLE_REMEDY = "check that the server runs and that the address is right"
# These query the catalog itself. Name resolution may not yet see tables that another process
# created while this one waited for the lock.
SCHEMA_EXISTS = "select exists (select from pg_catalog.pg_namespace where nspname = $1)"
TABLES_EXIST = """select exists (select from pg_catalog.pg_class join pg_catalog.pg_namespace
    on pg_namespace.oid = relnamespace where nspname = $1 and relname = 'about')"""
LOCK_SCHEMA = "select pg_advisory_xact_lock(hashtextextended($1, 0))"


def is_postgres_address(name: str) -> bool:
    """Return whether an index with this name is in PostgreSQL, also if the address is misspelled.

    A misspelled address must not be taken for a file name: messages show file names, and the
    address may contain a password.
    """
    return "://" in name or name.lstrip().lower().startswith(("postgresql:", "postgres:"))


class _LoopConnections:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self.idle: list[Any] = []
        self.limit = asyncio.Semaphore(MAX_CONNECTIONS)
        self.closed = False


class PostgresStore:
    """A store in a database: `postgresql://user@host/database?index=notes`.

    Each event loop has its own connections, which `close` or the end of the loop closes.
    """

    def __init__(self, address: str) -> None:
        self._address, self.name, self._schema = _read_address(address)
        try:
            self._driver: Any = import_module("asyncpg")
        except ImportError as error:
            raise MissingExtra("an index in PostgreSQL", "postgres") from error
        self._errors = (
            self._driver.PostgresError,
            self._driver.InterfaceError,
            self._driver.InternalClientError,
            OSError,
        )
        self._connections: dict[asyncio.AbstractEventLoop, AsyncGenerator[_LoopConnections]] = {}
        self._is_prepared = False  # whether the tables exist in this version

    async def close(self) -> None:
        if (connections := self._connections.pop(asyncio.get_running_loop(), None)) is not None:
            await connections.aclose()

    async def put(self, document: Document) -> None:
        await self._call(lambda sql: self._put(sql, document))

    async def rename(self, origin: str, name: str) -> None:
        statement = self._format("update IDX.source set name = $2 where origin = $1")
        await self._call(lambda sql: sql.execute(statement, _text(origin), _text(name)))

    async def remove(self, origins: Sequence[str]) -> int:
        values = [_text(origin) for origin in origins]
        return await self._call(lambda sql: sql.fetchval(self._format(REMOVE_SOURCES), values))

    async def sources(self) -> list[IndexedDocument]:
        rows = await self._call(lambda sql: sql.fetch(self._format(LIST_SOURCES)))
        return [IndexedDocument(*row) for row in rows]

    async def vector_space(self) -> VectorSpace | None:
        return await self._call(self._vector_space)

    async def search_words(self, question: str, limit: int) -> list[int]:
        words = [f"'{word}'" for word in map(_words, extract_words(question)) if word]
        if not words:
            return []
        rows = await self._call(lambda sql: sql.fetch(self._format(SEARCH_WORDS), words, limit))
        return [number for (number,) in rows]

    async def search_vectors(self, vector: bytes, limit: int) -> list[int]:
        async def search(sql: Any) -> list[Any]:
            if await self._vector_space(sql) is None:
                return []
            statement = self._format(SEARCH_VECTORS, await self._extension(sql))
            return await sql.fetch(statement, _floats(vector), limit)

        return [number for (number,) in await self._call(search)]

    async def read(self, numbers: Sequence[int]) -> list[StoredPiece]:
        rows = await self._call(lambda sql: sql.fetch(self._format(READ_PIECES), list(numbers)))
        return [StoredPiece(row[0], row[1], DocumentPiece(*row[2:])) for row in rows]

    # --- on a connection

    async def _call(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run `work` on a connection.

        If an idle connection turns out to be lost, `work` runs again on another one: the server may
        have closed it long ago. Each `work` may run twice: the second run has the same outcome.
        """
        connections = await anext(self._loop_connections())
        async with connections.limit:
            while True:
                sql = connections.idle.pop() if connections.idle else None
                is_new = sql is None
                try:
                    sql = await self._connect() if sql is None else sql
                    if not self._is_prepared:
                        await self._prepare(sql)
                        self._is_prepared = True
                    done = await work(sql)
                except BaseException as error:
                    self._is_prepared = False
                    if sql is not None:
                        sql.terminate()  # a statement may still run on it
                    if not isinstance(error, self._errors):
                        raise
                    if is_new or not self._is_lost(error):
                        raise self._trouble(error) from error
                else:
                    if connections.closed:
                        await self._close(sql)
                    else:
                        connections.idle.append(sql)
                    return done

    def _loop_connections(self) -> AsyncGenerator[_LoopConnections]:
        """Return a generator of the running loop's connections.

        The loop closes its async generators when it shuts down, and so the connections.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            for other in [other for other in self._connections if other.is_closed()]:
                del self._connections[other]

            async def keep() -> AsyncGenerator[_LoopConnections]:
                connections = _LoopConnections()
                try:
                    while True:
                        yield connections
                finally:
                    connections.closed = True
                    for sql in connections.idle:
                        await self._close(sql)

            self._connections[loop] = keep()
        return self._connections[loop]

    async def _connect(self) -> Any:
        # These errors may quote a part of the password.
        with suppress(ValueError, IndexError):
            return await self._driver.connect(
                self._address, timeout=TIMEOUT_SECONDS, command_timeout=TIMEOUT_SECONDS
            )
        why = "has an invalid address"
        raise KnowledgeError(self.name, why, "write postgresql://user@host:port/database")

    async def _close(self, sql: Any) -> None:
        with suppress(*self._errors):  # it may already be lost
            await sql.close(timeout=CLOSE_SECONDS)

    def _format(self, statement: str, extension: str = "") -> str:
        return statement.replace("IDX.", f"{self._schema}.").replace("EXT.", f"{extension}.")

    async def _prepare(self, sql: Any) -> None:
        """Create or upgrade the tables, unless another process has."""
        if await self._version(sql) == len(MIGRATION_STEPS):
            return
        async with sql.transaction(isolation="read_committed"):
            await sql.execute(LOCK_SCHEMA, self._schema)
            version = await self._version(sql)
            if not await sql.fetchval(SCHEMA_EXISTS, self._schema):
                await sql.execute(f"create schema {self._schema}")
            for step in MIGRATION_STEPS[version:]:
                await sql.execute(self._format(step))
            statement = """insert into IDX.about values ('version', $1)
                on conflict (name) do update set value = $1"""
            await sql.execute(self._format(statement), str(len(MIGRATION_STEPS)))

    async def _version(self, sql: Any) -> int:
        if not await sql.fetchval(TABLES_EXIST, self._schema):
            return 0
        statement = self._format("select value from IDX.about where name = 'version'")
        version = int(await sql.fetchval(statement) or 0)
        if version > len(MIGRATION_STEPS):
            why = f"has tables of version {version}, newer than {len(MIGRATION_STEPS)}"
            raise KnowledgeError(self.name, why, "upgrade anabranch")
        return version

    async def _put(self, sql: Any, document: Document) -> None:
        pieces = document.pieces
        values = [_text(each) for each in (document.origin, document.name, document.digest)]
        async with sql.transaction(isolation="read_committed"):
            if pieces:
                await self._check_vector_space(sql, document.vector_space)
            source = await sql.fetchval(self._format(PUT_SOURCE), *values, len(pieces))
            await sql.execute(self._format("delete from IDX.piece where source = $1"), source)
            statement = self._format(PUT_PIECE)
            if document.vectors:
                statement = self._format(PUT_VECTOR, await self._extension(sql))
            for start in range(0, len(pieces), BATCH_ROWS):
                rows = [_row(source, piece) for piece in pieces[start : start + BATCH_ROWS]]
                if document.vectors:
                    vectors = document.vectors[start : start + BATCH_ROWS]
                    rows = [(*r, _floats(v)) for r, v in zip(rows, vectors, strict=True)]
                await sql.executemany(statement, rows)

    async def _vector_space(self, sql: Any) -> VectorSpace | None:
        statement = "select name, value from IDX.about where name in ('embedder', 'size')"
        about = {row[0]: row[1] for row in await sql.fetch(self._format(statement))}
        return VectorSpace(about["embedder"], int(about["size"])) if about else None

    async def _check_vector_space(self, sql: Any, vector_space: VectorSpace | None) -> None:
        """Refuse vectors that do not fit the index; the first vectors decide which ones fit."""
        current = await self._vector_space(sql)
        if current is None and vector_space is not None:
            await sql.execute(LOCK_SCHEMA, self._schema)
            current = await self._vector_space(sql)  # perhaps set before the lock
            if current is None:
                current = vector_space
                extension = await self._extension(sql)
                table = self._format(CREATE_VECTORS, extension).replace(
                    "SIZE", str(vector_space.size)
                )
                await sql.execute(table)
                statement = "insert into IDX.about values ('embedder', $1), ('size', $2)"
                await sql.execute(
                    self._format(statement), vector_space.embedder, str(vector_space.size)
                )
        if current != vector_space:
            raise vector_space_error(self.name, current, vector_space)

    async def _extension(self, sql: Any) -> str:
        """Return the schema of pgvector, which may be outside of the search path."""
        schema: str | None = await sql.fetchval(FIND_EXTENSION)
        if schema is None:
            why = "needs pgvector for vectors, and its database does not have it"
            remedy = "run `create extension vector` as a superuser, or omit embed="
            raise KnowledgeError(self.name, why, remedy)
        return schema

    def _is_lost(self, error: BaseException) -> bool:
        """Return whether the connection is lost, or none can be made."""
        if isinstance(error, OSError):
            return not isinstance(error, TimeoutError)
        driver = self._driver
        kinds = (
            driver.InterfaceError,
            driver.InternalClientError,
            driver.PostgresConnectionError,
            driver.AdminShutdownError,
            driver.CrashShutdownError,
        )
        return isinstance(error, kinds)

    def _trouble(self, error: BaseException) -> KnowledgeError:
        driver = self._driver
        kinds: list[tuple[Any, str, str]] = [
            (driver.InvalidAuthorizationSpecificationError, "rejects this user", USER_REMEDY),
            (driver.InsufficientPrivilegeError, "denies this user the permission", RIGHTS_REMEDY),
            (driver.ReadOnlySQLTransactionError, "is read-only", "use the primary server"),
            (driver.InvalidCatalogNameError, "has no database", "`create database` it first"),
            (driver.TooManyConnectionsError, "has no connection left", "try again later"),
            (
                driver.DiskFullError,
                "cannot grow, because the disk is full",
                "free space on the server's disk",
            ),
            (driver.CannotConnectNowError, "cannot be reached now", "try again later"),
            (driver.UndefinedTableError, "has lost a table", LOST_TABLES_REMEDY),
            (driver.DuplicateTableError, "has lost a part of its tables", LOST_TABLES_REMEDY),
            (TimeoutError, f"gave no answer within {TIMEOUT_SECONDS:g} s", UNREACHABLE_REMEDY),
        ]
        why, remedy = "could not be used", "see the cause of this error"
        if self._is_lost(error):
            why, remedy = "cannot be reached", UNREACHABLE_REMEDY
        for kind, its_why, its_remedy in kinds:
            if isinstance(error, kind):
                why, remedy = its_why, its_remedy
                break
        detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return KnowledgeError(self.name, f"{why} ({detail[:300]})", remedy)


def _read_address(address: str) -> tuple[str, str, str]:
    """Return the address for the driver, the address without password, and the schema."""
    if (match := ADDRESS_PATTERN.fullmatch(address)) is None:
        raise ConfigurationError(
            "the address of an index in PostgreSQL must be"
            " postgresql://user:password@host:port/database?index=name, with %40 for @, %3A for :,"
            " %2F for /, %3F for ? and %23 for # in the password"
        )
    scheme, user, hosts, database, query = (each or "" for each in match.groups())
    options = parse_qsl(query, keep_blank_values=True)
    names = [value for key, value in options if key == "index"]
    if len(names) > 1 or not all(INDEX_NAME.fullmatch(name) for name in names):
        raise ConfigurationError(
            "the name of an index in PostgreSQL, as in ?index=name, must have at most 40"
            " characters of a-z, 0-9 and _"
        )
    others = urlencode([(key, value) for key, value in options if key != "index"])
    base = address.partition("?")[0]
    public_address = f"{scheme}{user}{'@' if user else ''}{hosts}{database}"
    schema = "_".join(["anabranch_knowledge", *names])
    public_address = f"{public_address}?index={names[0]}" if names else public_address
    return f"{base}?{others}" if others else base, public_address, schema


def _row(source: int, piece: DocumentPiece) -> tuple[Any, ...]:
    heading, text, line, page = piece
    return source, _text(heading), _text(text), line, page, _words(heading), _words(text)


def _text(text: str) -> str:
    """Return a text without null characters, which PostgreSQL cannot store."""
    return text.replace("\0", "\ufffd")


def _words(text: str) -> str:
    """Return the words of a text without accents, by Python's rules instead of the server's."""
    plain = normalize(
        "NFC", ACCENT_MARKS.sub("", normalize("NFKD", separate_words(text).casefold()))
    )
    return " ".join(WORD_PATTERN.findall(plain))


def _floats(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)
