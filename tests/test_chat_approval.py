"""A yes is typed, by itself, under the question that it answers; in a real terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest
from _chat import PATIENCE, at_prompt, environment, terminal
from _server import Reply, ScriptedServer, calls, chunk, text

TOOLS = '''
from anabranch import tool

@tool(approve=True)
def send(to: str) -> str:
    """Send something.

    To anybody at all."""
    return f"sent to {to}"
'''
REFUSED = "Error: the user did not allow this call"
SEND = calls(("send", '{"to": "Ann"}'))


async def talk(
    steps: Callable[[Any], None], folder: Path, *replies: Reply, term: str = "xterm"
) -> list[str]:
    """Hold a chat with a scripted server and the tool above; return what the model was told."""
    (folder / "mytools.py").write_text(TOOLS)
    options = ("--name", "m", "--tools", "mytools", "--model")
    async with ScriptedServer(*replies) as server:

        def hold() -> None:
            child = terminal(*options, server.url, folder=folder, PYTHONPATH=str(folder), TERM=term)
            ready(child, term)
            steps(child)
            ready(child, term)
            child.sendline("/exit")
            child.expect(pexpect.EOF)

        await asyncio.to_thread(hold)
        return [each["content"] for each in server.requests[-1].body["messages"]]


def ready(child: Any, term: str, prompt: str = ">") -> None:
    """Wait until the terminal reads."""
    if term == "dumb":
        child.expect_exact(f"{prompt} ")
    else:
        at_prompt(child, prompt)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
async def test_what_is_typed_while_the_model_speaks_answers_nothing(
    term: str, tmp_path: Path
) -> None:
    """The question comes after it, and has not been read."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    slow = Reply([chunk({"content": "Let me see."}), typed, *SEND.steps])

    def steps(child: Any) -> None:
        child.sendline("send it")
        child.expect_exact("Let me see.")
        child.send("y\ryes\r")
        loop.call_soon_threadsafe(typed.set)
        child.expect_exact("what was typed before this question is dropped")
        ready(child, term, "run send? [y/N/e(dit)]")
        child.send("\r")
        child.expect("Done")

    assert (await talk(steps, tmp_path, slow, text("Done."), term=term))[-1] == REFUSED


@pytest.mark.parametrize("pasted", ["send it\ry\ry\r", "send it\ry\r\r\r"])
async def test_a_paste_without_marks_answers_no_question_that_it_brings_about(
    pasted: str, tmp_path: Path
) -> None:
    """Its first line is what the user says; the rest came before the question."""

    def steps(child: Any) -> None:
        child.send(pasted)
        ready(child, "xterm", "run send? [y/N/e(dit)]")
        child.send("\r")
        child.expect("Done")

    assert (await talk(steps, tmp_path, SEND, text("Done.")))[-1] == REFUSED


@pytest.mark.parametrize("term", ["xterm", "dumb"])
async def test_a_burst_is_no_answer(term: str, tmp_path: Path) -> None:
    """Several lines at once, as of a paste: the question is put again."""

    def steps(child: Any) -> None:
        child.sendline("send it")
        ready(child, term, "run send? [y/N/e(dit)]")
        child.send("y\ris what I would say\r")
        child.expect_exact("an answer is typed by itself")
        ready(child, term, "run send? [y/N/e(dit)]")
        child.send("\r")
        child.expect("Done")

    assert (await talk(steps, tmp_path, SEND, text("Done."), term=term))[-1] == REFUSED


async def test_a_paste_is_no_answer(tmp_path: Path) -> None:
    """Marked as one by the terminal, it is not even taken."""

    def steps(child: Any) -> None:
        child.sendline("send it")
        ready(child, "xterm", "run send? [y/N/e(dit)]")
        child.send("\x1b[200~y\x1b[201~\r")
        child.expect("Done")

    assert (await talk(steps, tmp_path, SEND, text("Done.")))[-1] == REFUSED


@pytest.mark.parametrize("term", ["xterm", "dumb"])
async def test_a_flood_is_capped_until_all_is_asked_for(term: str, tmp_path: Path) -> None:
    """The question says whose tool it is, how much is left out, and shows it if asked to."""
    flood = calls(("send", '{"to": "first' + "\\n" * 90 + "hidden\\u202e" + "\\n" * 90 + 'last"}'))

    def steps(child: Any) -> None:
        child.sendline("send it")
        for row in (
            "tool: send",
            "from: mytools.send",
            "| Send something.",
            "| To anybody at all.",
        ):
            child.expect_exact(row)
        child.expect(r"\.\.\. 1\d\d lines, \d+ characters not shown; s shows all \.\.\.")
        child.expect_exact("| last")
        ready(child, term, "run send? [y/N/e(dit)]")
        child.send("s\r")
        child.expect_exact(r"| hidden\u{202e}")
        ready(child, term, "run send? [y/N/e(dit)]")
        child.send("y\r")
        child.expect("Done")

    told = await talk(steps, tmp_path, flood, text("Done."), term=term)
    assert told[-1].startswith("sent to first\n")


async def test_a_chat_whose_output_is_kept_writes_text_alone(tmp_path: Path) -> None:
    """As with `| tee log`: no escapes reach the log, and questions are still put."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    nasty = text("red \x1b[31mor\x1b]0;x\x07 \u202e\u2028now")

    def hold(url: str) -> None:
        command = f"{sys.executable} -m anabranch chat --name m -t mytools -m {url} | tee log"
        child = pexpect.spawn(
            "/bin/sh",
            ["-c", command],
            cwd=str(tmp_path),
            env={**environment(PYTHONPATH=str(tmp_path)), "TERM": "xterm"},
            encoding="utf-8",
            timeout=PATIENCE,
        )
        child.expect_exact("> ")
        child.sendline("send it")
        child.expect_exact("run send? [y/N/e(dit)] ")
        child.sendline("y")
        child.expect(r"now[^>]*> |> [^>]*now")  # text comes by way of `tee`, the prompt does not
        child.sendline("/exit")
        child.expect(pexpect.EOF)

    async with ScriptedServer(SEND, nasty) as server:
        await asyncio.to_thread(hold, server.url)

    assert server.requests[-1].body["messages"][-1]["content"] == "sent to Ann"
    log = (tmp_path / "log").read_text()
    assert "red \N{REPLACEMENT CHARACTER}[31mor" in log
    assert not set(log) & set("\x1b\x07\u202e\u2028")
