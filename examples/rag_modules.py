"""An agent with retrieved passages in its prompt: the module `Retrieval` and its search query.

    pip install "anabranch[knowledge]"
    python examples/rag_modules.py
    python examples/rag_modules.py --query model
    python examples/rag_modules.py --query memory "And how long is it?"

The same conversation with three kinds of queries. `plain` searches for the message itself, which
fails for "And how long is it?". `memory` adds the earlier messages. `model` lets a model write the
query. The local model (135 million parameters) can answer from short passages, but does not cite
them, so the example also prints the passages.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from anabranch import Backend, Message, connect
from anabranch.agents import Orchestrator, PromptedAgent, PromptEngineer, State
from anabranch.agents.orchestration import Retrieval
from anabranch.knowledge import Index
from anabranch.messages import Request

RIVERS = Path(__file__).resolve().parent / "rivers"
QUESTIONS = ("Which river flows through Budapest?", "And how long is it?")
ASK = "Write a few words to search documents with, to answer the last line. Write nothing else."


class Said(State):
    lines: list[str] = Field(default_factory=list[str])


class Geographer(PromptEngineer[Said]):
    def render_prompt(self, obs: str | None, history: list[Message], state: Said) -> None:
        found = state.notes.get("knowledge", "")
        told = f"{found}\n\nAnswer briefly, from these passages: {obs}"
        history[:] = [Message(role="user", content=told)]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: Said
    ) -> str:
        state.lines += [obs or "", response]
        return response


def search_with(kind: str, backend: Backend) -> Callable[[str | None, Said], Awaitable[str]]:
    """Return the function that makes the search query."""

    async def query(obs: str | None, state: Said) -> str:
        question = obs or ""
        if kind == "memory":
            question = " ".join([*state.lines[-2:], question])
        elif kind == "model":
            said = Message(role="user", content="\n".join([*state.lines, question]))
            request = Request([Message(role="system", content=ASK), said])
            question = (await backend.complete(request)).content or question
        print(f"  (searched for: {question})")
        return question

    return query


def each_time(obs: str | None, state: Said) -> str:
    state.step_environment()  # the reader gets the agent's text
    return "geographer"


async def talk(backend: Backend, notes: Index, kind: str, questions: Iterable[str]) -> None:
    module = Retrieval(notes, limit=3, query=search_with(kind, backend))
    agent = PromptedAgent("geographer", Geographer(), backend, modules=[module])
    orchestrator = Orchestrator([agent], each_time, Said())
    for question in questions:
        print(f"you: {question}")
        answer = await orchestrator.forward(question)
        found = [orchestrator.state.notes["knowledge"]]
        cited = Index.cited(answer.content, found)
        print(f"geographer: {answer.content}")
        for each in cited or Index.cited(None, found):
            print(f"  [{each['number']}] {each['place']}{'' if cited else '  (found, not cited)'}")


async def read_and_talk(
    backend: Backend, folder: Path, kind: str, questions: Iterable[str]
) -> None:
    async with backend, Index(":memory:") as notes:
        await notes.add_folder(folder)
        if not await notes.sources():
            raise SystemExit(f"there is nothing to read in {folder}: give another --folder")
        await talk(backend, notes, kind, questions)


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent with retrieved passages in its prompt.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--query", choices=("plain", "memory", "model"), default="plain")
    parser.add_argument("--folder", type=Path, default=RIVERS, help="the folder to read")
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"there is no folder {str(options.folder)!r}")
    given: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    backend = connect(options.model, **(given if options.model == "local" else {}))
    asyncio.run(read_and_talk(backend, options.folder, options.query, options.questions))


if __name__ == "__main__":
    main()
