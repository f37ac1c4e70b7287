"""Find the flag: a planner, a reviewer and an executor in an environment.

    python examples/planner_reviewer_executor.py
    python examples/planner_reviewer_executor.py --model openai:gpt-5-mini   (with OPENAI_API_KEY)
    python examples/planner_reviewer_executor.py --model openai:gpt-5 --small openai:gpt-5-nano

The environment is a simulated folder with four commands; it does not touch your files. A model that
follows instructions (8 billion parameters or more) finds the flag. A grammar forces the local model
to write JSON, but its plan exceeds the limit of tokens (`--tokens`). So the run ends with an error
that names the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import Any

from anabranch import Backend, connect
from anabranch.agents import EpisodeResult, Observation, planner_reviewer_executor

TASK = (
    "Find the flag, which is in a hidden file, and submit it. The commands are `ls [-a] FOLDER`, "
    "`cat FILE` and `submit FLAG`; one command at a time."
)
FILES = {
    "/readme.txt": "Hidden files begin with a dot.",
    "/home/.flag": "flag{under-the-bridge}",
    "/home/poem.txt": "The river leaves, the river comes again.",
}


class Files:
    """An environment: the commands and their results. It is over once the flag is submitted."""

    async def reset(self) -> str:
        return "You stand in the folder /."

    async def step(self, action: str) -> Observation:
        match action.split():
            case ["submit", flag]:
                right = flag == FILES["/home/.flag"]
                return Observation("Right!" if right else "Wrong.", float(right), done=right)
            case ["cat", file]:
                return Observation(FILES.get(file, f"cat: {file}: no such file"))
            case ["ls", *options]:
                return Observation(listing(options))
            case _:
                return Observation(f"{action[:80]!r} is no command: ls, cat or submit")


def listing(options: list[str]) -> str:
    folder = next((each for each in options if not each.startswith("-")), "/").rstrip("/") + "/"
    inside = [file.removeprefix(folder) for file in FILES if file.startswith(folder)]
    names = sorted({name.partition("/")[0] for name in inside})
    shown = [name for name in names if "-a" in options or not name.startswith(".")]
    return "  ".join(shown) or f"ls: {folder}: nothing to show"


async def search(
    backend: Backend, small: Backend, *, steps: int, errors: int = 3, tokens: int = 80
) -> EpisodeResult:
    local = backend.provider == "local"
    options: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": tokens} if local else {}
    orchestrator = planner_reviewer_executor(
        backend,
        TASK,
        reviewer=small,
        executor=small,
        max_steps=steps,
        max_errors=errors,
        constrain=local,
        **options,
    )
    async with backend, small:
        result = await orchestrator.play(Files())
    for number, step in enumerate(result.steps, 1):
        seen = step.observation.text if step.observation else "(done)"
        print(f"{number}. {step.action.content}\n   {seen}")
    print(f"({result.status} after {len(result.steps)} steps)")
    for model, usage in orchestrator.usage_by_model().items():
        print(f"{usage.total_tokens} tokens of {model}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the flag.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--small", help="another model, for the reviewer and the executor")
    parser.add_argument("--steps", type=int, default=12, help="the most commands")
    parser.add_argument(
        "--errors", type=int, default=3, help="the most invalid answers that are repeated"
    )
    parser.add_argument(
        "--tokens", type=int, default=80, help="the most tokens of a local model's answer"
    )
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("anabranch.agents").setLevel("INFO")
    backend = connect(options.model)
    small = connect(options.small) if options.small else backend
    asyncio.run(
        search(backend, small, steps=options.steps, errors=options.errors, tokens=options.tokens)
    )


if __name__ == "__main__":
    main()
