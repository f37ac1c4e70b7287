"""Alice and Bob as remote agents, each in a separate process of a Ray cluster.

    python examples/remote_alice_and_bob.py
    python examples/remote_alice_and_bob.py --address HOST:6379 --model mistral:NAME "Tea?"

The agents are the same as in `alice_and_bob.py`. Without an address, Ray starts on this machine. An
agent reads its key from the environment of the machine where it runs.
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
    reply,
)
from anabranch.cluster import Ray, remote


class Alice(ConversableAgent):
    @reply(sender="bob")
    async def of_bob(self, message: AgentMessage) -> ReplyResult:
        return None  # Alice does not reply to Bob

    @reply
    async def pass_on(self, message: AgentMessage) -> ReplyResult:
        return (await self.send(message, "bob")).last


class Bob(ConversableAgent):
    @reply
    async def introduce(self, message: AgentMessage) -> ReplyResult:
        if "who are you" in message.content.lower():
            return "I am Bob, Alice's good friend. Glad to meet you!"
        return NOT_MINE


async def talk(backend: Backend, question: str, on: Ray) -> ChatResult:
    directory = Directory()
    user = UserProxyAgent(
        human_input_mode="NEVER", max_consecutive_auto_reply=0, directory=directory
    )
    role = "You are {}, a friendly agent, and a good friend of {}. Answer briefly."
    async with (
        remote(
            Alice, "alice", backend, role.format("Alice", "Bob"), on=on, directory=directory
        ) as alice,
        remote(Bob, "bob", backend, role.format("Bob", "Alice"), on=on, directory=directory) as bob,
    ):
        print(f"(alice lives on {alice.host}, bob on {bob.host})\n")
        return await user.initiate_chat("alice", question, transcript=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Alice and Bob on a Ray cluster.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, ray:NAME, ...")
    parser.add_argument("--address", help="the address of a Ray cluster, HOST:PORT")
    parser.add_argument("question", nargs="?", default="Who are you?")
    options = parser.parse_args()
    on = Ray(num_cpus=0, address=options.address)
    asyncio.run(talk(connect(options.model), options.question, on))


if __name__ == "__main__":
    main()
