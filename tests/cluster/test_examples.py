"""The examples with remote agents, each with a backend that shows the intended path."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
from support.paths import ROOT

from anabranch.cluster import Ray
from anabranch.testing import ScriptedBackend

EXAMPLES = ROOT / "examples"
RULE = "-" * 80
HERE = Ray(num_cpus=0)


def load(name: str) -> ModuleType:
    # Not as tests/support/examples.py: known by name here, its classes would be looked for there.
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_alice_passes_on_to_bob_on_another_machine(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unchanged: its reply functions answer without a model."""
    monkeypatch.setattr(sys, "argv", ["remote_alice_and_bob.py", "--address", nodes.address])
    load("remote_alice_and_bob").main()
    bob = "I am Bob, Alice's good friend. Glad to meet you!"
    where, _, said = capsys.readouterr().out.partition("\n\n")
    assert where.startswith("(alice lives on ")
    assert said == (
        f"user (to alice):\n\nWho are you?\n\n{RULE}\n"
        f"alice (to bob):\n\nWho are you?\n\n{RULE}\n"
        f"bob (to alice):\n\n{bob}\n\n{RULE}\n"
        f"alice (to user):\n\n{bob}\n\n{RULE}\n"
    )


@pytest.mark.usefixtures("nodes")
async def test_bob_asks_his_model_what_he_was_not_made_for() -> None:
    """The model there is a copy of the script."""
    async with asyncio.timeout(60):
        talk = load("remote_alice_and_bob").talk
        result = await talk(ScriptedBackend("I love them."), "Do you like rivers?", HERE)
    assert result.text == "I love them."


@pytest.mark.usefixtures("nodes")
async def test_the_panel_answers_and_is_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Each member answers once, in its own process; the moderator has read them all."""
    backend = ScriptedBackend(otherwise="Build it.", size=3)
    async with asyncio.timeout(60):
        result = await load("remote_panel").ask(backend, "Shall we build a bridge?", HERE)
    assert result.text == "Build it."
    assert [message.content for message in backend.requests[-1].messages][1] == (
        "Shall we build a bridge?\noptimist: Build it.\nsceptic: Build it.\nengineer: Build it."
    )
    assert len(backend.requests) == 1
    said = capsys.readouterr().out
    for name in ("optimist", "sceptic", "engineer"):
        assert f"{name} (to moderator):\n\nBuild it.\n" in said
    assert "moderator (to user):\n\nBuild it.\n" in said
