"""The examples run unchanged: on the small local model, and on a hosted model."""

import asyncio
import os
import subprocess
import sys

import pytest
from support.examples import run_example as run_here
from support.paths import ROOT
from support.scripted_server import Reply, ScriptedServer, calls, text

EXAMPLES = ROOT / "examples"
PATIENCE = 300  # seconds; a new machine downloads the model first


def run(name: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **env},
    )


@pytest.mark.usefixtures("small_model")
def test_hello_job_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Its children answer first, then the model, then the tree ends."""
    run_here(monkeypatch, "hello_job")

    said = capsys.readouterr().out
    assert said.startswith("Hello FRANCE, of 6 letters.\n")
    assert "Paris" in said
    assert said.endswith("all its children are done)\n")


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_getting_started_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A tool is called and its result goes back to the model. The next round follows."""
    run_here(monkeypatch, "getting_started", "What is the weather in Paris?", "Name a river.")

    said = capsys.readouterr().out
    assert "[get_current_weather gave: 18 degrees celsius and sunny in Paris]" in said
    assert "> Name a river." in said
    assert "(7 messages in the conversation)" in said


@pytest.mark.parametrize(
    ("name", "arguments", "replies", "expected"),
    [
        ("hello_job.py", (), [text("Par", "is.")], "Paris.\n"),
        (
            "getting_started.py",
            ("And Oslo?",),
            [
                calls(("get_current_weather", '{"to_user": "A moment.", "location": "Oslo"}')),
                text("It is", " sunny."),
            ],
            "A moment.\n[get_current_weather gave: 18 degrees celsius and sunny in Oslo]\n"
            "It is sunny.",
        ),
    ],
)
async def test_they_run_on_a_hosted_model(
    name: str, arguments: tuple[str, ...], replies: list[Reply], expected: str
):
    """With `--model openai:...` and a key. A scripted server plays the host."""
    async with ScriptedServer(*replies) as server:
        done = await asyncio.to_thread(
            run,
            name,
            "--model",
            "openai:tiny",
            *arguments,
            OPENAI_API_KEY="sk-test",
            OPENAI_BASE_URL=server.url,
        )

    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
