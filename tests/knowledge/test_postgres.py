"""An index in PostgreSQL: its address, its tables, and a lost server."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import example_count

from anabranch import ConfigurationError
from anabranch.commander.errors import MissingExtra
from anabranch.knowledge import Index, KnowledgeError
from anabranch.knowledge import _postgres as store

pytest.importorskip("asyncpg", reason="PostgreSQL: not tested, without asyncpg")


async def embed(texts):
    return [[1.0, 0.0] for _ in texts]


# --- the address

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"postgresql://me:{SECRET}@host/db", "postgresql://me@host/db"),
        (f"postgres://me:{SECRET}@[::1]:1,host/a?index=b", "postgres://me@[::1]:1,host/a?index=b"),
        (f"postgresql://me@host/db?password={SECRET}&index=a", "postgresql://me@host/db?index=a"),
        (f"postgresql://me:x%40{SECRET}:y@[::1]:1/db", "postgresql://me@[::1]:1/db"),
        (f"postgresql:///db?host=/tmp&user=me&password={SECRET}", "postgresql:///db"),
        ("postgresql://", "postgresql://"),
    ],
)
async def test_the_password_of_an_address_is_never_shown(address, shown, caplog):
    """Not in the name, a repr, the log or the error of an unreachable server."""
    caplog.set_level(logging.DEBUG)
    index = Index(address)
    assert index.name == shown
    assert SECRET not in f"{index!r} {index._store!r}"
    index._store._address = index._store._address.replace("host/", "127.0.0.1:9/")  # type: ignore[attr-defined]
    with pytest.raises(KnowledgeError) as caught:
        await index.sources()
    assert caught.value.index == shown
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + caplog.text
    await index.aclose()


@pytest.mark.parametrize(
    "address",
    [
        *(f"postgresql://me:{sign}{SECRET}@host/db" for sign in "@/?#"),
        *(f"postgresql://me:1{sign}{SECRET}@host/db" for sign in "@/?#"),
        f"postgresql://me:{SECRET}@host/db#index=a",
        f"postgresql://{SECRET}@host/db?index=A",
        f"postgresql://{SECRET}@host/db?index=a;drop",
        f"postgresql://{SECRET}@host/db?index=",
        f"postgresql://{SECRET}@host/db?index={'a' * 41}",
        f"postgresql://{SECRET}@host/db?index=a&index=b",
        f"postgresql+asyncpg://me:{SECRET}@host/db",
        f"POSTGRESQL://me:{SECRET}@host/db",
        f" postgresql://me:{SECRET}@host/db",
        f"postgresql:/me:{SECRET}@host/db",
        f"postgres:me:{SECRET}@host/db",
        f"mysql://me:{SECRET}@host/db",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(address):
    """The error does not repeat it: it may contain a password."""
    with pytest.raises(ConfigurationError, match="PostgreSQL") as caught:
        Index(address)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("where", ["host:{}/db", "[{}/db", "host,{}:x/db", "/db?port={}", ",/{}"])
async def test_what_the_driver_says_of_an_address_is_not_repeated(where):
    """The driver quotes invalid parts, which may be part of a password."""
    index = Index("postgresql://" + where.format(SECRET))
    with pytest.raises(KnowledgeError, match="has an invalid address") as caught:
        await index.sources()
    said = "".join(traceback.format_exception(caught.value))
    assert SECRET not in said.replace(index.name, "")
    await index.aclose()


async def test_without_the_driver_the_extra_is_named(monkeypatch):
    """When the index is created, not at its first call."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(MissingExtra, match=r"anabranch\[postgres\]"):
        Index("postgresql://host/db")


async def test_indexes_of_one_database_are_apart(postgres):
    """Each name is a separate index, and so is the address without a name."""
    names = [postgres.address(""), postgres.address("one"), postgres.address("two")]
    for number, name in enumerate(names):
        async with Index(name) as index:
            await index.add(str(number), "stays")
    for number, name in enumerate(names):
        async with Index(name) as index:
            assert [hit.source for hit in await index.search("stays")] == [str(number)]
            await index.remove(str(number))


# --- the tables


async def test_tables_of_a_newer_version_are_refused_and_not_changed(postgres):
    """The error has a remedy, and so do those of later calls."""
    name = postgres.address("newer")
    async with Index(name) as index:
        await index.add("a", "stays")
    about = "anabranch_knowledge_newer.about"
    await asyncio.to_thread(
        postgres.run, f"update {about} set value = '99' where name = 'version'", "select 1"
    )
    async with asyncio.timeout(60):
        index = Index(name)
        for call in (index.sources(), index.search("a"), index.add("b", "b"), index.__aenter__()):
            with pytest.raises(
                KnowledgeError, match=r"has tables of version 99, newer than .* upgrade"
            ):
                await call
        await index.aclose()
    rows = await asyncio.to_thread(postgres.run, f"select value from {about}")
    assert [row[0] for row in rows] == ["99"]


async def test_tables_of_an_older_version_are_brought_up_to_date(postgres, monkeypatch):
    """The first process upgrades them once; their data stays."""
    name = postgres.address()
    async with Index(name) as index:
        await index.add("a", "stays")
    step = "alter table IDX.source add column more integer not null default 7;"
    monkeypatch.setattr(store, "MIGRATION_STEPS", (*store.MIGRATION_STEPS, step))
    indexes = [Index(name) for _ in range(4)]
    found = await asyncio.gather(*(index.search("stays") for index in indexes))
    assert [[hit.source for hit in hits] for hits in found] == [["a"]] * 4
    for index in indexes:
        await index.aclose()


async def test_many_make_the_tables_at_once(postgres):
    """The others wait for the first."""
    name = postgres.address()
    indexes = [Index(name) for _ in range(12)]
    await asyncio.gather(*(index.add(str(n), "stays") for n, index in enumerate(indexes)))
    assert len(await indexes[0].sources()) == 12
    for index in indexes:
        await index.aclose()


async def test_tables_that_are_gone_are_made_again(postgres):
    """By the call after the one that fails."""
    async with Index(postgres.address("gone")) as index:
        await index.add("a", "stays")
        await asyncio.to_thread(
            postgres.run, "drop schema anabranch_knowledge_gone cascade", "select 1"
        )
        with pytest.raises(KnowledgeError, match="has lost a table"):
            await index.add("b", "stays")
        await index.add("b", "stays")
        assert [each.name for each in await index.sources()] == ["b"]


async def test_a_user_without_rights_is_told_so(postgres):
    """A user with read access can search, and change nothing."""
    async with Index(postgres.address("looked_at")) as index:
        await index.add("a", "stays")
    await asyncio.to_thread(
        postgres.run,
        "create role looker login",
        "grant usage on schema anabranch_knowledge_looked_at to looker",
        "grant select on all tables in schema anabranch_knowledge_looked_at to looker",
        "select 1",
    )
    async with Index(postgres.address("looked_at", user="looker")) as index:
        assert [hit.source for hit in await index.search("stays")] == ["a"]
        with pytest.raises(KnowledgeError, match="denies this user the permission"):
            await index.add("b", "stays")
    with pytest.raises(KnowledgeError, match="denies this user the permission"):
        await Index(postgres.address("not_there", user="looker")).sources()
    with pytest.raises(KnowledgeError, match="rejects this user"):
        await Index(postgres.address("a", user="nobody_here")).sources()


async def test_vectors_need_pgvector_and_words_do_not(postgres):
    """The error names the missing extension, which may be in any schema."""
    run = postgres.run
    await asyncio.to_thread(run, "create database bare", "select 1")
    bare = postgres.address("bare").replace("@/postgres", "@/bare")
    async with Index(bare) as index:
        await index.add("a", "stays")
        assert await index.search("stays")
    async with Index(bare, embed=embed, embedder="own") as index:
        with pytest.raises(KnowledgeError, match=r"needs pgvector .* `create extension vector`"):
            await index.add("b", "stays")
        assert [each.name for each in await index.sources()] == ["a"]
        await asyncio.to_thread(
            run,
            "create schema elsewhere",
            "create extension vector schema elsewhere",
            "select 1",
            database="bare",
        )
        await index.add("b", "stays")
        assert [hit.source for hit in await index.search("stays")] == ["b", "a"]


@settings(max_examples=example_count(60, 1000))
@given(word=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12))
async def test_a_word_is_found_by_itself(postgres, word):
    """In any script, even if the server knows ASCII letters only."""
    async with Index(postgres.address("letters")) as index:
        await index.add("a", f"{word} and more", "text")
        assert [hit.source for hit in await index.search(word)] == ["a"]


def test_the_command_takes_an_address(postgres):
    """The error of an unreachable server does not show its password."""

    def search(index):
        command = [sys.executable, "-m", "anabranch", "knowledge", "search", "nile", "-i", index]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    async def add(name):
        async with Index(name) as index:
            await index.add("rivers", "The Nile is long.")

    name = postgres.address()
    asyncio.run(add(name))
    found, refused = search(name), search(f"postgresql://me:{SECRET}@127.0.0.1:9/db")
    misspelt = search(f"postgresql:/me:{SECRET}@127.0.0.1:9/db")
    assert "The Nile is long." in found.communicate(timeout=60)[0]
    said, why = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "cannot be reached" in why
    assert SECRET not in said + why
    said, why = misspelt.communicate(timeout=60)
    assert misspelt.returncode == 2
    assert "must be postgresql://" in why
    assert SECRET not in said + why


# --- the server


async def test_a_server_that_goes_away_is_one_error_and_it_works_when_it_is_back(postgres):
    """A document that was being added is not in the index."""
    name = postgres.address()
    text = "\n\n".join(f"# {n}\n\nnew{n} stays" for n in range(2000))
    async with Index(name) as index:
        await index.add("a", "old stays")
        await asyncio.gather(*(index.search("stays") for _ in range(20)))
        adding = asyncio.create_task(index.add("a", text))
        seen = "select count(*) from pg_stat_activity where query like '%insert into%piece%'"
        while not (await asyncio.to_thread(postgres.run, seen))[0][0]:
            assert not adding.done()
        await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
        try:
            with pytest.raises(KnowledgeError, match="cannot be reached"):
                await adding
            with pytest.raises(KnowledgeError, match="cannot be reached"):
                await index.search("stays")
        finally:
            await asyncio.to_thread(postgres.start)
        assert [hit.text for hit in await index.search("stays")] == ["old stays"]
        await index.add("b", "more stays")


async def test_connections_that_the_server_has_closed_are_made_anew(postgres):
    """Calls succeed after a long idle time."""
    async with Index(postgres.address()) as index:
        await index.add("a", "stays")
        await asyncio.gather(*(index.search("stays") for _ in range(20)))
        ending = """select pg_terminate_backend(pid) from pg_stat_activity
            where pid <> pg_backend_pid() and backend_type = 'client backend'"""
        for call in (index.search, index.add, index.search):
            subprocess.run(  # noqa: ASYNC221 - in this thread: the loop does not see them close
                [postgres.program("psql"), "-qAt", "-d", postgres.address(""), "-c", ending],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            assert await (call("stays") if call == index.search else call("a", "stays"))


@pytest.mark.parametrize(
    "lost",
    ["truncate IDX.about", "drop table IDX.about", "drop table IDX.piece cascade"],
)
async def test_tables_that_somebody_has_taken_away_are_one_error(postgres, lost):
    """The error's remedy works."""
    name = postgres.address("lost")
    async with Index(name) as index:
        await index.add("a", "stays")
        statement = lost.replace("IDX", "anabranch_knowledge_lost")
        await asyncio.to_thread(postgres.run, statement, "select 1")
        for _ in range(2):
            with pytest.raises(KnowledgeError, match=r"has lost .*: drop its schema"):
                async with Index(name) as other:
                    await other.search("stays")
        drop = "drop schema anabranch_knowledge_lost cascade"
        await asyncio.to_thread(postgres.run, drop, "select 1")
        async with Index(name) as other:
            await other.add("a", "stays")
            assert [hit.text for hit in await other.search("stays")] == ["stays"]
