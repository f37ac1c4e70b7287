"""The programs of the pages about durable runs print the shown output, also after a kill."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from support.forked_python import run_forked
from support.paths import ROOT

from anabranch.store import errors

PAGES = "\n".join(
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    for name in (
        "durable",
        *("durable-effects", "durable-agents", "durable-code", "durable-operations"),
    )
)
SETTING = re.compile(r"\w+=")
BLOCKS = re.findall(r"```(python|console)\n(.*?)```", PAGES, re.DOTALL)


async def run(command: str, folder: Path) -> tuple[int, str, str]:
    """Run a line of a page as a shell would; return status, output and errors."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = shlex.split(command)
    settings = dict(word.split("=", 1) for word in itertools.takewhile(SETTING.match, words))
    program, *arguments = words[len(settings) :]
    async with asyncio.timeout(120):
        if "&" not in words and program in ("python", "anabranch"):
            module = ["-m", "anabranch"] if program == "anabranch" else []
            env = {**os.environ, "PATH": path, **settings}
            return await run_forked([*module, *arguments], folder, "", env)
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command),
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()


async def test_every_program_of_the_pages_prints_the_output_there(tmp_path: Path) -> None:
    """All in one folder, in the order of the pages, with one journal."""
    ran: set[str] = set()
    for kind, text in BLOCKS:
        if kind == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name, f"this block names no file: {text[:60]}"
            (tmp_path / name[1]).write_text(text)
            continue
        for said in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = said.partition("\n")
            ran.update(re.findall(r"\w+\.py", command))
            status, out, err = await run(command, tmp_path)
            assert out == expected, f"{command}\n{err}"
            assert (status == 0) == ("DIE=" not in command), err
    status, _, err = await run("python test_order.py", tmp_path)
    assert status == 0, err
    named = set(re.findall(r"^# (\w+\.py)$", PAGES, re.MULTILINE))
    assert named - ran == {"outside.py", "ask.py", "test_order.py"}  # the first two are imported


def test_the_readmes_run_is_taken_up(tmp_path: Path) -> None:
    """The program runs unchanged. The second execution only returns the result."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = (
        each for each in re.findall(r"```python\n(.*?)```", readme, re.S) if "Pack" in each
    )
    (tmp_path / "order.py").write_text(program)
    command = [sys.executable, "order.py"]
    said = [subprocess.check_output(command, cwd=tmp_path, text=True, timeout=120) for _ in "12"]
    packed = "['lamp is packed', 'bulb is packed']\n"
    assert said == [f"loads A-17\n{packed}", packed]


def test_the_pages_list_every_error_of_the_package() -> None:
    """The rows are exactly the exported error classes."""
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGES, re.MULTILINE))
    assert rows == {*errors.__all__, "ConfigurationError"}


def test_the_pages_list_every_command() -> None:
    """Each command has a table row."""
    from anabranch.cli._runs import runs

    rows = "\n".join(re.findall(r"^\| (`anabranch runs .*?) \|", PAGES, re.MULTILINE))
    commands = {each.name or each.callback.__name__ for each in runs.registered_commands}
    assert set(re.findall(r"(?:runs |`)([a-z]+)(?= RUN|`,| --before)", rows)) == commands
