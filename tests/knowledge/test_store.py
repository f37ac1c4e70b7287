"""S26: documents are added and removed completely, and an unusable file has a clear error."""

import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import aclosing, closing
from pathlib import Path

import pytest
from support.index_file import has_current_words, stored_pieces
from support.paths import TESTS
from support.seeds import SEED, example_count

from anabranch.knowledge import Index, KnowledgeError
from anabranch.knowledge._sqlite import APPLICATION_ID, MIGRATIONS

pytest.importorskip("numpy")


def python(program, *before, **options):
    command = [*before, sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=TESTS, **options
    )


def test_killed_at_any_moment_each_document_is_whole_or_gone(tmp_path):
    """SIGKILL at any time or statement leaves all old or all new pieces, with their words."""
    program = [
        "-m",
        "programs.index_killed",
        tmp_path / "a.db",
        str(example_count(8, 300)),
        str(SEED),
    ]
    ended = subprocess.run(
        [sys.executable, *program],
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
        cwd=TESTS,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["found"] == {"torn": 0, "words": 0}
    assert sum(found["killed"].values()) == example_count(8, 300)


def test_two_processes_add_the_same_folder_at_once(tmp_path):
    """Both may create the file; each document is there once, and neither fails."""
    (tmp_path / "docs").mkdir()
    for number in range(12):
        text = "\n\n".join(f"# {part}\n\npage {number} part {part}" for part in range(5))
        (tmp_path / "docs" / f"{number}.md").write_text(text)
    program = f"""
        import asyncio
        from anabranch.knowledge import Index
        async def main():
            async with Index({str(tmp_path / "a.db")!r}) as index:
                report = await index.add_folder({str(tmp_path / "docs")!r})
                assert not report.refused, report
                assert len(report.added + report.changed + report.unchanged) == 12, report
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    lives = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for life in lives:
        _, said = life.communicate(timeout=120)
        assert life.returncode == 0, said
    found = stored_pieces(tmp_path / "a.db")
    assert {name: len(texts) for name, texts in found.items()} == {f"{n}.md": 5 for n in range(12)}
    assert has_current_words(tmp_path / "a.db")


async def test_what_one_process_puts_in_another_finds(tmp_path):
    """By words and by vectors, although it has cached all vectors."""

    async def embed(texts):
        return [[1.0, 0.0] if "zebra" in text else [0.0, 1.0] for text in texts]

    async with (
        Index(tmp_path / "a.db", embed=embed, embedder="own") as one,
        Index(tmp_path / "a.db", embed=embed, embedder="own") as two,
    ):
        await one.add("a", "about horses")
        assert [hit.source for hit in await two.search("zebra")] == ["a"]
        await one.add("b", "about zebra")
        assert [hit.source for hit in await two.search("zebra")] == ["b", "a"]
        await one.remove("b")
        assert [hit.source for hit in await two.search("zebra")] == ["a"]


@pytest.mark.parametrize("pages", [0, 5, 12])
def test_a_full_disk_is_one_error_and_what_was_there_stays(tmp_path, pages):
    """Also if the file cannot be created."""
    path = tmp_path / "a.db"
    if pages:
        asyncio.run(Index(path).add("kept", "put_job stays"))
    size = path.stat().st_size if pages else 0
    program = f"""
        import asyncio, resource
        from anabranch.knowledge import Index, KnowledgeError
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size + pages * 4096},) * 2)
        async def main():
            index = Index({str(path)!r})
            try:
                await index.add("more", "many words " * 100_000)
            except KnowledgeError as error:
                print(error)
            print([hit.text for hit in await index.search("put_job")] if {pages} else [])
            await index.aclose()
        asyncio.run(main())
    """
    ended = python(program)
    said, found = ended.stdout.splitlines()
    assert str(path) in said
    assert "could not be read or written" in said or "has no room left" in said
    assert found == str(["put_job stays"] if pages else [])
    if pages:
        assert stored_pieces(path) == {"kept": ["put_job stays"]}
        assert has_current_words(path)


def make(path, *statements):
    with closing(sqlite3.connect(path)) as sql:
        for statement in statements:
            sql.execute(statement)
        sql.commit()


BAD = {
    "text": (lambda path: path.write_text("a diary" * 1000), "is no SQLite file"),
    "one byte": (lambda path: path.write_text("x"), "is no SQLite file"),
    "pipe": (os.mkfifo, "is no SQLite file"),
    "folder": (Path.mkdir, "is a folder: name a file in it"),
    "foreign": (lambda path: make(path, "create table t (a)"), "is an SQLite file of another"),
    "marked": (
        lambda path: make(path, "pragma application_id = 7"),
        "is an SQLite file of another",
    ),
    "newer": (
        lambda path: make(
            path,
            f"pragma application_id = {APPLICATION_ID}",
            f"pragma user_version = {len(MIGRATIONS) + 1}",
        ),
        f"has tables of version {len(MIGRATIONS) + 1}, and this anabranch knows"
        f" {len(MIGRATIONS)}: upgrade",
    ),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_file_that_is_no_index_is_refused_and_not_changed(tmp_path, kind):
    """The error has the reason and a remedy, and so do those of later calls."""
    path = tmp_path / "a.db"
    prepare, why = BAD[kind]
    prepare(path)
    before = path.read_bytes() if path.is_file() else None
    index = Index(path)
    for call in (index.sources(), index.search("a"), index.add("a", "b"), index.__aenter__()):
        with pytest.raises(KnowledgeError, match=why):
            await call
    await index.aclose()
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "not a valid file name"),
        ("a\0b", "not a valid file name"),
        ("no/such/a.db", "folder .* does not exist"),
    ],
)
async def test_a_name_that_no_file_can_have_is_one_error(tmp_path, monkeypatch, name, why):
    """SQLite would open a temporary file for it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KnowledgeError, match=why):
        await Index(name).sources()


async def test_a_damaged_file_is_one_error(tmp_path):
    """Truncated or overwritten anywhere: each call answers or reports the damage."""
    async with Index(tmp_path / "good.db") as index:
        for number in range(30):
            await index.add(f"{number}", f"page {number} put_job\n\n" * 100)
    data = (tmp_path / "good.db").read_bytes()
    rng = random.Random(SEED)
    refused: list[str] = []
    for number in range(example_count(30, 500)):
        path = tmp_path / f"{number}.db"
        place = rng.randrange(len(data))
        truncated = data[:place] if number % 2 else None
        path.write_bytes(truncated or data[:place] + rng.randbytes(5000) + data[place + 5000 :])
        async with aclosing(Index(path)) as damaged:
            for call in (
                lambda index: index.search("put_job"),
                lambda index: index.add("new", "text of a new page"),
                lambda index: index.remove("3"),
                lambda index: index.sources(),
            ):
                try:
                    await call(damaged)
                except KnowledgeError as error:
                    refused.append(str(error))
    assert len(refused) > 20
    assert {
        why for why in refused if "is damaged" not in why and "is no SQLite" not in why
    } == set()


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv takes the rights of root away")
def test_in_a_folder_that_may_not_be_written_to_it_says_so(tmp_path):
    """A new index cannot be created, and an existing one cannot change."""
    folder = tmp_path / "docs"
    folder.mkdir()
    asyncio.run(_put_and_close(folder / "a.db"))
    os.chmod(folder / "a.db", 0o400)
    os.chmod(folder, 0o500)
    program = f"""
        import asyncio
        from anabranch.knowledge import Index, KnowledgeError
        async def main():
            for name in ("a.db", "new.db"):
                try:
                    await Index({str(folder)!r} + "/" + name).add("more", "text")
                except KnowledgeError as error:
                    print(error)
        asyncio.run(main())
    """
    rights = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] * (os.geteuid() == 0)
    try:
        ended = python(program, *rights)
    finally:
        os.chmod(folder, 0o700)
    lines = ended.stdout.splitlines()
    assert len(lines) == 2, ended
    assert all("give a file that this user may write" in line for line in lines), lines
    assert stored_pieces(folder / "a.db") == {"kept": ["put_job stays"]}


async def _put_and_close(path):
    async with Index(path) as index:
        await index.add("kept", "put_job stays")


def test_a_fork_has_a_connection_of_its_own(tmp_path):
    """Its documents are stored, and its parent continues."""
    program = f"""
        import asyncio, os
        from anabranch.knowledge import Index
        index = Index({str(tmp_path / "a.db")!r})
        asyncio.run(index.add("parent", "first"))
        if not (pid := os.fork()):
            asyncio.run(index.add("child", "second"))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        asyncio.run(index.add("parent 2", "third"))
        print([each.name for each in asyncio.run(index.sources())])
        asyncio.run(index.aclose())
    """
    ended = python(program)
    assert ended.stdout.strip() == "['child', 'parent', 'parent 2']", ended
    assert has_current_words(tmp_path / "a.db")


def test_a_fork_while_a_search_is_under_way_goes_on(tmp_path):
    """The fork does not wait for a thread that only its parent has."""
    program = f"""
        import asyncio, os, signal, threading
        from anabranch.knowledge import Index

        searching, forked = threading.Event(), threading.Event()

        async def embed(texts):
            return [[1.0, 2.0] for _ in texts]

        index = Index({str(tmp_path / "a.db")!r}, embed=embed, embedder="test")
        asyncio.run(index.add("parent", "first"))
        nearest = type(index._store)._read_vectors

        def slowly(store, sql):
            searching.set()
            forked.wait()
            return nearest(store, sql)

        type(index._store)._read_vectors = slowly
        thread = threading.Thread(target=lambda: asyncio.run(index.search("first")))
        thread.start()
        searching.wait()
        if not (pid := os.fork()):
            signal.alarm(20)
            forked.set()
            asyncio.run(index.aclose())
            found = asyncio.run(index.search("first"))
            asyncio.run(index.add("child", "second"))
            os._exit(len(found))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        forked.set()
        thread.join()
        print([each.name for each in asyncio.run(index.sources())])
        asyncio.run(index.aclose())
    """
    ended = python(program)
    assert ended.stdout.split("\n")[:2] == ["1", "['child', 'parent']"], ended
    assert has_current_words(tmp_path / "a.db")


@pytest.mark.skipif(sys.platform == "win32", reason="no open file can be taken away")
async def test_a_file_that_was_taken_away_or_replaced_is_said_and_begun_anew(tmp_path):
    """Nothing is written to the lost file; after `aclose` the current one is opened."""
    index, other = Index(tmp_path / "a.db"), Index(tmp_path / "other.db")
    await index.add("a", "one")
    await other.add("b", "one")
    await other.aclose()
    (tmp_path / "a.db").rename(tmp_path / "moved.db")
    for call in (index.add("c", "one"), index.search("one"), index.sources()):
        with pytest.raises(KnowledgeError, match="removed or replaced while it was open"):
            await call
    (tmp_path / "moved.db").rename(tmp_path / "a.db")
    assert [each.source for each in await index.search("one")] == ["a"]
    for part in tmp_path.glob("a.db*"):
        part.unlink()
    (tmp_path / "other.db").rename(tmp_path / "a.db")
    with pytest.raises(KnowledgeError, match="close the index and open it again"):
        await index.add("c", "one")
    await index.aclose()
    assert [each.source for each in await index.search("one")] == ["b"]
    await index.aclose()


async def test_a_busy_file_is_waited_for(tmp_path):
    """Another writer only delays a call."""
    index = Index(tmp_path / "a.db")
    await index.add("a", "one")
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        adding = asyncio.create_task(index.add("b", "two"))
        async with Index(tmp_path / "a.db") as reader:
            assert [each.name for each in await reader.sources()] == ["a"]
        assert not adding.done()
        other.execute("rollback")
    await adding
    await index.aclose()
    assert set(stored_pieces(tmp_path / "a.db")) == {"a", "b"}


async def test_numbers_are_never_used_again(tmp_path):
    """A citation of a removed piece does not refer to another one."""
    async with Index(tmp_path / "a.db") as index:
        await index.add("a", "one put_job")
        (old,) = await index.search("put_job")
        await index.remove("a")
        await index.add("b", "two put_job")
        (new,) = await index.search("put_job")
        assert new.number > old.number


def test_an_index_that_is_never_closed_closes_its_connection(tmp_path):
    """When collected and at exit: without a ResourceWarning of Python 3.13."""
    program = f"""
        import asyncio, gc, os, threading
        from anabranch.knowledge import Index
        def used():
            index = Index({os.fspath(tmp_path / "a.db")!r})
            asyncio.run(index.add("a", "text"))
            for thread in threading.enumerate():  # one that has not ended yet may hold the index
                if thread is not threading.main_thread() and not thread.daemon:
                    thread.join()
            return index
        def files():
            return sum("a.db" in os.path.realpath(each) for each in os.scandir("/proc/self/fd"))
        index = used()
        index.itself = index
        del index
        gc.collect()
        if os.path.exists("/proc/self/fd"):
            assert not files()
        left = used()
        """
    ended = python(program, env={**os.environ, "PYTHONWARNINGS": "error"})
    assert (ended.returncode, ended.stderr) == (0, "")
