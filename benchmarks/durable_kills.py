"""Kill durable runs with SIGKILL at random moments, and count their effects.

    python benchmarks/durable_kills.py --way reconcile --kills 1000

Each execution of a run is a separate process, forked from this one after all imports. It makes
twenty charges one after the other, each a row in a file that the journal does not use, with a pause
before and after it like a network call. An execution is killed after a random part of the duration
of a complete run. Then the run is resumed, until it ends. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from anabranch.commander.durable import scope_here
from anabranch.store import Durable, Journal

CHARGES = 20
PAUSE = 0.002  # seconds of delay before and after a charge
PATIENCE = 60.0  # the most seconds for an execution


# --- the external file


def connect(file: Path) -> closing[sqlite3.Connection]:
    """Open a file whose commits survive a killed process, but not a crash of the machine."""
    connection = sqlite3.connect(file, timeout=30, isolation_level=None)
    connection.execute("pragma synchronous = off")
    return closing(connection)


def charge(outside: str, name: str) -> str:
    time.sleep(PAUSE)
    with connect(Path(outside)) as sql:
        sql.execute("insert into charge values (?)", (name,))
    time.sleep(PAUSE)
    return "paid"


# --- variants of charges, each one execution of a run


class Charges(Durable[int]):
    way: str
    outside: str

    async def task(self) -> int:
        for number in range(CHARGES):
            name = f"{self.durable.run_id} {number}"
            if self.way == "step":
                await self.durable.step(charge, self.outside, name)
            else:
                await self.effect(name)
        return CHARGES

    async def effect(self, name: str) -> None:
        async def work() -> str:
            return charge(self.outside, name)

        async def look(key: str) -> str | bool:
            with connect(Path(self.outside)) as sql:
                found = sql.execute("select 1 from charge where name = ?", (name,)).fetchone()
            return "paid" if found else False

        scope: Any = scope_here()
        reconcile = look if self.way == "reconcile" else None
        await scope.effect("charge", {"name": name}).do(work, reconcile=reconcile)


def live_here(way: str, folder: Path, run_id: str) -> None:
    """Start or resume a run of this engine, and wait for its end."""

    async def main() -> None:
        async with Journal(str(folder / "runs.db"), max_recoveries=1_000_000) as journal:
            await journal.run(Charges(way, str(folder / "outside.db")), run_id=run_id)

    asyncio.run(main())


def live_in_dbos(way: str, folder: Path, run_id: str) -> None:
    """The same in DBOS, whose steps run again after a crash."""
    from dbos import DBOS, SetWorkflowID

    url = f"sqlite:///{folder / 'dbos.db'}"
    DBOS(config={"name": "kills", "system_database_url": url, "log_level": "CRITICAL"})

    @DBOS.step()
    def step(name: str) -> str:
        return charge(str(folder / "outside.db"), name)

    @DBOS.workflow()
    def workflow() -> None:
        for number in range(CHARGES):
            step(f"{run_id} {number}")

    DBOS.launch()
    with SetWorkflowID(run_id):
        DBOS.start_workflow(workflow).get_result()


LIVES: dict[str, Callable[[str, Path, str], None]] = {
    "reconcile": live_here,
    "nothing": live_here,
    "step": live_here,
    "dbos": live_in_dbos,
}


# --- killing


def begin_life(way: str, folder: Path, run_id: str) -> int:
    if pid := os.fork():
        return pid
    try:
        LIVES[way](way, folder, run_id)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def end_life(pid: int, seconds: float) -> bool:
    """Kill an execution after a time; return whether it had ended."""
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a life has failed: see above")
    return os.WIFEXITED(status)


def unanswered(folder: Path, run_id: str) -> Counter[str]:
    """Return the number of rows of each kind in a run's journal."""
    if not (folder / "runs.db").exists():
        return Counter()
    with connect(folder / "runs.db") as sql:
        try:
            kinds = sql.execute(
                "select kind, count(*) from anabranch_row where run ="
                " (select id from anabranch_run where run_id = ?) group by kind",
                (run_id,),
            ).fetchall()
        except sqlite3.OperationalError:  # killed before it created its tables
            return Counter()
    return Counter(dict(kinds))


def kill(way: str, kills: int, seed: int) -> dict[str, Any]:
    """Kill a number of times; return the outcome of the charges."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with connect(folder / "outside.db") as sql:
            sql.execute("create table charge (name text)")
        started = time.perf_counter()
        _, status = os.waitpid(begin_life(way, folder, "whole"), 0)
        if status:
            raise SystemExit("a life has failed: see above")
        whole = time.perf_counter() - started
        found = {"way": way, "kills": 0, "between": 0, "runs": 1, "waiting": 0}
        done = ["whole"]
        while found["kills"] < kills:
            run_id = f"run{found['runs']}"
            found["runs"] += 1
            # Later executions get more time; otherwise a slow run would never end.
            longest = whole
            while not end_life(begin_life(way, folder, run_id), rng.uniform(0, longest)):
                found["kills"] += 1
                longest = min(longest * 1.1, PATIENCE)
                rows = unanswered(folder, run_id)
                if rows["doubt"] or rows["question"]:
                    found["waiting"] += 1
                    break
                found["between"] += rows["intent"] > rows["gave"]
            else:
                done.append(run_id)
        with connect(folder / "outside.db") as sql:
            times = dict(sql.execute("select name, count(*) from charge group by name").fetchall())
    expected = [f"{run_id} {number}" for run_id in done for number in range(CHARGES)]
    found["charges"] = len(expected)
    found["doubled"] = sum(count > 1 for count in times.values())
    found["lost"] = sum(name not in times for name in expected)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill durable runs and count what they did.")
    parser.add_argument("--way", choices=LIVES, default="reconcile")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ANABRANCH_SEED", "0")))
    options = parser.parse_args()
    print(json.dumps(kill(options.way, options.kills, options.seed)))


if __name__ == "__main__":
    main()
