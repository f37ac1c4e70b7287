"""A writer and a critic who refine their posts in rounds, over five topics at once.

    python examples/blogging_agents.py --model openai:gpt-5-mini --rounds 2
    python examples/blogging_agents.py --max-tokens 50        (the local model, kept short)
    python examples/blogging_agents.py rivers tides           (topics of your own)

The two are layers of one agent, and each topic is a session: their memories know nothing of each
other. All are calls in one tree, so Ctrl-C ends them all, and what they cost is one sum. The local
model (135 million parameters) plays every part to the end; to write what one likes to read, and to
mend it as the critic says, takes one of 7 billion parameters or more.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from anabranch import Agent, AgentMessage, Backend, Commander, Node, connect, handler

TOPICS = ("AI", "biotechnology", "new energy", "video games", "pop music")
TASK = "Write an engaging blog post on the recent news in {topic}, in three paragraphs."
WRITER = (
    "You write engaging blog posts that everybody understands. If you are given a critique, answer "
    "with a revised version of your post, and nothing else."
)
CRITIC = "You criticise writing: give a few precise recommendations on its length, depth and style."


class Blogger(Agent):
    def __init__(self, backend: Backend, rounds: int) -> None:
        super().__init__(name="blogger")
        self.writer = Agent(backend, WRITER, name="writer")
        self.critic = Agent(backend, CRITIC, name="critic")
        self.critic.before_agent(for_the_critic)
        self.rounds = rounds

    async def forward(self, message: AgentMessage, session_id: int | str = 0) -> AgentMessage:
        for _ in range(self.rounds):
            message = await self.writer(message, session_id=session_id)
            message = await self.critic(message, session_id=session_id)
        return await self.writer(message, session_id=session_id)


def for_the_critic(critic: Agent, message: AgentMessage, session_id: object) -> None:
    message.content = f"Criticise this post:\n\n{message.content}"


@handler
async def write(node: Node[Any], blogger: Blogger, topics: Sequence[str]) -> None:
    calls = [
        node.call_handler(blogger.call(TASK.format(topic=topic), session_id=topic))
        for topic in topics
    ]
    for topic, call in zip(topics, calls, strict=True):
        print(f"\n--- {topic}\n\n{(await call).content}", flush=True)


async def publish(backend: Backend, topics: Sequence[str], rounds: int) -> None:
    async with backend, Commander() as commander:
        await commander.run(write(Blogger(backend, rounds), topics))
        for model, usage in commander.usage().items():
            print(f"\n({model} has written {usage.output_tokens} tokens)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Agents that refine each other's writing.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--rounds", type=int, default=1, help="how often the critic is asked")
    parser.add_argument("--max-tokens", type=int, help="how long each text may be")
    parser.add_argument("topics", nargs="*", default=TOPICS)
    options = parser.parse_args()
    backend = connect(options.model, max_tokens=options.max_tokens)
    asyncio.run(publish(backend, options.topics, options.rounds))


if __name__ == "__main__":
    main()
