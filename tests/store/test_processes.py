"""D13, D16, D20 with real processes: signals, bodies that end their process, two at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.chat_command import TIMEOUT_SECONDS, environment

from anabranch.store import Journal

pytestmark = pytest.mark.contract("D13")

# Pays once, if allowed: a payment that has begun waits for the file "go". `argv` says what else the
# body does during that time, how the run is started, and the grace.
PROGRAM = '''
import asyncio, os, sys, time
from pathlib import Path
from anabranch import run, tool
from anabranch.commander.durable import scope_here
from anabranch.handlers import call_tools, handler
from anabranch.messages import ToolCall
from anabranch.store import Durable, Journal, Live, effect_key, live

def log(text):
    with open("outside.log", "a") as file:
        file.write(text + "\\n")
    print(text, flush=True)

@tool(effect="keyed")
async def pay() -> str:
    """Pay."""
    log(f"pays {effect_key()}")
    execution, said = scope_here().execution, False
    while not Path("go").exists():
        await asyncio.sleep(0.01)
        if execution.suspending and not said:
            said = True
            print("suspending", flush=True)
    log("paid")
    return "paid"

async def calls():
    yield ToolCall(id="c", name="pay", arguments={}, index=0)

@handler
async def pays(node):
    [result] = await node.call_handler(call_tools(calls(), [pay]))
    return result.content

class Order(Durable[str]):
    how: Live[str] = live()

    async def task(self) -> str:
        paying = self.call_handler(pays())
        while self.how != "pay" and "pays" not in Path("outside.log").read_text():
            await asyncio.sleep(0.01)
        if self.how == "exit":
            sys.exit(7)
        if self.how == "kill":
            os.kill(os.getpid(), 9)
        if self.how == "thread":
            await self.in_thread(sys.exit, 7)
        return await paying

how, way, grace = sys.argv[1], sys.argv[2], float(sys.argv[3])
Path("outside.log").touch()

async def main():
    async with Journal("runs.db", grace=grace) as journal:
        return await journal.run(Order(), run_id="r", live={"how": how})

if way == "run":
    journal = Journal("runs.db", grace=grace, max_recoveries=1)
    print(run(Order(), journal=journal, run_id="r", live={"how": how}))
else:
    print(asyncio.run(main()))
'''


@contextmanager
def program(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start it; it is ended with the block."""
    (folder / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "program.py", *options],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith(text)


def ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    return process.returncode, out, err


def logged(folder: Path) -> list[str]:
    return (folder / "outside.log").read_text().splitlines()


def goes_on(folder: Path) -> list[str]:
    """Run the same line to its end; return the outside effects."""
    (folder / "go").touch()
    with program(folder, "pay", "run", "30") as process:
        status, out, err = ends(process)
    assert (status, out.splitlines()[-1], err) == (0, "paid", "")
    return logged(folder)


@pytest.mark.contract("D20")
@pytest.mark.parametrize("way", ["run", "embedded"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_what_is_under_way_end(tmp_path: Path, number: int, way: str) -> None:
    """It is recorded, and not repeated. An embedding program handles SIGTERM itself."""
    with program(tmp_path, "pay", way, "30") as process:
        says(process, "pays ")
        process.send_signal(number)
        if (number, way) != (signal.SIGTERM, "embedded"):
            says(process, "suspending")
            (tmp_path / "go").touch()
        status, _, err = ends(process)
    kept = (number, way) != (signal.SIGTERM, "embedded")
    assert status == (143 if (number, way) == (15, "run") else -number), err
    assert ("Traceback" in err) == (number == signal.SIGINT)
    lines = goes_on(tmp_path)
    assert len(lines) == (2 if kept else 3)
    assert len({line for line in lines if line.startswith("pays")}) == 1


@pytest.mark.contract("D20")
@pytest.mark.parametrize("way", ["run", pytest.param("embedded", marks=pytest.mark.long)])
def test_a_second_interrupt_ends_at_once(tmp_path: Path, way: str) -> None:
    """With any grace; the effect in progress is in doubt, and is repeated with the same key."""
    with program(tmp_path, "pay", way, "3600") as process:
        says(process, "pays ")
        process.send_signal(signal.SIGINT)
        says(process, "suspending")
        process.send_signal(signal.SIGINT)
        status, _, err = ends(process)
    assert status == -2, err
    lines = goes_on(tmp_path)
    assert lines[0] == lines[1]
    assert lines[2:] == ["paid"]


@pytest.mark.contract("D20")
@pytest.mark.parametrize("how", ["exit", pytest.param("thread", marks=pytest.mark.long)])
def test_an_exit_in_a_body_lets_what_is_under_way_end(tmp_path: Path, how: str) -> None:
    """Also for a function in a thread; the program ends with that status."""
    with program(tmp_path, how, "run", "30") as process:
        says(process, "pays ")
        says(process, "suspending")
        (tmp_path / "go").touch()
        status, _, err = ends(process)
    assert (status, err) == (7, "")
    assert len(goes_on(tmp_path)) == 2


@pytest.mark.contract("D16")
async def test_a_run_that_kills_its_process_is_parked_and_resumed(tmp_path: Path) -> None:
    """After `max_recoveries` executions without progress; `resume` lets it continue."""
    statuses = []
    for _ in range(5):
        with program(tmp_path, "kill", "run", "30") as process:
            statuses.append(ends(process))
        if statuses[-1][0] != -signal.SIGKILL:
            break
    # The first execution has begun an effect, and those that die after it make no progress.
    assert [status for status, _, _ in statuses] == [-9] * 2 + [1]
    assert "RunParked" in statuses[-1][2]
    assert "anabranch runs resume r" in statuses[-1][2]
    async with Journal(str(tmp_path / "runs.db")) as journal:
        assert (await journal.look("r")).run.state == "parked"
        await journal.resume("r")
    lines = goes_on(tmp_path)
    assert lines[-1] == "paid"
    assert len({line for line in lines if line.startswith("pays")}) == 1


async def test_the_second_of_two_processes_is_told_who_has_the_run(tmp_path: Path) -> None:
    """By its pid and start time; after its death, the same line resumes the run."""
    with program(tmp_path, "pay", "run", "30") as process:
        says(process, "pays ")
        with program(tmp_path, "pay", "run", "30") as other:
            status, out, err = ends(other)
        assert (status, out) == (1, "")
        assert f"RunBusy: the run 'r' is in use by process {process.pid} since 20" in err
        process.kill()
        process.wait()
        lines = goes_on(tmp_path)
    assert lines[0] == lines[1]
    assert lines[2:] == ["paid"]
