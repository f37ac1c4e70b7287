"""A desk of five researchers: they search notes at the same time, and an editor writes a report.

    pip install "anabranch[http]"
    python examples/research_desk.py notes/ "Why did the harvest of 1816 fail?"

The text of all researchers appears while they work. Three of them are enough for the report.
Ctrl-C cancels all requests. A follow-up question continues the conversation with the editor.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from anabranch import (
    Agent,
    AnabranchError,
    BackendError,
    Commander,
    Context,
    Job,
    Limits,
    ModelRetry,
    Retry,
    settle,
    tool,
)
from anabranch.jobs import read_line

MODEL = os.environ.get("ANABRANCH_MODEL", "openai:gpt-5-mini")
FIELDS = ["climate", "farming", "trade", "politics", "daily life"]
COLORS = dict(zip(FIELDS, range(31, 36), strict=True))


@dataclass
class Notes:
    folder: Path

    def search(self, words: list[str]) -> dict[str, str]:
        files = sorted(self.folder.glob("*.md"))
        texts = {file.name: file.read_text(encoding="utf-8") for file in files}
        return {name: t for name, t in texts.items() if any(w.lower() in t.lower() for w in words)}


class Finding(BaseModel):
    claim: str
    file: str


class Report(BaseModel):
    summary: str
    findings: list[Finding]
    open_questions: list[str]


@tool(read_only=True)
def search_notes(words: list[str], ctx: Context[Notes]) -> dict[str, str]:
    """Return the notes that contain one of the words."""
    return ctx.value.search(words) or {"nothing": "no note contains these words"}


editor = Agent(
    MODEL,
    "You write a report from the findings of researchers. Name the file of each finding.",
    output_type=Report,
    name="editor",
)


@editor.output_validator
def require_files(report: Report, ctx: Context[Notes]) -> Report:
    for finding in report.findings:
        if not (ctx.value.folder / finding.file).is_file():
            raise ModelRetry(f"there is no note {finding.file!r}; cite only files of the findings")
    return report


def researcher(field: str) -> Agent[str]:
    text = f"You research {field}. Search the notes, then answer in at most 100 words, with files."
    return Agent(MODEL, text, tools=[search_notes], name=field)


class Desk(Job[Report]):
    question: str

    async def task(self) -> Report:
        calls = [researcher(field).call(self.question) for field in FIELDS]
        retry = Retry(attempts=2, on=BackendError)
        answers = await settle(*calls, at_least=3, at_once=3, retry=retry, timeout=90)
        lines = [
            f"{field}: no answer" if isinstance(answer, Exception) else f"{field}: {answer.text}"
            for field, answer in zip(FIELDS, answers, strict=True)
        ]
        found = "\n\n".join([f"The question: {self.question}", *lines])
        return (await editor(found, session_id="report")).output


async def work(notes: Notes, question: str, budget: int) -> None:
    async with Commander(limits=Limits(budget=budget)) as commander:
        run = commander.start(Desk(question), timeout=300, context=notes)
        async for name, text in run.text():
            if name in COLORS:  # the editor's text is the JSON of the report
                print(f"\033[{COLORS[name]}m{text}\033[0m", end="", flush=True)
        show(await run)
        print("\nAsk the editor, or press Enter to end:")
        while more := await read_line():
            call = editor.call(more, session_id="report", context=notes)
            show((await commander.run(call, timeout=120)).output)


def show(report: Report) -> None:
    print(f"\n\n{report.summary}\n")
    for finding in report.findings:
        print(f"- {finding.claim} ({finding.file})")
    for question in report.open_questions:
        print(f"? {question}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Five researchers and an editor answer.")
    parser.add_argument("folder", type=Path, help="the folder of the notes, as *.md")
    parser.add_argument("question")
    parser.add_argument("--budget", type=int, default=100_000, help="tokens (%(default)s)")
    options = parser.parse_args()
    try:
        asyncio.run(work(Notes(options.folder), options.question, options.budget))
    except (AnabranchError, TimeoutError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\nStopped.")


if __name__ == "__main__":
    main()
