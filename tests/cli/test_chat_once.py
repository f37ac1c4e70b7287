"""One question at the command line: its output, its session and its exit status."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

import pytest
from support.chat_command import ChatFolder, environment
from support.forked_python import run_forked
from support.openai_client import on_uvicorn
from support.scripted_server import DONE, Reply, ScriptedServer, calls, chunk, text
from support.waiting import wait_until

from anabranch import Agent, connect
from anabranch.serve import serve
from anabranch.store import Journal

MINE = """
from anabranch import Agent, Job, tool
from anabranch.backends import connect


@tool(approve=True)
def wipe(path: str) -> str:
    "Remove all."
    open("wiped", "w").close()
    return "wiped"


class Add(Job[int]):
    a: int
    b: int = 2

    async def task(self):
        return self.a + self.b


bob = Agent(connect("{url}", model="m"), "I am Bob.", name="bob", tools=[wipe])
"""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[ChatFolder]:
    async with ScriptedServer(text("Yes.")) as server:
        yield ChatFolder(tmp_path, server)


async def test_a_question_is_answered_and_the_session_goes_on(place: ChatFolder) -> None:
    """S20: `-c` continues with the messages and the model of the session, several times."""
    assert await place.ask("One?") == (0, "Yes.\n", "")
    assert (await place.chat("-c", "Two?", "--system", "Be brief."))[:2] == (0, "Yes.\n")
    assert (await place.chat("-r", "One", "Three?"))[:2] == (0, "Yes.\n")
    assert place.sent_messages() == [
        ("system", "Be brief."),
        *[("user", "One?"), ("assistant", "Yes.")],
        *[("user", "Two?"), ("assistant", "Yes.")],
        ("user", "Three?"),
    ]
    assert (await place.ask("--no-history", "Four?"))[0] == 0
    assert len(place.sent_messages()) == 1


async def test_json_is_one_message_and_errors_stand_beside_it(place: ChatFolder) -> None:
    """Standard output has one object. After a failed turn it is empty, and the status is 1."""
    status, out, _ = await place.ask("--json", "One?")
    assert (status, out.count("\n")) == (0, 1)
    assert json.loads(out)["content"] == "Yes."
    place.server.script(Reply.error(400, {"message": "too hot"}))
    status, out, err = await place.ask("--json", "Two?")
    assert (status, out) == (1, "")
    assert "too hot" in err


def thought(*pieces: dict[str, str]) -> Reply:
    """Answer with reasoning and the given fields."""
    said = [{"reasoning_content": "Hm"}, {"reasoning_content": "m."}, *pieces]
    return Reply([*map(chunk, said), chunk(finish="stop"), DONE])


async def test_json_has_the_reasoning(place: ChatFolder) -> None:
    """The JSON has the reasoning, but no provider items."""
    place.server.script(thought({"content": "Yes."}))
    status, out, err = await place.ask("--json", "One?")
    record = json.loads(out)
    assert (status, err) == (0, "")
    assert record == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hmm."}
    assert (await place.ask("Two?"))[:2] == (0, "Yes.\n")


async def test_a_reply_that_is_all_reasoning_is_no_answer(place: ChatFolder) -> None:
    """Standard error says so, and the status is 1."""
    place.server.script(thought())
    status, out, err = await place.ask("One?")
    assert (status, out) == (1, "")
    assert "the model only reasoned, without an answer" in err
    status, out, err = await place.ask("--json", "One?")
    assert (status, json.loads(out)["reasoning_content"]) == (1, "Hmm.")
    assert "without an answer" in err


@pytest.mark.parametrize("answer", ["Yes.", ""])
async def test_json_of_what_is_served_has_the_reasoning(place: ChatFolder, answer: str) -> None:
    """An agent in a module and one behind an Anabranch server both give their reasoning."""
    place.server.script(thought({"content": answer}))
    (place.folder / "mine.py").write_text(MINE.format(url=place.server.url))
    status, out, _ = await place.chat("--json", "--agent", "mine:bob", "One?")
    assert (status, json.loads(out)["reasoning_content"]) == (0 if answer else 1, "Hmm.")
    model = Agent(connect(place.server.url, model="m"), name="m")
    async with model.backend as _, on_uvicorn(serve(model)) as url:  # type: ignore[union-attr]
        status, out, _ = await place.chat("--json", "--url", url, "One?")
    assert (status, json.loads(out)["reasoning_content"]) == (0 if answer else 1, "Hmm.")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--json"], "requires a question"),
        ([""], "must not be empty"),
        (["--image", "a.png"], "/image"),
        (["--theme", "pink", "x"], "dark, light, none"),
        (["--no-history", "-c", "x"], "--no-history"),
        (["--load", "gone.json", "x"], "No such file"),
        (["--load", "a.json", "-c", "x"], "--load"),
        (["-r", "nothing", "x"], "unknown session 'nothing'"),
    ],
)
async def test_wrong_usage_says_what_is_wrong(
    place: ChatFolder, options: list[str], word: str
) -> None:
    """The status is 2, standard error has one line, and no request was sent."""
    status, out, err = await place.ask(*options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert word in err
    assert not place.server.requests


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--image", "nope.png", "x"], "nope.png: No such file"),
        (["--image", "bat.png", "x"], "Did you mean bad.png?"),
        (["--image", "bad.png", "x"], "bad.png"),
        (["--load", "nope.json", "x"], "nope.json: No such file"),
        (["--load", "nope.json"], "nope.json: No such file"),
        (["--load", "bad.png", "x"], "bad.png"),
        (["read @nope.txt", "--image", "nope.png"], "nope.png: No such file"),
        (["--resume", "nothing", "x"], "unknown session 'nothing'"),
        (["--tools", "nothing:x", "x"], "'nothing'"),
        (["--format", "nothing", "x"], "unknown format 'nothing'"),
        (["--knowledge", "nope.db", "x"], "nope.db"),
    ],
)
async def test_what_is_not_there_is_told_before_a_model_is_fetched(
    place: ChatFolder, options: list[str], word: str
) -> None:
    """The error comes first. The empty cache would need a download, which must not start."""
    (place.folder / "bad.png").write_text("no picture")
    cache = place.folder / "cache"
    status, out, err = await place.chat(*options, ANABRANCH_CACHE=str(cache), PIP_NO_INDEX="1")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert word in err
    assert not cache.exists()


async def test_the_one_model_of_a_server_needs_no_name(place: ChatFolder) -> None:
    """The server lists its models. The session stores the name, so that `-c` does not ask again."""
    place.server.models = ["only one"]
    for address in (place.server.url, f"{place.server.url}/chat/completions/"):
        assert (await place.chat("--model", address, "One?"))[:2] == (0, "Yes.\n")
        assert place.server.requests[-1].body["model"] == "only one"
    place.server.models = None
    assert (await place.chat("-c", "Two?"))[:2] == (0, "Yes.\n")
    assert place.server.requests[-1].body["model"] == "only one"
    other = await place.chat("--model", place.server.url, "--name", "mine", "Three?")
    assert (other[0], place.server.requests[-1].body["model"]) == (0, "mine")


@pytest.mark.parametrize(
    ("models", "path", "words"),
    [
        (["a", "b\x1b[2J"], "/v1", [": a, b", "--name"]),
        ([], "/v1", [": none. Name", "--name"]),
        (None, "/v1", ["(HTTP status 405)", "--name"]),
        (["a"], "", ["HTTP status 404, did you mean http://127.0.0.1:", "/v1?", "--name"]),
        (["a"], "/v1?key=hunter2", [": a, b."]),
    ],
)
async def test_which_model_is_asked_in_words_of_the_command_line(
    place: ChatFolder, models: list[str] | None, path: str, words: list[str]
) -> None:
    """One line says which models exist and what to do, without keys and Python calls."""
    place.server.models = ["a", "b"] if "hunter2" in path else models
    address = place.server.url.removesuffix("/v1").replace("//", "//ann:hunter2@") + path
    status, out, err = await place.chat("--model", address, "One?")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "the models of http://127.0.0.1:" in err or "a model of http://127.0.0.1:" in err
    assert all(each in err for each in words)
    assert not [each for each in ("connect(", "='", "hunter2", "ann:", "\x1b") if each in err[10:]]
    assert not place.server.requests


async def test_an_address_is_given_once(place: ChatFolder) -> None:
    """The address in --model and in --base-url at the same time is refused."""
    where = place.server.url
    status, _, err = await place.chat("--model", where, "--base-url", where, "--name", "m", "x")
    assert (status, err.count("\n")) == (2, 1)
    assert "with --model or with --base-url" in err


async def test_a_session_goes_on_where_it_was_and_nowhere_else(place: ChatFolder) -> None:
    """A session continues with the server of `--base-url`. No password is stored."""
    address = place.server.url.replace("//", "//ann:hunter2@")
    keys = {"OPENAI_API_KEY": "sk-none-of-your-business-1234567"}
    named = ["--model", "openai:m", "--base-url", place.server.url]
    assert (await place.chat(*named, "One?", **keys))[:2] == (0, "Yes.\n")
    assert (await place.chat("-c", "Two?", **keys))[:2] == (0, "Yes.\n")
    assert place.sent_messages()[-1] == ("user", "Two?")
    assert (await place.chat("--model", f"{address} m", "Three?"))[0] == 0
    assert (await place.chat("-c", "Four?"))[0] == 0
    assert place.sent_messages()[-1] == ("user", "Four?")
    for path in place.data.parent.glob("chats.db*"):
        stored = path.read_bytes() if path.is_file() else b""
        assert b"hunter2" not in stored
        assert b"sk-none" not in stored


async def test_an_agent_of_ones_own_answers_in_its_sessions(place: ChatFolder) -> None:
    """Without a person, a call that needs approval is denied; a note names a missing --agent.

    Once, such a call waited for ever, since another process may approve calls in a journal.
    """
    (place.folder / "mine.py").write_text(MINE.format(url=place.server.url))
    place.server.script(calls(("wipe", '{"path": "/"}')), text("I may not."))
    status, out, err = await place.chat("--agent", "mine:bob", "Wipe!")
    assert (status, out) == (0, "I may not.\n")
    assert "no person is there to approve the call" in err
    assert not (place.folder / "wiped").exists()
    assert place.sent_messages()[0] == ("system", "I am Bob.")
    _, _, err = await place.chat("--agent", "mine:bob", "-c", "And now?")
    assert "--agent" not in err
    _, _, err = await place.ask("-c", "And who are you?")
    assert "this session used --agent mine:bob before" in err


async def test_an_agent_of_ones_own_keeps_what_it_has_in_another_session(place: ChatFolder) -> None:
    """`/resume` restores the messages, but keeps the agent's model and instructions."""
    (place.folder / "mine.py").write_text(MINE.format(url=place.server.url))
    assert (await place.ask("--system", "Be brief.", "One?"))[0] == 0
    status, _, err = await place.chat("--agent", "mine:bob", said="/resume One\nTwo?\n")
    assert status == 0
    assert "this session used no --agent before" in err
    assert [said for _, said in place.sent_messages()] == ["I am Bob.", "One?", "Yes.", "Two?"]


async def test_a_job_answers_and_says_what_it_does_not_take(place: ChatFolder) -> None:
    """A job refuses sessions, images and model options with an error."""
    (place.folder / "mine.py").write_text(MINE.format(url=place.server.url))
    (place.folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(30))
    job = ["--agent", "mine:Add"]
    status, out, _ = await place.chat(*job, "--json", "3")
    assert (status, json.loads(out)["content"]) == (0, "5")
    for more, failed in (["-c"], 2), (["--temperature", "1"], 2), (["--image", "a.png"], 1):
        status, out, err = await place.chat(*job, *more, "3")
        assert (status, out, err.count("\n")) == (failed, "", 1)


async def test_sessions_that_cannot_be_read_are_not_taken_for_none(place: ChatFolder) -> None:
    """`-c` fails and says what to do. Without it the chat works, and the file is unchanged."""
    assert (await place.ask("One?"))[0] == 0
    for each in place.data.parent.glob("chats.db-*"):
        if each.is_file():
            each.unlink()
    place.data.write_bytes(b"no database")
    status, out, err = await place.ask("-c", "Two?")
    assert (status, out) == (2, "")
    assert "move it away" in err
    status, out, err = await place.ask("Two?")
    assert (status, out) == (0, "Yes.\n")
    assert "so this chat will not be saved" in err
    assert place.data.read_bytes() == b"no database"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
async def test_a_closed_stream_is_an_empty_one(place: ChatFolder, closed: str) -> None:
    """The chat works, and no opened file gets the descriptor of the closed stream."""
    program = (
        "import os, sys\n"
        f"number = {'<>2'.index(closed[0])}\n"
        "name = ('stdin', 'stdout', 'stderr')[number]\n"
        "stream = getattr(sys, name)\n"
        "setattr(sys, name, None)\n"
        "stream.close()\n"
        "try:\n"
        "    os.close(number)\n"
        "except OSError:\n"
        "    pass\n"
        f"sys.argv = ['anabranch', 'chat', '--model', {place.server.url + ' m'!r}, 'One?']\n"
        "from anabranch.cli._main import main\n"
        "main()\n"
    )
    kept = {f"XDG_{name}_HOME": str(place.folder) for name in ("DATA", "STATE", "CONFIG")}
    status, out, err = await run_forked(["-c", program], place.folder, "", environment(**kept))
    assert (status, out, err) == (0, "" if closed == ">&-" else "Yes.\n", "")
    assert place.sent_messages() == [("user", "One?")]
    with closing(sqlite3.connect(place.folder / "anabranch" / "chats.db")) as database:
        assert database.execute("select count(*) from anabranch_run").fetchone() == (1,)


SLOW = """
import asyncio
from pathlib import Path

from anabranch import tool


@tool
async def launch(name: str) -> str:
    "Launch it."
    with Path("launched").open("a") as file:
        file.write(name)
    await asyncio.sleep(600)
    return "launched"
"""


@pytest.fixture
async def cut(place: ChatFolder) -> ChatFolder:
    """Return a folder in which a chat was killed in its first turn, while a tool ran."""
    (place.folder / "slow.py").write_text(SLOW)
    place.server.script(calls(("launch", '{"name": "r"}')), text("I cannot tell."))
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "anabranch", "chat", "--model", f"{place.server.url} m"],
        *["--tools", "slow:launch", "Launch!"],
        cwd=place.folder,
        env=environment(**place.settings),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    launched = place.folder / "launched"
    await wait_until(lambda: launched.exists() and launched.read_text() == "r")
    process.kill()
    await process.wait()
    return place


async def test_what_was_cut_is_not_done_again_where_nobody_can_say(cut: ChatFolder) -> None:
    """S20: after a kill, `/retry` in a pipe continues; the call in doubt is not repeated."""
    status, out, err = await cut.ask("-c", "--tools", "slow:launch", said="/retry\n")
    assert (status, out) == (0, "I cannot tell.\n"), err
    assert "was interrupted: /retry continues it" in err
    assert "it is unknown whether this call happened" in cut.sent_messages()[-1][1]
    assert (cut.folder / "launched").read_text() == "r"


async def test_what_was_cut_can_be_written_anew(cut: ChatFolder) -> None:
    """`/edit` edits the message of the interrupted turn, and its call is removed."""
    options = ["-c", "--tools", "slow:launch"]
    status, _, err = await cut.ask(*options, said="/edit\nDo not launch!\n")
    assert (status, cut.sent_messages()) == (0, [("user", "Do not launch!")])
    assert "Launch!" in err.splitlines()
    assert (cut.folder / "launched").read_text() == "r"


async def test_a_session_that_was_ended_for_good_is_not_gone_on_with(place: ChatFolder) -> None:
    """After `anabranch runs cancel`, `-c` continues the newest other session."""
    assert (await place.ask("One?"))[0] == 0
    assert (await place.ask("Two?"))[0] == 0
    async with Journal(place.data) as journal:
        newest, *_ = await journal.runs()
        await journal.cancel(newest.run_id, "no longer wanted")
    assert (await place.ask("-c", "Three?"))[0] == 0
    assert [said for role, said in place.sent_messages() if role == "user"] == ["One?", "Three?"]
    _, _, err = await place.ask(said="/sessions\n")
    assert "Two?" not in err


async def test_a_disk_that_fills_up_is_one_line_and_takes_no_turn_before(place: ChatFolder) -> None:
    """S20: earlier turns are there once the disk has room. Later ones are answered in memory."""
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"sys.argv = ['anabranch', 'chat', '--model', {place.server.url + ' m'!r}]\n"
        "from anabranch.cli._main import main\n"
        "main()\n"
    )
    said = "\n".join(["One?", "x" * 200_000, "Three?"]) + "\n"
    env = environment(**place.settings)
    status, out, err = await run_forked(["-c", program], place.folder, said, env)
    assert (status, out.splitlines()) == (0, ["Yes."] * 3)
    assert "Traceback" not in err
    assert err.count("anabranch: ") == err.count("The chat continues in memory") == 1
    assert (await place.ask("-c", "Four?"))[0] == 0
    said_then = [text for role, text in place.sent_messages() if role == "user"]
    assert (said_then[0], said_then[-1]) == ("One?", "Four?")
