"""A dialogue agent with tools, whose replies fork while they stream and join again.

    python examples/getting_started.py
    python examples/getting_started.py --model openai:gpt-5-mini     (with OPENAI_API_KEY)
    python examples/getting_started.py "What is 6 * 7?" "And the time in Oslo?"

`anabranch.handlers.respond` and `anabranch.jobs.ChatJob` do the same; this program shows the parts.
The small local model demonstrates the steps, but is not a good assistant.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from anabranch import Backend, Commander, Conversation, Job, Node, connect, fork, handler, tool
from anabranch.handlers import call_tools
from anabranch.tools import AnyTool, with_narration
from anabranch.tools.examples import calculate


@tool(read_only=True, timeout=20)
async def get_current_weather(
    location: str, unit: Literal["celsius", "fahrenheit"] = "celsius"
) -> str:
    """Get the current weather in a given location.

    Args:
        location: A city, such as Paris.
        unit: The scale of the temperature.
    """
    return f"18 degrees {unit} and sunny in {location}"  # a real tool would ask a service


TOOLS = (get_current_weather, calculate)
QUESTIONS = (
    "What is the capital of France?",
    "What is the weather in Paris?",
    "Tell me about rivers in one sentence.",
)


class Round(Job[None]):
    """One question and its answer. The next round is not a child of this one."""

    backend: Backend
    conversation: Conversation
    questions: Sequence[str]

    async def task(self) -> None:
        print(f"\n> {self.questions[0]}")
        self.conversation.add(self.questions[0])
        self.at_end(next_round)
        await self.call_handler(answer(self.backend, self.conversation, TOOLS))


def next_round(node: Round) -> None:
    if rest := node.questions[1:]:
        again = Round(node.backend, node.conversation, rest)
        node.put_job(again, parent=node.commander)


@handler
async def answer(
    node: Node[Any], backend: Backend, conversation: Conversation, tools: Sequence[AnyTool]
) -> Any:
    """Ask the model and fork its reply; both branches are children of this node.

    Each tool has one more argument for capable models, `to_user`. Its text is shown while the model
    still writes the rest of the call.
    """
    offered = tools if backend.provider == "local" else with_narration(tools)
    stream = backend.stream(conversation.request(tools=offered))
    reply = fork(node, stream, to_user="to_user", tools=tools)
    node.call_handler(show(reply.text))  # for the user, as it arrives
    results = node.call_handler(
        call_tools(reply.tool_calls, tools)
    )  # each call starts once it is complete
    conversation.add(await reply.message)
    if answers := await results:  # here the branches join
        for call in answers:
            print(f"[{call.name} gave: {call.content}]")
        conversation.add(*answers)
        return answer(backend, conversation, tools)  # the loop: results go back to the model
    return None


@handler
async def show(node: Node[Any], texts: AsyncIterator[str]) -> None:
    shown = False
    async for text in texts:
        print(text, end="", flush=True)
        shown = True
    if shown:
        print()


async def talk(backend: Backend, conversation: Conversation, questions: Sequence[str]) -> None:
    async with backend, Commander() as commander:
        await commander.run(Round(backend, conversation, questions))


def main() -> None:
    parser = argparse.ArgumentParser(description="A dialogue agent with tools.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    options = parser.parse_args()
    conversation = Conversation("You are a helpful assistant. Answer briefly.")
    asyncio.run(talk(connect(options.model), conversation, options.questions))
    print(f"\n({len(conversation)} messages in the conversation)")


if __name__ == "__main__":
    main()
