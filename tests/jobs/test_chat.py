"""The chat: rounds that start each other under the commander."""

import asyncio
import io
import sys

import pytest

from anabranch import BackendUnavailable, Commander, Conversation, run
from anabranch.handlers import ConsoleView, View, respond
from anabranch.jobs import ChatJob, ResponseJob
from anabranch.testing import ScriptedBackend

LINES: list[str] = []
DEPTHS: list[int] = []


class Scripted(ChatJob):
    """A chat that reads from a list."""

    async def read(self) -> str | None:
        DEPTHS.append(len(tuple(self.ancestors)))
        return LINES.pop(0) if LINES else None


async def test_rounds_follow_each_other_until_the_input_ends():
    """Each is a child of the commander."""
    LINES[:] = ["one", "two", "three"]
    DEPTHS.clear()
    conversation = Conversation("Be brief.")
    backend = ScriptedBackend(otherwise="yes")
    async with asyncio.timeout(5), Commander() as commander:
        commander.put_job(Scripted(backend, conversation))

    assert [m.content for m in conversation][1:] == ["one", "yes", "two", "yes", "three", "yes"]
    assert DEPTHS == [1, 1, 1, 1]


async def test_a_failed_round_does_not_end_the_chat(capsys: pytest.CaptureFixture[str]):
    """The failure is shown and the next question is asked."""
    LINES[:] = ["one", "two"]
    conversation = Conversation()
    backend = ScriptedBackend(BackendUnavailable("down for repair"), "back")
    async with asyncio.timeout(5), Commander() as commander:
        commander.put_job(Scripted(backend, conversation))

    assert "down for repair" in capsys.readouterr().err
    assert [m.content for m in conversation] == ["one", "two", "back"]


def test_the_chat_reads_standard_input_and_writes_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Without settings, under `run`."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    run(ChatJob(ScriptedBackend("Hello"), Conversation()))

    assert capsys.readouterr().out == "Hello\n"


def test_a_response_job_returns_the_last_message(capsys: pytest.CaptureFixture[str]):
    """For one exchange, also without a chat."""
    conversation = Conversation()
    conversation.add("Hi")

    assert run(ResponseJob(ScriptedBackend("Hello"), conversation)).content == "Hello"
    assert len(conversation) == 2
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("view", [View(), None], ids=["a View", "no view"])
async def test_nothing_is_shown_unless_it_is_said_where(
    view: View | None, capsys: pytest.CaptureFixture[str]
):
    """A `View` shows nothing, and neither does an exchange without one; a `ConsoleView` prints."""
    for shows in (view, ConsoleView()):
        conversation = Conversation()
        conversation.add("Hi")
        async with Commander() as commander:
            await commander.run(respond(ScriptedBackend("Hello"), conversation, (), shows))
            (shows or View()).failed(ValueError("down"))
    assert capsys.readouterr() == ("Hello\n", "down\n")
