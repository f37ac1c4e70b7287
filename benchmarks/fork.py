"""The cost of a fork, compared with agere, with parsing again at each delta, and parsing once.

    pip install anabranch agere jiter partial-json-parser matplotlib
    python benchmarks/fork.py                   # about two minutes, on a quiet machine
    python benchmarks/fork.py --quick           # ours and the lower bound only: twenty seconds
    python benchmarks/fork.py --svg benchmarks/fork.svg

One tool call streams in deltas of four characters from an async generator that never waits. The
figure is the CPU time until its arguments are available. Each round measures each contender once,
and a ratio is the median of the rounds' ratios to the lower bound: join everything, one
`json.loads` at the end. Slow contenders run in one round only. Those that parse again at each delta
are measured at a sample of the deltas. Ours uses `fork()` and `reply.tool_calls`, with `to_user`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
from pathlib import Path
from typing import Any

from _fork_contenders import OTHERS, OURS, Contender, LowerBound, Ours, Stream, streams
from _plot import plot

from anabranch.commander import Commander
from anabranch.handlers import handler

ROUNDS = 9
SIZES = {10_000: 20, 1_000_000: 1}  # characters, and how often a fast contender takes them a round

Figures = dict[str, dict[int, dict[str, list[float]]]]  # shape, size, contender: seconds a delta


@handler
async def measure(node: Any, contender: Contender, stream: Stream, times: int) -> float:
    """Return the CPU time for one delta, in seconds."""
    gc.collect()
    spent = [await contender.cost(node, stream) for _ in range(times)]
    return statistics.fmean(spent) / len(stream.deltas)


async def measure_all(contenders: list[Contender], rounds: int) -> Figures:
    figures: Figures = {}
    async with Commander(slow_after=None) as commander:
        for size, times in SIZES.items():
            for stream in streams(size):
                gc.collect()
                gc.freeze()  # otherwise the next contender would pay for a pass over the deltas
                found: dict[str, list[float]] = {each.name: [] for each in contenders}
                for number in range(rounds):
                    for each in contenders:
                        if not (each.once and number):
                            often = 1 if each.once else times
                            spent = await commander.run(measure(each, stream, often))
                            found[each.name].append(spent)
                figures.setdefault(stream.shape, {})[size] = found
    return figures


def ratio(found: dict[str, list[float]], name: str) -> float:
    base = found[LowerBound.name]
    return statistics.median(a / b for a, b in zip(found[name], base, strict=False))


def growth(figures: Figures, shape: str, name: str) -> float:
    """Return the cost of a delta in the long stream over that in the short one."""
    small, large = (statistics.median(figures[shape][size][name]) for size in SIZES)
    return large / small


# --- reporting


def report(figures: Figures) -> None:
    for shape, sizes in figures.items():
        for size, found in sizes.items():
            title = f"{shape}, {size:,} characters"
            print(f"\n{title:38} us a delta    least     most    ratio")
            for name, each in found.items():
                middle, least, most = (f(each) * 1e6 for f in (statistics.median, min, max))
                shown = f"{middle:11.3f} {least:9.3f} {most:9.3f} {ratio(found, name):9.2f}"
                print(f"  {name:34} {shown}")


def judge(figures: Figures) -> bool:
    """Print the table of goals; return whether all are met."""
    rows = [
        (f"{shape}, {size:,}: over the lower bound", ratio(found, Ours.name), 3.0, 2.5)
        for shape, sizes in figures.items()
        for size, found in sizes.items()
    ]
    rows += [
        (f"{shape}: a delta at 1 MB over one at 10 kB", growth(figures, shape, Ours.name), 1.2, 1.1)
        for shape in figures
    ]
    print(f"\n{'goal':50} {'measured':>9} {'goal':>6} {'aim':>6}")
    for what, measured, goal, aim in rows:
        verdict = "PASS" if measured <= goal else "MISS"
        verdict += ", aim met" if measured <= aim else ""
        print(f"{what:50} {measured:9.2f} {goal:6.1f} {aim:6.1f}  {verdict}")
    return all(measured <= goal for _, measured, goal, _ in rows)


def panels(figures: Figures) -> dict[str, dict[str, float]]:
    """Return the ratios of the code, by the title of each size."""
    return {
        f"{size:,} characters of code: cost, parsing once at the end = 1": {
            name: ratio(found, name) for name in found
        }
        for size, found in figures["code"].items()
    }


def installed() -> list[Contender]:
    """Create the other contenders; print which are not installed."""
    found: list[Any] = []
    for cls in OTHERS:
        try:
            found.append(cls())
        except ImportError:
            print(f"*** {cls.name} is NOT INSTALLED and not measured: see the head of this file")
    print("versions:", ", ".join(each.version for each in found) or "none of the others")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the fork with others.")
    parser.add_argument("--quick", action="store_true", help="ours and the lower bound only")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--svg", type=Path, help="where to write the plot")
    options = parser.parse_args()

    print(f"Python {sys.version.split()[0]}, {options.rounds} rounds")
    others = [] if options.quick else installed()
    contenders = [LowerBound(), *(cls() for cls in OURS), *others]
    figures = asyncio.run(measure_all(contenders, options.rounds))
    report(figures)
    if options.svg:
        plot(panels(figures), options.svg)
    sys.exit(0 if judge(figures) else 1)


if __name__ == "__main__":
    main()
