"""The smallest agent with a model: it answers in one word, and remembers the conversation.

    python examples/one_word_agent.py
    python examples/one_word_agent.py --model openai:gpt-5-mini "Name a river." "And its source?"

The second question makes sense only with the first one. One-word answers need a model with some
billion parameters; the local one (135 million) answers in a sentence.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from anabranch import Agent, Backend, Memory, connect

SYSTEM = "You answer in one word, and say nothing else."
QUESTIONS = ("What is the capital of France?", "Which river flows through it?")


def ask(backend: Backend, questions: Iterable[str]) -> Agent:
    agent = Agent(backend, SYSTEM, name="sage", memory=Memory())
    for question in questions:
        answer = agent.run_sync(question)
        print(f"user: {question}\n{answer.sender}: {answer.text}")
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent that answers in one word.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    options = parser.parse_args()
    agent = ask(connect(options.model), options.questions)
    print(f"({len(agent.memory.messages())} messages in its memory)")


if __name__ == "__main__":
    main()
