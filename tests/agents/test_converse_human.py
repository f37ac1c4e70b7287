"""People in a conversation: when they are asked, and that no other agent waits for them."""

import asyncio
import os
import pty
from typing import Any

import pytest
from support.leaks import thread_ids
from support.waiting import settle_loop

from anabranch import Commander, Node
from anabranch.agents import (
    Chat,
    ConversableAgent,
    GroupChat,
    Questions,
    QueueInput,
    UserProxyAgent,
)
from anabranch.agents.conversation import TerminalInput, Transcript


def agent(*said: str, **options: Any) -> ConversableAgent:
    """An agent that gives the listed answers one after the other, then none."""
    bob = ConversableAgent("bob", **options)
    answers = iter(said)
    bob.register_reply(lambda self, message: next(answers, None))
    return bob


def contents(result: Any) -> list[Any]:
    return [message.content for message in result.messages]


@pytest.mark.parametrize(
    ("mode", "answers", "typed", "expected", "status", "asked"),
    [
        # Always: each message is put to the person; an empty line lets the agent answer.
        ("ALWAYS", ["a", "b"], ["one", "two"], ["?", "a", "one", "b", "two"], "no_answer", 2),
        ("ALWAYS", ["a", "b"], ["", "two"], ["?", "a", "auto", "b", "two"], "no_answer", 2),
        ("ALWAYS", ["a", "b"], ["exit"], ["?", "a"], "left", 1),
        ("ALWAYS", ["a", "b"], [" exit "], ["?", "a"], "left", 1),
        ("ALWAYS", ["a", "b"], [None], ["?", "a"], "left", 1),
        # An empty line at a message that ends the conversation lets it end; words go on.
        ("ALWAYS", ["a TERMINATE"], [""], ["?", "a TERMINATE"], "terminated", 1),
        ("ALWAYS", ["a TERMINATE"], ["no"], ["?", "a TERMINATE", "no"], "no_answer", 1),
        # Terminate: only when it would end, be it by a message or by the limit of two.
        (
            "TERMINATE",
            ["a", "b TERMINATE"],
            [""],
            ["?", "a", "auto", "b TERMINATE"],
            "terminated",
            1,
        ),
        (
            "TERMINATE",
            ["a", "b TERMINATE", "c"],
            ["go on"],
            ["?", "a", "auto", "b TERMINATE", "go on", "c", "auto"],
            "no_answer",
            1,
        ),
        (
            "TERMINATE",
            ["a", "b", "c", "d"],
            ["", "exit"],
            ["?", "a", "auto", "b", "auto", "c", "auto", "d"],
            "left",
            2,
        ),
        # Never: the limit of two ends it.
        ("NEVER", ["a", "b", "c"], [], ["?", "a", "auto", "b", "auto", "c"], "auto_reply_limit", 0),
        ("NEVER", ["a TERMINATE"], [], ["?", "a TERMINATE"], "terminated", 0),
    ],
)
async def test_when_a_person_is_asked(
    mode: Any, answers: Any, typed: Any, expected: Any, status: Any, asked: Any
):
    """Three modes, and an empty line, a text, "exit" and None in each."""
    source = QueueInput(*typed)
    user = UserProxyAgent(
        human_input=source,
        human_input_mode=mode,
        max_consecutive_auto_reply=2,
        default_auto_reply="auto",
    )
    async with asyncio.timeout(10):
        result = await user.initiate_chat(agent(*answers), "?")

    assert (contents(result), result.status) == (expected, status)
    assert len(source.prompts) == asked


async def test_a_person_s_words_begin_the_count_of_answers_again():
    """The limit counts answers in a row without a person."""
    source = QueueInput("go on", "exit")
    user = UserProxyAgent(
        human_input=source,
        human_input_mode="TERMINATE",
        max_consecutive_auto_reply=1,
        default_auto_reply="auto",
    )
    async with asyncio.timeout(10):
        result = await user.initiate_chat(agent(*"abcde"), "?")
    assert contents(result) == ["?", "a", "auto", "b", "go on", "c", "auto", "d"]
    assert result.status == "left"


async def test_the_question_shows_what_is_to_be_answered():
    """Unless a transcript shows it already."""
    import io

    source = QueueInput("exit", "exit")
    user = UserProxyAgent(human_input=source)
    await user.initiate_chat(agent("I am Bob.", "I am Bob."), "?")
    transcript = Transcript(io.StringIO())
    await user.initiate_chat(agent("I am Bob."), "?", transcript=transcript)

    assert source.prompts[0].startswith("bob (to user):\n\nI am Bob.\n\nAnswer bob as user")
    assert source.prompts[1].startswith("Answer bob as user")


async def test_while_a_person_thinks_others_talk_on():
    """Two people may be asked at the same time, and answer in any order."""
    questions = Questions()
    first, second = (UserProxyAgent(name, human_input=questions) for name in ("ann", "ben"))
    others = ConversableAgent("c", default_auto_reply="well"), ConversableAgent("d")
    async with asyncio.timeout(10), Commander() as commander:
        chats = [commander.call_handler(Chat(each, agent("yes?"), "?")) for each in (first, second)]
        asked = []
        async for question in questions:
            asked.append(question)
            if len(asked) == 2:
                break
        assert (await others[0].initiate_chat(others[1], "?")).status == "no_answer"
        assert [each.number for each in questions.pending] == [1, 2]
        assert questions.get(2).answer("later came first")
        assert (await chats[1]).text == "later came first"
        assert questions.get(1).answer(None)
        assert (await chats[0]).status == "left"
        assert not asked[0].answer("too late")
        assert questions.pending == ()
        with pytest.raises(KeyError):
            questions.get(1)


async def test_a_question_ends_with_its_conversation():
    """A cancel withdraws it."""
    questions = Questions()
    user = UserProxyAgent(human_input=questions)
    async with asyncio.timeout(10), Commander() as commander:
        chat = commander.call_handler(Chat(user, agent("yes?"), "?"))
        question = await anext(aiter(questions))
        chat.cancel()
    assert questions.pending == ()
    assert question.state == "cancelled"
    assert "user.reply" in question.path


class Ask(Node[Any], internal=True):
    """Asks something."""

    def __init__(self, source: Any, prompt: str = "> ") -> None:
        self.source, self.prompt = source, prompt

    async def task(self) -> Any:
        return await self.source(self.prompt)


async def test_the_terminal_is_waited_for_without_a_thread(capsys: pytest.CaptureFixture[str]):
    """A cancelled question leaves no thread and no task; what is typed later is the next one's."""
    leader, follower = pty.openpty()
    source = TerminalInput(follower)
    tasks, running = asyncio.all_tasks(), thread_ids()
    try:
        async with asyncio.timeout(10), Commander() as commander:
            abandoned = commander.call_handler(Ask(source, "first> "))
            waiting = commander.call_handler(Ask(source, "second> "))
            await settle_loop()
            assert "first> " in capsys.readouterr().out
            assert thread_ids() == running
            abandoned.cancel()
            os.write(leader, "Grüße\nand more\n".encode())
            assert await waiting == "Grüße"
            assert await source("> ") == "and more"
    finally:
        os.close(leader)
        os.close(follower)
    assert capsys.readouterr().out == "second> > "
    assert asyncio.all_tasks() == tasks
    assert thread_ids() == running


async def test_the_terminal_s_end_is_that_the_person_has_left():
    """A last line without an end is a line; then there is None, again and again."""
    reader, writer = os.pipe()
    os.write(writer, b"one\r\n\nlast")
    os.close(writer)
    source = TerminalInput(reader)
    async with asyncio.timeout(10):
        assert [await source("") for _ in range(5)] == ["one", "", "last", None, None]
    os.close(reader)


async def test_the_terminal_may_be_a_file(tmp_path: Any):
    """A file, which a loop cannot watch, is read all the same."""
    (tmp_path / "said").write_text("one\ntwo\n")
    with (tmp_path / "said").open() as file:
        source = TerminalInput(file.fileno())
        assert [await source("") for _ in range(3)] == ["one", "two", None]


def test_a_terminal_may_be_asked_from_one_loop_after_another():
    """The default one lives as long as the program."""
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    source = TerminalInput(reader)

    async def both() -> Any:
        return await asyncio.gather(source(""), asyncio.sleep(0, "x"))

    assert asyncio.run(both()) == ["one", "x"]
    assert asyncio.run(both()) == ["two", "x"]
    os.close(reader)
    os.close(writer)


async def test_a_person_in_a_group_sees_all_that_was_said_since_they_spoke() -> None:
    """Not the last message alone; and nothing twice."""
    source = QueueInput("I am ann.", "exit")
    ann = UserProxyAgent("ann", human_input=source)
    members = [ConversableAgent(name, default_auto_reply=f"{name}!") for name in ("bob", "cid")]
    team = GroupChat("team", [*members, ann])

    await UserProxyAgent("user", human_input_mode="NEVER", max_consecutive_auto_reply=0).send(
        "Go.", team
    )

    first, second = source.prompts
    heard = "".join(
        f"{who} (to team):\n\n{what}\n\n"
        for who, what in [("user", "Go."), ("bob", "bob!"), ("cid", "cid!")]
    )
    assert first.startswith(f"{heard}Answer team as ann")
    assert second.startswith("bob (to team):\n\nbob!\n\ncid (to team):\n\ncid!\n\nAnswer team")
