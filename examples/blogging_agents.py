"""A writer and a critic refine blog posts in rounds, on five topics at once.

    python examples/blogging_agents.py --model openai:gpt-5-mini --rounds 2
    python examples/blogging_agents.py --max-tokens 50        (the local model, kept short)
    python examples/blogging_agents.py rivers tides           (topics of your own)
    python examples/blogging_agents.py --folder examples/rivers "the Danube" "the Nile"

Writer and critic are layers of one agent. Each topic is a session with a separate memory. All calls
are in one tree, so Ctrl-C ends all of them, and their cost is one sum. The local model (135 million
parameters) only shows the steps. Readable posts that follow the critic need a model with 7 billion
parameters or more.

With `--folder` the writer uses documents and cites them, with the sources below each post. That
needs `pip install "anabranch[knowledge]"`. The local model cites nothing, so the example lists the
documents that it received.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from anabranch import Agent, AgentMessage, Backend, Commander, Node, connect, handler
from anabranch.knowledge import Index

TOPICS = ("AI", "biotechnology", "new energy", "video games", "pop music")
TASK = "Write an engaging blog post on the recent news in {topic}, in three paragraphs."
TASK_WITH_SOURCES = (
    "Write an engaging blog post on {topic} from the documents, in three paragraphs."
)
WRITER = (
    "You write engaging blog posts that everybody understands. If you are given a critique, answer "
    "with a revised version of your post, and nothing else."
)
CRITIC = "You criticise writing: give a few precise recommendations on its length, depth and style."


class Blogger(Agent):
    def __init__(self, backend: Backend, rounds: int, notes: Index | None = None) -> None:
        super().__init__(name="blogger")
        self.writer = Agent(backend, WRITER, name="writer", knowledge=notes)
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
async def write(
    node: Node[Any], blogger: Blogger, topics: Sequence[str], notes: Index | None
) -> None:
    task = TASK if notes is None else TASK_WITH_SOURCES
    calls = [
        node.call_handler(blogger.call(task.format(topic=topic), session_id=topic))
        for topic in topics
    ]
    for topic, call in zip(topics, calls, strict=True):
        post = await call
        print(f"\n--- {topic}\n\n{post.content}", flush=True)
        if notes is not None:
            await print_sources(post, topic, notes)


async def print_sources(post: AgentMessage, topic: str, notes: Index) -> None:
    cited = post.extra.get("citations", [])
    print("\nSources:" if cited else "\n(it cites nothing; the documents have)")
    for each in cited:
        print(f"[{each['number']}] {each['place']}")
    for hit in [] if cited else await notes.search(topic):
        print(f"[{hit.number}] {hit.place}")


async def publish(
    backend: Backend, topics: Sequence[str], rounds: int, folder: Path | None = None
) -> None:
    async with AsyncExitStack() as stack:
        notes = None
        if folder is not None:
            notes = await stack.enter_async_context(Index(":memory:"))
            await notes.add_folder(folder)
            if not await notes.sources():
                raise SystemExit(f"there is nothing to read in {folder}: give another --folder")
        await stack.enter_async_context(backend)
        commander = await stack.enter_async_context(Commander())
        await commander.run(write(Blogger(backend, rounds, notes), topics, notes))
        for model, usage in commander.usage().items():
            print(f"\n({model} has written {usage.output_tokens} tokens)")


def main() -> None:
    parser = argparse.ArgumentParser(description="Agents that refine each other's writing.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--rounds", type=int, default=1, help="the number of reviews")
    parser.add_argument("--max-tokens", type=int, help="the most tokens of each text")
    parser.add_argument("--folder", type=Path, help="documents to use and cite")
    parser.add_argument("topics", nargs="*", default=TOPICS)
    options = parser.parse_args()
    if options.folder is not None and not options.folder.is_dir():
        parser.error(f"there is no folder {str(options.folder)!r}")
    backend = connect(options.model, max_tokens=options.max_tokens)
    asyncio.run(publish(backend, options.topics, options.rounds, options.folder))


if __name__ == "__main__":
    main()
