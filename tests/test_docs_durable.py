"""The programs of docs/durable.md print what the page says, also when they are killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from anabranch.store import errors

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/durable.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|console)\n(.*?)```", PAGE, re.DOTALL)


def test_every_program_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    """All in one folder, in the order of the page, with one journal."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
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
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.stdout == expected, f"{command}\n{done.stderr}"
            assert (done.returncode == 0) == ("DIE=" not in command), done.stderr
    done = subprocess.run([sys.executable, "test_order.py"], cwd=tmp_path, check=True, timeout=120)
    assert done.returncode == 0
    named = set(re.findall(r"^# (\w+\.py)$", PAGE, re.MULTILINE))
    assert named - ran == {"outside.py", "ask.py", "test_order.py"}  # the first two are imported


def test_the_readmes_run_is_taken_up(tmp_path: Path) -> None:
    """Word for word; the second time it has nothing left to do."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = (
        each for each in re.findall(r"```python\n(.*?)```", readme, re.S) if "Pack" in each
    )
    (tmp_path / "order.py").write_text(program)
    command = [sys.executable, "order.py"]
    said = [subprocess.check_output(command, cwd=tmp_path, text=True, timeout=120) for _ in "12"]
    packed = "['lamp is packed', 'bulb is packed']\n"
    assert said == [f"loads A-17\n{packed}", packed]


def test_the_page_tells_of_every_error_of_the_room() -> None:
    """And of none that is not there."""
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert rows == {*errors.__all__, "ConfigurationError"}


def test_the_page_tells_of_every_command() -> None:
    """Each has its row."""
    from anabranch.cli._runs import runs

    rows = "\n".join(re.findall(r"^\| (`anabranch runs .*?) \|", PAGE, re.MULTILINE))
    commands = {each.name or each.callback.__name__ for each in runs.registered_commands}
    assert set(re.findall(r"(?:runs |`)([a-z]+)(?= RUN|`,| --before)", rows)) == commands


def test_the_page_tells_of_every_contract() -> None:
    """In one line each, in their order."""
    found = re.findall(r"^\| (D\d+) \|", PAGE, re.MULTILINE)
    assert found == [f"D{number}" for number in range(1, 22)]
