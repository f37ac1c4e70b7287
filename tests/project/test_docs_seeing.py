"""The programs of docs/seeing.md print the shown output."""

import re
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

PAGE = (ROOT / "docs" / "seeing.md").read_text(encoding="utf-8")


def test_the_recorded_program_prints_what_the_page_says(tmp_path: Path) -> None:
    """It runs unchanged, in an empty folder."""
    (program,) = re.findall(r"```python\n# seen.py\n(.*?)```", PAGE, re.DOTALL)
    (printed,) = re.findall(r"```console\n\$ python seen.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "seen.py").write_text("# seen.py\n" + program)
    done = subprocess.run(
        [sys.executable, "seen.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == printed
    assert (tmp_path / "run.jsonl").exists()
