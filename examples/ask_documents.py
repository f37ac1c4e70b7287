"""Two agents converse, and one of them has read your documents: it answers, and says from where.

    pip install "anabranch[knowledge]"
    python examples/ask_documents.py
    python examples/ask_documents.py --folder ~/notes "When is the rent due?"
    python examples/ask_documents.py --model openai:gpt-5-mini --index notes.db --folder docs

What is found is put before the librarian with each question, as data; no other server is needed.
With `--index` the index is kept in a file, and only what has changed is read the next time. To
answer from passages and to cite them takes a model of some billion parameters: the local one (135
million) says something near the passages and cites nothing, so what was found is printed too.
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
    parser.add_argument("--folder", type=Path, default=DOCS, help="what to read")
    parser.add_argument("--index", default=":memory:", help="a file that keeps what was read")
    parser.add_argument("question", nargs="?", default=QUESTION)
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"there is no folder {str(options.folder)!r}")
    backend = connect(options.model)
    asyncio.run(read_and_ask(backend, options.index, options.folder, options.question))


if __name__ == "__main__":
    main()
