"""pyright and mypy, both strict, see the types of the everyday API and report its wrong uses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ACCEPTED = Path("tests/typing/accepted.py")
REJECTED = Path("tests/typing/rejected.py")

pytestmark = pytest.mark.skipif(
    not (ROOT / "anabranch/commander").exists(),
    reason="type checkers follow the links in anabranch/, and this checkout has none",
)


def pyright(path):
    """Return the lines at which pyright reports an error."""
    command = [sys.executable, "-m", "pyright", "--outputjson", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    }


def mypy(path):
    """Return the lines at which mypy reports an error; it is silent about what they import."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(rf"^{re.escape(str(path))}:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return {int(line): message for line, message in found}


@pytest.mark.parametrize("checker", [pyright, mypy])
def test_right_uses_have_the_types_that_the_contract_says(checker):
    """Each `assert_type` holds and nothing is reported."""
    assert checker(ACCEPTED) == {}


@pytest.mark.parametrize("checker", [pyright, mypy])
def test_wrong_uses_are_reported_each_at_its_line(checker):
    """The lines marked `# error`, and no others."""
    lines = (ROOT / REJECTED).read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# error:" in line}
    reported = checker(REJECTED)
    assert len(marked) > 25
    assert {*reported} == marked, {
        line: reported.get(line, "not reported") for line in marked ^ {*reported}
    }
