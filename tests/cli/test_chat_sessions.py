"""Sessions of the chat: stored, found, forked, changed, and continued after a kill."""

import asyncio
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS
from support.seeds import SEED, example_count

from anabranch import Agent, Commander, tool
from anabranch.backends import Backend
from anabranch.cli.chat._agent_partner import AgentPartner
from anabranch.cli.chat._sessions import (
    SessionBusy,
    SessionInfo,
    Sessions,
    UnknownSession,
    open_sessions,
    shorten_title,
)
from anabranch.commander.errors import NodeCancelled
from anabranch.handlers import View
from anabranch.messages import Delta, Message, Part, Request, ToolCall
from anabranch.store import PendingDoubt, RunBusy
from anabranch.testing import ScriptedBackend

Play = Callable[[Request], Message | str]


def count(request: Request) -> str:
    """Answer with the number of messages."""
    return f"I have read {len(request.messages)}."


def user(text: str) -> Message:
    return Message(role="user", content=text)


def partner_of(
    sessions: Sessions, info: SessionInfo | None = None, play: Play = count, **options: Any
) -> AgentPartner:
    doubt = options.pop("doubt", None)
    agent = Agent(ScriptedBackend(otherwise=play), "Be kind.", name="chat", **options)
    return AgentPartner(agent, sessions, info or sessions.new(model="scripted"), ask_doubt=doubt)


async def say(partner: AgentPartner, *texts: str | None) -> None:
    """Send messages one after the other."""
    for text in texts:
        async with Commander() as commander:
            await commander.run(partner.answer(None if text is None else user(text), View()))


def told(partner: AgentPartner) -> list[str]:
    return [f"{each.role}: {each.content}" for each in partner.messages()]


@asynccontextmanager
async def memory() -> AsyncGenerator[Sessions]:
    async with open_sessions(keep=False) as sessions:
        yield sessions


async def test_a_session_is_listed_found_renamed_and_deleted() -> None:
    """A session is found by its id, its title, a prefix of them, or words in it."""
    async with memory() as sessions:
        first, second = partner_of(sessions), partner_of(sessions)
        await say(first, "Which is the longest\n river?")
        await say(second, "Name a lamp", "and another")
        infos = await sessions.list()
        assert [(each.title, each.turns, each.model) for each in infos] == [
            ("Name a lamp", 2, "scripted"),
            ("Which is the longest river?", 1, "scripted"),
        ]
        assert await sessions.newest() == infos[0]
        assert (await sessions.find(first.info.id[:8])).id == first.info.id
        assert (await sessions.find("which is")).id == first.info.id
        assert [each.id for each in await sessions.list("ANOTHER lamp")] == [second.info.id]
        assert [each.id for each in await sessions.list("read river")] == [first.info.id]
        assert await sessions.list("neither") == []
        with pytest.raises(UnknownSession, match="unknown session"):
            await sessions.find("")

        title = shorten_title("Name\x1b[31m the Nile " + "x" * 100)
        await sessions.change(first.info.id, title=title)
        with pytest.raises(UnknownSession, match="2 sessions"):
            await sessions.find("Name")
        titles = [each.title for each in await sessions.list()]
        assert all(each.isprintable() and len(each) <= 60 for each in titles)
        await sessions.delete(first.info.id)
        await sessions.delete(first.info.id)
        assert [each.id for each in await sessions.list()] == [second.info.id]


async def test_a_new_session_stands_nowhere_before_its_first_turn() -> None:
    """A chat without a turn stores nothing."""
    async with memory() as sessions:
        partner = partner_of(sessions)
        await partner.open()
        assert await partner.undo() is None
        assert await sessions.list() == []
        assert await sessions.newest() is None


async def test_what_was_noted_comes_back() -> None:
    """Model, system prompt, tools and folder are restored."""
    noted = {"model": "m", "system": "Be brief.\n\ud800", "tools": "python", "folder": "/x"}
    async with memory() as sessions:
        partner = partner_of(sessions, sessions.new(**noted))
        await say(partner, "hello \ud83d, \x1b[31m" + "x" * 100_000)
        assert (await sessions.find(partner.info.id)).system == "Be brief.\n\ufffd"
        info = await sessions.change(partner.info.id, system=None)
        assert (info.model, info.system, info.tools, info.folder) == ("m", None, "python", "/x")
        with pytest.raises(TypeError):
            await sessions.change(partner.info.id, modle="x")


async def test_undo_takes_the_last_turn_back_at_once(tmp_path: Path) -> None:
    """The removal is on disk at once."""
    async with open_sessions(tmp_path / "c.db") as sessions:
        partner = partner_of(sessions)
        await say(partner, "one", "two", "three")
        undone = await partner.undo()
        assert undone is not None
        assert undone.content == "three"
        info = partner.info
        assert info.turns == 2
    async with open_sessions(tmp_path / "c.db") as sessions:
        partner = partner_of(sessions, await sessions.find(info.id))
        await partner.open()
        assert told(partner) == [
            "system: Be kind.",
            "user: one",
            "assistant: I have read 2.",
            "user: two",
            "assistant: I have read 4.",
        ]
        await partner.undo()
        await say(partner, "second")
        assert told(partner)[-1] == "assistant: I have read 4."
        usage = partner.usage()["scripted"]
    async with open_sessions(tmp_path / "c.db") as sessions:
        partner = partner_of(sessions, await sessions.find(info.id))
        await partner.open()
        assert told(partner)[-2:] == ["user: second", "assistant: I have read 4."]
        assert partner.usage()["scripted"] == usage
        assert partner.info.turns == 2


async def test_a_fork_goes_on_by_itself() -> None:
    """A fork copies all turns or the first ones; the original is unchanged."""
    async with memory() as sessions:
        partner = partner_of(sessions)
        await say(partner, "one", "two", "three")
        for turns, length in ((None, 7), (1, 3), (0, 1), (9, 7)):
            info = await partner.fork(turns)
            other = partner_of(sessions, info)
            await other.open()
            assert len(other.messages()) == length
            await say(other, "four")
            assert len(other.messages()) == length + 2
            found = await sessions.find(info.id)
            assert found.turns == min(9 if turns is None else turns, 3) + 1
        assert len(partner.messages()) == 7


async def test_images_and_files_are_a_part_of_a_turn(tmp_path: Path) -> None:
    """Undo, resume and steering keep the images and files of a turn."""
    part = Part.from_bytes(b"x" * 9, "text/plain", name="notes.txt")

    def play(request: Request) -> str:
        seen.append([each for message in request.messages for each in message.parts])
        assert partner.steer(Message(role="user", content="and this", parts=[part]))
        return "done"

    seen: list[list[Any]] = []
    async with open_sessions(tmp_path / "c.db") as sessions:
        partner = partner_of(sessions, play=play)
        said = Message(role="user", content="look", parts=[part])
        async with Commander() as commander:
            await commander.run(partner.answer(said, View()))
        assert seen == [[part]]
        assert [each.parts for each in partner.undelivered()] == [[part]]
        info = partner.info
    async with open_sessions(tmp_path / "c.db") as sessions:
        partner = partner_of(sessions, info)
        await partner.open()
        assert partner.messages()[1].parts == [part]
        assert await partner.undo() == said


async def test_a_turn_is_steered_and_what_was_not_heard_comes_back() -> None:
    """`steer` reaches the running answer, and returns False after its end."""

    def play(request: Request) -> str:
        assert partner.steer(user("wait"))
        return "done"

    async with memory() as sessions:
        partner = partner_of(sessions, play=play)
        assert not partner.steer(user("nobody answers"))
        await say(partner, "go")
        assert [each.content for each in partner.undelivered()] == ["wait"]
        assert not partner.steer(user("too late"))


async def test_a_turn_that_is_stopped_is_over() -> None:
    """The text of a stopped turn stays, and the next request has it."""

    class Stops(View):
        def write(self, text: str) -> None:
            nodes[0].cancel()

    async with memory() as sessions:
        partner = partner_of(sessions)
        nodes = [partner.answer(user("go"), Stops())]
        with pytest.raises(NodeCancelled):
            async with Commander() as commander:
                await commander.run(nodes[0])
        await partner.open()
        assert await partner.interrupted_turn() is None
        assert told(partner)[1] == "user: go"


async def test_two_terminals_have_a_session_each_and_one_is_busy_for_the_other(
    tmp_path: Path,
) -> None:
    """A second chat that opens the same session gets the id of the process that uses it."""
    answering, go_on = asyncio.Event(), asyncio.Event()

    @tool(read_only=True)
    async def work() -> str:
        """Work."""
        answering.set()
        await go_on.wait()
        return "worked"

    def play(request: Request) -> Message | str:
        if request.messages[-1].role == "tool":
            return "done"
        return Message(role="assistant", tool_calls=[ToolCall(id="1", name="work")])

    path = tmp_path / "c.db"
    async with open_sessions(path) as one, open_sessions(path) as two, Commander() as commander:
        partner = partner_of(one, play=play, tools=[work])
        node = commander.call_handler(partner.answer(user("go"), View()))
        await answering.wait()
        other = partner_of(two, await two.find(partner.info.id))
        with pytest.raises(RunBusy):
            await other.open()
        await say(partner_of(two), "my own")
        go_on.set()
        await node
        with pytest.raises(SessionBusy, match=f"session 'go' is in use by process {os.getpid()}"):
            await other.open()
        one.release()
        await other.open()
        assert told(other)[-1] == "assistant: done"


async def test_where_nothing_can_be_written_the_chat_is_in_memory(tmp_path: Path) -> None:
    """One line says so, and the chat works."""
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "odd.db").write_text("no database at all, " * 100)
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "file" / "chats.db", tmp_path / "odd.db", tmp_path / "folder.db"):
        async with open_sessions(path) as sessions:
            assert str(path) in sessions.trouble
            assert "\n" not in sessions.trouble
            partner = partner_of(sessions)
            await say(partner, "hello")
            assert len(await sessions.list()) == 1
    assert "no database" in (tmp_path / "odd.db").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of another kind there")
async def test_nobody_else_can_read_what_was_said(tmp_path: Path) -> None:
    """Only the owner gets access to the folder and the files, even if they existed before."""
    folder = tmp_path / "anabranch"
    folder.mkdir(mode=0o755)
    async with open_sessions(folder / "chats.db") as sessions:
        await say(partner_of(sessions), "a secret")
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.glob("chats.db*")}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {mode for name, mode in modes.items() if "locks" not in name} == {0o600}


# --- kill -9

PATHS = [str(TESTS), str(Path(__file__).parent)]

CHILD = """
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_chat_sessions import kept_play, partner_of, say, make_tool
from anabranch.cli.chat._sessions import open_sessions

async def main():
    async with open_sessions(Path(sys.argv[1])) as sessions:
        info = await sessions.newest()
        partner = partner_of(sessions, info, kept_play, tools=[make_tool(sys.argv[1])])
        await partner.open()
        if await partner.interrupted_turn() is not None:
            await say(partner, None)
        begun = sum(each.role == "user" for each in partner.messages())
        for number in range(begun, 1000):
            await say(partner, f"question {{number}}")
            print(number, flush=True)

asyncio.run(main())
"""


def make_tool(path: str) -> Any:
    @tool(effect="keyed")
    def work(number: int) -> str:
        """Work."""
        with open(f"{path}.did", "a") as file:
            file.write(f"{number}\n")
        return f"worked {number}"

    return work


def kept_play(request: Request) -> Message | str:
    last = request.messages[-1]
    if last.role == "user":
        number = int(str(last.content).split()[-1])
        if number % 2:
            call = ToolCall(id=f"c{number}", name="work", arguments={"number": number})
            return Message(role="assistant", content="I work.", tool_calls=[call])
    return f"answer to {len(request.messages)}"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_after_a_kill_at_any_moment_every_finished_turn_is_there(tmp_path: Path) -> None:
    """S20: each turn that was reported as finished is in the newest session once, in order."""
    path, chosen = tmp_path / "chats.db", random.Random(SEED)
    code = CHILD.format(paths=PATHS)
    finished = -1
    for _ in range(example_count(2, 40)):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(chosen.randrange(1, 4)):
            line = child.stdout.readline()
            assert line, "the chat goes on after the kill"
            finished = int(line)
        time.sleep(chosen.random() * 0.02)  # the moment itself
        os.kill(child.pid, signal.SIGKILL)
        rest = child.communicate()[0]
        finished = max([finished, *map(int, rest.split())])
        asyncio.run(check(path, finished))


async def check(path: Path, finished: int) -> None:
    async with open_sessions(path) as sessions:
        info = await sessions.newest()
        assert info is not None
        assert len(await sessions.list()) == 1
        partner = partner_of(sessions, info)
        await partner.open()
        said = [str(each.content) for each in partner.messages() if each.role == "user"]
        assert len(said) >= finished + 1
        assert said == [f"question {number}" for number in range(len(said))]
        cut = await partner.interrupted_turn()
        assert cut is None or cut.message.content == f"question {len(said)}"


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a session whose process died in a tool."""
    path = tmp_path_factory.mktemp("dead") / "c.db"
    code = f"""
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = {PATHS!r}
from test_chat_sessions import deadly_play, deadly_tool, partner_of, say
from anabranch.cli.chat._sessions import open_sessions

async def main():
    async with open_sessions(Path({str(path)!r})) as sessions:
        partner = partner_of(sessions, None, deadly_play, tools=[deadly_tool(True)])
        await say(partner, "first", "mail it")

asyncio.run(main())
"""
    child = subprocess.run([sys.executable, "-c", code], check=False)
    assert child.returncode == -signal.SIGKILL
    return path.parent


def deadly_tool(dies: bool) -> Any:
    @tool
    def mail(text: str) -> str:
        """Send a mail."""
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return "sent again"

    return mail


def deadly_play(request: Request) -> Message | str:
    last = request.messages[-1]
    if last.role == "user" and "mail" in str(last.content):
        call = ToolCall(id="m", name="mail", arguments={"text": "hi"})
        return Message(role="assistant", content="I send it.", tool_calls=[call])
    return f"fine: {last.content}"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("answer", ["done", "not done"])
async def test_a_tool_in_doubt_is_asked_about_and_never_run_in_silence(
    dead: Path, tmp_path: Path, answer: str
) -> None:
    """S20: the person is asked about the call, and the turn continues after the answer."""
    asked = list[str]()
    shutil.copytree(dead, tmp_path, dirs_exist_ok=True)

    async def doubt(question: PendingDoubt) -> None:
        asked.append(f"{question.tool} {dict(question.arguments)}")
        await (question.done("sent") if answer == "done" else question.not_done())

    async with open_sessions(tmp_path / "c.db") as sessions:
        tools = [deadly_tool(False)]
        info = await sessions.newest()
        partner = partner_of(sessions, info, deadly_play, tools=tools, doubt=doubt)
        await partner.open()
        cut = await partner.interrupted_turn()
        assert cut is not None
        assert cut.message.content == "mail it"
        await say(partner, None)
        assert asked == ["mail {'text': 'hi'}"]
        assert (
            told(partner)[-1] == f"assistant: fine: {'sent' if answer == 'done' else 'sent again'}"
        )
        assert await partner.interrupted_turn() is None


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
async def test_another_question_ends_the_turn_that_was_cut(dead: Path, tmp_path: Path) -> None:
    """The turn does not continue. Its text stays, and its tool call counts as interrupted."""
    shutil.copytree(dead, tmp_path, dirs_exist_ok=True)
    for _ in range(2):
        async with open_sessions(tmp_path / "c.db") as sessions:
            info = await sessions.newest()
            partner = partner_of(sessions, info, deadly_play, tools=[deadly_tool(False)])
            await partner.open()
            if await partner.interrupted_turn() is not None:
                await say(partner, "never mind")
            assert told(partner)[3:] == [
                "user: mail it",
                "assistant: I send it.",
                "tool: The call was interrupted.",
                "user: never mind",
                "assistant: fine: never mind",
            ]


class Halting(Backend):
    """A model that sends half an answer and then nothing."""

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(text="Half an answer ")
        await asyncio.Event().wait()


async def test_what_was_half_said_stays_when_the_turn_is_ended(tmp_path: Path) -> None:
    """The stored partial text becomes an interrupted message, and the next request has it."""
    path = tmp_path / "c.db"
    async with Commander() as commander, open_sessions(path) as sessions:
        agent = Agent(Halting("half"), "Be kind.", name="chat")
        partner = AgentPartner(agent, sessions, sessions.new())
        commander.call_handler(partner.answer(user("go"), View()))

        async def is_on_disk() -> bool:
            runs = await sessions.journal.runs()
            return bool(runs and (await sessions.journal.look(runs[0].run_id)).partials)

        async with asyncio.timeout(10):
            while not await is_on_disk():  # noqa: ASYNC110 - a file sends no event
                await asyncio.sleep(0.05)
        commander.exit()
    async with open_sessions(path) as sessions:
        partner = partner_of(sessions, await sessions.newest())
        await partner.open()
        assert await partner.interrupted_turn() is not None
        await say(partner, "and now?")
        assert told(partner)[1:] == [
            "user: go",
            "assistant: Half an answer ",
            "user: and now?",
            "assistant: I have read 4.",
        ]


async def test_a_thousand_sessions_are_listed() -> None:
    """All of 1,000 sessions are listed, most recent first."""
    async with memory() as sessions:
        infos = [
            await sessions.begin(sessions.new(), f"title {n}")
            for n in range(example_count(50, 1000))
        ]
        listed = await sessions.list()
        assert [each.id for each in listed] == [each.id for each in reversed(infos)]
