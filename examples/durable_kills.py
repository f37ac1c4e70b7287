"""Kills `durable_order.py` at random moments until its order is done, and counts outside.

    python examples/durable_kills.py                     # 50 kills: two minutes
    python examples/durable_kills.py --mail again        # the control: it has to double
    python examples/durable_kills.py --mail person       # and this one stops, and waits

Each life is a process of its own that dies by SIGKILL. `ANABRANCH_SEED` chooses the moments.
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

from anabranch.store import Journal

PROGRAM = Path(__file__).with_name("durable_order.py")


def live(folder: Path, order: str, mail: str, seconds: float | None) -> float | None:
    """Start the order or take it up, and kill it after so long; return how long it took if done."""
    command = [sys.executable, str(PROGRAM), "--folder", str(folder), "--order", order]
    process = subprocess.Popen([*command, "--mail", mail], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as shown:
        if shown.readline() != "begins\n":
            raise SystemExit("the order does not begin: see above")
        began = time.monotonic()
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        took = next((time.monotonic() - began for line in shown if f"{order}: " in line), None)
    if process.returncode > 0:
        raise SystemExit("the order has failed: see above")
    return took


async def questions(journal: str) -> int:
    """Return how many calls wait for a person to say whether they were done."""
    async with Journal(journal) as runs:
        return len(await runs.doubts())


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill an order again and again, and count.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--mail", choices=["reconcile", "person", "again"], default="reconcile")
    options = parser.parse_args()
    seed = int(os.environ.get("ANABRANCH_SEED", "0"))
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = live(folder, "whole", options.mail, None) or 0.0
        done, kills, orders, waiting = ["whole"], 0, 0, 0
        while kills < options.kills:
            orders += 1
            order = f"order{orders}"
            while live(folder, order, options.mail, rng.uniform(0, whole)) is None:
                kills += 1
                show = f"\r{kills} kills, {len(done)} orders done, {waiting} wait for a person"
                print(show, end="", file=sys.stderr, flush=True)
                if asyncio.run(questions(str(folder / "runs.db"))) > waiting:
                    waiting += 1
                    break
            else:
                done.append(order)
        print(file=sys.stderr)
        doubled = lost = 0
        with closing(sqlite3.connect(folder / "shop.db")) as sql:
            for table in ("charge", "mail"):
                counts = f"select name, count(*) from {table} group by name"
                times = dict(sql.execute(counts).fetchall())
                doubled += sum(count > 1 for count in times.values())
                lost += sum(order not in times for order in done)
        print(f"seed {seed}: {kills} kills, {len(done)} orders done, {waiting} wait for a person;")
        print(f"outside: {doubled} doubled, {lost} lost")


if __name__ == "__main__":
    main()
