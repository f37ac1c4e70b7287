"""The cost of a conversation for the client, compared with hand-written loops and other libraries.

    python benchmarks/loop.py [--conversations 1 50 200] [--only NAME ...] [--keep FIGURES.json]

A conversation is a user's message, a tool call, its result and a 200-token answer. A scripted
server in another process streams it, one event for each token, at full speed or with `--pause`
seconds between them. Each contender runs in a separate process, after two conversations as warm-up.
The figure is the CPU time of that process in the best round. Rounds run for five seconds, at least
two. The others are

    pip install "anabranch[openai,http]" openai-agents "pydantic-ai-slim[openai]" \\
        langgraph langchain-openai agere

Contenders whose package is not installed are named at the end. With `--keep`, figures of earlier
runs are reported too, each with its share of the raw SDK loop in its own run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from _loop_contenders import CONTENDERS, Converse
from _loop_server import ANSWER, serve

ROUNDS = 2  # at least
ENOUGH = 5.0  # seconds of rounds after which no other begins
BATCH = 20  # conversations that a round has at least
CONTENDER_SECONDS = 600  # for one contender
BASE = "raw SDK loop"  # the base of all ratios
Figure: TypeAlias = tuple[float, float] | str  # milliseconds, share of the base; or what failed
Figures: TypeAlias = dict[str, dict[int, Figure]]


async def _measure(name: str, url: str, conversations: int) -> float:
    converse = CONTENDERS[name](url)
    for _ in range(2):
        _check(await converse())
    figures: list[float] = []
    start = time.perf_counter()
    while len(figures) < ROUNDS or time.perf_counter() - start < ENOUGH:
        figures.append(await _round(converse, conversations))
    return min(figures)


async def _round(converse: Converse, at_once: int) -> float:
    """Return the CPU time of a conversation, in milliseconds."""
    batches = max(1, BATCH // at_once)
    before = time.process_time()
    for _ in range(batches):
        for text in await asyncio.gather(*(converse() for _ in range(at_once))):
            _check(text)
    return (time.process_time() - before) / (batches * at_once) * 1000


def _check(text: str) -> None:
    assert text == ANSWER, f"the answer did not come whole: {text[-80:]!r}"


def _contend(name: str, url: str, conversations: int) -> None:
    print(asyncio.run(_measure(name, url, conversations)))
    sys.stdout.flush()
    os._exit(0)  # clients of others are not ours to close


def _run(name: str, url: str, conversations: int) -> float | str:
    command = [sys.executable, "-W", "ignore", __file__, "--contend", name, url]
    try:
        done = subprocess.run(
            [*command, str(conversations)],
            capture_output=True,
            text=True,
            check=False,
            timeout=CONTENDER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"not done in {CONTENDER_SECONDS} s"
    if done.returncode == 0:
        return float(done.stdout)
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    return "not installed" if "ModuleNotFoundError" in last else last[:60]


def _shares(row: dict[int, float | str], base: dict[int, float | str]) -> dict[int, Figure]:
    return {n: _figure(row[n], base[n]) for n in row}


def _figure(value: float | str, base: float | str) -> Figure:
    if isinstance(value, str) or isinstance(base, str):
        return str(value)
    return value, value / base


def _print_table(figures: Figures, counts: list[int]) -> None:
    print("| client CPU, ms a conversation | " + " | ".join(f"{n} at once" for n in counts) + " |")
    print("|---|" + "---:|" * len(counts))
    for name, row in figures.items():
        print(f"| {name} | " + " | ".join(_cell(row.get(n, "")) for n in counts) + " |")


def _cell(figure: Figure) -> str:
    return figure if isinstance(figure, str) else f"{figure[0]:.1f} ({figure[1]:.2f})"


def _print_chart(known: dict[str, float], title: str) -> None:
    longest = max(known.values())
    print(f"\n{title}\n")
    for name, value in known.items():
        print(f"{name:>26} {'█' * max(1, round(value / longest * 40))} {value:.1f}")


def _draw_chart(known: dict[str, float], title: str, file: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"\nno {file.name}: matplotlib is not installed", file=sys.stderr)
        return
    figure = Figure(figsize=(8, 0.4 * len(known) + 1), layout="constrained")
    axes = figure.subplots()
    ours = ["tab:blue" if name.startswith("anabranch") else "lightgray" for name in known]
    bars = axes.barh(list(known), list(known.values()), color=ours)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title)
    figure.savefig(file, metadata={"Date": None})


def _report(figures: Figures, counts: list[int], pause: float) -> None:
    _print_table(figures, counts)
    rows = {name: row.get(counts[-1], "") for name, row in figures.items()}
    known = {name: value[0] for name, value in rows.items() if not isinstance(value, str)}
    known = dict(sorted(known.items(), key=lambda pair: pair[1]))
    title = f"{counts[-1]} conversations at once: client CPU, ms a conversation"
    _print_chart(known, title)
    if not pause:
        _draw_chart(known, title, Path(__file__).with_suffix(".svg"))
    if missing := rows.keys() - known.keys():
        print(f"\nNOT COMPARED: {', '.join(sorted(missing))}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--keep", type=Path, help="a file of figures, read and added to")
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        name, url, conversations = options.contend
        _contend(name, url, int(conversations))
    figures = _kept(options.keep)
    with _server(options.pause) as url:
        base: dict[int, float | str] = {}
        for name in dict.fromkeys([BASE, *options.only]):
            row = {n: _run(name, url, n) for n in options.conversations}
            print(f"{name}: {row}", file=sys.stderr)
            base = base or row
            figures[name] = figures.get(name, {}) | _shares(row, base)
    if options.keep:
        options.keep.write_text(json.dumps(figures, indent=1))
    counts = sorted({n for row in figures.values() for n in row})
    _report({name: figures[name] for name in CONTENDERS if name in figures}, counts, options.pause)


def _kept(file: Path | None) -> Figures:
    if file is None or not file.exists():
        return {}
    kept: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return {name: {int(n): _read(row[n]) for n in row} for name, row in kept.items()}


def _read(figure: Any) -> Figure:
    return figure if isinstance(figure, str) else tuple(figure)


@contextmanager
def _server(pause: float) -> Generator[str, None, None]:
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    server = processes.Process(target=serve, args=(there, pause), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1"
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
