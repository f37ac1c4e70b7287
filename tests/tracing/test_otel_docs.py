"""The program of docs/opentelemetry.md prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

from anabranch.tracing import _genai

PAGE = (ROOT / "docs/opentelemetry.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    """Word for word."""
    (program,) = re.findall(r"```python\n# spans.py\n(.*?)```", PAGE, re.DOTALL)
    (expected,) = re.findall(r"```console\n\$ python spans.py\n(.*?)```", PAGE, re.DOTALL)
    said = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert said == expected


def test_the_page_names_our_own_attributes() -> None:
    """Those that begin with the name of the package, and say something of a node."""
    ours = {
        value.removeprefix("anabranch.")
        for name, value in vars(_genai).items()
        if name.isupper() and isinstance(value, str) and value.startswith("anabranch.")
    }
    told = {each for each in ours if f"`{each}`" in PAGE}
    assert ours - told == {"cancel.reason", "at", "seconds"}
