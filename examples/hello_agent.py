"""The smallest conversing agent: it answers each message with hello.

    python examples/hello_agent.py
    python examples/hello_agent.py "May I ask who you are?"

A reply function answers, without a model.
"""

from __future__ import annotations

import argparse
import asyncio

from anabranch import AgentMessage
from anabranch.agents import (
    ChatResult,
    ConversableAgent,
    ReplyResult,
    UserProxyAgent,
    reply,
)


class HelloAgent(ConversableAgent):
    @reply
    def say_hello(self, message: AgentMessage) -> ReplyResult:
        return {"content": "Hello, world!", "metadata": {"TERMINATE": True}}


async def talk(question: str) -> ChatResult:
    user = UserProxyAgent(human_input_mode="NEVER")
    return await user.initiate_chat(HelloAgent("hello_agent"), question, transcript=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent that says hello.")
    parser.add_argument("question", nargs="?", default="Hello there, may I ask who you are?")
    asyncio.run(talk(parser.parse_args().question))


if __name__ == "__main__":
    main()
