"""A million jobs in one commander, with cancellations and failures: memory stays flat.

    python benchmarks/soak.py [JOBS]

Prints a line at each tenth: jobs so far, how they ended, the memory of the process and of Python's
allocator after a collection, tasks on the loop, nodes alive. After the second tenth, both memories
may grow by a quarter of a mebibyte, less than a byte a job. Each job must be accounted for. Takes
some minutes, mostly in tracemalloc.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import resource
import time
import tracemalloc
from collections import Counter
from typing import Any

from anabranch.commander import Commander, Node, NodeCancelled, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job

AT_ONCE = 200
SLACK_KIB = 256

ended: Counter[str] = Counter()
all_ended = asyncio.Event()
logged: Counter[str] = Counter()


class Count(logging.Handler):
    """Counts unawaited failures without printing them."""

    def emit(self, record: logging.LogRecord) -> None:
        logged[record.msg] += 1


@handler
async def leaf(node: Node[Any]) -> int:
    return 1


class Round(Job[int]):
    """A job whose number decides how it ends."""

    number: int

    async def task(self) -> int:
        match self.number % 10:
            case 0:
                raise ValueError(self.number)  # not awaited, so the commander logs it
            case 1:
                await asyncio.Event().wait()  # until it is cancelled
            case 2:
                self.call_handler(leaf())
                self.call_handler(leaf())
            case 3:
                return await self.put_job(Round(self.number + 1))
            case 4:
                await asyncio.sleep(0)
            case 5 if random.random() < 0.5:
                raise KeyError(self.number)  # tried again
            case _:
                pass
        return 1


def note(node: Node[Any]) -> None:
    error = node.error
    how = "cancelled" if isinstance(error, NodeCancelled) else "failed" if error else "completed"
    ended[how] += 1
    if ended.total() % AT_ONCE == 0:
        all_ended.set()


async def note_later(node: Node[Any]) -> None:
    note(node)


def put(commander: Commander, number: int) -> Node[Any]:
    options: dict[str, Any] = {}
    if number % 10 == 5:
        options["retry"] = Retry(attempts=3)
    if number % 10 == 6:
        options["timeout"] = 60
    job = commander.put_job(Round(number), priority=number % 3, **options)
    return job.at_done(note_later if number % 100 == 7 else note)


async def wave(commander: Commander, first: int) -> None:
    """Put jobs, cancel those that would never end, and wait for all."""
    all_ended.clear()
    jobs = [put(commander, number) for number in range(first, first + AT_ONCE)]
    await asyncio.sleep(0)
    for job in jobs[1::10]:
        job.cancel("soak")
    for job in jobs[2::50]:
        job.cancel("soak")
    await all_ended.wait()  # awaiting the jobs would take their failures


def report(done: int, began: float) -> tuple[float, float]:
    gc.collect()
    rss = _rss()
    traced = tracemalloc.get_traced_memory()[0] / 1024
    nodes = sum(isinstance(thing, Node) for thing in gc.get_objects())
    print(
        f"{done:>10,} {ended['completed']:>9,} {ended['failed']:>8,} {ended['cancelled']:>9,} "
        f"{rss:>9,.0f} {traced:>11,.1f} {len(asyncio.all_tasks()):>6} {nodes:>6} "
        f"{time.perf_counter() - began:>6.0f}"
    )
    return rss, traced


def _rss() -> float:
    """Return the memory of the process in KiB, or its peak if the system reports only that."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def soak(jobs: int) -> None:
    print(f"{'jobs':>10} {'completed':>9} {'failed':>8} {'cancelled':>9} "
          f"{'RSS KiB':>9} {'traced KiB':>11} {'tasks':>6} {'nodes':>6} {'s':>6}")  # fmt: skip
    began = time.perf_counter()
    marks: list[tuple[float, float]] = []
    async with Commander(max_concurrency=100) as commander:
        for first in range(0, jobs, AT_ONCE):
            await wave(commander, first)
            if (first + AT_ONCE) % (jobs // 10) == 0:
                marks.append(report(first + AT_ONCE, began))
    check(marks, jobs)


def check(marks: list[tuple[float, float]], jobs: int) -> None:
    assert len(asyncio.all_tasks()) == 1
    assert ended.total() == jobs, f"{jobs - ended.total()} jobs never ended"
    lost = ended["failed"] - logged["%s failed and nobody awaited it"]
    assert lost == 0, f"{lost} failures were not logged"
    for what, second, last in zip(("RSS", "traced"), marks[1], marks[-1], strict=True):
        print(f"{what}: {last - second:+.1f} KiB since the second tenth")
        assert last <= second + SLACK_KIB, f"{what} has grown"
    print(f"every one of {jobs:,} jobs is accounted for; logged: {dict(logged)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Put very many jobs through one commander.")
    parser.add_argument("jobs", nargs="?", type=int, default=1_000_000)
    jobs: int = parser.parse_args().jobs
    if jobs < 10 * AT_ONCE or jobs % (10 * AT_ONCE):
        parser.error(f"the number of jobs must be a multiple of {10 * AT_ONCE:,}")
    logger = logging.getLogger("anabranch")
    logger.addHandler(Count())
    logger.propagate = False
    random.seed(1)
    tracemalloc.start()
    asyncio.run(soak(jobs))


if __name__ == "__main__":
    main()
