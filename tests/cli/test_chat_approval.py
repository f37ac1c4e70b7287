"""Approvals in a real terminal: only an answer typed alone below the question counts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest
from support.chat_command import TIMEOUT_SECONDS, environment
from support.paths import PROGRAMS
from support.scripted_server import Reply, ScriptedServer, calls, chunk, text
from support.terminal import CTRL_C, ESC, Terminal, open_chat

TOOLS = '''
from anabranch import tool

@tool(approve=True)
def send(to: str, copies: int = 1) -> str:
    """Send something.

    To anybody at all."""
    return f"sent {copies} to {to}"
'''
REFUSED = "Error: the user did not allow this call"
SEND = calls(("send", '{"to": "Ann"}'))
ASKED = "run send? [y/N/e(dit)/a(lways here)]"
Steps = Callable[[Terminal], Awaitable[None]]


async def talk(
    steps: Steps, folder: Path, *replies: Reply, term: str = "xterm-256color", **env: str
) -> str:
    """Run a chat with the tool above, which ends with "Done."; return the result of the call."""
    (folder / "mytools.py").write_text(TOOLS)
    options, answers = ("--tools", "mytools"), (*(replies or (SEND,)), text("Done."))
    async with open_chat(folder, *answers, options=options, term=term, **env) as (on, server):
        await steps(on)
        await on.shows("Done.")
        if term == "dumb":
            await on.wait(lambda: on.line == "")
        else:
            await on.over()
        await on.leave()
    return server.requests[-1].body["messages"][-1]["content"]


async def asked(on: Terminal, times: int = 1) -> None:
    """Wait until the question is in the input line, without text after it."""
    await on.wait(lambda: on.text.count(ASKED) >= times and on.text.endswith(ASKED))


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("y\r", "sent 1 to Ann"),
        ("yes\r", "sent 1 to Ann"),
        ("\r", REFUSED),
        ("n\r", REFUSED),
        ("yy\r", REFUSED),
        (CTRL_C, REFUSED),
        (ESC, REFUSED),
    ],
)
async def test_a_call_runs_after_a_yes_alone(answer: str, result: str, tmp_path: Path) -> None:
    """An empty answer, Ctrl-C and Esc deny the call. The draft comes back."""

    async def steps(on: Terminal) -> None:
        await on.press("send it\rdraft")
        await on.shows("to: Ann", "from: mytools.send")
        await asked(on)
        await on.press(answer)
        await on.writes("draft")
        await on.press(CTRL_C)

    assert await talk(steps, tmp_path) == result


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
async def test_a_burst_is_no_answer(term: str, tmp_path: Path) -> None:
    """If several lines arrive at once, as from a paste, the question is asked again."""

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        await asked(on)
        await on.press("is this what I would say?\ry\r")
        await on.shows("type the answer alone")
        await asked(on)
        await on.press("n\r" if term == "dumb" else CTRL_C)

    assert await talk(steps, tmp_path, term=term) == REFUSED


async def test_a_paste_is_no_answer(tmp_path: Path) -> None:
    """A paste that the terminal marks as such is ignored."""

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        await asked(on)
        await on.press("\x1b[200~y\x1b[201~\r")

    assert await talk(steps, tmp_path) == REFUSED


@pytest.mark.parametrize("pasted", ["send it\ry\ry\r", "send it\ry\r\r\r"])
async def test_a_paste_without_marks_answers_no_question_that_it_brings_about(
    pasted: str, tmp_path: Path
) -> None:
    """Its first line is the person's message. The other lines came before the question."""

    async def steps(on: Terminal) -> None:
        await on.press(pasted)
        await asked(on)
        await on.press("\r")

    (tmp_path / "mytools.py").write_text(TOOLS)
    options = ("--tools", "mytools")
    async with open_chat(tmp_path, SEND, text("Done."), options=options) as (on, server):
        await steps(on)
        await on.shows("Done.")
        await on.wait(lambda: on.line == "")
        await on.leave()
    said = [each for each in server.requests[-1].body["messages"] if each["role"] == "tool"]
    assert [each["content"] for each in said] == [REFUSED]


async def test_what_is_typed_while_the_model_speaks_answers_nothing(tmp_path: Path) -> None:
    """The question waits until the person stops typing, and only a later line answers it."""
    typed = asyncio.Event()
    slow = Reply([chunk({"content": "Let me see."}), typed, *SEND.steps])

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        await on.shows("Let me see.")
        await on.press("y")
        await on.writes("y")
        typed.set()
        await asked(on)  # the line is free for it
        await on.press("\r")
        await on.writes("y")  # back again
        await on.press(CTRL_C)

    assert await talk(steps, tmp_path, slow) == REFUSED


async def test_what_is_typed_on_a_dumb_terminal_answers_nothing(tmp_path: Path) -> None:
    """Type-ahead is dropped with a note."""
    typed = asyncio.Event()
    slow = Reply([chunk({"content": "Let me see."}), typed, *SEND.steps])

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        await on.shows("Let me see.")
        await on.press("y\ryes\r")
        typed.set()
        await on.shows("text typed before this question was dropped")
        await asked(on)
        await on.press("\r")

    assert await talk(steps, tmp_path, slow, term="dumb") == REFUSED


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
async def test_a_flood_is_capped_until_all_is_asked_for(term: str, tmp_path: Path) -> None:
    """The question shows the tool's origin and how much is hidden; `s` shows the hidden part."""
    flood = calls(("send", '{"to": "first' + "\\n" * 90 + "hidden\\u202e" + "\\n" * 90 + 'last"}'))

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        await on.shows("tool: send", "from: mytools.send", "| Send something.", "| last")
        await on.shows("characters not shown; s shows all ...")
        await asked(on)
        assert "hidden" not in on.text.partition("tool: send")[2]
        await on.press("s\r")
        await on.shows(r"| hidden\u{202e}")
        await asked(on)
        await on.press("y\r")

    told = await talk(steps, tmp_path, flood, term=term)
    assert told.startswith("sent 1 to first\n")


async def test_a_call_can_be_edited_before_it_runs(tmp_path: Path) -> None:
    """Invalid JSON and arguments that the tool refuses can be corrected in place."""

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        await asked(on)
        await on.press("e\r")
        await on.shows("arguments: {")
        await on.press("\x7f, 3\r")  # the draft is there to be changed
        await on.wait(lambda: "arguments: {" in on.text.partition("anabranch: ")[2])
        await on.press("\x15" + '{"to": "Bob", "copies": "many"}\r')
        await on.wait(lambda: "arguments: {" in on.text.partition("integer")[2])
        await on.press("\x15" + '{"to": "Zoë", "copies": 2}\r')
        await on.shows("to: Zoë")
        await asked(on)
        await on.press("y\r")

    told = await talk(steps, tmp_path)
    assert told.endswith("sent 2 to Zoë")
    assert "The user changed the arguments" in told


async def test_an_editor_of_the_users_own_edits_a_call(tmp_path: Path) -> None:
    """Ctrl-X Ctrl-E opens `$EDITOR`, and the question is asked again with the edited arguments."""
    editor = tmp_path / "editor"
    editor.write_text("""#!/bin/sh\nprintf '{"to": "Eve"}' > "$1"\n""")
    editor.chmod(0o755)

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        await asked(on)
        await on.press("e\r")
        await on.shows("arguments: {")
        await on.press("\x18\x05")
        await on.shows('arguments: {"to": "Eve"}')
        await on.press("\r")
        await on.shows("to: Eve")
        await asked(on)
        await on.press("y\r")

    assert (await talk(steps, tmp_path, EDITOR=str(editor))).endswith("sent 1 to Eve")


async def test_a_tool_that_may_always_run_here_is_not_asked_about(tmp_path: Path) -> None:
    """`a` creates a rule for this folder, also for later chats; `/approve` lists and removes it."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    options = ("--tools", "mytools")
    replies = SEND, text("One."), SEND, text("Two.")
    async with open_chat(tmp_path, *replies, options=options) as (on, _):
        await on.say("send it")
        await asked(on)
        await on.press("a\r")
        await on.shows("(send now runs here without a question; undo with /approve)", "One.")
        await on.over()
        await on.say("again")
        await on.shows("(send runs without a question: see /approve)", "Two.")
        await on.over(2)
        await on.leave()
    [path] = sorted(tmp_path.rglob("approvals.json"))  # noqa: ASYNC240 - nothing else runs in the loop
    [rule] = json.loads(path.read_text())["rules"]
    assert (rule["tool"], rule["folder"]) == ("send", str(tmp_path))
    async with open_chat(tmp_path, SEND, text("Three."), SEND, options=options) as (on, _):
        await on.say("send it")
        await on.shows("runs without a question", "Three.")
        await on.over()
        await on.say("/approve")
        await on.shows("1. send, in ")
        await on.say("/approve forget 1")
        await on.shows("send needs your approval again")
        await on.say("and again")
        await asked(on)
        await on.press(CTRL_C)
        await on.kill(15)
        await on.ended()


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
async def test_a_rule_for_a_server_lets_no_other_server_write(tmp_path: Path) -> None:
    """A rule for one database does not allow calls to another. The question shows which it is."""
    (tmp_path / "server.py").symlink_to(PROGRAMS / "mcp_server.py")
    call = calls(("environment", '{"name": "HOME"}'))

    def server(path: str) -> tuple[str, ...]:
        return "--tools", f"mcp:{sys.executable} server.py stdio --db-path {path}"

    async def hold(path: str, steps: Steps) -> None:
        options = server(path)
        async with open_chat(tmp_path, call, text("Done."), options=options, columns=250) as (
            on,
            _,
        ):
            await on.say("look")
            await steps(on)
            await on.shows("Done.")
            await on.over()
            await on.leave()

    async def allow(on: Terminal) -> None:
        await on.shows("server.py stdio --db-path test.db, which calls itself 'demo'")
        await on.wait(lambda: on.text.endswith("a(lways here)]"))
        await on.press("a\r")

    async def refuse(on: Terminal) -> None:
        await on.shows("server.py stdio --db-path prod.db, which calls itself 'demo'")
        await on.wait(lambda: on.text.endswith("a(lways here)]"))
        await on.press("n\r")

    async def run(on: Terminal) -> None:
        await on.shows("runs without a question")

    await hold("test.db", allow)
    await hold("prod.db", refuse)
    await hold("test.db", run)


async def test_rules_of_an_earlier_version_are_dropped_with_one_note(tmp_path: Path) -> None:
    """One note says so, and the tools need approval again."""
    path = tmp_path / ".kept" / "anabranch" / "approvals.json"
    path.parent.mkdir(parents=True)
    rule = {"tool": "send", "definition": "0" * 64, "folder": str(tmp_path), "arguments": None}
    path.write_text(json.dumps({"rules": [rule]}))
    note = "approval rules of an earlier version were removed"
    async with open_chat(tmp_path) as (on, _):
        await on.shows(note)
        await on.say("/approve")
        await on.shows("no rules: each call")
        await on.leave()
    async with open_chat(tmp_path) as (on, _):
        assert note not in on.text
        await on.leave()


async def test_calls_that_wait_are_asked_about_one_after_the_other(tmp_path: Path) -> None:
    """Each of several calls gets a separate question and answer."""
    both = calls(("send", '{"to": "Ann"}'), ("send", '{"to": "Bob"}'))

    async def steps(on: Terminal) -> None:
        await on.say("send it")
        for name in ("Ann", "Bob"):
            await on.wait(lambda name=name: f"to: {name}" in "\n".join(on.lines[-8:]))  # type: ignore[misc]
            await asked(on)
            await on.press("y\r" if name == "Ann" else "n\r")

    assert await talk(steps, tmp_path, both) == REFUSED


async def test_a_chat_whose_output_is_kept_writes_text_alone(tmp_path: Path) -> None:
    """With `| tee log`, no escape sequences reach the log, and questions are still asked."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    nasty = text("red \x1b[31mor\x1b]0;x\x07 \u202e\u2028now")

    def hold(url: str) -> None:
        command = f"{sys.executable} -m anabranch chat --name m -t mytools -m {url} | tee log"
        child: Any = pexpect.spawn(
            "/bin/sh",
            ["-c", command],
            cwd=str(tmp_path),
            env={**environment(PYTHONPATH=str(tmp_path)), "TERM": "xterm"},  # type: ignore[arg-type]
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
        )
        child.expect_exact("> ")
        child.sendline("send it")
        child.expect_exact("run send? [y/N/e(dit)/a(lways here)] ")
        child.sendline("y")
        child.expect(r"now[^>]*> |> [^>]*now")  # text comes by way of `tee`, the prompt does not
        child.sendline("/exit")
        child.expect(pexpect.EOF)

    async with ScriptedServer(SEND, nasty) as server:
        await asyncio.to_thread(hold, server.url)

    assert server.requests[-1].body["messages"][-1]["content"] == "sent 1 to Ann"
    log = (tmp_path / "log").read_text()
    assert "red \N{REPLACEMENT CHARACTER}[31mor" in log
    assert not set(log) & set("\x1b\x07\u202e\u2028")
