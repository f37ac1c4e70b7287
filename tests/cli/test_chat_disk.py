"""A disk that fills up during a chat: one line says so, and the chat continues in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.scripted_server import Reply, calls, chunk, text
from support.terminal import Terminal, open_chat

from anabranch.cli.chat._sessions import open_sessions

if sys.platform != "linux":
    pytest.skip("limits the files of another process", allow_module_level=True)
import resource

TOOLS = '''
from anabranch import tool

@tool
def look(at: str) -> str:
    """Look at something."""
    return "looked " * 2000
'''
LONG = "word " * 4000
CUT = "repeat this turn with /retry"
SAID = "The chat continues in memory. Save it with /save FILE"


async def fill(on: Terminal, folder: Path, left: int) -> None:
    """Limit the growth of each file of the chat to `left` bytes from now on."""
    size = max(each.stat().st_size for each in folder.rglob("chats.db*"))  # noqa: ASYNC240
    resource.prlimit(await on.process(), resource.RLIMIT_FSIZE, (size + left, size + left))


def spoken(messages: Sequence[dict[str, str]]) -> list[str]:
    """Return the messages of the person in a request."""
    return [each["content"] for each in messages if each["role"] == "user"]


@pytest.mark.parametrize("left", [0, 10_000, 20_000, 35_000, 60_000, 100_000])
async def test_wherever_the_disk_fills_up_one_line_says_so(left: int, tmp_path: Path) -> None:
    """No earlier turn is lost. The interrupted turn can be answered again."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    said = [f"question {number}" for number in range(1, 7)]
    asked = calls(("look", '{"at": "it"}'))
    replies: list[Reply] = [text("One.")]
    for _ in range(20):  # an interrupted turn may have used some of these
        replies += [asked, text(LONG)]
    options = ("--tools", "mytools")
    async with open_chat(tmp_path, *replies, options=options, columns=500) as (on, server):
        await on.say("question 0")
        await on.over()
        await fill(on, tmp_path, left)
        turns, is_cut = 1, False
        for each in said:
            await on.say(each)
            await on.over(turns := turns + 1)
            if CUT in on.text and not is_cut:
                is_cut = True
                await on.say("/retry")
                await on.over(turns := turns + 1)
        shown = " ".join(on.text.split())
        assert shown.count(SAID) == 1
        assert shown.count("anabranch: ") == 1
        assert "Traceback" not in shown
        await on.leave()
    assert spoken(server.requests[-1].body["messages"]) == ["question 0", *said]


async def test_an_answer_that_is_cut_by_it_is_answered_again(tmp_path: Path) -> None:
    """The text so far is visible, with a line that says how to continue."""
    filled = asyncio.Event()
    cut = Reply([chunk({"content": "Half of"}), filled, chunk({"content": " it"}), asyncio.Event()])
    async with open_chat(tmp_path, text("One."), cut, text("Two."), columns=500) as (on, server):
        await on.say("first")
        await on.over()
        await on.say("second")
        await on.shows("Half of")
        await fill(on, tmp_path, 0)
        filled.set()
        await on.shows("Half of it", f"{SAID}, and {CUT}")
        await on.over(2)
        await on.say("/retry")
        await on.shows("Two.")
        await on.over(3)
        assert "Traceback" not in on.text
        await on.leave()
    assert spoken(server.requests[-1].body["messages"]) == ["first", "second"]
    async with open_sessions(tmp_path / ".kept" / "anabranch" / "chats.db") as sessions:
        assert [each.title for each in await sessions.list()] == ["first"]


async def test_a_command_that_finds_the_disk_full_says_so_too(tmp_path: Path) -> None:
    """The next command works, in memory."""
    async with open_chat(tmp_path, text("One."), text("Two."), columns=500) as (on, _):
        await on.say("first")
        await on.over()
        await fill(on, tmp_path, 0)
        await on.say(f"/rename {'x' * 50}")
        await on.shows(SAID)
        await on.say("/rename another")
        await on.say("/sessions")
        await on.shows("another")
        await on.say("second")
        await on.shows("Two.")
        await on.over(2)
        assert on.text.count(SAID) == 1
        assert "Traceback" not in on.text
        await on.leave()
