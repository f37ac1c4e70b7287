"""A parser that finds the code in a reply and checks whether it is valid.

    python examples/tool_parser.py
    python examples/tool_parser.py --model openai:gpt-5-mini "Count the words of a text."

Text before the code is the thought; text after it is dropped. `validate` gets the code. If Python
cannot parse it, or if the reply was cut off, the status is "invalid". The code does not run
(`coder.py` runs code). The local model (135 million parameters) follows the format here, but its
programs are often wrong.
"""

from __future__ import annotations

import argparse
import ast
from typing import Any

from anabranch import Agent, Backend, connect
from anabranch.agents import ToolParser
from anabranch.agents.layers import ToolAction
from anabranch.dispatch import FencedCode

SYSTEM = "You write short Python programs."


def readable(arguments: dict[str, Any]) -> dict[str, Any]:
    ast.parse(arguments["code"])
    return arguments


def write(backend: Backend, task: str) -> ToolAction:
    parser = ToolParser(FencedCode(), validate=readable)
    programmer = Agent(backend, SYSTEM, name="programmer", output_format=parser)
    return programmer.run_sync(task).output


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent whose code is found in its reply.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument(
        "task", nargs="?", default="Write a Python program that prints the numbers from 1 to 5."
    )
    options = parser.parse_args()
    action = write(connect(options.model), options.task)
    for name, value in action.items():
        print(f"{name}: {value!r}")


if __name__ == "__main__":
    main()
