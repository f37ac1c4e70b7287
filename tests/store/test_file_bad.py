"""Files and places that cannot be a journal: the error names the reason and a remedy."""

import asyncio
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.journal_file import acquire_run, make_row, open_journal, row_values

from anabranch.store import _file_thread, _open_file
from anabranch.store._journal_file import JournalFile
from anabranch.store._open_file import network_disk
from anabranch.store.errors import JournalError

pytestmark = pytest.mark.contract("D19")


def content(path: Path | str) -> bytes | None:
    return Path(path).read_bytes() if os.path.isfile(path) else None


async def refused(path: Path | str) -> str:
    """Return the error for a file, and require that the file is unchanged."""
    before = content(path)
    file = JournalFile(str(path))
    with pytest.raises(JournalError) as error:
        await file.open()
    with pytest.raises(JournalError):
        await file.runs()
    await file.close()
    assert error.value.journal == str(path)
    assert error.value.remedy
    assert content(path) == before
    return str(error.value)


async def journal(path: Path, rows: int = 200) -> None:
    async with open_journal(path) as file:
        fence = await acquire_run(file)
        for _ in range(rows):
            file.append("run", fence, make_row(b"x" * 1000))


@pytest.mark.parametrize(
    "content", [b"x", b"not a database, only text\n" * 100, b"\0" * 8192, os.urandom(5000)]
)
async def test_a_file_that_is_no_sqlite_file(tmp_path, content):
    """It stays unchanged, whether short or long."""
    (tmp_path / "notes.txt").write_bytes(content)
    assert "is no SQLite file" in await refused(tmp_path / "notes.txt")


async def test_what_is_no_file_at_all(tmp_path):
    """A pipe or a device: nothing is written to it, and nothing hangs."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        assert "is no SQLite file" in await refused(path)


async def test_an_empty_file_becomes_a_journal(tmp_path):
    """As `touch` creates it, or a temporary file."""
    (tmp_path / "runs.db").touch()
    await journal(tmp_path / "runs.db")


@pytest.mark.parametrize("mark", ["create table a (b)", "pragma application_id = 77"])
async def test_another_programs_sqlite_file(tmp_path, mark):
    """With an application id or only with tables; its journal mode stays too."""
    with sqlite3.connect(tmp_path / "app.db") as other:
        other.execute(mark)
    other.close()
    assert "of another program" in await refused(tmp_path / "app.db")
    assert {each.name for each in tmp_path.iterdir()} == {"app.db"}


async def test_a_file_of_a_newer_anabranch(tmp_path):
    """The error names both versions."""
    await journal(tmp_path / "runs.db", 1)
    with sqlite3.connect(tmp_path / "runs.db") as newer:
        newer.execute("pragma user_version = 9")
    newer.close()
    said = await refused(tmp_path / "runs.db")
    known = len(_open_file.MIGRATIONS)
    assert f"of version 9, and this anabranch knows {known}: upgrade anabranch" in said


async def test_a_file_of_an_older_anabranch_is_brought_up_once(tmp_path, monkeypatch):
    """Also if two processes open it at once; its rows stay."""
    await journal(tmp_path / "runs.db", 3)
    newer = ("alter table anabranch_run add column colour text", "create table extra (a)")
    monkeypatch.setattr(_open_file, "MIGRATIONS", [*_open_file.MIGRATIONS, newer])
    files = [JournalFile(str(tmp_path / "runs.db")) for _ in range(4)]
    await asyncio.gather(*(file.open() for file in files))
    assert len(await row_values(files[0])) == 3
    (version,) = await files[1].call(lambda sql: sql.execute("pragma user_version").fetchone())
    assert version == len(_open_file.MIGRATIONS)
    await asyncio.gather(*(file.close() for file in files))


async def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    """Its statements are one transaction, and the older program can still open the file."""
    await journal(tmp_path / "runs.db", 3)
    with monkeypatch.context() as patch:
        broken = ("create table extra (a)", "alter table missing add column b")
        patch.setattr(_open_file, "MIGRATIONS", [*_open_file.MIGRATIONS, broken])
        assert "no such table" in await refused(tmp_path / "runs.db")
    async with open_journal(tmp_path / "runs.db") as file:
        assert len(await row_values(file)) == 3
        tables = await file.call(lambda sql: sql.execute("pragma table_list").fetchall())
        assert "extra" not in {each[1] for each in tables}


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.9, 0.99, 0.9999])
async def test_a_truncated_file_is_refused_at_the_open(tmp_path, share):
    """At any length."""
    path = tmp_path / "runs.db"
    await journal(path)
    os.truncate(path, int(path.stat().st_size * share))
    said = await refused(path)
    # An older -wal beside a copy from a backup would damage that too.
    assert re.search("is damaged.*remove.*-wal and -shm", said) or "is no SQLite file" in said


async def test_damage_is_said_when_it_is_met_and_ends_the_journal(tmp_path):
    """A quick check at the open cannot find it in the middle of a large file."""
    path = tmp_path / "runs.db"
    await journal(path, 1000)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(os.urandom(4096 * 4))
    async with open_journal(path) as journal_:
        asked = [journal_.rows("run"), journal_.acquire("run", "x"), journal_.barrier()]
        for each in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(each, JournalError)
            assert "is damaged" in str(each)
            assert "backup" in str(each)


async def test_a_folder_a_missing_folder_and_no_name(tmp_path):
    """Each has its own error."""
    assert "is a folder: name a file in it" in await refused(tmp_path)
    assert "create the folder" in await refused(tmp_path / "none" / "runs.db")
    assert "create the folder" in await refused(tmp_path / "none" / "deep" / "runs.db")
    (tmp_path / "file").touch()
    assert "create the folder" in await refused(tmp_path / "file" / "runs.db")
    for name in ("", "a\0b"):
        assert "not a valid file name" in await refused(name)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up the rights of the superuser, who may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="the rights of files are others there")
async def test_a_folder_or_file_that_may_not_be_written():
    """For an existing journal and a new one; the remedy is a writable folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await journal(folder / "runs.db", 1)
        os.chmod(folder / "runs.db", 0o444)
        os.chmod(folder, 0o555)
        try:
            with as_nobody():
                for path in ("runs.db", "other.db"):
                    said = await refused(folder / path)
                    assert "cannot be opened" in said or "may not be written to" in said
                    assert "in which this user can write" in said
        finally:
            os.chmod(folder, 0o755)


async def test_a_python_whose_sqlite_is_too_old(tmp_path, monkeypatch):
    """Before any file is created."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    assert "needs SQLite 3.37.0" in await refused(tmp_path / "runs.db")
    assert not list(tmp_path.iterdir())


MOUNTS = r"""22 27 0:21 / / rw shared:1 - ext4 /dev/vda rw
23 22 0:22 / /home rw - nfs4 server:/home rw,vers=4.2
24 22 0:22 / /home/me/local rw - xfs /dev/sdb rw
25 22 0:23 / /mnt/my\040share rw master:3 - cifs //server/share rw
26 22 0:24 / /mnt/ssh rw - fuse.sshfs me@server: rw
27 22 0:25 / /mnt/c rw - 9p drvfs rw
28 22 0:26 / /mnt/twice rw - ext4 /dev/sdc rw
29 22 0:27 / /mnt/twice rw - nfs server:/twice rw
30 22 0:28 / /mnt/grün rw - smb3 //server/x rw
31 22 0:29 / /mnt/usb rw - fuse.ntfs-3g /dev/sdd rw
not a line
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", None),
        ("/var", None),
        ("/home", "nfs4"),
        ("/home/me", "nfs4"),
        ("/home/me/local/x", None),
        ("/homes", None),
        ("/mnt/my share/x", "cifs"),
        ("/mnt/ssh", "fuse.sshfs"),
        ("/mnt/c/x", "9p"),
        ("/mnt/twice", "nfs"),
        ("/mnt/grün/x", "smb3"),
        ("/mnt/usb", None),
    ],
)
def test_a_network_disk_is_known_by_the_list_of_mounts(folder, kind):
    """By the mount with the folder, also with a space in its name or over another mount."""
    assert network_disk(folder, MOUNTS) == kind
    assert network_disk(folder, "") is None


async def test_a_journal_on_a_network_disk_is_refused(tmp_path, monkeypatch):
    """Its locks are unreliable, as the error says."""
    monkeypatch.setattr(_open_file, "network_disk", lambda *_: "nfs4")
    monkeypatch.setattr(_open_file.sys, "platform", "linux")
    said = await refused(tmp_path / "runs.db")
    assert "is on a network disk (nfs4), whose locks are unreliable" in said
    assert not list(tmp_path.iterdir())


async def test_the_errors_of_the_file_are_no_errors_of_the_loop(tmp_path, monkeypatch):
    """After any error in the thread, an open and a close come to an end."""
    for odd in (MemoryError("none"), SystemExit(3), OSError("odd"), sqlite3.Warning("odd")):

        def fail(name, odd=odd):
            raise odd

        monkeypatch.setattr(_file_thread, "connect", fail)
        assert type(odd).__name__ in await refused(tmp_path / "runs.db")
