"""Reply functions: their order, and their answers."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import AgentMessage
from anabranch.agents import NOT_MINE, ConversableAgent, ReplyResult, UserProxyAgent, reply
from anabranch.testing import ScriptedBackend


def asker(**options: Any) -> ConversableAgent:
    """An agent that asks and never answers."""
    return ConversableAgent("asker", max_consecutive_auto_reply=0, **options)


async def answer_of(agent: ConversableAgent, said: Any = "?", **options: Any) -> Any:
    """Return the answer of `agent` to a question, or None."""
    result = await asker().initiate_chat(agent, said, **options)
    return result.text if result.last.sender == agent.name else None


@given(st.lists(st.sampled_from(["mine", "none", "not mine"]), max_size=6), st.booleans())
def test_the_first_written_that_does_not_say_not_mine_decides(kinds: list[str], is_async: bool):
    """Those before it are called in the order of definition, those after it are not."""
    called: list[int] = []

    def make(number: int, kind: str) -> Any:
        def plain(self: Any, message: AgentMessage) -> ReplyResult:
            called.append(number)
            return {"mine": f"answer {number}", "none": None, "not mine": NOT_MINE}[kind]

        async def waiting(self: Any, message: AgentMessage) -> ReplyResult:
            await asyncio.sleep(0)
            return plain(self, message)

        return reply(waiting if is_async else plain)

    # The names are in the opposite order of the definitions, which decide.
    body = {f"f{9 - number}": make(number, kind) for number, kind in enumerate(kinds)}
    agent = type("Agent", (ConversableAgent,), body)("agent", default_auto_reply="the default")
    said = asyncio.run(answer_of(agent))

    decisive = next((n for n, kind in enumerate(kinds) if kind != "not mine"), None)
    if decisive is None:
        assert (said, called) == ("the default", [*range(len(kinds))])
    else:
        expected = f"answer {decisive}" if kinds[decisive] == "mine" else None
        assert (said, called) == (expected, [*range(decisive + 1)])


async def test_a_subclass_is_asked_before_its_bases():
    """An overriding function is only called if it is marked again."""

    class Base(ConversableAgent):
        @reply
        def first(self, message: AgentMessage) -> ReplyResult:
            return "base"

        @reply
        def second(self, message: AgentMessage) -> ReplyResult:
            return "base, second"

    class Before(Base):
        @reply
        def other(self, message: AgentMessage) -> ReplyResult:
            return NOT_MINE if message.content == "skip" else "before"

    class Hidden(Base):
        def first(self, message: AgentMessage) -> ReplyResult:
            return "hidden"

    class Marked(Base):
        @reply
        def first(self, message: AgentMessage) -> ReplyResult:
            return "marked"

    assert await answer_of(Before("a")) == "before"
    assert await answer_of(Before("a"), "skip") == "base"
    assert await answer_of(Hidden("a")) == "base, second"
    assert await answer_of(Marked("a")) == "marked"


async def test_a_function_sees_only_the_messages_of_its_senders():
    """By a function of the agent, by name, or as agents; other messages go to the next."""
    asking = asker()

    class Choosy(ConversableAgent):
        friend = asking

        @reply(sender="nobody")
        def of_nobody(self, message: AgentMessage) -> ReplyResult:
            raise AssertionError

        @reply(sender=lambda self: [self.friend])
        def of_friend(self, message: AgentMessage) -> ReplyResult:
            return "for a friend"

        @reply
        def of_others(self, message: AgentMessage) -> ReplyResult:
            return "for others"

    choosy = Choosy("choosy")
    assert (await asking.initiate_chat(choosy, "?")).text == "for a friend"
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
    assert (await user.initiate_chat(choosy, "?")).text == "for others"


async def test_without_a_function_the_model_answers_with_the_whole_history():
    """The system prompt first, the partner as user, the agent as assistant."""
    backend = ScriptedBackend("Hello.", "Rivers are long.")
    agent = ConversableAgent("agent", backend, "You know rivers.")

    assert await answer_of(agent, "Hi") == "Hello."
    assert await answer_of(agent, "Tell me.", clear_history=False) == "Rivers are long."
    assert [(m.role, m.content) for m in backend.requests[1].messages] == [
        ("system", "You know rivers."),
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("user", "Tell me."),
    ]


async def test_a_reply_function_may_ask_the_model_itself():
    """`generate_reply` returns the answer without reply functions."""

    class Polite(ConversableAgent):
        @reply
        async def politely(self, message: AgentMessage) -> ReplyResult:
            said = await self.generate_reply(message)
            assert isinstance(said, AgentMessage)
            return f"{said.content}, if you please"

    assert await answer_of(Polite("p", ScriptedBackend("Sit down"))) == "Sit down, if you please"


async def test_a_registered_function_comes_before_the_written_ones():
    """`register_reply` is for functions that are not methods."""

    class Written(ConversableAgent):
        @reply
        def written(self, message: AgentMessage) -> ReplyResult:
            return "written"

    agent = Written("agent")
    agent.register_reply(lambda self, message: f"registered with {self.name}")
    agent.register_reply(lambda self, message: "never", sender="someone else")

    assert await answer_of(agent) == "registered with agent"


async def test_an_answer_may_be_a_mapping_with_metadata():
    """As in Byzer-Agent; the metadata becomes the message's `extra`."""

    class Agent(ConversableAgent):
        @reply
        def hello(self, message: AgentMessage) -> ReplyResult:
            return {"content": "Hello, world!", "metadata": {"mood": "good"}}

    result = await asker().initiate_chat(Agent("agent"), {"content": "Who are you?"})
    assert (result.last.content, result.last.extra) == ("Hello, world!", {"mood": "good"})


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (42, TypeError),
        ([], TypeError),
        ({}, ValueError),
        ({"content": None}, ValueError),
        ({"text": "?"}, ValueError),
        ({"content": "?", "metadata": 3}, ValueError),
        ({"content": "?", "type": 3}, ValueError),
        (AgentMessage(), ValueError),
    ],
)
async def test_what_is_no_message_is_refused_by_name(said: Any, error: type[Exception]):
    """From any sender, before a history is cleared; and from a reply function."""

    class Agent(ConversableAgent):
        @reply
        def wrong(self, message: AgentMessage) -> Any:
            return said

    asking, agent = asker(), Agent("agent")
    asking.remember(AgentMessage(content="kept", sender="agent"), "agent")
    with pytest.raises(error):
        await asking.initiate_chat(agent, said)
    assert [each.content for each in asking.chat_messages["agent"]] == ["kept"]
    with pytest.raises(error) as raised:
        await asking.initiate_chat(agent, "?")
    assert "while agent answered asker" in raised.value.__notes__


async def test_a_message_may_be_something_else_than_text():
    """A model reads it as JSON; without `content`, `output` is the content."""
    backend = ScriptedBackend(otherwise="I see.")
    agent = ConversableAgent("agent", backend)
    await answer_of(agent, {"content": {"temperature": 18}})
    await answer_of(agent, {"output": ["rain"]})
    assert [r.messages[-1].content for r in backend.requests] == ['{"temperature":18}', '["rain"]']


async def test_hooks_see_what_comes_and_what_goes():
    """A hook may change either; the history has the changed message."""
    agent = ConversableAgent("agent", ScriptedBackend("secret"))
    agent.before_agent(lambda owner, m, session_id: m.model_copy(update={"content": "changed"}))
    agent.after_agent(lambda owner, m, session_id: m.model_copy(update={"content": "public"}))

    assert await answer_of(agent, "original", request_reply=False) is None
    assert [m.content for m in agent.chat_messages["asker"]] == ["changed"]
    assert await answer_of(agent, "original") == "public"
    assert [m.content for m in agent.chat_messages["asker"]] == ["changed", "public"]
