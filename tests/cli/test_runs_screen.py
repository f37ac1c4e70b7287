"""`anabranch runs` in a narrow and a wide terminal, and its keys."""

from __future__ import annotations

import asyncio
import os
import pty
import re
from pathlib import Path

import pexpect
import pytest
from support.chat_command import environment
from support.runs_command import RUNS, begin, run_runs, runs_json, screen, table

from anabranch.cli._call_layout import count_cells as cells

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = {"pending": "2", "completed": "32", "cancelled": "33", "suspended": "34"}
LONG = "a-very-long-name-of-a-run-that-nobody-can-remember-2026-11-22-0001"


def plain(text: str) -> str:
    return ESCAPES.sub("", text).replace("\r\n", "\n")


async def several(folder: Path) -> None:
    """Start runs that wait at different points."""
    await begin(
        folder, "done=Nap(0)", "gone=Nap(1)", "nap=Nap(30)", "mail=Mail('Ann')", f"{LONG}=Nap(2)"
    )
    assert (await run_runs(folder, "resume", "done"))[0] == 0
    assert (await run_runs(folder, "cancel", "gone"))[0] == 0
    for name in "nap", "mail":
        child = screen(folder, "resume", name)
        await asyncio.to_thread(child.expect, "waits for")
        child.sendintr()
        await asyncio.to_thread(child.expect, pexpect.EOF)
        child.close()
        assert child.exitstatus == 130


@pytest.mark.parametrize("width", [80, 200])
async def test_the_list_fits_the_screen(width: int, tmp_path: Path) -> None:
    """Names are complete, states are coloured, and each run shows its waits."""
    await several(tmp_path)
    shown = await asyncio.to_thread(lambda: table(screen(tmp_path, "list", width=width)))
    lines = plain(shown).splitlines()
    assert max(map(cells, lines)) <= width
    assert lines[0].split()[:4] == ["run", "class", "state", "age"]
    assert LONG in "".join(line.split(" ")[0] for line in lines)
    for state, colour in COLOUR.items():
        assert f"\x1b[{colour}m{state}" in shown
    text = " ".join(plain(shown).split())
    assert re.search(r"approval \d+: ?send", text)
    assert "sleep until 20" in text.replace("- ", "-")
    assert "\n\n" not in plain(shown).strip()


@pytest.mark.parametrize("width", [80, 200])
async def test_a_run_fits_the_screen(width: int, tmp_path: Path) -> None:
    """The run, its question with the commands to answer it, and its history fit the screen."""
    await several(tmp_path)
    shown = plain(
        await asyncio.to_thread(lambda: table(screen(tmp_path, "show", "mail", width=width)))
    )
    assert max(map(cells, shown.splitlines())) <= width
    assert "orders:Mail, version 1" in shown
    assert "state      suspended" in shown
    assert "to: Ann" in shown
    number = re.search(r"anabranch runs approve mail (\d+)\n", shown)
    assert number is not None
    assert re.search(rf"^ +{number[1]}  \S+  question  send", shown, re.MULTILINE)


async def test_a_dumb_terminal_gets_no_colours(tmp_path: Path) -> None:
    """A dumb terminal gets neither colours nor a live region."""
    await begin(tmp_path, "nap=Nap(0)", "other=Nap(1)")
    for options in (["list"], ["show", "nap"], ["resume", "nap"]):
        child = screen(tmp_path, *options, TERM="dumb")
        shown = await asyncio.to_thread(table, child)
        assert "\x1b" not in shown


async def test_what_runs_say_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Names, inputs, reasons and questions are shown without control characters."""
    name = "x\u202ex"  # a name must not have control characters
    await begin(tmp_path, name + "=Mail('A\x1b[31mnn\x1b[2J')")
    child = screen(tmp_path, "resume", name)
    await asyncio.to_thread(child.expect, "waits for")
    await run_runs(tmp_path, "signal", name, "s\u202e", "v\x1b[31m")
    for options in (["list"], ["show", name, "--rows"]):
        shown = await asyncio.to_thread(table, screen(tmp_path, *options))
        assert "\x1b[2J" not in shown
        assert "\x1b[31mnn" not in shown
        assert "\u202e" not in shown
        assert "\x1b" not in plain(shown)
    child.sendintr()
    await asyncio.to_thread(child.expect, pexpect.EOF)
    assert "\x1b[2J" not in child.before


async def test_names_are_no_markup(tmp_path: Path) -> None:
    """Text that looks like rich markup is shown unchanged, and no command fails."""
    await begin(tmp_path, "a[/b]=Nap(1)")
    status, out, err = await run_runs(tmp_path, "signal", "a[/b]", "[bold]x[/c]", "1")
    assert (status, out, err) == (0, "[bold]x[/c] is sent to a[/b]\n", "")
    child = screen(tmp_path, "resume", "a[/b]")
    await asyncio.to_thread(child.expect_exact, "waits for")
    child.sendintr()
    await asyncio.to_thread(child.expect_exact, "a[/b] is suspended")
    await asyncio.to_thread(child.expect, pexpect.EOF)
    status, out, err = await run_runs(tmp_path, "cancel", "a[/b]")
    assert (status, out, err) == (0, "a[/b] is cancelled\n", "")


async def test_what_a_resumed_run_prints_is_output(tmp_path: Path) -> None:
    """The program's output goes to standard output even if the progress is on a terminal."""
    await begin(tmp_path, "loud=Loud()")
    ours, theirs = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *[*RUNS, "resume", "loud"],
            cwd=tmp_path,
            env=environment(TERM="xterm"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=theirs,
        )
        out, _ = await process.communicate()
    finally:
        os.close(theirs)
        os.close(ours)
    assert (process.returncode, out.decode()) == (0, "printed by the run\ndone\n")


async def test_a_run_that_is_taken_up_shows_how_far_it_is(tmp_path: Path) -> None:
    """One line shows the progress and disappears at the end; each wait is printed once."""
    await begin(tmp_path, "mail=Mail('Ann')")
    child = screen(tmp_path, "resume", "mail")
    await asyncio.to_thread(child.expect, r"waits for approval (\d+): send")
    number = child.match[1]
    await asyncio.to_thread(child.expect, r"mail: \d+ rows?, waits for approval")
    await runs_json(tmp_path, "approve", "mail", number)
    await asyncio.to_thread(child.expect, pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert plain(child.before).rstrip().endswith("sent to Ann")


@pytest.mark.parametrize(
    ("key", "left"), [("y", ["nap"]), ("n", ["done", "nap"]), ("", ["done", "nap"])]
)
async def test_a_purge_asks(key: str, left: list[str], tmp_path: Path) -> None:
    """The question has the number and age of the runs; only a yes deletes them."""
    await begin(tmp_path, "nap=Nap(1)", "done=Nap(0)")
    await run_runs(tmp_path, "resume", "done")
    child = screen(tmp_path, "purge", "--before", "0s")
    await asyncio.to_thread(child.expect_exact, "delete 1 run, the oldest ")
    child.sendline(key)
    await asyncio.to_thread(child.expect, "1 run deleted" if key == "y" else "nothing was deleted")
    await asyncio.to_thread(child.expect, pexpect.EOF)
    assert sorted(each["run_id"] for each in await runs_json(tmp_path, "list")) == left


@pytest.mark.parametrize(("key", "status"), [("c", 130), ("d", 1)])
async def test_a_purge_that_is_interrupted_removes_nothing(
    key: str, status: int, tmp_path: Path
) -> None:
    """Ctrl-C ends the program at once, and Ctrl-D means no."""
    await begin(tmp_path, "done=Nap(0)")
    await run_runs(tmp_path, "resume", "done")
    child = screen(tmp_path, "purge", "--before", "0s")
    await asyncio.to_thread(child.expect_exact, "[y/N]: ")
    child.sendcontrol(key)
    await asyncio.to_thread(child.expect, pexpect.EOF)
    child.close()
    assert child.exitstatus == status
    assert len(await runs_json(tmp_path, "list")) == 1
