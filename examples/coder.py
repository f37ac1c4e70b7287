"""`Coder`, a math agent: it writes Python code, runs it, reads the result, and continues.

    pip install "anabranch[python]"
    python examples/coder.py --model openai:gpt-5-mini
    python examples/coder.py --model openai:gpt-5-mini "What is the 100th prime?"

`forward` is the complete loop. `anabranch.agents.StepAgent` adds plugins, and a kernel for each
session. The code runs with your permissions in a Jupyter kernel (see docs/tools.md for the risks).
Solving problems needs a model with 7 billion parameters or more. The local one (135 million) mostly
answers without code and wrongly.
"""

from __future__ import annotations

import argparse
import asyncio

from anabranch import Agent, AgentMessage, Backend, ToolExecutor, connect
from anabranch.agents import ToolAggregator, ToolParser
from anabranch.dispatch import FencedCode
from anabranch.tools import PythonKernel

SYSTEM = "Solve the problem step by step, with the help of Python code that prints what it finds."
PROBLEM = "Find the projection of a onto b = (1, -3) if a * b = 2."


class Coder(Agent):
    def __init__(self, backend: Backend, python: PythonKernel, max_rounds: int = 3) -> None:
        super().__init__(max_rounds=max_rounds)
        self.coder = Agent(
            backend,
            SYSTEM,
            name="coder",
            output_format=ToolParser(FencedCode()),
            aggregator=ToolAggregator(),
        )
        self.executor = ToolExecutor([python], name="python")

    async def forward(self, message: AgentMessage, session_id: int | str = 0) -> AgentMessage | str:
        for _ in range(self.max_rounds):
            message = await self.coder(message, session_id=session_id)
            if message.output["status"] == "none":
                return message
            message = await self.executor(message)
        return f"No answer after {self.max_rounds} programs; the last one gave: {message.content}"


def show(_: object, message: AgentMessage, session_id: object) -> None:
    print(f"--- {message.sender}\n{message.content}", flush=True)


async def solve(backend: Backend, problem: str) -> AgentMessage:
    async with backend, PythonKernel() as python:
        coder = Coder(backend, python)
        coder.coder.after_agent(show)
        coder.executor.after_action(show)
        answer = await coder(problem)
    print(f"--- the answer\n{answer.content}")
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent that solves problems with Python.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("problem", nargs="?", default=PROBLEM)
    options = parser.parse_args()
    asyncio.run(solve(connect(options.model), options.problem))


if __name__ == "__main__":
    main()
