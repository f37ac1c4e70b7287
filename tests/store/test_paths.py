"""A journal with several paths, or without its `-wal`: it is refused, or nothing is missing."""

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager, suppress

import pytest
from support.journal_file import acquire_run, journal_process, make_row, open_journal, row_values
from support.seeds import SEED, example_count

from anabranch.store import JournalError, RunBusy, _open_file
from anabranch.store._journal_file import JournalFile

pytestmark = pytest.mark.contract("D2")

# Owns a run of the file, whose rows are all in the WAL.
HOLDS = """
async def main():
    file, fence = await taken("run")
    for number in range(int(sys.argv[2])):
        file.append("run", fence, row(number))
        await file.barrier("run", fence)
        await file.start(f"beside {number}", "C", 1, b"{}")
        if number % 5 == 0:
            await file.post("run", "signal", "x", b"")
    print("there", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@contextmanager
def held(path, rows=20):
    with journal_process(path, HOLDS, str(rows)) as child:
        assert child.stdout.readline() == "there\n"
        yield child


async def refused(path):
    with pytest.raises(JournalError) as error:
        async with open_journal(path):
            pass
    return str(error.value)


async def counted(path):
    """Return the numbers of runs, rows and signals, or the error for the file."""
    try:
        async with open_journal(path) as file:
            runs, rows, mail = await file.runs(), await row_values(file), await file.letters("run")
            return len(runs), len(rows), len(mail)
    except JournalError as error:
        return str(error)


@contextmanager
def mounted(source, target):
    """Mount something at a second place, if this user may."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only the superuser of Linux may mount")
    if subprocess.run(["mount", "--bind", source, target], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


async def test_a_hard_link_is_refused_whichever_name_is_used(tmp_path):
    """Also while the file is open by the other name; with one name left it is a journal again."""
    path, other = tmp_path / "runs.db", tmp_path / "other" / "runs.db"
    other.parent.mkdir()
    with held(path):
        os.link(path, other)
        for each in (path, other):
            assert "has several names (hard links)" in await refused(each)
        other.unlink()
        async with open_journal(path) as file:
            assert len(await file.runs()) == 21


async def test_a_file_that_is_mounted_alone_is_refused_and_a_folder_is_not(tmp_path):
    """Through a mounted folder the owner's lock works and nothing is missing."""
    path, other = tmp_path / "runs.db", tmp_path / "other"
    other.mkdir()
    with held(path):
        (other / "runs.db").touch()
        with mounted(path, other / "runs.db"):
            said = await refused(other / "runs.db")
            assert "is mounted as a single file" in said
            assert "mount the folder" in said
        with mounted(tmp_path, other):
            async with open_journal(other / "runs.db") as file:
                assert len(await file.runs()) == 21
                with pytest.raises(RunBusy):
                    await file.acquire("run", "test")


MOUNTS = r"""22 27 0:21 / / rw shared:1 - ext4 /dev/vda rw
23 22 0:22 /home/me/runs.db {} rw - ext4 /dev/vda rw
"""


async def test_a_mounted_file_is_known_by_the_list_of_mounts(tmp_path, monkeypatch):
    """As a container sees it, also with a space in its name."""
    path = tmp_path / "my runs.db"
    path.touch()
    monkeypatch.setattr(_open_file.sys, "platform", "linux")
    for place, is_refused in ((path, True), (tmp_path, False), (tmp_path / "my", False)):
        mounts = MOUNTS.format(str(place).replace(" ", r"\040"))
        monkeypatch.setattr(_open_file.Path, "read_text", lambda *_, mounts=mounts, **__: mounts)
        if is_refused:
            assert "is mounted as a single file" in await refused(path)
        else:
            async with open_journal(path):
                pass


async def test_another_path_to_an_open_file_is_refused(tmp_path, monkeypatch):
    """Here after a rename, by another process and by the same one."""
    monkeypatch.setattr(_open_file, "PROBE_SECONDS", 0.1)
    path, other = tmp_path / "runs.db", tmp_path / "other.db"
    with held(path):
        path.rename(other)
        assert "is open in another process under another path" in await refused(other)
    async with open_journal(tmp_path / "own.db") as file:
        await acquire_run(file)
        (tmp_path / "own.db").rename(tmp_path / "again.db")
        assert "under another path" in await refused(tmp_path / "again.db")
        with pytest.raises(JournalError, match="was removed"):
            await file.start("another", "C", 1, b"{}")


async def test_many_open_and_close_one_path_at_once(tmp_path):
    """No process is refused, also when the last one closes as the next one opens."""
    path = tmp_path / "runs.db"

    async def come_and_go(number):
        for _ in range(example_count(8, 200)):
            async with open_journal(path) as file:
                await file.start(f"{number}", "C", 1, b"{}")

    await asyncio.gather(*map(come_and_go, range(4)))
    others = """
async def main():
    for _ in range(int(sys.argv[2])):
        file = JournalFile(sys.argv[1])
        await file.open()
        await file.runs()
        await file.close()
    print("done")
asyncio.run(main())
"""
    with journal_process(path, others, "15") as one, journal_process(path, others, "15") as two:
        await come_and_go(5)
        for child in (one, two):
            assert (await asyncio.to_thread(child.communicate))[0] == "done\n"


@pytest.mark.parametrize("example", range(example_count(2, 60)))
async def test_a_wal_that_was_removed_or_cut_after_a_kill_is_noticed(tmp_path, example):
    """Whatever is left of it: the file is refused, or has all commits that were noted."""
    rng = random.Random(f"{SEED} {example}")
    path, rows = tmp_path / "runs.db", rng.randrange(1, 40)
    with held(path, rows) as child:
        if is_in_file := rng.random() < 0.5:  # all of it, as by a close
            async with open_journal(path) as file:
                await file.runs()
        child.kill()
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path, whole)
    wal = tmp_path / "runs.db-wal"
    size, refusals = wal.stat().st_size, 0
    for left in (None, 0, size, *(rng.randrange(size) for _ in range(4))):
        for each in path, wal, tmp_path / "runs.db-shm":
            each.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                shutil.copy(whole / each.name, each)
        shutil.copytree(whole / "runs.db-locks", tmp_path / "runs.db-locks", dirs_exist_ok=True)
        if left is None:
            wal.unlink()
        else:
            os.truncate(wal, left)
        found = await counted(path)
        if isinstance(found, tuple):
            assert found == (rows + 1, rows, (rows + 4) // 5)
            continue
        assert left != size
        assert "has lost its last commits" in found
        refusals += 1
        (tmp_path / "runs.db-locks" / "last-commit").unlink()  # as the error says
        async with open_journal(path) as file:
            assert len(await file.runs()) <= rows + 1
    assert refusals or is_in_file


async def test_nothing_is_missed_where_nothing_is_lost(tmp_path):
    """After a purge, a vacuum, and in a new journal; each before or after a kill."""
    path = tmp_path / "runs.db"

    async def purge():
        async with open_journal(path) as file:
            await file.call(lambda sql: sql.execute("update anabranch_run set state = 'failed'"))
            assert await file.purge(2e10) == 21

    with held(path) as child:
        await purge()
        child.kill()
    with held(path) as child:
        child.kill()
    await purge()
    with held(path) as child:
        child.kill()
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("vacuum")
    async with open_journal(path) as file:
        assert len(await row_values(file)) == 20
    with held(path, 0) as child:
        child.kill()
    for end in ("", "-wal", "-shm"):
        os.unlink(f"{path}{end}")
    async with open_journal(path):
        shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name} copy")  # as after a kill
    async with open_journal(tmp_path.parent / f"{tmp_path.name} copy" / "runs.db") as file:
        assert await file.runs() == []
    assert list((tmp_path / "runs.db-locks").glob("last-commit")) == []


async def test_a_note_that_cannot_be_made_or_read_is_done_without(tmp_path):
    """The journal works without it."""
    path, note = tmp_path / "runs.db", tmp_path / "runs.db-locks" / "last-commit"
    note.mkdir(parents=True)
    async with open_journal(path) as file:
        await acquire_run(file)
    note.rmdir()
    for text in (b"", b"x" * 36, b"x" * 100):
        note.write_bytes(text)
        file = JournalFile(str(path))
        await file.open()
        assert [run.run_id for run in await file.runs()] == ["run"]
        fence = await acquire_run(file)
        file.append("run", fence, make_row(1))
        await file.close()
