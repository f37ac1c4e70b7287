"""D2, D7, D9, D13: real processes that are killed by SIGKILL or stopped, with a real file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from programs.killed import Waits
from support.paths import PROGRAMS, TESTS
from support.seeds import SEED, example_count

from anabranch.store import Journal
from anabranch.store.errors import RunBusy

pytestmark = pytest.mark.contract("D2")


def killed(folder: Path, tool: str, kills: int) -> Any:
    command = [
        sys.executable,
        str(PROGRAMS / "killed.py"),
        str(folder),
        tool,
        str(kills),
        str(SEED),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_kill_doubles_or_loses_anything(tmp_path: Path) -> None:
    """Two runs in one file, killed at random, right after an effect, and within commits."""
    said = killed(tmp_path, "asked", example_count(30, 500))
    assert said["found"] == {"doubled": 0, "lost": 0, "wrong": 0, "unpaid": 0}
    assert {"act", "statement"} <= said["killed"].keys()


def test_the_same_doubles_where_nobody_outside_is_asked(tmp_path: Path) -> None:
    """The control: each kill right after an effect repeats it, and nothing else is wrong."""
    said = killed(tmp_path, "again", kills := example_count(4, 30))
    assert said["found"].pop("doubled") >= kills
    assert not any(said["found"].values())


@contextmanager
def waiting(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process with a run that waits, and kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", f"from programs.killed import wait; wait({str(path)!r})"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=TESTS,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals that stop a process")
async def test_a_stopped_process_keeps_its_run(tmp_path: Path) -> None:
    """Others cannot acquire the run, but may write to the file; after SIGCONT it continues."""
    path = tmp_path / "runs.db"
    with waiting(path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waits\n"
        async with Journal(str(path)) as journal:

            def stop(_: object) -> None:
                os.kill(child.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)

            await journal._file.call(stop)  # so that it is not in its own commit
            for _ in range(2):
                with pytest.raises(RunBusy, match=f"process {child.pid}"):
                    await journal.run(Waits(), run_id="waits")
            await journal.signal("waits", "word", "wake up,")
            before = await journal.look("waits")
            os.kill(child.pid, signal.SIGCONT)
            assert child.communicate(timeout=60)[0] == "wake up, after0\n"
            after = await journal.look("waits")
            assert (before.run.state, after.run.state) == ("running", "completed")
            assert after.rows[: len(before.rows)] == before.rows
            assert await journal.run(Waits(), run_id="waits") == "wake up, after0"


async def test_a_stopped_process_that_is_killed_has_lost_its_run(tmp_path: Path) -> None:
    """The lock ends with the process, also if it never continued."""
    path = tmp_path / "runs.db"
    with waiting(path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waits\n"
        os.kill(child.pid, signal.SIGSTOP)
        child.kill()
        child.wait()
        async with Journal(str(path)) as journal:
            await journal.signal("waits", "word", "taken up,")
            assert await journal.run(Waits(), run_id="waits") == "taken up, after0"
