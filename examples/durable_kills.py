"""Kill `durable_order.py` at random moments until its orders are done, and count the effects.

    python examples/durable_kills.py                     # 50 kills with, 50 without: two minutes
    python examples/durable_kills.py --kills 10 --mail person

After a kill, a mail can be in doubt: it is unknown whether it was sent. `reconcile` asks the shop.
`again` sends it again, as a program without a journal would. So some mails must arrive twice, or
the kills prove nothing. `person` leaves the decision to a person, and the order waits.

Each execution is a separate process that dies by SIGKILL, at a moment that the seed chooses.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from anabranch.store import Journal

PROGRAM = Path(__file__).with_name("durable_order.py")
PATIENCE = 10.0  # seconds for the last execution of an order, which is not killed


def live(folder: Path, order: str, mail: str, seconds: float) -> float | None:
    """Start or resume the order, and kill it after a time; return its duration if it ended."""
    command = [sys.executable, str(PROGRAM), "--folder", str(folder), "--order", order]
    command += ["--mail", mail, "--way", "0.02"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as shown:
        if shown.readline() != "begins\n":
            raise SystemExit("the order does not begin: see above")
        began = time.monotonic()
        death = Timer(seconds, process.kill)
        death.start()
        took = next((time.monotonic() - began for line in shown if f"{order}: " in line), None)
        death.cancel()
    if process.returncode > 0:
        raise SystemExit("the order has failed: see above")
    return took


async def questions(journal: str) -> int:
    """Return the number of calls in doubt that wait for a person."""
    async with Journal(journal) as runs:
        return len(await runs.doubts())


class Count(NamedTuple):
    """The outcome of a series of kills."""

    mail: str
    kills: int
    done: int
    waiting: int  # orders that wait for a person
    doubled: int
    lost: int


def kill_orders(mail: str, most: int, draw: random.Random, folder: Path) -> Count:
    """Process orders one after the other with a number of kills, and count the effects."""
    whole = live(folder, "whole", mail, PATIENCE) or PATIENCE
    done, kills, waiting, orders = ["whole"], 0, 0, 0
    while kills < most:
        orders += 1
        order, took = f"order{orders}", None
        while took is None:
            last = kills == most
            took = live(folder, order, mail, PATIENCE if last else draw.uniform(0, whole))
            kills += took is None and not last
            note(f"{mail}: {kills} of {most} kills, {len(done)} orders done")
            if took is None and asyncio.run(questions(str(folder / "runs.db"))) > waiting:
                waiting += 1
                break
        else:
            done.append(order)
    doubled = lost = 0
    with closing(sqlite3.connect(folder / "shop.db")) as sql:
        for table in ("charge", "mail"):
            counts = f"select name, count(*) from {table} group by name"
            times = dict(sql.execute(counts).fetchall())
            doubled += sum(count > 1 for count in times.values())
            lost += sum(order not in times for order in done)
    return Count(mail, kills, len(done), waiting, doubled, lost)


def note(text: str) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="\r", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """Read a number of kills."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def main() -> None:
    """Kill with and without `reconcile`, and print a line for each."""
    parser = argparse.ArgumentParser(
        description="Kill an order at random moments, and count its effects."
    )
    parser.add_argument(
        "--kills", type=positive, default=50, help="the kills of each variant (%(default)s)"
    )
    parser.add_argument(
        "--mail",
        choices=["reconcile", "again", "person"],
        nargs="+",
        default=["reconcile", "again"],
        help="the handling of a mail in doubt (reconcile, and again)",
    )
    seed = os.environ.get("ANABRANCH_SEED", "0")
    parser.add_argument(
        "--seed", type=int, default=seed, help="the seed of the moments (%(default)s)"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}\n{LINE.format('mail', 'kills', 'done', 'wait', 'doubled', 'lost')}")
    try:
        for mail in options.mail:
            with tempfile.TemporaryDirectory() as name:
                draw = random.Random(options.seed)
                count = kill_orders(mail, options.kills, draw, Path(name))
            note("")
            print(LINE.format(*count), flush=True)
    except KeyboardInterrupt:
        sys.exit("\nstopped")


LINE = "{:<10}" + "{:>8}" * 5


if __name__ == "__main__":
    main()
