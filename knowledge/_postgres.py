"""An index in PostgreSQL: words by its text search, vectors by pgvector.

Each index is a schema. Its tables have a version and are made, or brought up to date, under a lock.
A document is put in by one transaction: whoever is killed leaves the index as it was before.
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
from ._pieces import Piece
from ._store import Document, Found, Maker, Source, other_maker
from ._words import apart, words_of
from .errors import KnowledgeError

__all__ = ["PostgresStore", "is_address"]

T = TypeVar("T")

PATIENCE = 60.0  # seconds for a connection, and for a statement: a server may have gone silently
CONNECTIONS = 10  # of each loop, at most
CLOSING = 5.0  # seconds for the server to say goodbye
ROWS = 200  # that are put in by one statement
# `IDX` is the schema of the index. Each version of its tables is made from the one before.
STEPS = (
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
# Of vectors there is a table when there are the first ones: it says of how many numbers they are.
VECTORS = """create table IDX.vector (
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
# Always in the order of their origins: two that wait for each other would wait for ever.
REMOVE = """with there as (
        select id from IDX.source where origin = any($1) order by origin for update
    ), gone as (delete from IDX.source using there where source.id = there.id returning 1)
    select count(*) from gone"""
# A word counts the more, the fewer pieces have it, and in a heading more.
BY_WORDS = """with word as materialized (
        select asked, ln(1 + (whole.pieces - those.pieces + 0.5) / (those.pieces + 0.5)) as weight
        from unnest($1::text[]) as text, to_tsquery('IDX.words', text) as asked,
            (select sum(pieces)::float8 as pieces from IDX.source) as whole, lateral
            (select count(*)::float8 as pieces from IDX.piece where words @@ asked) as those
    )
    select id from word, IDX.piece where words @@ asked group by id
    order by sum(weight * ts_rank('{0, 0, 0.7, 1}', words, asked, 1)) desc, id limit $2"""
# Vectors have the length one: of those the nearest have the greatest product.
BY_VECTOR = """select piece from IDX.vector
    order by vector operator(EXT.<#>) (select $1::real[]::EXT.vector), piece limit $2"""
SOURCES = """select name, origin, digest, pieces, extract(epoch from added)::float8
    from IDX.source order by name collate "C", origin collate "C", id"""
READ = """select piece.id, name, heading, text, line, page
    from unnest($1::bigint[]) with ordinality as wanted (id, place)
    join IDX.piece on piece.id = wanted.id join IDX.source on source.id = piece.source
    order by place"""
EXTENSION = """select quote_ident(nspname) from pg_catalog.pg_extension
    join pg_catalog.pg_namespace on pg_namespace.oid = extnamespace where extname = 'vector'"""
ADDRESS = re.compile(
    r"(postgres(?:ql)?://)(?:([^:@/?#]*)(?::[^@/?#]*)?@)?([^@/?#]*)(/[^@/?#]*)?(?:\?([^@#]*))?"
)
NAME = re.compile(r"[a-z0-9_]{1,40}")
WORD = re.compile(r"[^\W_]{1,500}")  # PostgreSQL leaves out much longer ones: they are several
ACCENTS = re.compile(r"[\u0300-\u036f]")
USER = "give the right user and password"
RIGHTS = "have its owner grant this user what is missing, or make the schema for it"
ANEW = "drop its schema, if that is still there, and add the documents again"
REACH = "see that the server runs, and that its address is right"
# Of the catalog itself: what finds names for a statement may not have seen yet what another process
# has made while this one waited for the lock.
SCHEMA_THERE = "select exists (select from pg_catalog.pg_namespace where nspname = $1)"
TABLES_THERE = """select exists (select from pg_catalog.pg_class join pg_catalog.pg_namespace
    on pg_namespace.oid = relnamespace where nspname = $1 and relname = 'about')"""
LOCK = "select pg_advisory_xact_lock(hashtextextended($1, 0))"


def is_address(name: str) -> bool:
    """Say whether an index of this name is in PostgreSQL, also if its address is misspelt.

    No file is called so; and what was meant as an address may have a password, and is not shown.
    """
    return "://" in name or name.lstrip().lower().startswith(("postgresql:", "postgres:"))


class _Kept:
    """The connections of a loop: those that nobody uses, and how many there may be."""

    def __init__(self) -> None:
        self.idle: list[Any] = []
        self.limit = asyncio.Semaphore(CONNECTIONS)
        self.closed = False


class PostgresStore:
    """One index of a database: `postgresql://user@host/database?index=notes`.

    Each event loop has connections of its own, closed by `close` or with it.
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
        self._kept: dict[asyncio.AbstractEventLoop, AsyncGenerator[_Kept]] = {}
        self._ready = False  # the tables are there, and of this version

    async def close(self) -> None:
        if (kept := self._kept.pop(asyncio.get_running_loop(), None)) is not None:
            await kept.aclose()

    async def put(self, document: Document) -> None:
        await self._call(lambda sql: self._put(sql, document))

    async def rename(self, origin: str, name: str) -> None:
        statement = self._of("update IDX.source set name = $2 where origin = $1")
        await self._call(lambda sql: sql.execute(statement, _text(origin), _text(name)))

    async def remove(self, origins: Sequence[str]) -> int:
        asked = [_text(origin) for origin in origins]
        return await self._call(lambda sql: sql.fetchval(self._of(REMOVE), asked))

    async def sources(self) -> list[Source]:
        rows = await self._call(lambda sql: sql.fetch(self._of(SOURCES)))
        return [Source(*row) for row in rows]

    async def maker(self) -> Maker | None:
        return await self._call(self._maker)

    async def by_words(self, question: str, most: int) -> list[int]:
        asked = [f"'{word}'" for word in map(_words, words_of(question)) if word]
        if not asked:
            return []
        rows = await self._call(lambda sql: sql.fetch(self._of(BY_WORDS), asked, most))
        return [number for (number,) in rows]

    async def by_vector(self, vector: bytes, most: int) -> list[int]:
        async def search(sql: Any) -> list[Any]:
            if await self._maker(sql) is None:
                return []
            statement = self._of(BY_VECTOR, await self._extension(sql))
            return await sql.fetch(statement, _floats(vector), most)

        return [number for (number,) in await self._call(search)]

    async def read(self, numbers: Sequence[int]) -> list[Found]:
        rows = await self._call(lambda sql: sql.fetch(self._of(READ), list(numbers)))
        return [Found(row[0], row[1], Piece(*row[2:])) for row in rows]

    # --- on a connection

    async def _call(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do something on a connection.

        If one that was idle turns out to be lost, it is done again on another: the server may have
        closed it long ago. Where it had been done all the same, twice comes to the same.
        """
        kept = await anext(self._kept_here())
        async with kept.limit:
            while True:
                sql = kept.idle.pop() if kept.idle else None
                is_new = sql is None
                try:
                    sql = await self._connect() if sql is None else sql
                    if not self._ready:
                        await self._prepare(sql)
                        self._ready = True
                    done = await work(sql)
                except BaseException as error:
                    self._ready = False
                    if sql is not None:
                        sql.terminate()  # whatever is under way on it
                    if not isinstance(error, self._errors):
                        raise
                    if is_new or not self._is_lost(error):
                        raise self._trouble(error) from error
                else:
                    if kept.closed:
                        await self._close(sql)
                    else:
                        kept.idle.append(sql)
                    return done

    def _kept_here(self) -> AsyncGenerator[_Kept]:
        """Return what gives the connections of the running loop, and closes them with it."""
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            for other in [other for other in self._kept if other.is_closed()]:
                del self._kept[other]

            async def keep() -> AsyncGenerator[_Kept]:
                kept = _Kept()
                try:
                    while True:
                        yield kept
                finally:
                    kept.closed = True
                    for sql in kept.idle:
                        await self._close(sql)

            self._kept[loop] = keep()
        return self._kept[loop]

    async def _connect(self) -> Any:
        with suppress(ValueError, IndexError):  # which may say a part of the password
            return await self._driver.connect(
                self._address, timeout=PATIENCE, command_timeout=PATIENCE
            )
        why = "has an address that cannot be read"
        raise KnowledgeError(self.name, why, "write postgresql://user@host:port/database")

    async def _close(self, sql: Any) -> None:
        with suppress(*self._errors):  # it may be lost already
            await sql.close(timeout=CLOSING)

    def _of(self, statement: str, extension: str = "") -> str:
        return statement.replace("IDX.", f"{self._schema}.").replace("EXT.", f"{extension}.")

    async def _prepare(self, sql: Any) -> None:
        """Make the tables, or bring them up to date, unless another process has."""
        if await self._version(sql) == len(STEPS):
            return
        async with sql.transaction(isolation="read_committed"):
            await sql.execute(LOCK, self._schema)
            version = await self._version(sql)
            if not await sql.fetchval(SCHEMA_THERE, self._schema):
                await sql.execute(f"create schema {self._schema}")
            for step in STEPS[version:]:
                await sql.execute(self._of(step))
            statement = """insert into IDX.about values ('version', $1)
                on conflict (name) do update set value = $1"""
            await sql.execute(self._of(statement), str(len(STEPS)))

    async def _version(self, sql: Any) -> int:
        if not await sql.fetchval(TABLES_THERE, self._schema):
            return 0
        statement = self._of("select value from IDX.about where name = 'version'")
        version = int(await sql.fetchval(statement) or 0)
        if version > len(STEPS):
            why = f"has tables of version {version}, and this anabranch knows {len(STEPS)}"
            raise KnowledgeError(self.name, why, "upgrade anabranch")
        return version

    async def _put(self, sql: Any, document: Document) -> None:
        pieces = document.pieces
        values = [_text(each) for each in (document.origin, document.name, document.digest)]
        async with sql.transaction(isolation="read_committed"):
            if pieces:
                await self._check_maker(sql, document.maker)
            source = await sql.fetchval(self._of(PUT_SOURCE), *values, len(pieces))
            await sql.execute(self._of("delete from IDX.piece where source = $1"), source)
            statement = self._of(PUT_PIECE)
            if document.vectors:
                statement = self._of(PUT_VECTOR, await self._extension(sql))
            for start in range(0, len(pieces), ROWS):
                rows = [_row(source, piece) for piece in pieces[start : start + ROWS]]
                if document.vectors:
                    vectors = document.vectors[start : start + ROWS]
                    rows = [(*r, _floats(v)) for r, v in zip(rows, vectors, strict=True)]
                await sql.executemany(statement, rows)

    async def _maker(self, sql: Any) -> Maker | None:
        statement = "select name, value from IDX.about where name in ('embedder', 'size')"
        found = {row[0]: row[1] for row in await sql.fetch(self._of(statement))}
        return Maker(found["embedder"], int(found["size"])) if found else None

    async def _check_maker(self, sql: Any, maker: Maker | None) -> None:
        """Refuse what would not fit what is there; the first maker's vectors say what fits."""
        before = await self._maker(sql)
        if before is None and maker is not None:
            await sql.execute(LOCK, self._schema)
            before = await self._maker(sql)  # another process may have been faster
            if before is None:
                before = maker
                extension = await self._extension(sql)
                table = self._of(VECTORS, extension).replace("SIZE", str(maker.size))
                await sql.execute(table)
                statement = "insert into IDX.about values ('embedder', $1), ('size', $2)"
                await sql.execute(self._of(statement), maker.embedder, str(maker.size))
        if before != maker:
            raise other_maker(self.name, before, maker)

    async def _extension(self, sql: Any) -> str:
        """Return in which schema pgvector is: not all have it where names are looked for."""
        found: str | None = await sql.fetchval(EXTENSION)
        if found is None:
            why = "needs pgvector for vectors, which its database has not"
            remedy = "as a superuser, `create extension vector` in it, or leave embed= out"
            raise KnowledgeError(self.name, why, remedy)
        return found

    def _is_lost(self, error: BaseException) -> bool:
        """Say whether there is no connection any more, or none to be had."""
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
            (driver.InvalidAuthorizationSpecificationError, "lets this user not in", USER),
            (driver.InsufficientPrivilegeError, "lets this user not do that", RIGHTS),
            (driver.ReadOnlySQLTransactionError, "may not be written to", "name the main server"),
            (driver.InvalidCatalogNameError, "is in no database", "`create database` it first"),
            (driver.TooManyConnectionsError, "has no connection left", "try again later"),
            (driver.DiskFullError, "has no room left to grow", "make room on the server's disk"),
            (driver.CannotConnectNowError, "cannot be reached now", "try again later"),
            (driver.UndefinedTableError, "has lost a table", ANEW),
            (driver.DuplicateTableError, "has lost a part of its tables", ANEW),
            (TimeoutError, f"gave no answer within {PATIENCE:g} s", REACH),
        ]
        why, remedy = "could not be used", "see what this error was caused by"
        if self._is_lost(error):
            why, remedy = "cannot be reached", REACH
        for kind, its_why, its_remedy in kinds:
            if isinstance(error, kind):
                why, remedy = its_why, its_remedy
                break
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return KnowledgeError(self.name, f"{why} ({said[:300]})", remedy)


def _read_address(address: str) -> tuple[str, str, str]:
    """Return the address as PostgreSQL knows it, what may be shown of it, and the schema."""
    if (found := ADDRESS.fullmatch(address)) is None:
        raise ConfigurationError(
            "the address of an index in PostgreSQL is none: it is written"
            " postgresql://user:password@host:port/database?index=name, and %40 for @, %3A for :,"
            " %2F for /, %3F for ? and %23 for # in a password"
        )
    scheme, user, hosts, database, query = (each or "" for each in found.groups())
    options = parse_qsl(query, keep_blank_values=True)
    names = [value for key, value in options if key == "index"]
    if len(names) > 1 or not all(NAME.fullmatch(name) for name in names):
        raise ConfigurationError(
            "the name of an index in PostgreSQL, as in ?index=name, has at most 40 signs, of a to"
            " z, 0 to 9 and _"
        )
    others = urlencode([(key, value) for key, value in options if key != "index"])
    base = address.partition("?")[0]
    shown = f"{scheme}{user}{'@' if user else ''}{hosts}{database}"
    schema = "_".join(["anabranch_knowledge", *names])
    shown = f"{shown}?index={names[0]}" if names else shown
    return f"{base}?{others}" if others else base, shown, schema


def _row(source: int, piece: Piece) -> tuple[Any, ...]:
    heading, text, line, page = piece
    return source, _text(heading), _text(text), line, page, _words(heading), _words(text)


def _text(text: str) -> str:
    """Return a text as PostgreSQL can hold it."""
    return text.replace("\0", "\ufffd")


def _words(text: str) -> str:
    """Return the words of a text, whatever the server takes for a letter, and accents left out."""
    plain = normalize("NFC", ACCENTS.sub("", normalize("NFKD", apart(text).casefold())))
    return " ".join(WORD.findall(plain))


def _floats(vector: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)
