"""Observing a run: the cost of listening, recording and spans, and of showing a recording.

    pip install logfire matplotlib playwright    # into an environment that has this package too
    python benchmarks/tracing.py                 # about ten minutes, on a quiet machine
    python benchmarks/tracing.py --quick         # three rounds, smaller recordings: two minutes
    python benchmarks/tracing.py --svg benchmarks/tracing.svg

One run measures all: each round measures each way once, and a figure is the median of the rounds'
ratios to a bare tree. CPU time covers the process including the threads that write and export; the
elapsed time is printed too. Missing packages and programs are named and left out. The page opens in
the Chromium on the path.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _plot import plot
from tracing_contenders import InLogfire, Recorded, Spanned, Watched, of_jobs
from tree_contenders import Ours, nodes_in_tree

ROUNDS = 9
SIZE, DEPTH = 10_000, 12
FEW, SHALLOW = 2_000, 10  # for those that take 100 microseconds a node and more
PROBED = 33_334  # nodes: 100,000 events
ON_PAGE = 10_000
LINES = 1_000_000
BARE = "bare"

Cost = tuple[float, float]  # CPU seconds, and seconds by the clock on the wall
Found = dict[str, list[Cost]]


# --- measuring


def cost(function: Callable[[], object]) -> Cost:
    """Return the duration of one call."""
    gc.collect()
    clock, started = time.perf_counter(), time.process_time()
    function()
    return time.process_time() - started, time.perf_counter() - clock


def per_node(contender: Ours, shape: str) -> Cost:
    """Return the times for one node, in microseconds."""
    few = contender.most < SIZE
    size = (SHALLOW if few else DEPTH) if shape == "tree" else FEW if few else SIZE
    nodes = nodes_in_tree(size) if shape == "tree" else size
    cpu, wall = cost(lambda: getattr(contender, shape)(size))
    return cpu / nodes * 1e6, wall / nodes * 1e6


def measure_shapes(ways: dict[str, Ours], rounds: int, kind: str) -> dict[str, dict[str, float]]:
    """Return the cost of a node in each way relative to a bare one, by shape."""
    ratios: dict[str, dict[str, float]] = {}
    for shape in ("fan", "chain", "tree"):
        found: Found = {name: [] for name in ways}
        for each in ways.values():  # first-time imports
            per_node(each, shape)
        for _ in range(rounds):
            for name, each in ways.items():
                found[name].append(per_node(each, shape))
        ratios[f"{shape} of {kind}"] = report(f"{shape} of {kind}", found)
    return ratios


def report(title: str, found: Found) -> dict[str, float]:
    """Print the times and their ratios to the first; return those of CPU time."""
    base = next(iter(found.values()))
    print(f"\n{title}: microseconds a node (CPU: median, least, most; wall), over bare (CPU; wall)")
    ratios: dict[str, float] = {}
    for name, each in found.items():
        cpu, wall = ([times[place] for times in each] for place in (0, 1))
        over = [
            statistics.median(a[place] / b[place] for a, b in zip(each, base, strict=True))
            for place in (0, 1)
        ]
        ratios[name] = over[0]
        print(
            f"  {name:12} {statistics.median(cpu):8.2f} {min(cpu):8.2f} {max(cpu):8.2f}"
            f" {statistics.median(wall):8.2f}   {over[0]:6.2f} {over[1]:6.2f}"
        )
    return ratios


def measure_files(recorded: Recorded) -> dict[str, float]:
    """Return the bytes of a recording for each node, by shape."""
    sizes: dict[str, float] = {}
    for shape, size in (("fan", SIZE), ("chain", SIZE), ("tree", DEPTH)):
        getattr(recorded, shape)(size)
        nodes = nodes_in_tree(size) if shape == "tree" else size
        sizes[shape] = recorded.file.stat().st_size / nodes
    print("\nbytes of a recording for each node:", end=" ")
    print(", ".join(f"{shape} {size:.0f}" for shape, size in sizes.items()))
    return sizes


# --- the loop


async def probe(file: Path | None, burst: int) -> tuple[list[float], list[float]]:
    """Put nodes in bursts; return the durations of the loop's turns and the delays of timers.

    After each burst, fifty timers of a millisecond give the thread time to write the events.
    """
    from anabranch.commander import Commander
    from anabranch.handlers import handler
    from anabranch.tracing import record

    @handler
    async def leaf(node: Any) -> None:
        pass

    turns: list[float] = []
    late: list[float] = []
    loop = asyncio.get_running_loop()
    async with Commander() as commander:
        if file is not None:
            record(commander, file)
        for _ in range(0, PROBED, burst):
            await [commander.call_handler(leaf()) for _ in range(burst)][-1]
            for _ in range(max(2, burst // 40)):
                due = loop.time() + 0.001
                await asyncio.sleep(0.001)
                late.append(loop.time() - due)
                since = loop.time()
                await asyncio.sleep(0)
                turns.append(loop.time() - since)
    return turns, late


def measure_latency(file: Path, rounds: int) -> dict[str, float]:
    """Measure the effect of recording on the loop's turns; return the 99th percentiles in ms."""
    print("\nthe loop while 100,000 events are written: milliseconds (median, 99 %, most)")
    added: dict[str, float] = {}
    for burst in (40, 2_000):
        both: dict[str, tuple[list[float], list[float]]] = {BARE: ([], []), "record()": ([], [])}
        for _ in range(rounds):
            for name, kept in both.items():
                gc.collect()
                found = asyncio.run(probe(None if name == BARE else file, burst))
                for all_, some in zip(kept, found, strict=True):
                    all_.extend(some)
        for place, what in enumerate(("a turn", "a timer is late by")):
            for name, kept in both.items():
                middle, high, most = (quantile(kept[place], share) for share in (0.5, 0.99, 1))
                print(
                    f"  bursts of {burst:5,}, {what:18} {name:9} {middle:8.3f} {high:8.3f}", end=""
                )
                print(f" {most:8.3f}")
            over = [quantile(kept[place], 0.99) for kept in both.values()]
            added[f"{what}, bursts of {burst:,}"] = over[1] - over[0]
    return added


def quantile(values: list[float], share: float) -> float:
    return 1e3 * sorted(values)[min(len(values) - 1, int(len(values) * share))]


# --- showing a recording


def write_recording(file: Path, nodes: int) -> None:
    """Record a tree of jobs, at most a thousand of them at once."""
    from anabranch.commander import Commander
    from anabranch.jobs import Job
    from anabranch.tracing import record

    class Leaf(Job[None]):
        async def task(self) -> None:
            pass

    class Branch(Job[None]):
        count: int

        async def task(self) -> None:
            for _ in range(self.count):
                self.put_job(Leaf())

    async def main() -> None:
        async with Commander() as commander, record(commander, file) as recorder:
            for first in range(0, nodes, 1_000):
                await commander.run(Branch(min(1_000, nodes - first)))
        assert recorder.error is None

    asyncio.run(main())


def measure_page(file: Path, folder: Path, rounds: int) -> tuple[float, float] | None:
    """Write and open the page of a recording; return its size and the seconds until it is ready."""
    from anabranch.tracing import read

    page = folder / "page.html"
    cpu, _ = cost(lambda: read(file).html(page))
    size = page.stat().st_size
    print(f"\nthe page of {ON_PAGE:,} nodes: {size:,} bytes, written in {cpu:.2f} s of CPU", end="")
    ready = open_page(page, rounds)
    if ready is None:
        return None
    print(f"; can be used after {statistics.median(ready):.2f} s ({min(ready):.2f} to", end="")
    print(f" {max(ready):.2f}), Chromium's start not counted")
    return size, statistics.median(ready)


def open_page(page: Path, rounds: int) -> list[float] | None:
    """Return the seconds until the page is drawn, each in a new tab."""
    names = "chromium", "chromium-browser", "google-chrome"
    found = next(filter(None, map(shutil.which, names)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        print("\n*** NO CHROMIUM or no playwright: the page was not opened")
        return None
    ready: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for _ in range(rounds):
            tab = browser.new_page()
            tab.context.set_offline(True)
            since = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_function("window.anabranchReady")
            ready.append(time.perf_counter() - since)
            tab.close()
        browser.close()
    return ready


def measure_reading(folder: Path, lines: int) -> tuple[float, float]:
    """Read a long recording in a separate process; return the seconds and megabytes."""
    file = folder / "long.jsonl"
    write_recording(file, lines // 3)
    seconds, megabytes, nodes, missed = in_own_process(
        "from anabranch.tracing import read\nbefore = tracing.most_memory()\n"
        f"since = time.process_time()\ntrace = read({str(file)!r})\n"
        "seconds = time.process_time() - since\n"
        "print(seconds, tracing.most_memory() - before, len(trace), trace.missed)"
    )
    with file.open("rb") as opened:
        count = sum(1 for _ in opened)
    print(f"\nreading {count:,} lines, {nodes:,.0f} nodes, {missed:.0f} events missed:", end=" ")
    print(f"{seconds:.1f} s of CPU, {megabytes:.0f} MB")
    return seconds / count * 1e6, megabytes


def in_own_process(program: str) -> list[float]:
    """Run a program with this module as `tracing`; return the numbers that it prints."""
    head = (
        f"import logging, sys, time\nfrom pathlib import Path\nsys.path[:] = {sys.path!r}\n"
        "import tracing\nlogging.disable(logging.WARNING)\n"
    )
    command = [sys.executable, "-c", head + program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(each) for each in done.stdout.split()]


def most_memory() -> float:
    """Return the peak memory of this process in megabytes, NaN if the system does not report it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(each.split()[1]) / 1024 for each in lines if "VmHWM" in each), math.nan)


def measure_diff(first: Path, second: Path) -> float | None:
    """Compare two recordings of one program; return the CPU seconds."""
    try:
        from anabranch.tracing import diff
    except ImportError:
        print("\n*** diff is ABSENT from this checkout, and not measured")
        return None
    seconds, _ = cost(lambda: diff(first, second))
    print(f"\ndiff of two recordings of {ON_PAGE:,} nodes: {seconds:.2f} s of CPU")
    return seconds


def measure_memory(folder: Path, nodes: int) -> dict[int, float]:
    """Return the megabytes of this process for growing numbers of nodes, 1,000 alive at a time."""
    found: dict[int, float] = {}
    for count in (nodes // 10, nodes // 2, nodes):
        (found[count],) = in_own_process(
            f"tracing.write_recording(Path({str(folder / 'memory.jsonl')!r}), {count})\n"
            "print(tracing.most_memory())"
        )
    print("\nmost memory of a process that records, a thousand nodes alive at once:", end=" ")
    print(", ".join(f"{size:.0f} MB after {count:,} nodes" for count, size in found.items()))
    return found


# --- reporting


def judge(rows: list[tuple[str, float, float]]) -> bool:
    """Print the table of goals; return whether all are met."""
    print(f"\n{'goal':62} {'measured':>11} {'goal':>9}")
    for what, measured, goal in rows:
        verdict = "PASS" if measured <= goal else "MISS"
        print(f"{what:62} {measured:11,.2f} {goal:9,.2f}  {verdict}")
    return all(measured <= goal for _, measured, goal in rows)


def draw(ratios: dict[str, dict[str, float]], file: Path) -> None:
    """Draw the ratios of handlers, the only nodes that Logfire can measure."""
    panels = {
        f"{shape}, bare = 1": {
            name if name == InLogfire.name else f"anabranch, {name}": ratio
            for name, ratio in each.items()
        }
        for shape, each in ratios.items()
        if "handlers" in shape
    }
    plot(panels, file)


def installed(file: Path, *, quick: bool) -> dict[str, dict[str, Ours]]:
    """Create the ways to observe a run, by kind of node; print which are not installed."""
    ways: dict[str, dict[str, Ours]] = {"handlers": {BARE: Ours()}, "jobs": {BARE: of_jobs(Ours())}}
    both: list[tuple[type[Ours], list[Any]]] = [(Watched, []), (Recorded, [file]), (Spanned, [])]
    for cls, arguments in both:
        try:
            ways["handlers"][cls.name] = cls(*arguments)
            ways["jobs"][cls.name] = of_jobs(cls(*arguments))
        except ImportError as error:
            print(f"*** {cls.name} is ABSENT, and not measured: {error}")
    if not quick:
        try:
            ways["handlers"][InLogfire.name] = InLogfire()
        except ImportError:
            print("*** Logfire is NOT INSTALLED and not measured: see the head of this file")
    names = ("opentelemetry-sdk", "logfire", "playwright")
    print(
        "versions:", ", ".join(f"{name} {found}" for name in names if (found := version_of(name)))
    )
    return ways


def version_of(name: str) -> str:
    try:
        return version(name)
    except ImportError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what it costs to see a run.")
    parser.add_argument("--quick", action="store_true", help="few rounds, small, no Logfire")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--svg", type=Path, help="where to write the plot")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else ROUNDS)
    lines = LINES // 10 if options.quick else LINES
    print(f"Python {sys.version.split()[0]}, {rounds} rounds, {os.cpu_count()} cores")
    logging.disable(logging.WARNING)  # a body with ten thousand puts is expected to block the loop
    sys.setrecursionlimit(1_000_000)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways = installed(folder / "run.jsonl", quick=options.quick)
        gc.collect()
        gc.freeze()
        ratios = {
            shape: each
            for kind, some in ways.items()
            for shape, each in measure_shapes(some, rounds, kind).items()
        }
        recorded = ways["handlers"][Recorded.name]
        assert isinstance(recorded, Recorded)
        measure_files(recorded)
        added = measure_latency(folder / "probe.jsonl", max(3, rounds // 3))
        first, second = folder / "first.jsonl", folder / "second.jsonl"
        for file in (first, second):
            write_recording(file, ON_PAGE)
        page = measure_page(first, folder, rounds)
        compared = measure_diff(first, second)
        measure_memory(folder, lines)
        read_each, _ = measure_reading(folder, lines)

    if options.svg:
        draw(ratios, options.svg)
    rows: list[tuple[str, float, float]] = []
    for goal_of, most in ((Watched.name, 1.5), (Recorded.name, 3.0), (Spanned.name, 10.0)):
        for shape, each in ratios.items():
            if goal_of in each:
                rows.append((f"{goal_of} over a bare node, {shape}", each[goal_of], most))
    rows += [(f"recording adds, at 99 %, ms: {what}", ms, 1.0) for what, ms in added.items()]
    if page is not None:
        rows.append((f"the page of {ON_PAGE:,} nodes, bytes", page[0], 1_000_000))
        rows.append((f"the page of {ON_PAGE:,} nodes, s until it can be used", page[1], 2))
    if compared is not None:
        rows.append((f"diff of two recordings of {ON_PAGE:,} nodes, s", compared, 5))
    rows.append(("reading a line of a recording, microseconds", read_each, 10))
    sys.exit(0 if judge(rows) else 1)


if __name__ == "__main__":
    main()
