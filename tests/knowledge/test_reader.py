"""The reader process ends with its parent, and a file that crashes it is one line of the report."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from support.seeds import example_count
from support.waiting import block_until, run_turns, turn_until, wait_until

from anabranch.knowledge import Index, KnowledgeError
from anabranch.knowledge._folder import READERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

TEXT = "The rest of the folder is read."


def children():
    """Return the reader processes of this one that are not reaped."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended since
            found |= {int(each) for each in (task / "children").read_text().split()}
    return {each for each in found if is_reader(each)}


def is_reader(pid):
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it was reaped since
        return False
    return not command or b"_read_main" in command  # one that has ended has none any more


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A replaceable library for PDF; it notes its process."""
    (tmp_path / "library").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    notes = tmp_path / "pids"
    notes.touch()

    def does(code):
        program = f"import os\nwith open({str(notes)!r}, 'a') as file:\n"
        program += "    file.write(f'{os.getpid()}\\n')\n" + textwrap.dedent(code)
        (tmp_path / "library" / "pypdf.py").write_text(program)
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / "m.pdf").write_text("%PDF")
        for name in ("a.txt", "z.txt"):
            (tmp_path / "docs" / name).write_text(TEXT)
        return tmp_path / "docs", lambda: list(map(int, notes.read_text().split()))

    return does


LOOP = "while True: pass"
WAIT = "import time\ntime.sleep(1000)"
REGEX = "import re\nre.match('(a+)+$', 'a' * 60 + 'b')"  # it never lets another thread run
MEMORY = "held = bytearray(3 << 30)"
CRASH = "import signal\nos.kill(os.getpid(), signal.SIGSEGV)"
EXIT = "os._exit(0)"
RECURSE = "def f(): f()\nf()"


@pytest.mark.parametrize(
    ("code", "timeout", "why"),
    [
        (LOOP, 1.0, "takes more than 1 s to read"),
        (WAIT, 1.0, "takes more than 1 s to read"),
        (REGEX, 1.0, "takes more than 1 s to read"),
        (MEMORY, 60, "takes too much memory"),
        (CRASH, 60, "takes too much memory or time to read, or is broken"),
        (EXIT, 60, "takes too much memory or time to read, or is broken"),
        (RECURSE, 60, "takes too much memory to read"),
        ("raise ValueError('first\\nsecond')", 60, "is broken (ValueError: first second)"),
        ("raise ValueError('\\ud800' * 1000)", 60, "is broken (ValueError: "),
    ],
)
async def test_whatever_a_library_does_is_one_line(library, monkeypatch, code, timeout, why):
    """Later files are read by a new process, and none is left."""
    monkeypatch.setattr("anabranch.knowledge._folder.READERS", 1)
    docs, pids = library(code)
    async with Index(":memory:") as index:
        report = await index.add_folder(docs, timeout=timeout)
        assert report.refused[f"{docs}/m.pdf"].startswith(why)
        assert len(report.added) == 2
    assert len(pids()) == 1
    assert children() == set()


async def test_what_a_library_prints_is_no_answer(library):
    """Neither from Python nor from C."""
    docs, _ = library("print('{}' * 100)\nos.write(1, b'x' * 100)\nraise ValueError('done')")
    async with Index(":memory:") as index:
        report = await index.add_folder(docs)
        assert report.refused[f"{docs}/m.pdf"] == "is broken (ValueError: done)"
        assert len(report.added) == 2


@pytest.mark.parametrize("code", [LOOP, WAIT, REGEX])
async def test_cancelled_in_the_middle_of_a_file_no_process_is_left(library, code):
    """It is killed before the cancel continues; files that were read are indexed."""
    docs, pids = library(code)
    async with Index(":memory:") as index:
        told = []
        adding = asyncio.create_task(index.add_folder(docs, progress=told.append))
        await wait_until(lambda: pids() and len(told) == 3)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert children() == set()
        assert not alive(pids()[0])
        assert len(await index.sources()) == 2


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("count", range(0, example_count(60, 400), example_count(6, 1)))
async def test_cancelled_at_any_turn_no_process_is_left(tmp_path, count, again):
    """Also while a process starts, and if the cancel repeats in every turn."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT)
    async with Index(":memory:") as index:
        adding = asyncio.create_task(index.add_folder(tmp_path))
        await run_turns(count * count)
        adding.cancel()
        while again and not adding.done():
            await asyncio.sleep(0)
            adding.cancel()
        await asyncio.wait([adding])
        assert children() == set()
        assert len((await index.add_folder(tmp_path)).refused) == 0


async def test_cancelled_while_processes_start_no_process_is_left(tmp_path, monkeypatch):
    """All of them are starting, and their task group repeats the cancel."""
    monkeypatch.setattr("anabranch.knowledge._folder.READERS", 4)
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(TEXT)
    async with Index(":memory:") as index:
        for _ in range(5):
            adding = asyncio.create_task(index.add_folder(tmp_path))
            await turn_until(lambda: len(children()) == 4)
            adding.cancel()
            await asyncio.wait([adding])
            assert adding.cancelled()
            assert children() == set()


async def test_at_most_so_many_processes_read_at_once(tmp_path):
    """Each reads many files."""
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(TEXT)
    seen = set()
    async with Index(":memory:") as index:
        await index.add_folder(tmp_path, progress=lambda state: seen.update(children()))
    assert 1 <= len(seen) <= READERS
    assert children() == set()


async def test_an_error_of_the_caller_ends_the_processes_and_is_raised_as_it_is(tmp_path):
    """An error of `progress` or `embed` is raised without a group."""
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text(f"{TEXT} {number}")

    def progress(state):
        if state.done == 3:
            raise ZeroDivisionError

    async def embed(texts):
        raise ConnectionError("the model is away")

    async with Index(":memory:") as index:
        with pytest.raises(ZeroDivisionError):
            await index.add_folder(tmp_path, progress=progress)
    async with Index(":memory:", embed=embed, embedder="away") as index:
        with pytest.raises(ConnectionError, match="the model is away"):
            await index.add_folder(tmp_path)
    assert children() == set()


@pytest.mark.parametrize(
    "code", [LOOP, WAIT, pytest.param(REGEX, marks=pytest.mark.long)]
)  # the last holds out until its time is over
def test_a_reader_ends_when_its_parent_is_killed(library, code):
    """Also in the middle of a file."""
    docs, pids = library(code)
    program = f"""
        import asyncio
        from anabranch.knowledge import Index
        asyncio.run(Index(":memory:").add_file({f"{docs}/m.pdf"!r}, timeout=2))
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    assert block_until(pids)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert block_until(lambda: not alive(pids()[0]))


async def test_a_file_that_has_not_changed_is_not_parsed_again(library):
    """Its digest is known, and the library is not imported."""
    docs, pids = library(
        """
        class PdfReader:
            is_encrypted, metadata = False, None
            def __init__(self, data):
                self.pages = [self]
            def extract_text(self):
                return "a page"
        """
    )
    async with Index(":memory:") as index:
        assert len((await index.add_folder(docs)).added) == 3
        os.utime(docs / "m.pdf")
        assert len((await index.add_folder(docs)).unchanged) == 3
        assert len(pids()) == 1
        (docs / "m.pdf").write_text("%PDF other")
        assert (await index.add_folder(docs)).changed == [f"{docs}/m.pdf"]
        assert len(pids()) == 2


async def test_a_single_file_that_cannot_be_read_is_one_error(library):
    """It names the file and a remedy; the index keeps the last version."""
    docs, _ = library(EXIT)
    async with Index(":memory:") as index:
        await index.add_file(docs / "a.txt")
        (docs / "a.txt").write_bytes(b"\0" * 100)
        for name in ("a.txt", "m.pdf", "none.txt"):
            with pytest.raises(KnowledgeError, match=f"{name}', which .*: add another file"):
                await index.add_file(docs / name)
        assert [hit.text for hit in await index.search("folder")] == [TEXT]
