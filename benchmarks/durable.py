"""Durable runs: the cost of recording results, and the outcome of effects after kill -9.

    pip install dbos langgraph langgraph-checkpoint-sqlite matplotlib   # in a separate environment
    python benchmarks/durable.py                # about half an hour, on a quiet machine
    python benchmarks/durable.py --quick        # ours only, three rounds, 50 kills: two minutes
    python benchmarks/durable.py --kills 1000 --svg benchmarks/durable.svg
    python benchmarks/durable.py --before ../without    # beside a checkout without durable runs

One run measures all: each round measures each contender once, and a figure is the median of the
rounds' ratios to a plain node or a bare insert. CPU time covers the process including the writer
thread. Work that waits for the disk is measured in elapsed time. `benchmarks/durable_kills.py` does
the kills, each variant in a separate process.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from _plot import plot
from durable_contenders import TEXT, Contender, Ours, bare_inserts, run_plain
from durable_others import OTHERS

HERE = Path(__file__).parent
ROUNDS = 9
NODES = 10_000  # enough that opening and closing a file matter little
OTHERS_NODES = 200
FINISHED = 10_000
EFFECTS = 300
MESSAGES = 200
KILLS = 1_000
PAIRS = 30
PLAIN = "plain"

Found = dict[str, list[float]]
T = TypeVar("T")


# --- measuring


def fresh(measure: Callable[[Path], T]) -> T:
    """Measure in an empty folder on the disk of temporary files (`TMPDIR`)."""
    with tempfile.TemporaryDirectory() as folder:
        gc.collect()
        return measure(Path(folder))


def cpu(function: Callable[[], object]) -> float:
    """Return the CPU time in seconds of one call."""
    gc.collect()
    started = time.process_time()
    function()
    return time.process_time() - started


def rounds_of(measures: dict[str, Callable[[], float]], rounds: int) -> Found:
    """Call each measure once in each round; return their results."""
    found: Found = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def to_first(found: Found) -> dict[str, float]:
    """Return the median of each one's ratios to the first, round by round."""
    base = next(iter(found.values()))
    return {
        name: statistics.median(a / b for a, b in zip(each, base, strict=True))
        for name, each in found.items()
    }


def report(title: str, found: Found) -> dict[str, float]:
    ratios = to_first(found)
    print(f"\n{title}: microseconds (median, least, most), and the ratio to the first")
    for name, each in found.items():
        middle = statistics.median(each)
        few = [1e6 * value for value in (middle, min(each), max(each))]
        print(f"  {name:24} {few[0]:10.1f} {few[1]:10.1f} {few[2]:10.1f}   {ratios[name]:8.3f}")
    return ratios


def measure_nodes(contenders: list[Contender], rounds: int) -> dict[str, float]:
    """CPU time for a node whose result is written, relative to a plain node."""

    def kept(contender: Contender) -> float:
        count = NODES if isinstance(contender, Ours) else OTHERS_NODES
        return fresh(lambda folder: cpu(partial(contender.nodes, folder, count)) / count)  # type: ignore[attr-defined]

    measures: dict[str, Callable[[], float]] = {
        PLAIN: lambda: cpu(partial(run_plain, NODES)) / NODES
    }
    measures |= {each.name: partial(kept, each) for each in contenders if each.can("nodes")}
    return report("a node whose result is written, CPU", rounds_of(measures, rounds))


def measure_taking_up(ours: Ours, rounds: int) -> dict[str, float]:
    """CPU time for a node whose result is in the journal, relative to the same plain node.

    The process time of a complete second execution, from opening the file to closing it: the
    lease, reading all rows, the replay, the end. The goal applies to children at once. Children in
    turn, and steps instead of durable jobs, are variants.
    """
    ratios: dict[str, float] = {}
    for shape in ("at once", "in turn", "steps"):
        with tempfile.TemporaryDirectory() as name:
            first, copy = Path(name) / "first.db", Path(name) / "copy.db"
            ours.finish_children(first, FINISHED, shape)

            def take_up(shape: str = shape, first: Path = first, copy: Path = copy) -> float:
                shutil.copy(first, copy)
                return cpu(partial(ours.take_up, copy, FINISHED, shape)) / FINISHED

            measures: dict[str, Callable[[], float]] = {
                PLAIN: lambda shape=shape: cpu(partial(run_plain, FINISHED, shape)) / FINISHED,
                ours.name: take_up,
            }
            found = rounds_of(measures, rounds)
        title = f"taking up {FINISHED:,} finished nodes, {shape}, CPU for each"
        ratios[shape] = report(title, found)[ours.name]
    return ratios


def measure_effects(ours: Ours, rounds: int) -> dict[str, float]:
    """Time for an effect relative to a bare insert, one at a time and many at once."""
    print("\nan effect, wall clock: microseconds, those of a bare insert, the ratio (least, most)")
    ratios: dict[str, float] = {}
    for at_once in (False, True):
        work = partial(ours.effects, count=EFFECTS, at_once=at_once)
        pairs = [fresh(work) for _ in range(rounds)]
        found = sorted(effect / insert for effect, insert in pairs)
        name = f"{EFFECTS} at once" if at_once else "one at a time"
        ratios[name] = statistics.median(found)
        middle = [1e6 * statistics.median(each) for each in zip(*pairs, strict=True)]
        print(f"  {name:24} {middle[0]:10.1f} {middle[1]:10.1f}   {ratios[name]:8.3f}", end="")
        print(f" ({found[0]:.3f} to {found[-1]:.3f})")
    return ratios


def measure_others(others: list[Contender], rounds: int) -> dict[str, float]:
    """Measure the same for contenders whose effects are rows or checkpoints."""
    if not others:
        return {}
    measures: dict[str, Callable[[], float]] = {
        "bare insert": partial(fresh, lambda folder: bare_inserts(folder, OTHERS_NODES))
    }
    for each in others:
        measures[each.name] = partial(fresh, partial(_effects, each))
    return report("a step, wall clock", rounds_of(measures, rounds))


def _effects(contender: Any, folder: Path) -> float:
    return contender.effects(folder, OTHERS_NODES)


def measure_conversation(contenders: list[Contender]) -> dict[str, float]:
    """Bytes of a conversation on disk, relative to its text."""
    print(f"\nbytes of a conversation over its text, {MESSAGES} messages and more")
    found: dict[str, float] = {}
    for each in contenders:
        if not each.can("conversation"):
            continue
        work: Any = each
        many = 5 * MESSAGES if isinstance(each, Ours) else 2 * MESSAGES
        ratios = [
            fresh(lambda folder, count=count: work.conversation(folder, count) / count / TEXT)
            for count in (MESSAGES, many)
        ]
        print(f"  {each.name:24} {ratios[0]:8.2f} {ratios[1]:8.2f} (at {many:,})")
        found[each.name] = ratios[-1]
    return found


def measure_kills(kills: int, control: int, seed: int, *, dbos: bool) -> dict[str, dict[str, Any]]:
    """Kill runs in each way; return the outcome of their charges."""
    found: dict[str, dict[str, Any]] = {}
    print("\nkill -9, charges made outside")
    ways = {"reconcile": kills, "nothing": control, "step": control}
    for way, count in {**ways, **({"dbos": control} if dbos else {})}.items():
        command = [sys.executable, str(HERE / "durable_kills.py"), "--way", way]
        command += ["--kills", str(count), "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found[way] = said = json.loads(done.stdout)
        print("  " + ", ".join(f"{name} {value}" for name, value in said.items()), flush=True)
    return found


def measure_unused(before: Path, pairs: int) -> tuple[float, float]:
    """Return the interval of the extra cost of a plain tree over an older checkout.

    It is the 95 % interval of the median difference of `pairs` pairs of processes.
    """
    here = HERE.parent
    differences: list[float] = []
    for number in range(pairs):
        order = [here, before] if number % 2 else [before, here]
        took = {root: _plain_tree(root) for root in order}
        differences.append(took[here] / took[before] - 1)
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(differences, k=pairs)) for _ in range(4_000))
    low, high = medians[100], medians[3_899]
    print(f"\nthe plain tree over {before.name}: {low:+.4f} to {high:+.4f} ({pairs} pairs)")
    return low, high


def _plain_tree(root: Path) -> float:
    program = (
        f"import sys; sys.path[:0] = [{str(root)!r}, {str(HERE)!r}]\n"
        "import gc, time; from tree_contenders import OURS\n"
        "def one(shape, size):\n"
        "    gc.collect(); started = time.process_time(); getattr(OURS[0](), shape)(size)\n"
        "    return time.process_time() - started\n"
        "print(sum(min(one(shape, size) for _ in range(3))\n"
        "    for shape, size in (('fan', 10_000), ('chain', 10_000), ('tree', 12))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


# --- reporting


def judge(rows: list[tuple[str, float, float]]) -> bool:
    """Print the table of goals; return whether all are met."""
    print(f"\n{'goal':62} {'measured':>9} {'goal':>8}")
    for what, measured, goal in rows:
        print(f"{what:62} {measured:9,.3f} {goal:8,.2f}  {'PASS' if measured <= goal else 'MISS'}")
    return all(measured <= goal for _, measured, goal in rows)


def installed() -> list[Contender]:
    """Create the other contenders; print which are not installed."""
    found: list[Contender] = []
    for cls in OTHERS:
        try:
            found.append(cls())
        except ImportError:
            print(f"*** {cls.name} is NOT INSTALLED and not measured: see the head of this file")
    for each in found:
        print(f"{each.name} {version(each.name.lower())}: {each.note}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what durable runs cost and keep.")
    parser.add_argument("--quick", action="store_true", help="ours only, few rounds and kills")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--kills", type=int, help=f"with reconcile; {KILLS} unless told")
    parser.add_argument("--control", type=int, help="kills in each of the other ways")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ANABRANCH_SEED", "0")))
    parser.add_argument("--before", type=Path, help="a checkout without durable runs")
    parser.add_argument("--svg", type=Path, help="where to write the plot")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else ROUNDS)
    kills = options.kills or (50 if options.quick else KILLS)
    control = options.control or (30 if options.quick else 100)
    print(f"Python {sys.version.split()[0]}, {rounds} rounds, ANABRANCH_SEED={options.seed}")

    logging.disable(logging.WARNING)  # a body with ten thousand puts is expected to block the loop
    ours = Ours()
    others = [] if options.quick else installed()
    gc.collect()
    gc.freeze()
    nodes = measure_nodes([ours, *others], rounds)
    taken_up = measure_taking_up(ours, rounds)
    effects = measure_effects(ours, rounds)
    steps = measure_others(others, rounds)
    commits = fresh(lambda folder: ours.commits(folder, EFFECTS))
    talks = measure_conversation([ours, *others])
    with_dbos = any(each.name == "DBOS" for each in others)
    killed = measure_kills(kills, control, options.seed, dbos=with_dbos)
    safe, nothing, step = (killed[way] for way in ("reconcile", "nothing", "step"))

    if options.svg:
        panels = {
            "written node: CPU, plain = 1": nodes,
            "effect: time, insert = 1": {
                **{f"{ours.name}, {name}": ratio for name, ratio in effects.items()},
                **steps,
            },
            "conversation: bytes, text = 1": talks,
        }
        plot(panels, options.svg)
    rows: list[tuple[str, float, float]] = [
        ("a node whose result is written, CPU over a plain node", nodes[ours.name], 4),
        ("a memoised node, in turn, CPU over a plain node in turn", taken_up["in turn"], 4),
        ("a memoised step, CPU over a plain handler", taken_up["steps"], 4),
        (f"taking up {FINISHED:,} finished nodes, CPU over plain", taken_up["at once"], 2),
        ("a sequential effect: commits", commits, 1.1),
        ("a sequential effect over a bare insert", effects["one at a time"], 2.5),
        (
            f"one of {EFFECTS} effects at once over a bare insert",
            effects[f"{EFFECTS} at once"],
            0.2,
        ),
        ("a conversation over its text", talks[ours.name], 1.5),
        (f"doubled, {safe['kills']} kills with reconcile", safe["doubled"], 0),
        ("lost", safe["lost"], 0),
        ("short of 200 of them between intent and result", max(0, 200 - safe["between"]), 0),
        (f"doubled, {nothing['kills']} kills without reconcile", nothing["doubled"], 0),
        ("the control doubles nothing (1: the kills prove nothing)", not step["doubled"], 0),
    ]
    if options.before:
        rows.append(
            (
                "a plain tree, feature unused",
                measure_unused(options.before.resolve(), PAIRS)[1],
                0.03,
            )
        )
    met = judge(rows)
    print(
        f"\nthe control, charges made in a step: {step['kills']} kills doubled {step['doubled']};"
    )
    print(f"without reconcile {nothing['waiting']} of {nothing['runs']} runs waited for a person")
    for each in others:
        if isinstance(each, OTHERS[0]):
            each.close()
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
