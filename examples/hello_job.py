"""A job with children: one waits in the queue, one starts at once, and a model answers last.

python examples/hello_job.py
python examples/hello_job.py --model openai:gpt-5-mini     (with OPENAI_API_KEY)
"""

from __future__ import annotations

import argparse
from typing import Any

from anabranch import Backend, Conversation, Job, Node, connect, handler, run
from anabranch.handlers import ConsoleView, respond


class Hello(Job[str]):
    """Describes a country: two children process its name, and a model names its capital."""

    backend: Backend
    country: str

    async def task(self) -> str:
        loud = self.call_handler(upper(self.country))  # starts now, as a child
        length = self.put_job(Count(self.country))  # waits in the commander's queue
        print(f"Hello {await loud}, of {await length} letters.")

        conversation = Conversation()
        conversation.add(f"What is the capital of {self.country}?")
        async with self.backend:
            message = await respond(self.backend, conversation, view=ConsoleView())
        return message.content or ""


class Count(Job[int]):
    text: str

    async def task(self) -> int:
        return len(self.text)


@handler
async def upper(node: Node[Any], text: str) -> str:
    return text.upper()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A job with children.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--country", default="France")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    job = Hello(connect(options.model), options.country)
    job.at_done(lambda node: print(f"({node.path}: all its children are done)"))
    run(job)
