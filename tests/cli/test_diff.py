"""`anabranch diff`: output and exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from typer.testing import CliRunner

from anabranch.cli._app import app
from anabranch.commander import Commander
from anabranch.handlers import handler
from anabranch.tracing import record

RED = "\x1b[31m"


@handler
async def fetch(node):
    pass


@handler
async def read(node):
    pass


async def recorded(file: Path, *steps: Any) -> str:
    async with Commander() as commander, record(commander, file):
        for step in steps:
            await commander.run(step())
    return str(file)


def ran(*arguments: str) -> tuple[int, str, str]:
    """Run the command; return its status, output and errors."""
    found = CliRunner().invoke(app, ["diff", *arguments])
    return found.exit_code, found.stdout, found.stderr


async def test_the_status_says_whether_anything_is_different(tmp_path: Path) -> None:
    """The status is 0, 1, or 2 for recordings that cannot be compared, as with diff(1)."""
    one = await recorded(tmp_path / "one", fetch, read)
    two = await recorded(tmp_path / "two", fetch)
    assert ran(one, one) == (0, "no differences\n", "")
    status, said, complaint = ran(one, two)
    assert (status, complaint) == (1, "")
    assert said.startswith("removed read (#2)\n    state: completed\n")
    for wrong in [("missing", one), (one, __file__), (one,), (one, two, "--fast")]:
        status, said, complaint = ran(*wrong)
        assert (status, said) == (2, "")
        assert complaint


async def test_for_programs_it_is_json(tmp_path: Path) -> None:
    """--json has all differences and the same status."""
    one = await recorded(tmp_path / "one", fetch)
    two = await recorded(tmp_path / "two", fetch, read)
    status, said, _ = ran(one, two, "--json")
    found = json.loads(said)
    assert (status, found["different"]) == (1, True)
    assert found["changes"][0]["kind"] == "added"
    assert found["states"] == {"completed": [1, 2]}
    status, said, _ = ran(one, one, "--json")
    assert (status, json.loads(said)["changes"]) == (0, [])


async def test_times_are_shown_where_they_are_asked_for(tmp_path: Path) -> None:
    """--times shows them, and they do not count as differences."""
    one = await recorded(tmp_path / "one", fetch)
    status, said, _ = ran(one, one, "--times")
    assert (status, said.splitlines()[1:]) == (
        0,
        ["no node became much slower", "no node became much faster"],
    )


async def test_what_is_shown_steers_no_terminal_and_has_no_key(tmp_path: Path) -> None:
    """Control characters and keys in a recording are not shown."""
    one = await recorded(tmp_path / "one", fetch)
    two = tmp_path / "two"
    put = {"e": "put", "t": 0, "n": 1, "p": 0, "name": "sk-0123456789abcdef\x1b[2J\nchanged x"}
    head = {"recording": 1, "time": 0, "pid": 1, "host": "box", "content": False}
    two.write_text("".join(json.dumps(line) + "\n" for line in (head, put)))
    for more in [], ["--json"]:
        _, said, _ = ran(one, str(two), *more)
        assert "***" in said
        assert "sk-0" not in said
        assert "\x1b" not in said
        assert "\nchanged x" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")
async def test_a_terminal_has_colours_and_a_pipe_has_none(tmp_path: Path) -> None:
    """Removed nodes are red on a terminal."""
    one = await recorded(tmp_path / "one", fetch)
    two = await recorded(tmp_path / "two")
    assert RED not in ran(one, two)[1]
    code = "from anabranch.cli import main; main()"
    child = pexpect.spawn(sys.executable, ["-c", code, "diff", one, two], env={"TERM": "xterm"})
    said = child.read().decode()
    child.close()
    assert f"{RED}removed fetch (#1)" in said
    assert child.exitstatus == 1
