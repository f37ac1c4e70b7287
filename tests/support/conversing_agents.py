"""Agents for tests of conversations, and a check that both sides store the same messages."""

from typing import Any

from anabranch import AgentMessage
from anabranch.agents import ConversableAgent, ReplyResult, UserProxyAgent, reply

__all__ = ["Alice", "Bob", "chatty_agent", "check_symmetry", "contents_by_sender", "silent_user"]


def chatty_agent(name: str, content: str = "and so on", **options: Any) -> ConversableAgent:
    """Return an agent that answers every message with `content`."""
    return ConversableAgent(name, default_auto_reply=content, **options)


def silent_user(name: str = "user", **options: Any) -> UserProxyAgent:
    """Return a user that sends one question and never replies."""
    return UserProxyAgent(name, human_input_mode="NEVER", max_consecutive_auto_reply=0, **options)


def contents_by_sender(messages: Any) -> list[tuple[str, Any]]:
    return [(message.sender, message.content) for message in messages]


class Alice(ConversableAgent):
    """An agent that forwards each message to Bob and returns his answer."""

    @reply(sender=["bob"])
    def of_bob(self, message: AgentMessage) -> ReplyResult:
        return None

    @reply
    async def of_others(self, message: AgentMessage) -> ReplyResult:
        return (await self.send(message, "bob")).last


class Bob(ConversableAgent):
    """An agent with the same answer for every sender."""

    @reply
    def introduce(self, message: AgentMessage) -> ReplyResult:
        return "I am Bob, Alice's friend."


def check_symmetry(agents: list[Any]) -> None:
    """Check that both agents of each pair store the same messages of their conversation."""
    for a in agents:
        for b in agents:
            if a is not b:
                ours, theirs = a.chat_messages.get(b.name, []), b.chat_messages.get(a.name, [])
                assert contents_by_sender(ours) == contents_by_sender(theirs)
