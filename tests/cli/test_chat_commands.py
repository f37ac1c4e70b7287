"""The chat's commands: their effects, and their errors if there is nothing to do.

Each test is one program with its lines on standard input.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

import pytest
from support.chat_command import ChatFolder, environment
from support.forked_python import run_forked
from support.paths import ROOT
from support.scripted_server import Reply, ScriptedServer, text

from anabranch.cli.chat._commands import COMMANDS, IMMEDIATE_COMMANDS
from anabranch.cli.chat._settings import Settings
from anabranch.store import Journal


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[ChatFolder]:
    async with ScriptedServer(text("Yes.")) as server:
        yield ChatFolder(tmp_path, server)


async def say(place: ChatFolder, *lines: str) -> tuple[int, list[str], list[str]]:
    """Say these lines; return the status, and the lines of the output and of the errors."""
    status, out, err = await place.ask(said="\n".join(lines) + "\n")
    return status, out.splitlines(), err.splitlines()


async def test_nothing_fails_where_nothing_was_said(place: ChatFolder) -> None:
    """Each command prints one line, sends no request, and stores no session."""
    lines = ["/retry", "/undo", "/edit", "/copy", "/fork", "/fork 0", "/rename", "/image", "/cost"]
    status, out, err = await say(place, *lines)
    assert (status, out) == (0, [])
    assert len(err) == len(lines)
    assert not place.server.requests
    with closing(sqlite3.connect(place.data)) as database:
        assert database.execute("select count(*) from anabranch_run").fetchone() == (0,)


async def test_what_a_command_does_not_take_is_refused_and_nothing_is_done(
    place: ChatFolder,
) -> None:
    """`/undo 5` and `/exit now` do nothing but print an error."""
    wrong = ["/undo 5", "/retry x", "/new y", "/edit z", "/exit now", "/approve all", "/tools x"]
    more = ["/fork -1", "/fork x", "/fork 1.5", "/approve forget", "/approve forget 0", "/foo"]
    status, out, err = await say(place, "One?", *wrong, *more, "Two?")
    assert (status, out) == (0, ["Yes.", "Yes."])
    assert len(err) == len(wrong) + len(more)
    assert [said for role, said in place.sent_messages() if role == "user"] == ["One?", "Two?"]


async def test_turns_are_taken_back_forked_and_tried_again(place: ChatFolder) -> None:
    """The model gets the remaining turns, and each session has its own."""
    replies = [text(each) for each in ("a", "b", "c", "d", "e")]
    place.server.script(*replies[:2], Reply.error(400, {"message": "too hot"}), *replies[2:])
    lines = ["1", "/undo", "/undo", "2", "3", "/retry", "/fork 1", "4", "/resume 1", "/fork 99"]
    status, out, err = await say(place, *lines)
    assert status == 1  # a turn has failed
    assert out == ["a", "b", "c", "d"]
    assert "anabranch: there is no turn to remove" in err
    assert any("too hot" in line for line in err)
    assert [said for _, said in place.sent_messages(3)] == ["2", "b", "3"]
    assert [said for _, said in place.sent_messages(4)] == ["2", "b", "4"]
    assert "2 sessions begin with '1'" in err[-2]


async def test_a_title_is_one_line_that_steers_nothing(place: ChatFolder) -> None:
    """The stored title is the displayed one."""
    _, _, err = await say(place, "One?", "/rename  🦊  \x1b[31mred " + "x" * 100, "/sessions")
    assert "\x1b" not in "".join(err)
    title = err[0].removeprefix("renamed to ")
    assert title.startswith("🦊 [31mred xxx")
    assert len(title) <= 60
    assert err[1].endswith(title)


async def test_tools_and_instructions_are_switched(place: ChatFolder) -> None:
    """The next request has the change. `/new` keeps it, `/resume` restores the session's."""
    lines = [
        "/system Be brief.",
        "/tools off",
        "1",
        '/system ""',
        "/tools on calculate",
        "/new",
        "2",
    ]
    await say(place, *lines, "/resume 1", "3")
    first, second, third = (each.body for each in place.server.requests)
    assert place.sent_messages(0)[0] == ("system", "Be brief.")
    assert "tools" not in first
    assert place.sent_messages(1)[0] == ("user", "2")
    assert [each["function"]["name"] for each in second["tools"]] == ["calculate"]
    assert third["messages"][0]["role"] == "user"  # its instructions were taken away


async def test_nothing_is_exported_over_what_is_no_file(place: ChatFolder) -> None:
    """A folder, another suffix and a missing folder are refused with one line each."""
    os.mkfifo(place.folder / "pipe.md")
    (place.folder / "folder.md").mkdir()
    wrong = ["/export pipe.md", "/export folder.md", "/export a.pdf", "/export no/a.md"]
    status, _, err = await say(place, "One?", *wrong, "/export a.html", "/save no/a.json")
    assert status == 0
    assert [line.startswith("anabranch: ") for line in err] == [True] * 4 + [False, True]
    assert (place.folder / "a.html").stat().st_mode & 0o777 == 0o600


async def test_what_is_no_picture_is_not_sent(place: ChatFolder) -> None:
    """A pipe, a folder, a missing and a too large file give one line each, and no request."""
    os.mkfifo(place.folder / "pipe.png")
    (place.folder / "broken.png").write_bytes(b"\x00\x01\x02 no picture")
    with (place.folder / "large.png").open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.truncate(30_000_000)
    names = ["pipe.png", ".", "broken.png", "large.png", "gone.png", '"', "brokn.png", ""]
    status, out, err = await say(place, *(f"/image {name}" for name in names))
    assert (status, out) == (0, [])
    assert all(line.startswith("anabranch: ") for line in err)
    assert len(err) == len(names)
    assert err[4] == f"anabranch: gone.png: No such file. The working folder is {place.folder}"
    assert "quotation mark" in err[5]
    assert err[6].endswith("Did you mean broken.png?")
    assert not place.server.requests


async def test_a_model_that_cannot_be_opened_leaves_the_one_before(place: ChatFolder) -> None:
    """Without key, with an unknown name or file, the chat continues with its present model."""
    wrong = ["/model openai:m", "/model nope", "/model local:/no/file.gguf"]
    status, out, err = await say(place, *wrong, "One?")
    assert (status, out) == (0, ["Yes."])
    assert len(err) == len(wrong)
    assert "OPENAI_API_KEY" in err[0]


PAGE = (ROOT / "docs" / "terminal.md").read_text(encoding="utf-8")


def test_the_page_names_each_command_and_no_other() -> None:
    """The page's table of commands, its settings and exit statuses match the program."""
    table = PAGE.partition("| command | |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(/\w+)", "\n".join(r.split(" | ")[0] for r in table.splitlines())))
    assert named == {*COMMANDS}
    sentence = re.search(r"\.\s+((?:`/\w+`[,\s]+(?:and )?)+)work while", PAGE)
    assert sentence is not None
    assert {*re.findall(r"`(/\w+)`", sentence[1])} == IMMEDIATE_COMMANDS - {"/exit"}
    (settings,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert Settings.model_validate_json(settings).priced["gpt-5-mini"].input == 0.25


async def test_a_session_is_removed_as_the_page_says(place: ChatFolder) -> None:
    """After cancel and purge, no list has the session and no file has its text."""
    await say(place, "A secret that is to be forgotten")
    await say(place, "Two?")
    async with Journal(place.data) as journal:
        newest, first = (each.run_id for each in await journal.runs())
    journal_option = ["--journal", str(place.data)]
    for command in (
        ["cancel", *journal_option, first],
        ["purge", *journal_option, "--before", "0s", "--yes"],
    ):
        arguments = ["-m", "anabranch", "runs", *command]
        env = environment(**place.settings)
        status, _, err = await run_forked(arguments, place.folder, "", env)
        assert status == 0, err
    _, _, err = await say(place, "/sessions")
    assert len(err) == 1
    assert err[0].startswith(newest.removeprefix("chat/"))
    async with Journal(place.data) as journal:
        assert [each.run_id for each in await journal.runs()] == [newest]
