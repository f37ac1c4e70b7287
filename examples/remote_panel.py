"""Ask a panel of agents on many machines, and combine their answers.

    python examples/remote_panel.py
    python examples/remote_panel.py --address HOST:6379 --model openai:gpt-5-mini "Tea or coffee?"

Each member has the model in its own process, so a cluster runs many of them at once. With
`--model ray:NAME` they share an engine. Without an address, Ray starts on this machine. Useful
answers need a model with some billion parameters; the local one only shows the steps.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing

from anabranch import AgentMessage, Backend, Conversation, connect
from anabranch.agents import (
    ChatResult,
    ConversableAgent,
    Directory,
    ReplyResult,
    UserProxyAgent,
    reply,
)
from anabranch.cluster import PendingActor, Ray, RemoteAgent, remote

ROLES = {
    "optimist": "You see what is good in everything. Answer in one sentence.",
    "sceptic": "You doubt everything. Answer in one sentence.",
    "engineer": "You ask how things are done. Answer in one sentence.",
}


class Moderator(ConversableAgent):
    """Asks all members at once, then combines their answers."""

    @reply
    async def moderate(self, message: AgentMessage) -> ReplyResult:
        chats = [self.send(message, name, max_turns=1) for name in ROLES]
        opinions = [f"{each.last.sender}: {each.text}" for each in await asyncio.gather(*chats)]
        return await self.sum_up(message.content, opinions)

    async def sum_up(self, question: str, opinions: list[str]) -> AgentMessage:
        assert self.backend is not None
        conversation = Conversation("Make one short answer of what the panel has said.")
        conversation.add("\n".join([question, *opinions]))
        async with aclosing(self.backend.stream(conversation.request())) as deltas:
            return await self.stream_reply(delta.text async for delta in deltas)


async def ask(backend: Backend, question: str, on: Ray) -> ChatResult:
    directory = Directory()
    Moderator("moderator", backend, directory=directory)
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)

    def member(name: str) -> PendingActor[RemoteAgent]:
        return remote(ConversableAgent, name, backend, ROLES[name], on=on, directory=directory)

    members = await asyncio.gather(*(member(name) for name in ROLES))
    try:
        print(*(f"({each.name} lives on {each.host})" for each in members), "", sep="\n")
        moderator = await directory.find("moderator")
        async with backend:
            return await user.initiate_chat(moderator, question, transcript=True)
    finally:
        await asyncio.gather(*(each.close() for each in members))


def main() -> None:
    parser = argparse.ArgumentParser(description="A panel on many machines.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, ray:NAME, ...")
    parser.add_argument("--address", help="the address of a Ray cluster, HOST:PORT")
    parser.add_argument("--max-tokens", type=int, default=60, help="the most tokens of each answer")
    parser.add_argument("question", nargs="?", default="Should a town build a bridge?")
    options = parser.parse_args()
    backend = connect(options.model, max_tokens=options.max_tokens)
    asyncio.run(ask(backend, options.question, Ray(num_cpus=0, address=options.address)))


if __name__ == "__main__":
    main()
