"""A researcher searches the web and a charter draws, until one of them has the final answer.

    pip install "anabranch[python,web]" matplotlib
    python examples/researcher_and_charter.py --model openai:gpt-5-mini
    python examples/researcher_and_charter.py --model openai:gpt-5-mini --file gdp.png "Draw the \
GDP of China over the last 5 years as a line."

Each receives the other's messages and continues from there. The charter draws by writing code. The
code runs with your permissions in a Jupyter kernel (see docs/tools.md for the risks and the search
engines). This needs a model that is good with tools, with 7 billion parameters or more. The local
one (135 million) does not draw a chart.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from anabranch import Agent, AgentMessage, Backend, connect
from anabranch.agents import StepAgent
from anabranch.tools import PythonKernel, WebBrowser

QUESTION = "How long are the five longest rivers of the world? Draw a bar chart."
DONE = "FINAL ANSWER"
TEAM = f"""You work with another assistant, who has other tools. Use yours to get further; what is
left, the other will do. Begin your message with {DONE} once all that was asked for is there."""
RESEARCHER = f"{TEAM}\nYou search the web for accurate figures. Hand them over; do not draw."
CHARTER = f"""{TEAM}\nYou compute with the figures that you are given, and draw the chart into the
file {{file}} with matplotlib. If that is not installed, write a file in SVG."""


class Team(Agent):
    def __init__(
        self, backend: Backend, web: WebBrowser, python: PythonKernel, file: Path, rounds: int
    ) -> None:
        super().__init__(name="team")
        self.researcher = StepAgent(backend, RESEARCHER, plugins=[web], name="researcher")
        self.charter = StepAgent(
            backend, CHARTER.format(file=file), interpreter=python, name="charter"
        )
        self.rounds = rounds

    async def forward(self, question: AgentMessage, session_id: int | str = 0) -> AgentMessage:
        message = await self.researcher(question, session_id=session_id)
        heard = [question, message]  # the charter has not seen the question either
        for agent in (self.charter, self.researcher) * self.rounds:
            message = await agent(*heard, session_id=session_id)
            if DONE in message.content:
                break
            heard = [message]
        return message


def show(_: object, message: AgentMessage, session_id: object) -> None:
    print(f"--- {message.sender}\n{message.content}", flush=True)


async def draw(
    backend: Backend, web: WebBrowser, question: str, file: Path, rounds: int
) -> AgentMessage:
    async with backend, web, PythonKernel() as python:
        team = Team(backend, web, python, file, rounds)
        for each in (team.researcher, team.charter):
            each.agent.after_agent(show)
            each.after_action(show)
        return await team(question)


def main() -> None:
    parser = argparse.ArgumentParser(description="Agents that search and draw a chart.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--file", type=Path, default="chart.svg", help="a new file for the chart")
    parser.add_argument("--rounds", type=int, default=3, help="the most rounds of messages")
    parser.add_argument("question", nargs="?", default=QUESTION)
    options = parser.parse_args()
    file = options.file.resolve()
    if file.exists():
        parser.error(f"{file} is there already")
    backend = connect(options.model)
    asyncio.run(draw(backend, WebBrowser(), options.question, file, options.rounds))
    print(f"\n({f'the chart is in {file}' if file.exists() else 'there is no chart'})")


if __name__ == "__main__":
    main()
