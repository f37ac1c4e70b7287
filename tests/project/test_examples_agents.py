"""The examples with agents that converse, each with a backend for the intended path."""

import asyncio
from typing import Any

import pytest
from support.examples import load_example, run_example
from support.leaks import child_processes
from support.waiting import wait_until

from anabranch.testing import ScriptedBackend

RULE = "-" * 80


def test_the_hello_agent_says_hello(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It runs unchanged and needs no model."""
    run_example(monkeypatch, "hello_agent")
    assert capsys.readouterr().out == (
        f"user (to hello_agent):\n\nHello there, may I ask who you are?\n\n{RULE}\n"
        f"hello_agent (to user):\n\nHello, world!\n\n{RULE}\n"
    )


def test_alice_passes_on_to_bob(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It runs unchanged: reply functions answer, and no model is loaded."""
    run_example(monkeypatch, "alice_and_bob")
    bob = "I am Bob, Alice's good friend. Glad to meet you!"
    assert capsys.readouterr().out == (
        f"user (to alice):\n\nWho are you?\n\n{RULE}\n"
        f"alice (to bob):\n\nWho are you?\n\n{RULE}\n"
        f"bob (to alice):\n\n{bob}\n\n{RULE}\n"
        f"alice (to user):\n\n{bob}\n\n{RULE}\n"
    )


async def test_bob_asks_his_model_what_he_was_not_made_for():
    """The model gets his own prompt first."""
    backend = ScriptedBackend("I love them.")
    result = await load_example("alice_and_bob").talk(backend, "Do you like rivers?")
    assert result.text == "I love them."
    assert [message.content for message in backend.requests[0].messages] == [
        "You are bob, a friendly agent, and a good friend of Alice. Answer briefly.",
        "Do you like rivers?",
    ]


async def test_the_streamed_reply_comes_in_parts(capsys: pytest.CaptureFixture[str]):
    """The pieces of the model, in capitals."""
    assert (
        await load_example("stream_reply").talk(ScriptedBackend("Water that flows."), "River?") == 5
    )
    assert capsys.readouterr().out == "WATER THAT FLOWS.\n(5 parts)\n"


@pytest.mark.usefixtures("small_model")
def test_the_streamed_reply_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The answer is not empty and in capitals."""
    run_example(monkeypatch, "stream_reply", "--max-tokens", "20")
    said, _, count = capsys.readouterr().out.rstrip().rpartition("\n")
    assert "RIVER" in said
    assert int(count.strip("( parts)")) > 5


async def test_a_group_analyses_a_table(capsys: pytest.CaptureFixture[str]):
    """The agents read the file, fix the first program after it fails, and explain the result."""
    broken = "```python\nprint(sum(row['length_km'] for row in rows))\n```"
    right = "Here:\n```python\nprint(sum(int(row['length_km']) for row in rows))\n```"
    backend = ScriptedBackend(broken, right, "Together they are 46425 km long.")
    tasks, left = asyncio.all_tasks(), child_processes()
    async with asyncio.timeout(120):
        result = await load_example("data_analysis").analyse(backend, "How long are they together?")

    assert result.text == "Together they are 46425 km long."
    coder, mended, explainer = (str(request.messages[-1].content) for request in backend.requests)
    assert "{'river': 'Nile', 'continent': 'Africa', 'length_km': '6650'}" in coder
    assert "TypeError: unsupported operand" in mended
    assert "It printed:\n46425" in explainer
    assert "interpreter (to analysis):\n\n46425\n" in capsys.readouterr().out
    assert asyncio.all_tasks() == tasks
    assert child_processes() == left


async def test_a_cancelled_analysis_leaves_no_kernel_behind():
    """A cancel while its code runs leaves no task and no process."""
    backend = ScriptedBackend("```python\nimport time\ntime.sleep(600)\n```")
    tasks, left = asyncio.all_tasks(), child_processes()
    async with asyncio.timeout(120):
        task = asyncio.create_task(load_example("data_analysis").analyse(backend, "How long?"))
        await wait_until(lambda: backend.closed or task.done())
        assert not task.done()
        assert child_processes() > left
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == tasks
    assert child_processes() == left


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_the_analysis_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It ends, and the last message is the leader's."""
    arguments = ("--attempts", "1", "--max-tokens", "40", "How many rivers are there?")
    run_example(monkeypatch, "data_analysis", *arguments)
    shown = capsys.readouterr().out
    assert "9 rows, the first are" in shown
    assert "\ninterpreter (to analysis):\n" in shown.rpartition("coder (to analysis):")[2]
    assert "\nanalysis (to user):\n" in shown


async def test_a_group_that_cannot_write_code_says_so():
    """This is how a model that is too small replies."""
    backend = ScriptedBackend(otherwise="I am a language model.")
    async with asyncio.timeout(120):
        result = await load_example("data_analysis").analyse(backend, "How long are they together?")
    assert result.text == (
        "None of 3 programs worked; the last one said: There is no ```python block."
    )


async def test_the_group_talk_gives_one_the_floor_at_a_time(capsys: pytest.CaptureFixture[str]):
    """Each agent asks, speaks and gets an answer. The conversation ends without a cancel."""

    def play(request: Any) -> str:
        role = request.messages[0].content.splitlines()[0]
        name = "Casperian" if "Casperian" in role else "Amelie"
        last = request.messages[-1].content.splitlines()[-1]
        if "you have the floor" in last:
            return f"I am {name}."
        own = [m.content for m in request.messages if m.role == "assistant"]
        return " " if f"I am {name}." in own else "Can I speak?"

    group = await load_example("group_talk").talk(
        ScriptedBackend(otherwise=play), "Introduce yourselves.", 4
    )

    assert group.status == "no_answer"
    assert {m.content for m in group.messages[1:]} == {"I am Casperian.", "I am Amelie."}
    shown = capsys.readouterr().out
    assert "Amelie (to all):\n\nI am Amelie.\n" in shown
    assert "Can I speak?" not in shown
    assert shown.endswith("(2 speeches, no_answer)\n")


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_the_group_talk_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Whether or not the model follows the rules, the conversation ends and gives the reason."""
    run_example(monkeypatch, "group_talk", "--speeches", "1", "--max-tokens", "20")
    assert capsys.readouterr().out.endswith(("(1 speeches, turn_limit)\n", ", no_answer)\n"))
