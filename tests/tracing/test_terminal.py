"""`anabranch run`, `watch` and `view` as processes: in a pipe, and in a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.chat_command import environment
from support.forked_python import run_forked
from support.seeds import LONG
from support.waiting import wait_until

from anabranch.tracing import read

pytestmark = pytest.mark.contract("S9")

PROGRAM = [sys.executable, "-m", "anabranch"]
WORK = '''
import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from anabranch import BudgetExceeded, Job, handler
from anabranch.agents import Agent
from anabranch.store import Durable
from anabranch.testing import ScriptedBackend

@dataclass
class Size:
    wide: int
    high: int

class Leaf(Job[int]):
    number: int

    async def task(self):
        if self.number == 3:
            raise ValueError("no leaf \\x1b[2J sk-abcdefgh12345678")
        return self.number

class Fields(Job[object]):
    text: str
    number: int = 1
    when: bool = False
    many: list[int] | None = None
    size: Size | None = None
    file: Path = Path(".")
    backend: ScriptedBackend | None = None

    async def task(self):
        return [self.text, self.number, self.when, self.many, self.size, self.file]

class Forest(Job[str]):
    leaves: int = 5
    stay: bool = False
    policy = "isolate"

    async def task(self):
        print("begun")
        for number in range(self.leaves):
            self.put_job(Leaf(number))
        if self.stay:
            Path("staying").touch()
            try:
                while not Path("go").exists():
                    await asyncio.sleep(0.01)
            finally:
                print("cleaned up")
        print("half", end="", flush=True)
        print(" a line")
        return "all grown"

@handler
async def greet(node, name: str, times: int = 1):
    """Greet."""
    return f"hello {name}" * times

async def work(number: int):
    return number + await Leaf(number)

def make(leaves: int):
    return Forest(leaves)

def nothing():
    return None

class Kept(Durable[str]):
    word: str

    async def task(self):
        return self.word

class Counted(Job[int]):
    """Return how many jobs ran at the same time at most."""

    async def task(self):
        count = [0, 0]

        class Part(Job[None]):
            async def task(self):
                count[0] += 1
                count[1] = max(count)
                await asyncio.sleep(0)
                count[0] -= 1

        await asyncio.gather(*(Part() for _ in range(5)))
        return count[1]

async def long_answers():
    """Return the number of answers until the budget is used."""
    agent = Agent(ScriptedBackend(otherwise="word " * 50), name="writer")
    for number in range(100):
        try:
            await agent("Hello")
        except BudgetExceeded:
            return number

class Answers(Durable[int]):
    async def task(self):
        return await long_answers()

ready = Leaf(7)
async def wait():
    await asyncio.sleep(60)

class Waits(Durable[None]):
    async def task(self):
        await self.durable.sleep(seconds=60)

writer = Agent(ScriptedBackend(otherwise="An answer."), name="writer")
number = 5
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORK)
    return tmp_path


async def call(folder: Path, *options: str, **env: str) -> tuple[int, str, str]:
    """Run the command with pipes; return its status, output and errors."""
    return await run_forked(["-m", "anabranch", *options], folder, "", environment(**env))


@asynccontextmanager
async def started(folder: Path, *options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Start the command with pipes, in a process that can be killed."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *options,
        cwd=folder,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Tmux:
    """A real terminal whose screen can be read."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self._socket = str(folder / "tmux")
        size = ["-x", str(width), "-y", str(height)]
        self._do(
            "-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), "env PS1='$ ' sh"
        )

    def _do(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        env = environment(TERM="xterm-256color", LANG="C.UTF-8", LC_ALL="C.UTF-8")
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    def type(self, line: str) -> None:
        self._do("send-keys", line, "Enter")

    def key(self, name: str) -> None:
        self._do("send-keys", name)

    def resize(self, width: int, height: int) -> None:
        self._do("resize-window", "-x", str(width), "-y", str(height))

    def seen(self, *, all: bool = False) -> str:  # noqa: A002 - what it is
        return self._do("capture-pane", "-p", *(["-S", "-"] if all else []))

    def close(self) -> None:
        self._do("kill-server")


@pytest.fixture(params=[80, 200] if LONG else [80])
def tmux(request: pytest.FixtureRequest, folder: Path):
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    terminal = Tmux(folder, request.param, 20)
    yield terminal
    terminal.close()


COMMAND = f"{' '.join(PROGRAM)}"


# --- arguments


@pytest.mark.parametrize(
    ("options", "output"),
    [
        (["work:greet", "name=Ann"], "hello Ann\n"),
        (["work:greet", "name=a=b", "times=2"], "hello a=bhello a=b\n"),
        (["work:Leaf", "number=2"], "2\n"),
        (["work:ready"], "7\n"),
        (["work:work", "number=2"], "4\n"),
        (["work:make", "leaves=1"], "begun\nhalf a line\nall grown\n"),
        (["work:Counted", "--at-once", "2"], "2\n"),
        (["work:long_answers", "--budget", "150"], "3\n"),
    ],
)
async def test_each_kind_of_name_is_run(options: list[str], output: str, folder: Path) -> None:
    """A class of jobs, a handler, a job, a function that is async or makes one; with limits."""
    assert await call(folder, "run", *options) == (0, output, "")


async def test_a_budget_holds_for_a_durable_job(folder: Path) -> None:
    run = ["work:Answers", "--journal", "runs.db", "--run-id", "a", "--budget", "150"]
    assert await call(folder, "run", *run) == (0, "3\n", "")


async def test_an_agent_gets_the_prompt(folder: Path) -> None:
    """From the command line."""
    status, out, err = await call(folder, "run", "work:writer", "messages=Hello")
    assert (status, err) == (0, "")
    assert json.loads(out)["content"] == "An answer."


async def test_fields_are_read_by_their_types(folder: Path) -> None:
    """Texts stay unchanged, other types read their values; JSON is accepted for them."""
    given = ["text=5", "number=6", "when=yes", "many=[1, 2]", 'size={"wide": 1, "high": 2}']
    status, out, err = await call(folder, "run", "work:Fields", *given, "file=a b")
    assert (status, err) == (0, "")
    assert json.loads(out) == ["5", 6, True, [1, 2], {"wide": 1, "high": 2}, "a b"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["work:greet"], "missing: name; work:greet takes name: str, times: int = 1"),
        (["work:greet", "nmae=A"], "unknown field 'nmae': did you mean name?"),
        (["work:greet", "name"], "'name' is not FIELD=VALUE"),
        (["work:greet", "name=A", "name=B"], "the field name is given twice"),
        (["work:greet", "name=A", "times=x"], "times='x' is not a valid int"),
        (["work:Fields", "text=x", "backend=x"], "backend is a "),
        (["work:Fields", "text=x", "size=x"], "is not a valid "),
        (["work:ready", "number=1"], "is a job object, not a class"),
        (["work:number"], "work:number is a int"),
        (["work:nothing"], "work:nothing returns a NoneType"),
        (["work:none"], "module work has no none"),
        (["none:none"], "No module named 'none'"),
        (["work"], "work must have the form module:name"),
        (["work:ready", "--journal", "j.db"], "--journal requires --run-id"),
        (["work:ready", "--run-id", "a"], "--run-id requires --journal"),
        (["work:ready", "--journal", "j.db", "--run-id", "a"], "--journal needs a durable job"),
        (["work:ready", "--content"], "--content requires --record or --watch"),
        (["work:ready", "--append"], "--append requires --record"),
        (["work:ready", "--record", "none/r.jsonl"], "cannot record to 'none/r.jsonl'"),
        (["work:ready", "--timeout", "-1"], "--timeout"),
        (["work:writer"], "missing: messages; work:writer takes messages"),
    ],
)
async def test_wrong_usage_is_one_line(options: list[str], says: str, folder: Path) -> None:
    """On standard error, with status 2; nothing has run."""
    status, out, err = await call(folder, "run", *options)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


async def test_a_failure_is_status_1(folder: Path) -> None:
    """Its error cannot control the terminal and has no key; `--json` has it too."""
    status, out, err = await call(folder, "run", "work:Leaf", "number=3", "--json")
    assert status == 1
    assert json.loads(out) == {
        "state": "failed",
        "result": None,
        "error": "ValueError: no leaf \x1b[2J ***",
    }
    assert "\x1b" not in out + err
    assert "ValueError: no leaf" in err
    assert "sk-abc" not in err
    status, _, err = await call(
        folder, "run", "work:Forest", "stay=true", "--timeout", "0.1", "--debug"
    )
    assert status == 1
    assert "TimeoutError" in err
    assert "Traceback" in err


@pytest.mark.parametrize("options", [["wait"], ["Waits", "--journal", "j.db", "--run-id", "w"]])
async def test_the_error_after_a_timeout_names_the_time(options: list[str], folder: Path) -> None:
    name, *others = options
    status, _, err = await call(folder, "run", f"work:{name}", *others, "--timeout", "0.05")
    assert (status, f"work:{name} was not done within 0.05 s" in err) == (1, True)


async def test_a_durable_run_is_stored(folder: Path) -> None:
    """The same command again prints the stored result."""
    kept = ["--journal", "runs.db", "--run-id", "a"]
    for _ in range(2):
        assert await call(folder, "run", "work:Kept", "word=x", *kept) == (0, "x\n", "")
    status, out, _ = await call(folder, "runs", "list", "--journal", "runs.db", "--json")
    assert (status, [run["state"] for run in json.loads(out)]) == (0, ["completed"])


# --- output without a terminal


async def test_a_pipe_gets_plain_lines(folder: Path) -> None:
    """No control codes, and the complete tree at the end; standard output is the job's."""
    status, out, err = await call(folder, "run", "work:Forest", "leaves=40", "--watch")
    assert (status, out) == (0, "begun\nhalf a line\nall grown\n")
    assert "\x1b" not in err
    lines = err.splitlines()
    assert any(re.match("✓ Forest#1 .* completed$", line) for line in lines)
    assert any("✗ Leaf#5" in line and "failed: ValueError (work.py:" in line for line in lines)
    assert lines[-1].endswith("40 completed · 1 failed")


async def test_a_recording_is_made_and_summed_up(folder: Path) -> None:
    """With content only if requested."""
    for content in (False, True):
        more = ["--content"] if content else []
        await call(folder, "run", "work:Forest", "--record", "r.jsonl", *more)
        trace = read(folder / "r.jsonl")
        assert [life.content for life in trace.executions] == [content]
        status, out, err = await call(folder, "view", "r.jsonl", "--text")
        assert (status, err) == (0, "")
        assert ("no leaf" in out) is content
        assert "first failure\n  Leaf#5 failed: ValueError" in out
        assert "slowest" in out
        assert "\x1b" not in out
        assert "sk-abc" not in out


async def test_a_page_is_written_and_its_path_is_printed(folder: Path) -> None:
    """To the given file, else to a temporary one that stays; a browser opens it."""
    await call(folder, "run", "work:ready", "--record", "r.jsonl")
    given = await call(folder, "view", "r.jsonl", "--out", "page.html", "--no-open")
    assert given == (0, "page.html\n", "")
    browser = folder / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened\n')
    browser.chmod(0o755)
    status, out, _ = await call(folder, "view", "r.jsonl", BROWSER=str(browser), TMPDIR=str(folder))
    assert status == 0
    page = Path(out.rstrip("\n"))
    assert page.parent == folder
    await wait_until(lambda: (folder / "opened").exists() and (folder / "opened").read_text())
    assert (folder / "opened").read_text() == f"{page.as_uri()}\n"
    assert (folder / page.name).read_text() == (folder / "page.html").read_text()


async def test_a_recording_continues_in_another_execution(folder: Path) -> None:
    """With `--append`, for example of a resumed run."""
    for number in range(2):
        await call(folder, "run", "work:ready", "--record", "r.jsonl", "--append")
        assert len(read(folder / "r.jsonl").executions) == number + 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["watch", "ftp://127.0.0.1:9"], "is not an http address"),
        (["watch", "none/r.jsonl"], "there is no folder 'none'"),
        (["watch", "work.py"], "work.py' is not a recording"),
        (["view", "none.jsonl"], "cannot read the recording 'none.jsonl'"),
        (["view", "work.py", "--no-open"], "is not a recording"),
        (["view", "r.jsonl", "--text", "--out", "x"], "--text and --out cannot be combined"),
    ],
)
async def test_other_files_cannot_be_watched(options: list[str], says: str, folder: Path) -> None:
    """With status 2 and one line."""
    head = {"recording": 1, "time": 1.0, "pid": 1, "host": "h", "content": False}
    (folder / "r.jsonl").write_text(json.dumps(head) + "\n")
    status, out, err = await call(folder, *options)
    assert (status, out) == (2, "")
    assert says in err


async def test_an_interrupt_leaves_a_complete_recording(folder: Path) -> None:
    """The tree is cancelled and cleans up; the status has the signal."""
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        (folder / "staying").unlink(missing_ok=True)
        async with started(
            folder, "run", "work:Forest", "stay=true", "leaves=3", "--record", "r.jsonl", "--json"
        ) as run:
            await wait_until((folder / "staying").exists)
            run.send_signal(number)
            out, err = await run.communicate()
        assert (run.returncode, err) == (status, b"")
        assert out.startswith(b"begun\ncleaned up\n")
        assert json.loads(out.partition(b"up\n")[2])["state"] == "cancelled"
        trace = read(folder / "r.jsonl")
        assert trace.executions[-1].ended
        assert trace.root.children[0].state == "cancelled"


async def test_watch_waits_for_a_missing_recording(folder: Path) -> None:
    """With a hint; then it follows the recording to its end."""
    async with started(folder, "watch", "r.jsonl") as watching:
        assert watching.stderr is not None
        assert b"waiting for r.jsonl" in await watching.stderr.readline()
        await call(folder, "run", "work:Forest", "--record", "r.jsonl")
        _, err = await watching.communicate()
    assert watching.returncode == 0
    assert "✓ Forest#1" in err.decode()


# --- in a terminal


async def test_a_run_is_drawn_while_it_runs(tmux: Tmux, folder: Path) -> None:
    """Below its output, never larger than the terminal; the last drawing stays."""
    tmux.type(f"{COMMAND} run work:Forest leaves=300 stay=true --watch; echo status $?")
    stands = r"● Forest#1 +\d+\.\d+ s +running at work.py:\d+ in task"
    await wait_until(lambda: "299 completed" in (seen := tmux.seen()) and re.search(stands, seen))
    seen = tmux.seen()
    assert "✗ Leaf#5" in seen
    assert re.search(r"… 2\d\d Leaf completed", seen)
    tmux.resize(70, 15)
    await wait_until(lambda: len(re.findall("Forest#1 ", tmux.seen())) == 1)
    tmux.resize(120, 30)
    (folder / "go").touch()
    await wait_until(lambda: "status 0" in tmux.seen())
    seen = tmux.seen(all=True)
    assert "half a line\n" in seen
    assert re.search(r"✓ Forest#1 +\d+\.\d+ s +completed", seen)
    assert seen.rstrip().removesuffix("$").rstrip().endswith("all grown\nstatus 0")
    assert "1 failed" in seen


async def test_ctrl_c_leaves_the_last_drawing(tmux: Tmux, folder: Path) -> None:
    """Of the cancelled tree; the output of the cleanup is above it."""
    tmux.type(f"{COMMAND} run work:Forest stay=true -w --record r.jsonl; echo status $?")
    await wait_until(lambda: "● Forest#1" in tmux.seen())
    tmux.key("C-c")
    await wait_until(lambda: "status 130" in tmux.seen())
    seen = tmux.seen()
    assert seen.index("cleaned up") < seen.index("⊘ Forest#1") < seen.index("1 cancelled")
    assert "●" not in seen
    assert read(folder / "r.jsonl").executions[-1].ended


async def test_the_end_of_a_killed_process_is_shown(tmux: Tmux, folder: Path) -> None:
    """Its open nodes are lost, and the drawing stops."""
    async with started(folder, "run", "work:Forest", "stay=true", "--record", "r.jsonl") as run:
        await wait_until((folder / "staying").exists)
        tmux.type(f"{COMMAND} watch r.jsonl; echo status $?")
        await wait_until(lambda: "● Forest#1" in tmux.seen())
        os.kill(run.pid, signal.SIGKILL)
        await wait_until(lambda: "status 1" in tmux.seen())
    seen = tmux.seen()
    assert "? Forest#1" in seen
    assert re.search(rf"process {run.pid} on \S+ died before the run ended: 1 node was open", seen)


@pytest.mark.parametrize("setting", ["NO_COLOR=1", "TERM=dumb"])
async def test_a_dumb_terminal_gets_no_control_codes(setting: str, folder: Path) -> None:
    """Only plain lines."""
    if shutil.which("script") is None:
        pytest.skip("needs script")
    command = f"{COMMAND} run work:Forest --watch"
    process = await asyncio.create_subprocess_exec(
        *["script", "-qec", command, "/dev/null"],
        cwd=folder,
        env=environment(TERM="xterm", LANG="C.UTF-8") | dict([setting.split("=")]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"Forest#1" in out
    assert b"\x1b" not in out
