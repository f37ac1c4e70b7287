"""Alice forwards her messages to Bob: two agents that find each other by name.

    python examples/alice_and_bob.py
    python examples/alice_and_bob.py --model openai:gpt-5-mini "Do you like rivers?"

Reply functions answer one known question without a model. For any other question they return
`NOT_MINE`, and the model answers.
"""

from __future__ import annotations

import argparse
import asyncio

from anabranch import AgentMessage, Backend, connect
from anabranch.agents import (
    NOT_MINE,
    ChatResult,
    ConversableAgent,
    Directory,
    ReplyResult,
    UserProxyAgent,
    prompt,
    reply,
)


class Alice(ConversableAgent):
    @prompt
    def role(self) -> None:
        """You are {self.name}, a friendly agent, and Bob is your friend. Answer briefly."""

    @reply(sender="bob")
    async def of_bob(self, message: AgentMessage) -> ReplyResult:
        return None  # Alice does not reply to Bob

    @reply
    async def pass_on(self, message: AgentMessage) -> ReplyResult:
        return (await self.send(message, "bob")).last


class Bob(ConversableAgent):
    @prompt
    def role(self) -> None:
        """You are {self.name}, a friendly agent, and a good friend of Alice. Answer briefly."""

    @reply
    async def introduce(self, message: AgentMessage) -> ReplyResult:
        if "who are you" in message.content.lower():
            return "I am Bob, Alice's good friend. Glad to meet you!"
        return NOT_MINE


async def talk(backend: Backend, question: str) -> ChatResult:
    directory = Directory()
    for kind, name in ((Alice, "alice"), (Bob, "bob")):
        agent = kind(name, backend, directory=directory)
        agent.instructions = agent.role()
    user = UserProxyAgent(
        human_input_mode="NEVER", max_consecutive_auto_reply=0, directory=directory
    )
    async with backend:
        return await user.initiate_chat("alice", question, transcript=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Alice and Bob.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("question", nargs="?", default="Who are you?")
    options = parser.parse_args()
    asyncio.run(talk(connect(options.model), options.question))


if __name__ == "__main__":
    main()
