"""An agent that learns a task from worked examples in its prompt.

    python examples/few_shot.py
    python examples/few_shot.py --plain                          (without the examples, to compare)
    python examples/few_shot.py --model openai:gpt-5-mini "The Rhône, 813 km in all, ..."

Examples help small models most. The local one (135 million parameters) can do this task with
them, and cannot do it without.
"""

from __future__ import annotations

import argparse

from anabranch import Agent, connect
from anabranch.agents import Aggregator, FewShotAggregator

SYSTEM = "You write facts down."
EXAMPLES = {
    "The Nile is 6650 km long.": "river=Nile; length_km=6650",
    "At 6400 km the Amazon is nearly as long.": "river=Amazon; length_km=6400",
    "The Danube flows for 2850 km.": "river=Danube; length_km=2850",
}


def few_shot() -> Aggregator:
    return FewShotAggregator(
        {"role": role, "content": content}
        for example in EXAMPLES.items()
        for role, content in zip(("user", "assistant"), example, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent with worked examples.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument("--plain", action="store_true", help="leave out the examples")
    parser.add_argument("fact", nargs="?", default="The Rhine has a length of 1230 km.")
    options = parser.parse_args()
    aggregator = Aggregator() if options.plain else few_shot()
    clerk = Agent(connect(options.model), SYSTEM, name="clerk", aggregator=aggregator)
    print(clerk.run_sync(options.fact).text)


if __name__ == "__main__":
    main()
