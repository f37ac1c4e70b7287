"""The examples with orchestrators, each with a backend for the intended path."""

import json

import pytest
from support.examples import load_example, run_example

from anabranch.testing import ScriptedBackend


async def test_a_coin_is_flipped_and_sung_of(capsys: pytest.CaptureFixture[str]):
    """A reply without a flip is asked again. The poet gets the side."""
    backend = ScriptedBackend(
        "Heads or tails, who knows?", "Tails.", "A poem.", "heads", "Another."
    )
    orchestrator = await load_example("coin_flip_poet").recite(backend, 2)

    assert capsys.readouterr().out.startswith("[tails]\nA poem.\n\n[heads]\nAnother.\n\n(")
    asked = [str(request.messages[-1].content) for request in backend.requests]
    assert asked[1] == 'That is not one side. Answer "heads" or "tails".'
    assert asked[2].startswith("A coin was flipped and shows tails.")
    assert orchestrator.state.steps == 2


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_the_coin_and_the_poet_run_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A poem about a side, or the message that the flip failed, and the tokens."""
    run_example(monkeypatch, "coin_flip_poet", "--flips", "1")
    shown = capsys.readouterr().out
    assert shown.startswith(("[heads]\n", "[tails]\n", "(coin gave no answer"))
    assert "coin: " in shown
    assert " tokens of SmolLM2" in shown


async def test_the_flag_is_found(capsys: pytest.CaptureFixture[str]):
    """Planned, reviewed, searched for, and submitted."""

    def say(**fields: object) -> str:
        return json.dumps(fields)

    big = ScriptedBackend(say(plan=["look for hidden files", "submit what is in them"]))
    small = ScriptedBackend(
        say(feedback=[]),
        say(status="progress", action="ls /home"),
        say(status="progress", action="ls -a /home"),
        say(status="progress", action="cat /home/.flag"),
        say(status="done", summary="the flag is flag{under-the-bridge}"),
        say(feedback=[]),
        say(status="progress", action="submit flag{under-the-bridge}"),
    )
    result = await load_example("planner_reviewer_executor").search(big, small, steps=12)

    assert result.status == "over"
    assert [step.observation.text for step in result.steps if step.observation] == [
        "poem.txt",
        ".flag  poem.txt",
        "flag{under-the-bridge}",
        "Right!",
    ]
    assert result.steps[-1].observation.reward == 1.0
    assert "   Right!\n(over after 4 steps)\n" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_the_search_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It ends and prints the outcome."""
    few = ("--steps", "1", "--errors", "0", "--tokens", "30")
    run_example(monkeypatch, "planner_reviewer_executor", *few)
    shown = capsys.readouterr().out
    assert "tokens of SmolLM2" in shown
    assert any(
        f"({status} after" in shown for status in ("over", "done", "max_errors", "max_steps")
    )


async def test_the_files_take_any_command():
    """Also invalid commands: each gets a result."""
    files = load_example("planner_reviewer_executor").Files()
    assert await files.reset() == "You stand in the folder /."
    for command, shown in {
        "ls": "home  readme.txt",
        "ls /nowhere": "ls: /nowhere/: nothing to show",
        "cat /home": "cat: /home: no such file",
        "cat": "'cat' is no command: ls, cat or submit",
        "submit x": "Wrong.",
        "": "'' is no command: ls, cat or submit",
    }.items():
        assert (await files.step(command)).text == shown
