"""An agent that changes its answer while it streams.

    python examples/stream_reply.py
    python examples/stream_reply.py --model openai:gpt-5-mini "Tell me about the Nile."

The agent asks its model and forwards each word at once, in capitals. The last line is the number
of pieces of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator

from anabranch import AgentMessage, Backend, Conversation, connect, current_node, fork
from anabranch.agents import ConversableAgent, ReplyResult, UserProxyAgent, reply


class LoudAgent(ConversableAgent):
    @reply
    async def answer_loudly(self, message: AgentMessage) -> ReplyResult:
        return await self.stream_reply(self.loud(message.content))

    async def loud(self, question: str) -> AsyncIterator[str]:
        assert self.backend is not None
        conversation = Conversation("Answer in one sentence.")
        conversation.add(question)
        request = conversation.request(seed=1)
        async for text in fork(current_node(), self.backend.stream(request)).text:
            yield text.upper()


async def talk(backend: Backend, question: str) -> int:
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
    parts = 0
    async with backend:
        async for part in user.stream_chat(LoudAgent("loud", backend), question):
            if part.stream_state != "end":
                parts += 1
                print(part.extra["delta"], end="", flush=True)
    print(f"\n({parts} parts)")
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent that streams its answer.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--max-tokens", type=int, help="the most tokens of the answer")
    parser.add_argument("question", nargs="?", default="What is a river?")
    options = parser.parse_args()
    backend = connect(options.model, max_tokens=options.max_tokens)
    asyncio.run(talk(backend, options.question))


if __name__ == "__main__":
    main()
