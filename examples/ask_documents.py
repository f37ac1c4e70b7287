"""Two agents converse, and one of them answers from your documents and cites them.

    pip install "anabranch[knowledge]"
    python examples/ask_documents.py
    python examples/ask_documents.py --folder ~/notes "When is the rent due?"
    python examples/ask_documents.py --model openai:gpt-5-mini --index notes.db --folder docs

Each question for the librarian comes with the matching passages, as data. No other server is
needed. With `--index` the index is a file, and the next start reads changed documents only. Answers
with citations need a model with some billion parameters. The local one (135 million) cites nothing,
so the example also prints the passages.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from anabranch import AgentMessage, Backend, connect
from anabranch.agents import ConversableAgent, Directory, UserProxyAgent
from anabranch.knowledge import Index

DOCS = Path(__file__).resolve().parent.parent / "docs"
QUESTION = "What happens to the children of a node when I cancel it?"
SYSTEM = "You answer in one or two sentences, from the passages that were found in the documents."


async def ask(backend: Backend, notes: Index, question: str) -> AgentMessage:
    options: dict[str, Any] = {}
    if backend.provider == "local":
        options = {"temperature": 0, "max_tokens": 60}
    directory = Directory()
    ConversableAgent("librarian", backend, SYSTEM, knowledge=notes, directory=directory, **options)
    user = UserProxyAgent(
        human_input_mode="NEVER", max_consecutive_auto_reply=0, directory=directory
    )
    async with backend:
        result = await user.initiate_chat("librarian", question, transcript=True)
    answer = result.last
    for each in answer.extra.get("citations", []):
        print(f"[{each['number']}] {each['place']}  {each.get('heading', '')}")
    if not answer.extra.get("citations"):
        print("The answer cites nothing. What was found:")
        for hit in await notes.search(question):
            print(f"[{hit.number}] {hit.place}  {hit.heading}")
    return answer


async def read_and_ask(backend: Backend, index: str, folder: Path, question: str) -> None:
    async with Index(index) as notes:
        print(f"{folder}: {await notes.add_folder(folder, progress=True)}\n")
        if not await notes.sources():
            raise SystemExit(f"there is nothing to read in {folder}: give another --folder")
        await ask(backend, notes, question)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a question about a folder of documents.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--folder", type=Path, default=DOCS, help="the folder to read")
    parser.add_argument("--index", default=":memory:", help="the file of the index")
    parser.add_argument("question", nargs="?", default=QUESTION)
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"there is no folder {str(options.folder)!r}")
    backend = connect(options.model)
    asyncio.run(read_and_ask(backend, options.index, options.folder, options.question))


if __name__ == "__main__":
    main()
