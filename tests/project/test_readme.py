"""The README's programs run unchanged."""

from __future__ import annotations

import asyncio
import io
import re
import runpy
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.scripted_server import ScriptedServer, calls, text

README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


async def test_the_readmes_agents_answer_over_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first two programs: a tool and typed output, then a stream."""
    replies = (
        calls(("get_temperature", '{"city": "Paris"}')),
        calls(("final_answer", '{"city": "Paris", "celsius": 18}')),
        text("It runs ", "to the sea."),
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    async with asyncio.timeout(60), ScriptedServer(*replies) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for number, program in enumerate(PROGRAMS[:2]):
            (tmp_path / f"agent{number}.py").write_text(program)
            await asyncio.to_thread(runpy.run_path, str(tmp_path / f"agent{number}.py"))
    typed, streamed = capsys.readouterr().out.split("\n")
    assert PROGRAMS[0].endswith(f".output)  # {typed}\n")
    assert streamed == "It runs to the sea."


@pytest.mark.usefixtures("small_model")
def test_the_readmes_program_chats_with_the_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds on the small model, then the end of the input."""
    (program,) = (each for each in PROGRAMS if "Round" in each)
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
