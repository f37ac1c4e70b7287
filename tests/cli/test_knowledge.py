"""`anabranch knowledge`, and a chat with an index, in real processes and a real terminal."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pexpect
import pytest
from support.chat_command import ForkedTerminal, environment, run_chat, run_program
from support.scripted_server import ScriptedServer, text, vectors
from support.terminal import open_chat

from anabranch.knowledge import Index, KnowledgeError

PROGRAM = [sys.executable, "-m", "anabranch", "knowledge"]
RIVERS = "# Rivers\n\n## The Nile\n\nThe Nile is 6,650 km long.\n\n## The Rhine\n\nIt is shorter.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working folder with documents below `docs`."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "rivers.md").write_text(RIVERS)
    (tmp_path / "docs" / "otters.txt").write_text("Otters swim in the Rhine.")
    return tmp_path


def run(folder: Path, *arguments: str, **env: str) -> tuple[int, str, str]:
    """Run the program in a folder; return its status, output and errors."""
    return asyncio.run(run_program([*PROGRAM, *arguments], folder, **env))


def in_terminal(folder: Path, *arguments: str) -> Any:
    env = {**environment(), "TERM": "xterm"}
    child = ForkedTerminal([*PROGRAM[1:], *arguments], folder, env, (40, 100))
    child.logfile_read = io.StringIO()
    return child


async def fill(index: Path, name: str, words: str) -> None:
    """Add one document to an index."""
    async with Index(index) as notes:
        await notes.add(name, words)


def test_documents_are_added_searched_listed_and_removed(folder: Path):
    """The commands work one after the other, as the help and the page say."""
    assert run(folder, "add", "docs") == (0, "docs: 2 added; 3 pieces\n", "")
    assert run(folder, "add", "docs") == (0, "docs: 2 unchanged\n", "")
    status, out, _ = run(folder, "search", "How long is the Nile?", "-k", "1")
    assert (status, out.splitlines()[1:]) == (0, ["    The Nile is 6,650 km long."])
    assert out.splitlines()[0].endswith("docs/rivers.md:5  Rivers > The Nile")
    listed = "docs/otters.txt  1 piece\ndocs/rivers.md  2 pieces\n2 documents, 3 pieces\n"
    assert run(folder, "list") == (0, listed, "")
    assert run(folder, "remove", "docs/otters.txt") == (0, "removed 1 document\n", "")
    assert run(folder, "search", "otters", "--json") == (0, "[]\n", "")
    assert run(folder, "search", "otters") == (0, "no passage matches\n", "")


def test_a_program_reads_json(folder: Path):
    """The JSON has all fields of passages and documents, without control characters."""
    words = "red \x1b[31m \x9b2J \u202e rhine \U000e0001 [b]bold[/b]"
    asyncio.run(fill(folder / "notes.db", "o\x1b[2Jdd.md", words))
    status, out, _ = run(folder, "search", "rhine", "--json")
    (found,) = json.loads(out)
    assert status == 0
    assert (found["text"], found["source"]) == (words, "o\x1b[2Jdd.md")
    assert set(found) == {"number", "source", "heading", "text", "line", "page", "score", "place"}
    assert not steering(out)
    assert json.loads(run(folder, "list", "--json")[1])[0]["name"] == "o\x1b[2Jdd.md"


def steering(text: str) -> set[str]:
    """Return the control characters in a text."""
    return {sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf")} - {"\n"}


def test_a_document_cannot_steer_the_terminal(folder: Path):
    """Neither name, heading and text of a document nor an error about it has control characters."""
    bad, marks = "\x1b[2J\u202e\x9b", "[red]x[/red]"
    (folder / "docs" / f"a{bad}[red].md").write_text(f"# H{bad}\n\nwalrus {bad} {marks}\r\n")
    (folder / "docs" / f"b{bad}\n.txt").write_bytes(b"\x00\x01\x02" * 99)
    _, *said = run(folder, "add", "docs")
    shown = [*said, *run(folder, "search", "walrus")[1:], *run(folder, "list")[1:]]
    assert not steering("".join(shown))
    assert marks in shown[2]
    assert len(shown[1].splitlines()) == 1


@pytest.mark.parametrize("count", [1, 20, 1021])
def test_skipped_files_are_named(count: int, folder: Path):
    """The first twenty are named, the others counted; names have no control characters."""
    for number in range(count):
        (folder / "docs" / f"p{number:04}\x1b[2J.png").touch()
    status, out, err = run(folder, "add", "docs")
    head, *lines = out.splitlines()
    assert (status, err) == (0, "")
    assert head == f"docs: 2 added, {count} skipped; 3 pieces"
    assert len(lines) == min(count, 20) + (count > 20)
    for number, line in enumerate(lines[:20]):
        assert f"p{number:04}" in line
        assert line.endswith("was skipped: unknown kind of file")
    assert count <= 20 or lines[-1] == "and 1,001 more files of unknown kind"
    assert not steering(out)


WRONG = [
    (
        ["search", "x", "-i", "none.db"],
        2,
        "there is no index 'none.db'. Create it: anabranch knowledge add",
    ),
    (["list", "-i", "none.db"], 2, "there is no index 'none.db'"),
    (["add", "docs", "nowhere"], 2, "'nowhere' does not exist"),
    (["add", "docs", "-i", "no/x.db"], 1, "does not exist"),
    (["search", "x", "-i", "page.md"], 1, "is no SQLite file"),
    (["search", "x", "-k", "0"], 2, "Invalid value for '-k'"),
    (["remove", "nobody", "-i", "words.db"], 2, "unknown document 'nobody'"),
    (["add", "docs", "--embed", "nobody:x"], 2, "unknown model 'nobody"),
    (["add", "docs", "--embed", "http://localhost:1/v1"], 2, "Write openai:MODEL, and set OPENAI_"),
    (["add", "docs", "--size", "3"], 2, "Invalid value for '--size'"),
]


@pytest.mark.parametrize(("arguments", "status", "why"), WRONG)
def test_wrong_usage_is_one_line_and_a_status(
    arguments: list[str], status: int, why: str, folder: Path
):
    """Wrong usage ends with 2, failure with 1, and neither creates a file."""
    (folder / "page.md").write_text("This is no index, but a page of text about something else.")
    if "words.db" in arguments:
        asyncio.run(fill(folder / "words.db", "a.md", "text"))
    before = set(folder.iterdir())
    status_found, out, err = run(folder, *arguments)
    assert (status_found, out) == (status, "")
    assert why in err
    assert set(folder.iterdir()) == before


def test_what_cannot_be_read_is_named_and_the_rest_is_read(folder: Path):
    """Unreadable files are named, the others are added, and the status is 1."""
    (folder / "docs" / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    (folder / "binary.txt").write_bytes(b"\x00\x01" * 500)
    status, out, err = run(folder, "add", "binary.txt", "docs", "docs/rivers.md")
    assert (status, out) == (
        1,
        "docs: 2 added, 1 refused; 3 pieces\ndocs/rivers.md: 2 pieces\n",
    )
    assert [line.split(" which ")[-1][:6] for line in err.splitlines()] == ["is bin", "anabra"]
    assert "docs/broken.pdf is broken" in err


async def test_vectors_of_another_model_are_refused(folder: Path):
    """Add and search refuse another embedding model, and the index is unchanged."""

    (folder / "more").mkdir()
    (folder / "more" / "eels.txt").write_text("An eel swims.")
    async with ScriptedServer(
        vectors("a"), vectors("a"), vectors("a", "b"), vectors("a")
    ) as server:
        for_server = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": server.url}

        async def ask(*arguments: str) -> tuple[int, str, str]:
            return await asyncio.to_thread(run, folder, *arguments, **for_server)

        first = await ask("add", "docs/otters.txt", "--embed", "openai:small")
        assert first == (0, "docs/otters.txt: 1 piece\n", "")
        for wrong in (("search", "x"), ("add", "docs/rivers.md"), ("add", "more")):
            status, out, err = await ask(*wrong, "--embed", "openai:large")
            assert (status, out) == (1, "")
            assert "has vectors of 2 by openai:small" in err
        assert "docs/rivers.md" not in (await ask("list"))[1]
    assert len(server.requests) >= 3


def test_a_closed_pipe_ends_it_quietly(folder: Path):
    """`| head -1` ends the program without an error message."""
    asyncio.run(
        fill(folder / "notes.db", "a.md", "\n\n".join(f"# H{n}\n\notter {n}" for n in range(9)))
    )
    command = [*PROGRAM, "search", "otter", "-k", "9"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


# --- in a terminal


def test_a_bar_shows_how_far_it_has_come(folder: Path):
    """The bar disappears at the end; file names are neither markup nor control sequences."""
    for number in range(20):
        (folder / "docs" / f"[red]\x9b2J{number}.md").write_text("words")
    child = in_terminal(folder, "add", "docs")
    child.expect_exact("/22")
    child.expect_exact("docs: 22 added; 23 pieces")
    child.expect(pexpect.EOF)
    child.close()
    shown = child.logfile_read.getvalue()
    assert child.exitstatus == 0
    assert "\x9b" not in shown
    assert "\x1b[?25h" in shown[shown.rindex("\x1b[?25l") :]  # the cursor is there again


def test_ctrl_c_in_a_long_add_keeps_what_was_read(folder: Path):
    """It says so, restores the cursor and ends with 130; the next add continues."""
    for number in range(300):
        (folder / "docs" / f"{number}.md").write_text(f"otter {number} swims. " * 1500)
    child = in_terminal(folder, "add", "docs")
    child.expect("[1-9]/302")
    child.sendintr()
    child.expect_exact("stopped; the files that were read are in the index")
    child.expect(pexpect.EOF)
    child.close()
    shown = child.logfile_read.getvalue()
    assert child.exitstatus == 130
    assert "\x1b[?25h" in shown[shown.rindex("\x1b[?25l") :]
    read = json.loads(run(folder, "list", "--json")[1])
    assert 0 < len(read) < 302
    assert {each["pieces"] for each in read if "rivers" not in each["name"]} <= {1, 32}


KNOWING = ("--tools", "none", "--knowledge", "notes.db")


async def test_a_chat_shows_what_its_answers_cite(folder: Path):
    """Citations, or else the documents found, are below each answer, without control characters."""
    await fill(folder / "notes.db", "ri\x1b[31mver.md", "# The \x9bNile\n\nThe Nile is long.")
    name = "ri\N{REPLACEMENT CHARACTER}[31mver.md:3"
    answers = (text("Long [1]."), text("I do not know."))
    async with open_chat(folder, *answers, options=KNOWING) as (on, server):
        await on.say("How long is the Nile?")
        await on.shows("Long [1].", f"[1] {name} (The \N{REPLACEMENT CHARACTER}Nile)")
        await on.say("And the nile again?")
        await on.shows("I do not know.", f"(no citations; documents found: {name})")
        await on.leave()
    asked, *_, found = server.requests[0].body["messages"]
    assert (asked["role"], found["role"]) == ("user", "tool")
    assert "The Nile is long." in found["content"]


def take_away(folder: Path) -> None:
    for part in folder.glob("notes.db*"):
        part.unlink()


async def test_a_chat_says_when_a_search_fails(folder: Path):
    """The chat shows the reason, and the model answers without passages."""
    await fill(folder / "notes.db", "rivers.md", RIVERS)
    async with open_chat(folder, text("I do not know."), options=KNOWING) as (on, _):
        take_away(folder)
        await on.say("How long is the Nile?")
        await on.shows(
            "(the search failed: Error: KnowledgeError: the index 'notes.db' was removed"
        )
        await on.shows("I do not know.")
        await on.leave()


async def test_a_chat_needs_an_index_that_is_there(folder: Path):
    """A missing index or another file is an error before the first turn."""
    (folder / "page.md").write_text("This is no index, but a page of text about something else.")
    for name, why in (("none.db", "there is no index"), ("page.md", "is no SQLite file")):
        options = ("--model", "http://127.0.0.1:9/v1", "--name", "m", "-k", str(folder / name))
        status, out, err = await run_chat(*options, said="hi\n")
        assert (status, out) == (2, "")
        assert why in err


# --- what the commands rest on


async def test_a_folder_counts_the_pieces_of_all_its_files(tmp_path: Path):
    """The count is correct if several files are read at once."""
    for number in range(12):
        (tmp_path / f"{number}.md").write_text("# A\n\nwords\n\n# B\n\nwords\n")
    async with Index(":memory:") as notes:
        report = await notes.add_folder(tmp_path)
    assert (report.pieces, len(report.added)) == (24, 12)
    assert str(report) == "12 added; 24 pieces"


async def test_a_folder_fails_with_the_error_itself(tmp_path: Path):
    """The error is not wrapped in a group, however many files are read at once."""

    async def embed(texts: Any) -> list[list[float]]:
        return [[] for _ in texts]

    for number in range(8):
        (tmp_path / f"{number}.md").write_text("words")
    async with Index(":memory:", embed=embed, embedder="none") as notes:
        with pytest.raises(KnowledgeError, match="cannot use what none gave"):
            await notes.add_folder(tmp_path)


def test_an_output_that_has_few_letters(folder: Path) -> None:
    """Characters outside the encoding are replaced, and no command fails."""
    (folder / "docs" / "gr\u00fcn.md").write_text(
        "# \u65e5\u672c\n\nGreen \u2014 tea \U0001f600\n", "utf-8"
    )
    env = {"PYTHONIOENCODING": "ascii"}
    for arguments in (["add", "docs", "docs/gr\u00fcn.md"], ["search", "tea"], ["list"]):
        status, out, err = run(folder, *arguments, **env)
        assert (status, err) == (0, "")
    status, out, err = run(folder, "search", "tea", **env)
    assert "Green \\u2014 tea" in out
