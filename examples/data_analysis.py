"""A group of agents that analyses a table: one writes code, one runs it, one explains the result.

    python examples/data_analysis.py --model openai:gpt-5-mini
    python examples/data_analysis.py --model openai:gpt-5-mini --file my.csv "Which is the oldest?"

With `--sources FOLDER` (here documents about rivers) the explainer gets matching passages and cites
the sources of the figures. The cited documents are listed below its answer.

Needs `pip install "anabranch[python,knowledge]"`. The model's code runs with your permissions in a
Jupyter kernel (see docs/tools.md for the risks). Writing code needs a model with some billion
parameters. With the local one, the group gives up after three attempts.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path
from typing import Any

from anabranch import AgentMessage, Backend, ToolError, connect
from anabranch.agents import (
    ChatResult,
    ConversableAgent,
    Directory,
    ReplyResult,
    UserProxyAgent,
    prompt,
    reply,
)
from anabranch.knowledge import Index
from anabranch.tools import PythonKernel

FILE = Path(__file__).resolve().parent / "rivers.csv"
SOURCES = Path(__file__).resolve().parent / "rivers"


class Interpreter(ConversableAgent):
    """Runs the code in a message, and answers with its output."""

    def __init__(self, name: str, kernel: PythonKernel, **options: Any) -> None:
        super().__init__(name, **options)
        self.kernel = kernel

    @reply
    async def execute(self, message: AgentMessage) -> ReplyResult:
        blocks = re.findall(r"```(?:python|py)?\n(.*?)```", message.content, re.DOTALL)
        if not blocks:
            return {"content": "There is no ```python block.", "metadata": {"failed": True}}
        try:
            return await self.kernel.tools[0].run({"code": "\n".join(blocks)})
        except ToolError as error:
            return {"content": str(error), "metadata": {"failed": True}}


class Analysis(ConversableAgent):
    """Leads the others: look at the file, write code, run it, correct it, explain the result."""

    def __init__(self, name: str, attempts: int, **options: Any) -> None:
        super().__init__(name, **options)
        self.attempts = attempts

    @reply
    async def analyse(self, message: AgentMessage) -> ReplyResult:
        sample = await self.ask("interpreter", self.preview(message.extra["file"]))
        task, fault = self.task(message.content, sample.content), ""
        for _ in range(self.attempts):
            code = await self.ask("coder", task)
            result = await self.ask("interpreter", code.content)
            if not result.extra.get("failed"):
                return await self.ask(
                    "explainer", self.explain(message.content, code.content, result.content)
                )
            task, fault = self.mend(result.content), result.content
        return f"None of {self.attempts} programs worked; the last one said: {fault}"

    async def ask(self, name: str, said: str) -> AgentMessage:
        return (await self.send(said, name, max_turns=1)).last

    @prompt
    def preview(self, file: str) -> None:
        """```python
        import csv
        with open({file!r}, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        print(len(rows), "rows, the first are")
        for row in rows[:3]:
            print(row)
        ```"""

    @prompt
    def task(self, question: str, sample: str) -> None:
        """The list `rows` holds a table, each row a dict of strings: {sample}

        Write Python that uses `rows` and prints the answer to this question: {question}
        Answer with one ```python block and nothing else.
        """

    @prompt
    def mend(self, fault: str) -> None:
        """That did not work: {fault}

        Write the whole program again, correctly, in one ```python block.
        """

    @prompt
    def explain(self, question: str, code: str, result: str) -> None:
        """The question was: {question}

        This program was run:
        {code}

        It printed:
        {result}

        Answer the question in one or two sentences, with the numbers.
        """


async def analyse(
    backend: Backend,
    question: str,
    file: Path = FILE,
    attempts: int = 3,
    sources: Path | None = None,
) -> ChatResult:
    directory = Directory()
    async with backend, PythonKernel() as kernel, Index(":memory:") as notes:
        if sources is not None:
            await notes.add_folder(sources)
        Analysis("analysis", attempts, directory=directory)
        Interpreter("interpreter", kernel, directory=directory)
        options: dict[str, Any] = {"directory": directory, "seed": 1}
        ConversableAgent("coder", backend, "You write short Python programs.", **options)
        explainer = "You explain what programs found."
        if await notes.sources():
            explainer += " Say where the figures of the table are from, as the documents tell."
            ConversableAgent("explainer", backend, explainer, knowledge=notes, **options)
        else:
            ConversableAgent("explainer", backend, explainer, **options)
        user = UserProxyAgent(
            human_input_mode="NEVER", max_consecutive_auto_reply=0, directory=directory
        )
        message = {"content": question, "metadata": {"file": str(file)}}
        result = await user.initiate_chat("analysis", message, transcript=True)
        for each in result.last.extra.get("citations", []):
            print(f"[{each['number']}] {each['place']}  {each.get('heading', '')}")
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a question about a table.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--file", type=Path, default=FILE, help="a CSV file with a header")
    parser.add_argument("--sources", type=Path, help="documents about the origin of the data")
    parser.add_argument("--attempts", type=int, default=3, help="the most programs that may fail")
    parser.add_argument("--max-tokens", type=int, help="the most tokens of each answer")
    parser.add_argument(
        "question", nargs="?", default="How long are the rivers of each continent together?"
    )
    options = parser.parse_args()
    file, sources = options.file.resolve(), options.sources
    if not file.is_file():
        parser.error(f"there is no file {str(file)!r}")
    if sources is None and file == FILE:
        sources = SOURCES
    if sources is not None and not sources.is_dir():
        parser.error(f"there is no folder {str(sources)!r}")
    backend = connect(options.model, max_tokens=options.max_tokens)
    asyncio.run(analyse(backend, options.question, file, options.attempts, sources))


if __name__ == "__main__":
    main()
