"""Documents: the quality and the cost of a search, compared with other vector stores.

    pip install apsw sqlite-vec lancedb chromadb matplotlib # in an environment that has this too
    python benchmarks/knowledge.py                # some minutes
    python benchmarks/knowledge.py --quick        # without 100,000 pieces
    python benchmarks/knowledge.py --svg benchmarks/knowledge.svg

`knowledge_questions.json` has questions about this documentation, each with a text from a passage
that answers it. A question counts as found at 5 if one of the first five passages has that text.
CPU time covers the process; each figure is a median. The vectors of the larger indexes are random
around a hundred centres, with a fixed seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from _plot import plot
from knowledge_others import OTHERS

from anabranch.knowledge import Index, Passage
from anabranch.testing import ScriptedBackend

HERE = Path(__file__).parent
SIZES = (1_000, 10_000, 100_000)
NUMBERS = 384  # of a vector
QUERIES = 30
PIECES = 100  # of each document of the larger indexes
GOAL = 0.020  # seconds of CPU for the vector part at 100,000 pieces


async def recall(questions: list[dict[str, str]]) -> dict[str, dict[int, float]]:
    """Return the share of questions whose answer is among the first passages."""
    found: dict[str, dict[int, float]] = {}
    for name, embed in {"words": None, "hybrid": ScriptedBackend().embed}.items():
        async with Index(":memory:", embed=embed) as notes:
            await notes.add_folder(HERE.parent / "docs")
            hits = [await notes.search(each["question"], 10) for each in questions]
        answers = [each["answer"] for each in questions]
        pairs = [*zip(answers, hits, strict=True)]
        found[name] = {k: statistics.mean(_has(a, p[:k]) for a, p in pairs) for k in (5, 10)}
        missed = [
            q["question"] for q, (a, p) in zip(questions, pairs, strict=True) if not _has(a, p)
        ]
        print(
            f"  {name:8} at 5 {found[name][5]:.2f}, at 10 {found[name][10]:.2f};"
            f" not found: {missed}"
        )
    return found


def _has(answer: str, passages: Sequence[Passage]) -> bool:
    plain = " ".join(answer.split())
    return any(plain in " ".join(each.text.split()) for each in passages)


# --- large indexes


def make_texts(count: int, rng: random.Random) -> list[str]:
    """Return texts of a hundred words each, some common and most rare."""
    words = [f"{a}{b}{c}" for a in _SOUNDS for b in _SOUNDS for c in _SOUNDS]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    sums = np.cumsum(weights).tolist()
    return [" ".join(rng.choices(words, cum_weights=sums, k=100)) for _ in range(count)]


_SOUNDS = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def make_vectors(count: int) -> Any:
    """Return vectors of length one around a hundred centres."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, NUMBERS))
    made = centres[rng.integers(0, 100, count)] + 0.7 * rng.standard_normal((count, NUMBERS))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype("float32")


async def measure_size(count: int, folder: Path) -> dict[str, dict[str, float]]:
    """Measure an index of a number of pieces, and the others with the same vectors."""
    texts, vectors = make_texts(count, random.Random(0)), make_vectors(count + QUERIES)
    asked = vectors[count:]
    by_text = dict(zip(texts, vectors, strict=False))

    async def embed(given: Sequence[str]) -> list[Any]:
        return [by_text.get(each, asked[0]) for each in given]

    found: dict[str, dict[str, float]] = {}
    file = folder / "index.db"
    notes = Index(file, embed=embed, embedder="random", size=400, overlap=0)
    started = time.process_time()
    for start in range(0, count, PIECES):
        some = texts[start : start + PIECES]
        document = "\n\n".join(f"# {start + number}\n\n{text}" for number, text in enumerate(some))
        by_text |= {f"{start + i}\n{t}": vectors[start + i] for i, t in enumerate(some)}
        await notes.add(f"{start}.md", document)
    adding = (time.process_time() - started) / count
    store: Any = notes._store
    packed = [each.tobytes() for each in asked]
    before = _resident()
    await store.by_vector(packed[0], 10)  # which reads all of them
    memory = _resident() - before
    rng = random.Random(1)
    questions = [" ".join(rng.choices(rng.choice(texts).split(), k=6)) for _ in range(QUERIES)]
    words = await _cpu([lambda q=q: store.by_words(q, 50) for q in questions])
    near = await _cpu([lambda v=v: store.by_vector(v, 10) for v in packed])
    whole = await _cpu([lambda q=q: notes.search(q) for q in questions])
    found["anabranch"] = {
        "words": words,
        "vectors": near,
        "search": whole,
        "recall": 1.0,
        "add": adding,
        "memory": memory,
        "disk": file.stat().st_size / 2**20,
    }
    exact = [np.argsort(-(vectors[:count] @ each))[:10].tolist() for each in asked]
    await notes.aclose()
    for other in OTHERS:
        try:
            contender = other(folder / other.name, vectors[:count])
        except ImportError:
            print(f"*** {other.name} is NOT INSTALLED and not measured: see the head of this file")
            continue
        given = [contender.nearest(each, 10) for each in asked]
        right = statistics.mean(len({*a} & {*b}) / 10 for a, b in zip(given, exact, strict=True))
        costs: list[float] = []
        for each in asked:
            started = time.process_time()
            contender.nearest(each, 10)
            costs.append(time.process_time() - started)
        disk = _bytes(folder / other.name)
        name = f"{other.name} {version(other.name)}"
        found[name] = {"vectors": statistics.median(costs), "recall": right, "disk": disk / 2**20}
        contender.close()
    return found


def _resident() -> float:
    """Return the memory of the process in MB, 0 if it is unknown."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0.0
    return int(pages) * resource.getpagesize() / 2**20


def _bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


async def _cpu(calls: list[Callable[[], Awaitable[Any]]]) -> float:
    await calls[0]()
    costs: list[float] = []
    for call in calls:
        started = time.process_time()
        await call()
        costs.append(time.process_time() - started)
    return statistics.median(costs)


async def measure(options: argparse.Namespace) -> None:
    questions = json.loads((HERE / "knowledge_questions.json").read_text(encoding="utf-8"))
    print(f"Python {sys.version.split()[0]}; {len(questions)} questions of this documentation")
    recalls = await recall(questions)
    panels: dict[str, dict[str, float]] = {
        "found among the first 5": {name: each[5] for name, each in recalls.items()}
    }
    last: dict[str, dict[str, float]] = {}
    for size in SIZES[:-1] if options.quick else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            last = await measure_size(size, Path(folder))
        print(f"\n{size:,} pieces, vectors of {NUMBERS}: CPU for a query in ms; MB")
        for name, row in last.items():
            shown = [f"{key} {1000 * value:.2f}" for key, value in row.items() if key in TIMES]
            shown += [f"{key} {value:.2f}" for key, value in row.items() if key not in TIMES]
            print(f"  {name:20} " + ", ".join(shown))
        panels[f"{size:,} pieces: ms for the vectors"] = {
            name: 1000 * row["vectors"] for name, row in last.items()
        }
    if not options.quick:
        took = last["anabranch"]["vectors"]
        verdict = "PASS" if took <= GOAL else "MISS"
        print(
            f"\nvectors at 100,000 pieces: {1000 * took:.1f} ms, goal {1000 * GOAL:.0f}: {verdict}"
        )
    if options.svg:
        plot(panels, options.svg)


TIMES = ("words", "vectors", "search", "add")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure what searching documents finds and costs."
    )
    parser.add_argument("--quick", action="store_true", help="without 100,000 pieces")
    parser.add_argument("--svg", type=Path, help="where to write the plot")
    logging.disable(logging.WARNING)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
