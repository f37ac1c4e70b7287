"""Groups: the next speaker, the messages of each member, and the end."""

import asyncio
import logging
import re
from typing import Any

import pytest
from support.conversing_agents import contents_by_sender, silent_user
from support.leaks import child_processes, thread_ids
from support.seeds import example_count
from support.waiting import settle_loop

from anabranch import AgentMessage, BackendUnavailable, Commander
from anabranch.agents import (
    Chat,
    ConversableAgent,
    Directory,
    GroupChat,
    GroupTalk,
    QueueInput,
    ReplyResult,
    UserProxyAgent,
    reply,
)
from anabranch.agents.conversation import (
    GroupConversation,
    choose_by_model,
    random_speaker,
    role_prompt,
)
from anabranch.agents.errors import UnknownAgent
from anabranch.messages import Delta
from anabranch.testing import ScriptedBackend, explore, pause


def speaker(name: str, *replies: str | None, **options: Any) -> ConversableAgent:
    """Gives the listed answers one after the other, then none."""
    agent = ConversableAgent(name, **options)
    answers = iter(replies)
    agent.register_reply(lambda self, message: next(answers, None))
    return agent


def endless(name: str, **options: Any) -> ConversableAgent:
    return ConversableAgent(name, default_auto_reply=f"{name}!", **options)


async def test_members_speak_in_turn_and_all_hear_all():
    """The group has one history; the answer is its last message."""
    members = [endless(name) for name in "abc"]
    team = GroupChat("team", members, max_turns=4)

    result = await silent_user().initiate_chat(team, "Go.")

    expected = [("user", "Go."), ("a", "a!"), ("b", "b!"), ("c", "c!"), ("a", "a!")]
    assert contents_by_sender(team.talks["user"].messages) == expected
    assert (team.talks["user"].status, result.text) == ("turn_limit", "a!")
    for member in members:
        assert contents_by_sender(member.chat_messages["team"]) == expected


async def test_a_member_s_model_is_told_who_said_what():
    """Messages of others begin with their names, its own do not."""
    backend = ScriptedBackend("I am b.", "And still b.")
    team = GroupChat("team", [endless("a"), ConversableAgent("b", backend)], max_turns=4)
    await silent_user().initiate_chat(team, "Go.")

    assert [(m.role, m.content) for m in backend.requests[1].messages] == [
        ("user", "user: Go.\na: a!"),
        ("assistant", "I am b."),
        ("user", "a: a!"),
    ]


@pytest.mark.parametrize(
    ("members", "status", "count"),
    [
        ([speaker("a", "one"), speaker("b", "two TERMINATE")], "terminated", 3),
        ([speaker("a", "one"), speaker("b"), speaker("c")], "no_answer", 2),
        ([speaker("a", "one", "two"), speaker("b", None, None)], "no_answer", 3),
        ([endless("a"), UserProxyAgent("b", human_input=QueueInput("hi", "exit"))], "left", 4),
    ],
)
async def test_a_talk_ends(members: Any, status: str, count: int):
    """By a message, when no member has an answer, when a person leaves."""
    team = GroupChat("team", members)
    async with asyncio.timeout(10):
        await silent_user().initiate_chat(team, "Go.")
    assert (team.talks["user"].status, len(team.talks["user"].messages)) == (status, count)


async def test_chance_names_anybody_but_the_last_speaker():
    """A seed makes the order repeatable."""
    talks = []
    for _ in range(2):
        members = [endless(name, max_consecutive_auto_reply=None) for name in "abcd"]
        team = GroupChat("team", members, speaker=random_speaker(7), max_turns=30)
        await silent_user().initiate_chat(team, "Go.")
        talks.append([message.sender for message in team.talks["user"].messages])

    assert talks[0] == talks[1]
    assert set(talks[0]) == {"user", *"abcd"}
    assert all(a != b for a, b in zip(talks[0], talks[0][1:], strict=False))


async def test_a_function_names_the_speaker_also_the_same_again():
    """Plain or async; None ends the conversation; the last speaker is asked to continue."""
    order = iter(["b", "b", "a", None])

    async def by_plan(_: GroupConversation) -> str | None:
        return next(order)

    b = endless("b")
    team = GroupChat("team", [endless("a"), b], speaker=by_plan)
    await silent_user().initiate_chat(team, "Go.")
    assert [message.sender for message in team.talks["user"].messages] == ["user", "b", "b", "a"]
    assert ("team", "Please go on.") in contents_by_sender(b.chat_messages["team"])


async def test_a_model_chooses_the_speaker(caplog: pytest.LogCaptureFixture):
    """By name, with any text around it; for other replies the next in turn speaks."""
    backend = ScriptedBackend(
        "bobby", "The next speaker should be **Carl**.", "bob or bobby?", "gibberish"
    )
    bob, bobby, carl = (endless(name) for name in ("bob", "bobby", "carl"))
    bob.description = "knows rivers"
    team = GroupChat(
        "team", [bob, bobby, carl], speaker=choose_by_model(backend, temperature=0), max_turns=4
    )
    await silent_user().initiate_chat(team, "Go.")

    assert [m.sender for m in team.talks["user"].messages] == [
        "user",
        "bobby",
        "carl",
        "bob",
        "bobby",
    ]
    prompt = backend.requests[1].messages[0].content or ""
    assert "bob: knows rivers" in prompt
    assert "bobby: bobby!" in prompt
    assert "next: bob, carl?" in prompt
    assert backend.requests[0].options == {"temperature": 0}
    assert caplog.text.count("The model chose none of") == 2


async def test_members_are_found_by_name():
    """From a directory that also has the group; an unknown name is an error."""
    directory = Directory(endless("a"))
    GroupChat("team", ["a"], directory=directory, max_turns=1)
    user = UserProxyAgent(human_input_mode="NEVER", directory=directory)
    assert (await user.initiate_chat("team", "Go.", max_turns=1)).text == "a!"

    with pytest.raises(UnknownAgent, match="'b'"):
        await user.initiate_chat(GroupChat("other", ["b"], directory=directory), "Go.")
    stray = GroupChat("stray", ["a"], directory=directory, speaker=lambda group: "nobody")
    with pytest.raises(UnknownAgent, match=r"'nobody'.*it has a"):
        await user.initiate_chat(stray, "Go.")


async def test_a_member_may_begin_the_talk():
    """It receives the messages of the others, but no separate answer."""
    a, b = endless("a"), endless("b")
    team = GroupChat("team", [a, b], max_turns=2)
    result = await a.initiate_chat(team, "Go.")
    assert (result.status, contents_by_sender(team.talks["a"].messages)) == (
        "turn_limit",
        [("a", "Go."), ("b", "b!"), ("a", "a!")],
    )
    assert (
        contents_by_sender(a.chat_messages["team"])
        == contents_by_sender(b.chat_messages["team"])
        == contents_by_sender(team.talks["a"].messages)
    )


async def test_what_is_said_to_a_group_that_talks_is_part_of_the_talk():
    """A member that sends to the group while it answers waits for no answer."""

    class Eager(ConversableAgent):
        @reply
        async def aside(self, message: AgentMessage) -> ReplyResult:
            assert (await self.send("By the way", team)).status == "delivered"
            return "and this"

    b = endless("b")
    team = GroupChat("team", [Eager("a"), b], max_turns=2)
    async with asyncio.timeout(10):
        await silent_user().initiate_chat(team, "Go.")
    assert [m.content for m in team.talks["user"].messages] == [
        "Go.",
        "By the way",
        "and this",
        "b!",
    ]
    assert [m.content for m in b.chat_messages["team"]] == [
        "Go.",
        "By the way",
        "and this",
        "b!",
    ]


async def test_a_group_keeps_what_was_said_unless_told_otherwise():
    """`send` continues, `initiate_chat` starts again, for the members too."""
    a = endless("a")
    team = GroupChat("team", [a], max_turns=1)
    user = silent_user()
    await user.initiate_chat(team, "One")
    await user.send("Two", team)
    assert len(team.talks["user"].messages) == len(a.chat_messages["team"]) == 4
    await user.initiate_chat(team, "Three")
    assert len(team.talks["user"].messages) == len(a.chat_messages["team"]) == 2


@pytest.mark.parametrize("kind", [GroupChat, GroupTalk])
async def test_the_limit_of_messages_holds_for_groups(kind: Any, caplog: pytest.LogCaptureFixture):
    """Inside a chat that of the chat, outside that of the group."""
    members = [endless(name, max_consecutive_auto_reply=None) for name in "ab"]
    team = kind("team", members, max_messages=12, max_turns=999)
    async with asyncio.timeout(10):
        result = await silent_user().initiate_chat(team, "Go.", max_messages=9)
        assert (result.status, team.talks["user"].status) == ("message_limit", "message_limit")
        assert len(team.talks["user"].messages) == 9
        await team.begin_chat("user", clear_history=True)
        answer = await team.receive(AgentMessage(content="Go.", sender="user", receiver="team"))
    assert (answer.status, len(team.talks["user"].messages)) == ("message_limit", 13)
    assert caplog.text.count("(max_messages)") == 2


def test_groups_that_make_no_sense_are_refused():
    """No members, two of one name, the group itself, no turns."""
    with pytest.raises(ValueError, match="two members called 'a'"):
        GroupChat("team", [endless("a"), endless("b"), endless("a")])
    with pytest.raises(ValueError, match="cannot be a member of itself"):
        GroupChat("team", [endless("a"), "team"])
    with pytest.raises(ValueError, match="no members"):
        GroupChat("team", [])
    with pytest.raises(ValueError, match="max_turns"):
        GroupChat("team", [endless("a")], max_turns=0)
    with pytest.raises(ValueError, match="max_turns"):
        GroupTalk("team", [endless("a")], max_turns=0)


# --- several conversations at the same time


def echo(name: str) -> ConversableAgent:
    """Answers with the secrets that its model reads."""

    def reply(request: Any) -> str:
        read = " ".join(message.content or "" for message in request.messages)
        return " ".join(sorted(set(re.findall(r"secret-\w+", read))))

    return ConversableAgent(name, ScriptedBackend(otherwise=reply))


@pytest.mark.parametrize("kind", [GroupChat, GroupTalk])
@pytest.mark.parametrize("clear_history", [True, False])
def test_each_asker_has_a_talk_of_its_own(kind: Any, clear_history: bool):
    """In any order, at the same time: no member reads the question of another asker."""

    def own(text: str, name: str) -> bool:  # or its beginning, in a reply that broke off
        return bool(text) and all(f"secret-{name}".startswith(word) for word in text.split())

    async def ask(team: Any, name: str) -> None:
        user = silent_user(name)
        for _ in range(2):
            await pause()
            result = await user.initiate_chat(
                team, f"secret-{name}", clear_history=clear_history, max_turns=1
            )
            assert own(result.text, name)

    async def main() -> None:
        team = kind("team", [echo("a"), echo("b")], max_turns=3)
        async with asyncio.timeout(10):
            await asyncio.gather(*(ask(team, name) for name in ("ann", "eve", "joe")))
        for name in ("ann", "eve", "joe"):
            talk = team.talks[name]
            assert all(own(message.text, name) for message in talk.messages)
            assert len(talk.messages) == (4 if clear_history else 8)
            for member in team.members.values():
                history = member.memory.messages(f"team@{name}")
                assert all(own(m.text, name) for m in history if m.sender != "team")

    explore(main, range(example_count(20, 200)))


async def test_a_member_s_aside_goes_to_the_talk_in_which_it_answers():
    """Of two at the same time; its own history has it too."""

    class Eager(ConversableAgent):
        @reply
        async def aside(self, message: AgentMessage) -> ReplyResult:
            await self.send(f"aside on {message.content}", team)
            return "said"

    eager = Eager("eager")
    team = GroupChat("team", [eager, speaker("b")], max_turns=1)
    await asyncio.gather(*(silent_user(name).initiate_chat(team, name) for name in ("ann", "eve")))
    for name in ("ann", "eve"):
        expected = [(name, name), ("eager", f"aside on {name}"), ("eager", "said")]
        assert contents_by_sender(team.talks[name].messages) == expected
        assert contents_by_sender(eager.memory.messages(f"team@{name}")) == expected


async def test_a_group_in_a_group_has_a_talk_for_each_who_asked():
    """Its members have a history for each."""
    a = endless("a")
    inner = GroupChat("inner", [a], max_turns=1)
    outer = GroupChat("outer", [inner], max_turns=1)
    for name in ("ann", "eve"):
        assert (await silent_user(name).initiate_chat(outer, f"of {name}")).text == "a!"
    assert [*inner.talks] == ["outer@ann", "outer@eve"]
    assert contents_by_sender(a.memory.messages("inner@ann")) == [("ann", "of ann"), ("a", "a!")]


async def test_a_group_that_is_asked_through_itself_is_refused():
    """The error shows the circle."""
    directory = Directory()
    for name, member in (("one", "two"), ("two", "three"), ("three", "one")):
        GroupChat(name, [member], directory=directory)
    user = UserProxyAgent(human_input_mode="NEVER", directory=directory)
    async with asyncio.timeout(10):
        with pytest.raises(ValueError, match="a member of itself: one > two > three > one"):
            await user.initiate_chat("one", "Go.")


# --- turns on request


async def test_one_at_a_time_has_the_floor_and_the_others_ask_while_it_speaks():
    """Refused members receive the speaker's message and may ask again."""
    speaking, go_on = asyncio.Event(), asyncio.Event()

    def speech(_: Any) -> Any:
        speaking.set()
        return [Delta(text="I say"), go_on, Delta(text=" this."), Delta(done=True)]

    async def late(_: Any) -> str:
        await speaking.wait()
        return "Can I speak?"

    ann = ConversableAgent("ann", ScriptedBackend("Can I speak?", speech, otherwise=" "))
    ben_model = ScriptedBackend(late, "can i speak? please", "I say that.", otherwise=" ")
    ben = ConversableAgent("ben", ben_model)
    talk = GroupTalk("talk", [ann, ben])
    seen: list[Any] = []

    async def let_go() -> None:
        await settle_loop()
        assert ("talk", "No, ann is speaking.") in contents_by_sender(ben.chat_messages["talk"])
        seen.append(talk.talks["host"].speaking)
        go_on.set()

    async with asyncio.timeout(10):
        result, _ = await asyncio.gather(
            silent_user("host").initiate_chat(talk, "Hello."), let_go()
        )

    assert seen == ["ann"]
    assert contents_by_sender(talk.talks["host"].messages) == [
        ("host", "Hello."),
        ("ann", "I say this."),
        ("ben", "I say that."),
    ]
    assert (talk.talks["host"].status, result.text, talk.talks["host"].speaking) == (
        "no_answer",
        "I say that.",
        None,
    )
    assert contents_by_sender(ben.chat_messages["talk"])[:7] == [
        ("host", "Hello."),
        ("ben", "Can I speak?"),
        ("talk", "No, ann is speaking."),
        ("ann", "I say this."),
        ("ben", "can i speak? please"),
        ("talk", "Yes, ben, you have the floor: speak now."),
        ("ben", "I say that."),
    ]


async def test_who_waits_for_a_person_does_not_wait_in_a_group_talk():
    """The others continue; the person's message arrives later, at the latest at the end."""
    person = QueueInput()
    user = UserProxyAgent("eve", human_input=person)
    ann, ben = speaker("ann", "1", "3"), speaker("ben", "2")
    talk = GroupTalk("talk", [user, ann, ben], max_turns=4)
    async with asyncio.timeout(10), Commander() as commander:
        chat = commander.call_handler(Chat(silent_user("host"), talk, "Hello."))
        await settle_loop()
        assert len(talk.talks["host"].messages) == 4
        assert chat.state != "completed"
        person.put("and I say this")
        await chat
    assert [m.sender for m in talk.talks["host"].messages] == ["host", "ann", "ben", "ann", "eve"]
    assert talk.talks["host"].status == "turn_limit"
    assert sorted(m.sender for m in user.chat_messages["talk"]) == sorted(
        m.sender for m in talk.talks["host"].messages
    )


@pytest.mark.parametrize(
    ("members", "status", "speeches"),
    [
        ([speaker("a"), speaker("b", " ")], "no_answer", 0),
        ([speaker("a", "one TERMINATE"), speaker("b")], "terminated", 1),
        ([endless("a"), endless("b")], "turn_limit", 5),
        ([UserProxyAgent("a", human_input=QueueInput(None))], "no_answer", 0),
        ([UserProxyAgent("a", human_input=QueueInput("exit")), speaker("b", "x")], "no_answer", 1),
    ],
)
async def test_a_group_talk_ends(members: Any, status: str, speeches: int):
    """Without answers, by a message, by the limit, when all have left."""
    talk = GroupTalk("talk", members, max_turns=5)
    async with asyncio.timeout(10):
        await silent_user().initiate_chat(talk, "Hello.")
    assert (talk.talks["user"].status, len(talk.talks["user"].messages)) == (status, 1 + speeches)


async def test_the_end_of_a_group_talk_cancels_who_still_thinks():
    """No question to a person and no request to a model remains."""
    asked = asyncio.Event()

    def never(_: Any) -> Any:
        asked.set()
        return [asyncio.Event()]

    async def after(_: Any) -> str:
        await asked.wait()
        return "Bye TERMINATE"

    backend = ScriptedBackend(otherwise=never)
    members = [ConversableAgent("a", backend), ConversableAgent("b", ScriptedBackend(after))]
    tasks, left = asyncio.all_tasks(), (thread_ids(), child_processes())
    async with asyncio.timeout(10):
        result = await silent_user().initiate_chat(GroupTalk("talk", members), "Hello.")
    assert result.text == "Bye TERMINATE"
    assert backend.opened == backend.closed == 1
    assert asyncio.all_tasks() == tasks
    assert (thread_ids(), child_processes()) == left


@pytest.mark.parametrize("kind", [GroupChat, GroupTalk])
async def test_a_member_that_fails_fails_the_talk(kind: Any):
    """With its own error; the others are cancelled, and the group works again."""
    backend = ScriptedBackend(BackendUnavailable("down"), otherwise=" TERMINATE")
    waiting = ConversableAgent("b", ScriptedBackend([asyncio.Event()], otherwise="ok"))
    team = kind("team", [ConversableAgent("a", backend), waiting])
    async with asyncio.timeout(10):
        with pytest.raises(BackendUnavailable):
            await silent_user().initiate_chat(team, "Hello.")
        await silent_user().initiate_chat(team, "Again.")
    assert team.talks["user"].status == "terminated"


@pytest.mark.parametrize("kind", [GroupChat, GroupTalk])
async def test_a_cancelled_talk_leaves_nothing(kind: Any):
    """No task, thread or process remains; all streams are closed."""
    begun = asyncio.Event()

    def wait(_: Any) -> Any:
        begun.set()
        return [asyncio.Event()]

    backend = ScriptedBackend(otherwise=wait)
    team = kind("team", [ConversableAgent(name, backend) for name in "abc"])
    tasks, left = asyncio.all_tasks(), (thread_ids(), child_processes())
    async with asyncio.timeout(10):
        task = asyncio.create_task(silent_user().initiate_chat(team, "Hello."))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert backend.opened == backend.closed
    assert asyncio.all_tasks() == tasks
    assert (thread_ids(), child_processes()) == left


async def test_only_speeches_are_in_the_transcript(capsys: pytest.CaptureFixture[str]):
    """It does not show requests for a turn."""
    ann = ConversableAgent("ann", ScriptedBackend("Can I speak?", "I do.", otherwise=" "))
    await silent_user("host").initiate_chat(GroupTalk("talk", [ann]), "Hello.", transcript=True)
    shown = capsys.readouterr().out
    assert "ann (to talk):\n\nI do.\n" in shown
    assert "Can I speak?" not in shown


async def test_the_limit_of_speeches_is_logged(caplog: pytest.LogCaptureFixture):
    """The limit of a group chat too."""
    caplog.set_level(logging.INFO, "anabranch.agents")
    await silent_user().initiate_chat(GroupTalk("talk", [endless("a"), endless("b")]), "Hello.")
    await silent_user().initiate_chat(GroupChat("team", [endless("c")], max_turns=2), "Hello.")
    assert "stopped after 10 messages (max_turns)" in caplog.text
    assert "stopped after 2 messages (max_turns)" in caplog.text


def test_the_role_prompt_tells_a_model_how_to_ask_for_the_floor():
    """With the words that the group recognizes."""
    text = role_prompt("Amelie", "You praise everybody.")
    assert text.startswith("You are Amelie")
    assert "You praise everybody." in text
    assert GroupTalk("talk", [endless("a")]).request in text


# --- without a loop


def test_a_group_answers_in_a_program_without_a_loop_and_continues():
    team = GroupChat("team", [endless("a"), speaker("b", "Fine. TERMINATE", "Bye.")], max_turns=3)
    result = team.run_sync("Go.", timeout=10)
    assert (result.status, result.text) == ("terminated", "Fine. TERMINATE")
    result = team.run_sync("Again.", sender="user")
    assert (result.status, result.messages[0].text, result.text) == ("turn_limit", "Again.", "a!")
    expected = ["Go.", "a!", "Fine. TERMINATE", "Again.", "a!", "Bye.", "a!"]
    assert [each.text for each in team.chat_messages["user"]] == expected
    assert team.run_sync("Hi", sender="ann#7").messages[0].sender == "ann#7"


def test_a_group_without_an_answer_says_so():
    assert GroupChat("team", [speaker("a")]).run_sync("Go.").status == "no_answer"


def test_a_chat_runs_in_a_program_without_a_loop():
    result = Chat(endless("a"), endless("b"), "Hello", max_turns=2).run_sync(timeout=10)
    assert (result.status, len(result.messages)) == ("turn_limit", 4)
    with pytest.raises(TimeoutError):
        waiting = ConversableAgent("c", ScriptedBackend([asyncio.Event()]))
        Chat(endless("a"), waiting, "Hello").run_sync(timeout=0.01)
