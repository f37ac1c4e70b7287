"""Strict pyright, mypy and ty see the types of the everyday API and report its wrong uses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.contract("T17")

ACCEPTED = Path("tests/typing/accepted.py")
REJECTED = Path("tests/typing/rejected.py")

pytestmark = pytest.mark.skipif(
    not (ROOT / "anabranch/commander").exists(),
    reason="type checkers follow the links in anabranch/, and this checkout has none",
)


def pyright():
    """Return the errors that pyright reports, by file and line."""
    command = [sys.executable, "-m", "pyright", "--outputjson", str(ACCEPTED), str(REJECTED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    return [
        (
            Path(each["file"]).relative_to(ROOT),
            each["range"]["start"]["line"] + 1,
            each["message"],
        )
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]


def mypy():
    """Return the errors that mypy reports, by file and line; it is silent about imported files."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += [str(ACCEPTED), str(REJECTED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\S+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return [(Path(file), int(line), message) for file, line, message in found]


def ty():
    """Return the errors that ty reports, by file and line."""
    command = [sys.executable, "-m", "ty", "check", "--python", sys.executable]
    command += ["--output-format", "concise", str(ACCEPTED), str(REJECTED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\S+?):(\d+):\d+: error(.*)$", done.stdout, re.MULTILINE)
    return [(Path(file), int(line), message) for file, line, message in found]


@pytest.mark.checkers
@pytest.mark.parametrize("checker", [pyright, mypy, ty])
def test_the_checkers_see_the_types_that_the_contract_says(checker):
    """Right uses: each `assert_type` passes.

    Wrong uses: exactly the lines marked `# error` fail. ty lets unknown options pass.
    """
    errors = checker()
    assert [error for error in errors if error[0] == ACCEPTED] == []

    lines = (ROOT / REJECTED).read_text().splitlines()
    pattern = "# error:" if checker is ty else "# error[:,]"
    marked = {number for number, line in enumerate(lines, 1) if re.search(pattern, line)}
    reported = {line: message for file, line, message in errors if file == REJECTED}
    assert len(marked) > 25
    assert {*reported} == marked, {
        line: reported.get(line, "not reported") for line in marked ^ {*reported}
    }
