"""Conversations that are tried again after a failure."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.conversing_agents import check_symmetry, contents_by_sender, silent_user

from anabranch import AgentMessage, Commander, Message, Retry, ToolCall, tool
from anabranch.agents import Answer, Chat, ConversableAgent, GroupChat, ReplyResult, reply
from anabranch.testing import ScriptedBackend, deltas

TRIES = Retry(attempts=50, on=OSError)

# How each request of a model ends, or each answer of a function.
ENDS = st.lists(st.sampled_from(["ok", "before", "within", "tool"]), max_size=6)


class Talker(ConversableAgent):
    """Its model answers one, two, and so on, unless its plan has a failure."""

    def __init__(self, name: str, plan: list[str], **options: Any) -> None:
        self.ran: list[int] = []
        self.asked: list[list[tuple[str, str | None]]] = []
        plan = [*plan]
        numbers = iter(range(1000))

        @tool
        def work(number: int) -> str:
            """Work."""
            self.ran.append(number)
            return "worked"

        def answer(request: Any) -> Any:
            self.asked.append([(each.role, each.content) for each in request.messages])
            end = plan.pop(0) if plan else "ok"
            if end == "tool":
                call = ToolCall(
                    id=f"{len(self.asked)}", name="work", arguments={"number": len(self.asked)}
                )
                return Message(role="assistant", tool_calls=[call])
            text = f"{name} {next(numbers)}"
            if end == "within":
                return [*deltas(text)[:-1], OSError("within")]
            return OSError("before") if end == "before" else text

        backend = ScriptedBackend(otherwise=answer)
        super().__init__(name, backend, tools=[work], **options)


def check_once(agent: Talker, partner: str) -> None:
    """Check that no message was delivered, called or read twice."""
    history = contents_by_sender(agent.chat_messages[partner])
    assert len({*history}) == len(history)
    assert len({*agent.ran}) == len(agent.ran)
    for asked in agent.asked:
        words = [word for role, text in asked if role == "user" for word in f"{text}".splitlines()]
        assert len({*words}) == len(words)
        assert asked[-1][0] != "assistant"  # the message to answer
    calls = [each for each in agent.memory.messages(partner) if each.type == "tools"]
    assert [each.output[0].tool_calls[0].arguments["number"] for each in calls] == agent.ran


@settings(deadline=None)
@given(ENDS, ENDS, st.integers(1, 3), st.booleans())
def test_a_retried_chat_tells_nobody_anything_twice(
    one: list[str], two: list[str], turns: int, clear: bool
) -> None:
    """After a failure before a reply, within it, or after a call; both remember the same."""

    async def main() -> None:
        limit = {"max_consecutive_auto_reply": turns}
        alice, bob = Talker("alice", one, **limit), Talker("bob", two, **limit)
        chat = Chat(alice, bob, "Hello.", max_turns=turns, clear_history=clear)
        async with Commander() as commander:
            result = await commander.call_handler(chat, retry=TRIES)
        assert result.status == "turn_limit"
        assert len(result.messages) == 2 * turns
        assert contents_by_sender(result.messages) == contents_by_sender(bob.chat_messages["alice"])
        check_symmetry([alice, bob])
        check_once(bob, "alice")
        if turns > 1:
            check_once(alice, "bob")

    asyncio.run(main())


@settings(deadline=None)
@given(ENDS, ENDS)
def test_a_group_goes_on_when_the_chat_with_it_is_tried_again(
    one: list[str], two: list[str]
) -> None:
    """The members receive the question once, and each answer once."""

    async def main() -> None:
        members = [Talker("a", one), Talker("b", two)]
        team = GroupChat("team", members, max_turns=2)
        async with Commander() as commander:
            result = await commander.call_handler(
                Chat(silent_user(), team, "Go.", max_turns=1), retry=TRIES
            )
        talk = contents_by_sender(team.talks["user"].messages)
        assert talk[0] == ("user", "Go.")
        assert len({*talk}) == len(talk)
        assert contents_by_sender(result.messages) == [("user", "Go."), ("team", talk[-1][1])]
        for member in members:
            assert len({*member.ran}) == len(member.ran)
            history = contents_by_sender(member.chat_messages["team"])
            assert history.count(("user", "Go.")) == 1
            assert [each for each in history if each[0] != "team"] == talk

    asyncio.run(main())


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=4), st.lists(st.booleans(), max_size=4), st.integers(1, 2))
def test_a_hook_that_fails_sees_the_message_again_and_nobody_else_does(
    one: list[bool], two: list[bool], turns: int
) -> None:
    """Its result is remembered once."""

    async def main() -> None:
        talkers: list[ConversableAgent] = []
        for name, plan in (("alice", [*one]), ("bob", [*two])):
            counted = iter(range(100))

            class Counting(ConversableAgent):
                numbers = counted

                @reply
                def count(self, message: AgentMessage) -> ReplyResult:
                    return f"{self.name} {next(self.numbers)}"

            def hook(
                agent: Any, message: AgentMessage, session: Any, plan: list[bool] = plan
            ) -> AgentMessage:
                if plan and plan.pop(0):
                    raise OSError("hook")
                return message.model_copy(update={"content": f"({message.content})"})

            talkers.append(Counting(name))
            talkers[-1].before_agent(hook)
        alice, bob = talkers
        async with Commander() as commander:
            result = await commander.call_handler(
                Chat(alice, bob, "Hello.", max_turns=turns), retry=TRIES
            )
        messages = contents_by_sender(result.messages)
        for agent, partner in ((alice, bob), (bob, alice)):
            expected = [(who, text if who == agent.name else f"({text})") for who, text in messages]
            assert contents_by_sender(agent.chat_messages[partner.name]) == expected

    asyncio.run(main())


async def test_a_message_without_a_reply_is_delivered_once() -> None:
    """Although its delivery failed at first."""
    fails = [True]

    def hook(agent: Any, message: AgentMessage, session: Any) -> None:
        if fails and fails.pop():
            raise OSError("hook")

    bob = ConversableAgent("bob")
    bob.before_agent(hook)
    chat = Chat(ConversableAgent("alice"), bob, "Hello.", request_reply=False)
    async with Commander() as commander:
        assert (await commander.call_handler(chat, retry=TRIES)).status == "delivered"
    assert contents_by_sender(bob.chat_messages["alice"]) == [("alice", "Hello.")]


async def test_a_partner_that_took_too_long_is_asked_again() -> None:
    """It receives the message once."""
    waits = [asyncio.Event()]

    class Slow(ConversableAgent):
        @reply
        async def wait(self, message: AgentMessage) -> ReplyResult:
            if waits:
                await waits.pop().wait()
            return "here"

    bob = Slow("bob")
    chat = Chat(ConversableAgent("alice"), bob, "Hello.", max_turns=1, timeout=0.1)
    async with Commander() as commander:
        result = await commander.call_handler(chat, retry=Retry(attempts=50, on=TimeoutError))
    assert result.text == "here"
    assert contents_by_sender(bob.chat_messages["alice"]) == [("alice", "Hello."), ("bob", "here")]


async def test_a_partner_of_another_kind_is_given_the_message_again() -> None:
    """It only has the methods of `Participant`."""

    class Other:
        name = "other"
        heard = 0

        async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Any:
            self.heard += 1
            if self.heard == 1:
                raise OSError("first")
            return Answer(AgentMessage(content="yes", sender="other"))

        async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
            pass

    other, alice = Other(), ConversableAgent("alice")
    async with Commander() as commander:
        chat = Chat(alice, other, "Hello.", max_turns=1)
        await commander.call_handler(chat, retry=TRIES)
    assert other.heard == 2
    assert contents_by_sender(alice.chat_messages["other"]) == [
        ("alice", "Hello."),
        ("other", "yes"),
    ]
