"""The live chat in a real terminal, with tools that use the terminal."""

from __future__ import annotations

import asyncio
import sys
import termios
from pathlib import Path
from typing import Any, cast

import pexpect
import pytest
from support.chat_command import environment, spawn_chat
from support.scripted_server import ScriptedServer, calls, text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no such terminals")

TOOLS = '''
import subprocess
from anabranch import tool

@tool(read_only=True)
def name() -> str:
    """Ask for a name."""
    print("your name?")
    return input()

@tool(read_only=True)
def sane() -> str:
    """Set the terminal as it was."""
    return str(subprocess.call(["stty", "sane"]))
'''

MAIN = """
import sys
import anabranch.cli._main as main
def run():
    print("ready", flush=True)
    input()
    return SystemExit(7)
main._run = run
sys.argv = ["anabranch", "chat"]
main.main()
"""


async def test_tools_take_neither_the_keys_nor_the_terminal(tmp_path: Path) -> None:
    """S19: a tool that reads gets no keys. One that turns echo on does not affect the prompt."""
    (tmp_path / "takers.py").write_text(TOOLS)
    replies = [calls(("name", "{}")), text("nobody"), calls(("sane", "{}")), text("well")]
    async with ScriptedServer(*replies) as server:
        options = ("-m", server.url, "--name", "tiny", "-t", "takers", "--no-history")
        await asyncio.to_thread(_take, spawn_chat(*options, folder=tmp_path))
        said = [message["content"] for message in server.requests[-1].body["messages"]]
    assert said[0] == "who is there?"
    assert "EOF" in said[2]
    assert said[4] == "and now?"


def _take(child: Any) -> None:
    child.expect_exact("> ")
    child.send("who is there?\r")
    child.expect_exact("your name?")
    child.expect_exact("EOFError")
    child.expect_exact("nobody")
    child.send("and now?\r")
    child.expect_exact("well")
    child.expect_exact("tokens")
    assert not termios.tcgetattr(child.child_fd)[3] & (termios.ECHO | termios.ICANON)
    child.send("\x04")
    child.expect(pexpect.EOF)
    assert termios.tcgetattr(child.child_fd)[3] & termios.ECHO
    child.close()
    assert child.exitstatus == 0


def test_what_is_typed_before_the_prompt_stands_is_kept_and_not_echoed(tmp_path: Path) -> None:
    """S19: keys typed during the imports wait for the prompt. The mode is restored at the end."""
    child: Any = cast("Any", pexpect).spawn(
        sys.executable,
        ["-c", MAIN],
        cwd=str(tmp_path),
        env={**environment(), "TERM": "xterm"},
        encoding="utf-8",
    )
    child.expect_exact("ready\r\n")
    child.send("typed\n")
    child.expect(pexpect.EOF)
    assert "typed" not in child.before
    assert termios.tcgetattr(child.child_fd)[3] & termios.ECHO
    child.close()
    assert child.exitstatus == 7
