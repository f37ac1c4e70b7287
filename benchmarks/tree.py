"""This engine against raw asyncio, anyio, trio, agere, LangGraph and pydantic-graph.

    pip install trio agere langgraph pydantic-graph matplotlib
    python benchmarks/tree.py                   # about fifteen minutes, on a quiet machine
    python benchmarks/tree.py --quick           # ours and raw only: about two
    python benchmarks/tree.py --svg benchmarks/tree.svg

One process measures all in CPU time, with one thread: each round measures each contender once. A
figure is the median of the rounds' ratios to the raw `asyncio.TaskGroup` with a done callback.
Imported objects are frozen (`gc.freeze`), so that a library with a large heap does not slow the
others.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _plot import plot
from tree_contenders import OURS, Contender, Ours, OursWatched, Raw
from tree_others import OTHERS

ROUNDS = 7
FAN = CHAIN = 10_000
DEPTH = 13
MEMORY = (50_000, 100_000)
SIZES = (1_000, 5_000, 20_000, 100_000)
ORDERED = 20_000
DEEP = 100_000

Ratios = dict[str, dict[str, float]]


# --- measuring


def cost(function: Callable[[], object]) -> float:
    """Return the CPU time in seconds of one call."""
    gc.collect()
    started = time.process_time()
    function()
    return time.process_time() - started


def per_node(contender: Contender, shape: str, size: int) -> float:
    """Return the CPU microseconds for one node, at a size that the contender supports."""
    if shape == "chain":
        size = min(size, getattr(contender, "chain_most", contender.most))
    elif shape == "fan":
        size = min(size, contender.most)
    nodes = 2 ** (size + 1) - 2 if shape == "tree" else size
    return cost(lambda: getattr(contender, shape)(size)) / nodes * 1e6


def interleaved(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each measure once in each round; return their results."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def to_first(found: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each one's ratios to the first, round by round."""
    base = next(iter(found.values()))
    return {
        name: statistics.median(a / b for a, b in zip(each, base, strict=True))
        for name, each in found.items()
    }


def measure_shapes(contenders: list[Contender], rounds: int) -> Ratios:
    """Measure fan, chain and tree."""
    ratios: Ratios = {}
    for shape, size in (("fan", FAN), ("chain", CHAIN), ("tree", DEPTH)):
        able = [each for each in contenders if each.can(shape)]
        found = interleaved(
            {each.name: partial(per_node, each, shape, size) for each in able}, rounds
        )
        ratios[shape] = to_first(found)
        report(f"{shape} {size:,}", found, ratios[shape])
    return ratios


def report(title: str, found: dict[str, list[float]], ratios: dict[str, float]) -> None:
    print(f"\n{title}: microseconds a node (median, least, most), and the ratio to raw")
    for name, each in found.items():
        middle = statistics.median(each)
        print(f"  {name:20} {middle:8.2f} {min(each):8.2f} {max(each):8.2f}   {ratios[name]:7.3f}")


def measure_growth(contenders: list[Contender], rounds: int) -> dict[str, float]:
    """Fan out to growing sizes; return the ratio to raw at the largest over that at 5,000."""
    at: dict[int, dict[str, float]] = {}
    print("\ngrowth: the fan-out's ratio to raw, by size")
    for size in SIZES:
        able = [each for each in contenders if each.can("fan") and each.most >= size]
        able = [each for each in able if size <= 20_000 or each.most >= 100_000]
        measures = {each.name: partial(per_node, each, "fan", size) for each in able}
        at[size] = to_first(interleaved(measures, rounds))
        print(f"  {size:7,}  " + "  ".join(f"{name} {r:.3f}" for name, r in at[size].items()))
    largest = {name: max(size for size in SIZES if name in at[size]) for name in at[5_000]}
    return {name: at[size][name] / at[5_000][name] for name, size in largest.items()}


def bytes_per_node(contender: Contender, count: int) -> float:
    """Return the traced memory of one live blocked node."""
    held = [0, 0]

    def look() -> None:
        gc.collect()
        held[1] = tracemalloc.get_traced_memory()[0]

    gc.collect()
    tracemalloc.start()
    held[0] = tracemalloc.get_traced_memory()[0]
    contender.blocked(count, look)  # type: ignore[attr-defined]
    tracemalloc.stop()
    return (held[1] - held[0]) / count


def measure_memory(contenders: list[Contender]) -> dict[str, dict[int, float]]:
    """Measure the bytes for each live blocked node, callback included."""
    found: dict[str, dict[int, float]] = {}
    print("\nbytes for each live blocked node")
    for each in contenders:
        if not each.can("blocked"):
            continue
        counts = [count for count in MEMORY if count <= each.most] or [each.most]
        found[each.name] = {count: bytes_per_node(each, count) for count in counts}
        sizes = "   ".join(f"{size:7,.0f} at {n:,}" for n, size in found[each.name].items())
        print(f"  {each.name:20} {sizes}")
    return found


def finishing(contender: Any, order: range) -> float:
    """Return the CPU time from the first of `ORDERED` children's end to the last one's."""
    started = [0.0]

    def look() -> None:
        gc.collect()
        started[0] = time.process_time()

    contender.ordered(ORDERED, order, look)
    return time.process_time() - started[0]


def measure_orders(contenders: list[Contender], rounds: int) -> dict[str, float]:
    """Return the cost of ending in reverse order relative to ending in order."""
    print(f"\nfinishing {ORDERED:,} children in reverse, over in order")
    ratios: dict[str, float] = {}
    for each in contenders:
        if each.can("ordered"):
            measures = {
                "in order": partial(finishing, each, range(ORDERED)),
                "in reverse": partial(finishing, each, range(ORDERED - 1, -1, -1)),
            }
            ratios[each.name] = to_first(interleaved(measures, rounds))["in reverse"]
            print(f"  {each.name:20} {ratios[each.name]:.3f}")
    return ratios


def measure_watching(rounds: int) -> dict[str, float]:
    """Return the cost of a listener that reads each event, for each shape."""
    print("\na listener to events(), over none")
    found: dict[str, float] = {}
    for shape, size in (("fan", FAN), ("chain", CHAIN), ("tree", DEPTH)):
        measures = {
            each.name: partial(per_node, each, shape, size) for each in (Ours(), OursWatched())
        }
        found[shape] = to_first(interleaved(measures, rounds))[OursWatched.name]
        print(f"  {shape:20} {found[shape]:.3f}")
    return found


def measure_depth() -> list[str]:
    """Run a chain `DEEP` deep at the default recursion limit; return the outcome."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    try:
        return [f"{cls().name}: {per_node(cls(), 'chain', DEEP):.1f} us a node" for cls in OURS]
    except RecursionError:
        return []
    finally:
        sys.setrecursionlimit(before)


# --- reporting


def judge(rows: list[tuple[str, float, float, float]]) -> bool:
    """Print the table of goals; return whether all are met."""
    print(f"\n{'goal':58} {'measured':>9} {'goal':>8} {'aim':>8}")
    for what, measured, goal, aim in rows:
        verdict = "PASS" if measured <= goal else "MISS"
        verdict += ", aim met" if measured <= aim else ""
        print(f"{what:58} {measured:9,.3f} {goal:8,.2f} {aim:8,.2f}  {verdict}")
    return all(measured <= goal for _, measured, goal, _ in rows)


def bars(ratios: Ratios) -> None:
    """Draw the ratios as text, on a scale that ends at 4."""
    for shape, each in ratios.items():
        print(f"\n{shape}: cost of a node, raw TaskGroup = 1")
        for name, ratio in each.items():
            bar = "█" * round(min(ratio, 4) * 15)
            print(f"  {name:20} {bar}{'…' if ratio > 4 else ''} {ratio:.2f}")


def installed() -> list[Contender]:
    """Create the other contenders; print which are not installed."""
    found: list[Contender] = []
    for cls in OTHERS:
        try:
            found.append(cls())
        except ImportError:
            print(f"*** {cls.name} is NOT INSTALLED and not measured: see the head of this file")
    names = ("anyio", "trio", "agere", "langgraph", "pydantic-graph")
    there = {each.name.lower() for each in found}
    print("versions:", ", ".join(f"{name} {version(name)}" for name in names if name in there))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the engine with raw asyncio and others.")
    parser.add_argument("--quick", action="store_true", help="ours and raw only")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--svg", type=Path, help="where to write the plot")
    options = parser.parse_args()

    depth = measure_depth()
    sys.setrecursionlimit(1_000_000)  # raw, anyio, trio and agere need it for their chains
    ours: list[Contender] = [cls() for cls in OURS]
    others = [] if options.quick else installed()
    contenders: list[Contender] = [Raw(), *ours, *others]
    gc.collect()
    gc.freeze()
    print(f"Python {sys.version.split()[0]}, {options.rounds} rounds")
    for each in contenders:
        if each.note:
            print(f"note: {each.name}: {each.note}")

    ratios = measure_shapes(contenders, options.rounds)
    growth = measure_growth(contenders, options.rounds)
    memory = measure_memory(contenders)
    orders = measure_orders(contenders, options.rounds)
    watching = measure_watching(options.rounds)
    print(f"\na chain {DEEP:,} deep at the default recursion limit:", "; ".join(depth) or "FAILED")

    bars(ratios)
    if options.svg:
        titled = {f"{shape}: a node, raw TaskGroup = 1": each for shape, each in ratios.items()}
        plot(titled, options.svg)
    rows: list[tuple[str, float, float, float]] = []
    for each in ours:
        rows += [
            (f"fan-out {FAN:,}, {each.name}", ratios["fan"][each.name], 1.0, 0.9),
            (f"chain {CHAIN:,}, {each.name}", ratios["chain"][each.name], 0.6, 0.5),
            (f"tree of depth {DEPTH}, {each.name}", ratios["tree"][each.name], 0.85, 0.7),
            (f"bytes at 50,000, {each.name}", memory[each.name][50_000], 2_000, 1_800),
            (f"growth 5,000 to 100,000, {each.name}", growth[each.name], 1.2, 1.1),
            (f"reverse over in order, {each.name}", orders[each.name], 1.2, 1.2),
        ]
    rows += [(f"a listener, {shape}", ratio, 1.5, 1.5) for shape, ratio in watching.items()]
    met = judge(rows)
    sys.exit(0 if met and depth else 1)


if __name__ == "__main__":
    main()
