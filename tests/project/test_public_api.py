"""The public API: a change is reviewed, and a user's type checker knows every type."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.paths import ROOT
from support.public_api import SNAPSHOT, public_api

pytestmark = [
    pytest.mark.checkers,
    pytest.mark.skipif(
        not (ROOT / "anabranch/commander").exists(),
        reason="the modules are found through the links in anabranch/, and this checkout has none",
    ),
]


def test_changes_of_the_public_api_are_reviewed() -> None:
    """A new, changed or removed name fails this test until it is read and `make api` is run."""
    stored, now = SNAPSHOT.read_text(encoding="utf-8").splitlines(), public_api()
    removed, added = sorted(set(stored) - set(now)), sorted(set(now) - set(stored))
    assert stored == now, "read these changes, then run `make api`:\n" + "\n".join(
        [*(f"- {line}" for line in removed), *(f"+ {line}" for line in added)]
    )


def test_every_public_type_is_known() -> None:
    """`pyright --verifytypes` finds no public name with a missing or ambiguous type."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    command += ["--verifytypes", "anabranch", "--ignoreexternal"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)["typeCompleteness"]
    symbols = report["symbols"]
    # A type that contains a partially unknown one is reported, too; only the causes help.
    causes = {
        f"{symbol['name']}: {diagnostic['message']}"
        for symbol in symbols
        for diagnostic in symbol["diagnostics"]
        if "partially unknown" not in diagnostic["message"]
        if diagnostic["severity"] == "error"
    }
    assert len(symbols) > 1000
    assert causes == set()
    assert report["completenessScore"] == 1
