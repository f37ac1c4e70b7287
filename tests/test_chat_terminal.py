"""The chat in a real terminal: its line editor, its keys, its questions."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest
from _chat import at_prompt, leave, terminal
from _server import Reply, ScriptedServer, calls, text


def test_a_dumb_terminal_gets_no_control_sequences(tmp_path: Path) -> None:
    """Questions, several lines and an end work without a line editor."""
    child = terminal(
        "--model", "http://127.0.0.1:9/v1", "--name", "m", folder=tmp_path, TERM="dumb"
    )
    child.expect_exact(">")
    child.sendline("/tools")
    child.expect_exact("calculate: ")
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "\x1b" not in child.before


def test_a_terminal_that_answers_no_questions_is_asked_none(tmp_path: Path) -> None:
    """Such as pexpect's: it gets no warning and waits for nothing."""
    child = terminal("--model", "http://127.0.0.1:9/v1", "--name", "m", folder=tmp_path)
    child.logfile_read = io.StringIO()
    at_prompt(child)
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    assert "\x1b[6n" not in child.logfile_read.getvalue()


def test_ctrl_c_at_an_empty_prompt_and_ctrl_d_leave(tmp_path: Path) -> None:
    """Both are a way out, with status 0."""
    for key in ("sendintr", "sendeof"):
        child = terminal("--model", "http://127.0.0.1:9/v1", "--name", "m", folder=tmp_path)
        at_prompt(child)
        getattr(child, key)()
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0


def test_arrow_keys_bring_back_what_was_said_in_an_earlier_session(tmp_path: Path) -> None:
    """The history is a file in the user's state folder."""
    options = ("--model", "http://127.0.0.1:9/v1", "--name", "m")
    first = terminal(*options, folder=tmp_path)
    at_prompt(first)
    first.sendline("/modle")
    first.expect("did you mean /model")
    at_prompt(first)
    first.sendline("/exit")
    first.expect(pexpect.EOF)
    second = terminal(*options, folder=tmp_path)
    at_prompt(second)
    second.send("\x1b[A\x1b[A\r")
    second.expect("did you mean /model")
    at_prompt(second)
    second.sendeof()
    second.expect(pexpect.EOF)


async def test_a_model_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Control characters in its words are shown as what cannot be shown."""

    def talk(url: str) -> None:
        child = terminal("--model", url, "--name", "m", folder=tmp_path)
        at_prompt(child)
        child.sendline("hi")
        child.expect_exact("red \N{REPLACEMENT CHARACTER}[31mor\N{REPLACEMENT CHARACTER}")
        at_prompt(child)
        child.sendeof()
        child.expect(pexpect.EOF)

    async with ScriptedServer(text("red \x1b[31mor\x07")) as server:
        await asyncio.to_thread(talk, server.url)


# --- calls that need a person's yes, calls that take long

TOOLS = '''
import asyncio, time
from anabranch import tool

@tool(approve=True)
def send(to: str, copies: int = 1) -> str:
    """Send something."""
    return f"sent {copies} to {to}"

@tool
async def wait() -> str:
    """Wait for ever."""
    print("it has begun", flush=True)
    await asyncio.Event().wait()
    return "never"

@tool
def block() -> str:
    """Keep a thread for ever."""
    print("it has begun", flush=True)
    time.sleep(600)
    return "never"
'''


async def talk(steps: Callable[[Any], None], folder: Path, *replies: Reply) -> ScriptedServer:
    """Hold a chat with a scripted server and the tools above."""
    (folder / "mytools.py").write_text(TOOLS)
    options = ("--name", "m", "--tools", "mytools", "--model")
    async with ScriptedServer(*replies) as server:

        def hold() -> None:
            child = terminal(*options, server.url, folder=folder, PYTHONPATH=str(folder))
            at_prompt(child)
            steps(child)
            leave(child)

        await asyncio.to_thread(hold)
    return server


def said(server: ScriptedServer) -> list[str]:
    """Return what the model was told last: the contents of the last request's messages."""
    return [message["content"] for message in server.requests[-1].body["messages"]]


SEND = calls(("send", '{"to": "Ann"}'))


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("y", "sent 1 to Ann"),
        ("", "Error: the user did not allow this call"),
        ("\x03", "Error: the user did not allow this call"),
    ],
)
async def test_a_call_runs_after_a_yes_alone(answer: str, result: str, tmp_path: Path) -> None:
    """Nothing, and Ctrl-C, are a no; the model is told."""

    def steps(child: Any) -> None:
        child.sendline("send it")
        child.expect_exact("to: Ann")
        at_prompt(child, "run send? ")
        child.send(answer if answer == "\x03" else f"{answer}\r")
        child.expect("Done")

    assert said(await talk(steps, tmp_path, SEND, text("Done.")))[-1] == result


async def test_a_call_can_be_edited_before_it_runs(tmp_path: Path) -> None:
    """What is not JSON, or not what the tool takes, is told and mended in place."""

    def steps(child: Any) -> None:
        child.sendline("send it")
        at_prompt(child, "run send? ")
        child.send("e\r")
        at_prompt(child, "arguments: ")
        child.send("\x7f, 3\r")  # the draft is there to be changed
        child.expect_exact("anabranch: ")
        at_prompt(child, "arguments: ")
        child.send("\x15" + '{"to": "Bob", "copies": "many"}\r')
        child.expect("copies: .*integer")
        at_prompt(child, "arguments: ")
        child.send("\x15" + '{"to": "Zoë", "copies": 2}\r')
        child.expect_exact("to: Zoë")
        at_prompt(child, "run send? ")
        child.send("y\r")
        child.expect("Done")

    told = said(await talk(steps, tmp_path, SEND, text("Done.")))[-1]
    assert told.endswith("sent 2 to Zoë")
    assert "The user changed the arguments" in told


async def test_an_editor_of_the_users_own_edits_a_call(tmp_path: Path) -> None:
    """`$EDITOR`, by Ctrl-X Ctrl-E; what it leaves is asked about again."""
    editor = tmp_path / "editor"
    editor.write_text("""#!/bin/sh\nprintf '{"to": "Eve"}' > "$1"\n""")
    editor.chmod(0o755)

    def steps(child: Any) -> None:
        child.sendline("send it")
        at_prompt(child, "run send? ")
        child.send("e\r")
        at_prompt(child, "arguments: ")
        child.send("\x18\x05")
        child.expect_exact("to: Eve")
        at_prompt(child, "run send? ")
        child.send("y\r")
        child.expect("Done")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDITOR", str(editor))
        told = said(await talk(steps, tmp_path, SEND, text("Done.")))[-1]
    assert told.endswith("sent 1 to Eve")


@pytest.mark.parametrize("name", ["wait", "block"])
async def test_an_interrupt_stops_a_tool_and_the_chat_goes_on(name: str, tmp_path: Path) -> None:
    """Also one that keeps a thread; pressed twice, it does no more than once.

    The chat ends at once where the thread goes on.
    """

    def steps(child: Any) -> None:
        child.sendline("go")
        child.expect_exact(f"[tool] {name}()")
        child.expect_exact("it has begun")
        child.sendintr()
        child.sendintr()
        child.expect(r"\(stopped; what it said is kept\)")
        at_prompt(child)
        child.sendline("and now?")
        child.expect("Still here")

    server = await talk(steps, tmp_path, calls((name, "{}")), text("Still here."))
    assert said(server)[-1] == "and now?"
    assert "interrupt" in said(server)[-2]


async def test_an_interrupt_too_many_does_not_leave(tmp_path: Path) -> None:
    """The first at the prompt after one that stopped an answer says so; the next leaves."""

    def steps(child: Any) -> None:
        child.sendline("go")
        child.expect_exact("[tool] wait()")
        child.sendintr()
        at_prompt(child)
        child.sendintr()
        child.expect_exact("(Ctrl-C once more leaves)")
        at_prompt(child)
        child.sendline("and now?")
        child.expect("Still here")

    await talk(steps, tmp_path, calls(("wait", "{}")), text("Still here."))


# --- what a person may type


@pytest.mark.parametrize(
    "line",
    ["Grüße aus Zürich, 東京 и Київ 🎉👩‍🚀", "x" * 20_000, "two\nlines, \tpasted\n\nand more"],
)
async def test_whatever_is_pasted_reaches_the_model_as_it_is(line: str, tmp_path: Path) -> None:
    """Other scripts and emoji, a very long line, several lines at once."""

    def steps(child: Any) -> None:
        child.send(f"\x1b[200~{line}\x1b[201~\r")
        child.expect("I see")

    assert said(await talk(steps, tmp_path, text("I see 🎉."))) == [line]


async def test_a_window_may_change_its_size(tmp_path: Path) -> None:
    """While the user writes."""

    def steps(child: Any) -> None:
        child.send("a long line " * 10)
        for rows, columns in ((5, 20), (60, 300), (1, 1), (24, 80)):
            child.setwinsize(rows, columns)
        child.send("!\r")
        child.expect("I see")

    assert said(await talk(steps, tmp_path, text("I see."))) == ["a long line " * 10 + "!"]
