"""The lock of a run: one owner at any moment, however many come and go."""

import errno
import os
import random
import shutil
import threading
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.seeds import SEED, example_count

from anabranch.store import Journal, JournalError, _lock
from anabranch.store._lock import RunLock
from anabranch.store.errors import RunBusy

pytestmark = pytest.mark.contract("D13")


def test_there_is_never_a_second_holder(tmp_path):
    """Also while the file of the lock is created and removed all the time."""
    holders, most, taken, failures = [], [0], [0], []

    def work(number):
        rng = random.Random(f"{SEED} {number}")
        try:
            for _ in range(example_count(200, 20_000)):
                try:
                    lock = RunLock(str(tmp_path / "runs.db"), "run")
                except RunBusy:
                    continue
                holders.append(number)
                most[0], taken[0] = max(most[0], len(holders)), taken[0] + 1
                for _ in range(rng.randrange(3)):
                    os.stat(tmp_path)  # lets other threads run
                most[0] = max(most[0], len(holders))
                holders.remove(number)
                lock.release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert most == [1]
    assert taken[0] > 10
    assert list((tmp_path / "runs.db-locks").iterdir()) == []


def test_a_file_that_is_removed_between_its_opening_and_its_locking_keeps_others_out(
    tmp_path, monkeypatch
):
    """The last owner removes it at that moment, so no other process would find the lock."""
    first, lock_file = RunLock(str(tmp_path / "runs.db"), "run"), _lock._lock

    def late(file):
        first.release()
        lock_file(file)

    monkeypatch.setattr(_lock, "_lock", late)
    second = RunLock(str(tmp_path / "runs.db"), "run")
    with pytest.raises(RunBusy):
        RunLock(str(tmp_path / "runs.db"), "run")
    second.release()


def test_runs_are_told_apart_whatever_their_names_are(tmp_path):
    """Also names that no file can have; several paths to one file are one."""
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    names = ["", "a/b", "..", "a\0b", "x" * 1000, "\ud800", "grün"]
    locks = [RunLock(str(tmp_path / "runs.db"), name) for name in names]
    for name in names:
        with pytest.raises(RunBusy):
            RunLock(str(tmp_path / "link.db"), name)
    for lock in locks:
        lock.release()
        lock.release()


def test_a_reader_of_the_file_takes_nothing_away(tmp_path):
    """A backup reads it in this process, which would release a lock of the process."""
    lock = RunLock(str(tmp_path / "runs.db"), "run")
    shutil.copytree(tmp_path, tmp_path.parent / "copy")
    with pytest.raises(RunBusy):
        RunLock(str(tmp_path / "runs.db"), "run")
    lock.release()


def test_a_lock_that_nobody_filled_in_names_nobody(tmp_path):
    """Its owner was stopped between the lock and its name."""
    lock = RunLock(str(tmp_path / "runs.db"), "run")
    (path,) = (tmp_path / "runs.db-locks").iterdir()
    os.truncate(path, 0)
    with pytest.raises(RunBusy, match="in use by another process: wait") as error:
        RunLock(str(tmp_path / "runs.db"), "run")
    assert (error.value.pid, error.value.since) == (None, None)
    lock.release()


def test_a_full_disk_keeps_no_lock_back(tmp_path, monkeypatch):
    """The name of the owner cannot be written, but the lock works, and is released."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        lock = RunLock(str(tmp_path / "runs.db"), "run")
        with pytest.raises(RunBusy):
            RunLock(str(tmp_path / "runs.db"), "run")
        lock.release()
    RunLock(str(tmp_path / "runs.db"), "run").release()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", None])), max_size=12))
def test_a_reserved_name_is_one_journals_alone(tmp_path_factory, steps):
    """However often it is reserved and released; a run of the same name is not affected."""
    path = tmp_path_factory.mktemp("reserved") / "runs.db"
    journals = [Journal(path) for _ in range(3)]
    stacks = [ExitStack() for _ in journals]
    holders = {}
    for who, name in steps:
        if name is None:
            stacks[who].close()
            holders = {each: holder for each, holder in holders.items() if holder != who}
        elif name in holders:
            with pytest.raises(RunBusy) as raised:
                stacks[who].enter_context(journals[who].reserve(name))
            assert (raised.value.run_id, raised.value.pid) == (name, os.getpid())
        else:
            stacks[who].enter_context(journals[who].reserve(name))
            RunLock(str(path), name).release()
            holders[name] = who
    for stack in stacks:
        stack.close()


def test_in_memory_a_reserved_name_keeps_nobody_out():
    """Each journal in memory is separate."""
    with Journal(":memory:").reserve("a"), Journal(":memory:").reserve("a"):
        pass


def test_where_no_name_can_be_reserved_the_error_says_why(tmp_path):
    """Like any other error of the file."""
    (tmp_path / "runs.db-locks").write_text("no folder")
    with (
        pytest.raises(JournalError, match="could not be used"),
        Journal(tmp_path / "runs.db").reserve("a"),
    ):
        pass
