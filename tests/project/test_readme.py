"""The README's program runs unchanged."""

from __future__ import annotations

import io
import re
import runpy
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

README = (ROOT / "README.md").read_text()


@pytest.mark.usefixtures("small_model")
def test_the_readmes_program_chats_with_the_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds on the small model, then the end of the input."""
    program = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    (tmp_path / "chat.py").write_text(program)
    said = "What is the capital of France?\nWhat is the weather in Paris?\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))

    runpy.run_path(str(tmp_path / "chat.py"), run_name="__main__")

    out = capsys.readouterr().out
    assert "Paris" in out
    assert out.count("> ") == 3


def test_the_readme_names_no_extra_that_is_not_there() -> None:
    """Each is a key of the extras in pyproject.toml."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = set(settings["project"]["optional-dependencies"]) - {"all"}
    named = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert named == extras
