"""A recorded durable run whose process is repeatedly killed with SIGKILL until the run ends.

    python tests/programs/recorded_lives.py FOLDER KILLS SEED

Each execution is a fork of this process. All but the last are killed after a random time, and do
not end before it. The timer of the first one starts only after the start of the run is in the file,
so a slow machine makes no difference. The program prints the usage of the last execution as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - once, and not in each life

from anabranch import Agent, Commander, Job, Retry
from anabranch.commander.durable import scope_here
from anabranch.store import Durable, Journal
from anabranch.testing import ScriptedBackend
from anabranch.tracing import record

# The functions that an execution calls when the run's body begins. An execution to be killed does
# not end.
begun: list[Callable[[], None]] = []
is_killed = False


class Desk(Durable[list[str]]):
    async def task(self) -> list[str]:
        for each in begun:
            each()
        said: list[str] = []
        for number in range(3):
            said.append(await self.put_job(Writes(number)))
            await self.put_job(
                Fails(), retry=Retry(attempts=2, backoff=0.01)
            ) if number == 1 else None
            racers = [asyncio.ensure_future(self.put_job(Waits(n, number))) for n in range(2)]
            for each in asyncio.as_completed(racers):
                await each
        if is_killed:
            await asyncio.Event().wait()
        return said


class Writes(Durable[str]):
    number: int

    async def task(self) -> str:
        agent = Agent(ScriptedBackend(otherwise="Written.", delay=0.01), name="writer")
        return str(await agent(f"Write {self.number}."))


class Fails(Durable[None]):
    async def task(self) -> None:
        await self.put_job(Waits(9, 9))
        if scope_here().attempt == 1:  # type: ignore[union-attr]
            raise KeyError("once more")


class Waits(Job[None]):
    number: int
    round: int

    async def task(self) -> None:
        await asyncio.sleep(0.005 * (1 + self.number))


async def live(folder: Path) -> dict[str, Any]:
    """Use a session of an agent, and start or resume the run."""
    async with (
        Journal(str(folder / "runs.db"), max_recoveries=1_000_000) as journal,
        Commander() as commander,
        record(commander, folder / "run.jsonl", append=True) as recorder,
    ):
        begun.insert(0, recorder._thread.flush)  # type: ignore[arg-type] - what it returns
        backend = ScriptedBackend(otherwise="Noted.", delay=0.005)
        clerk = Agent(backend, name="clerk", journal=journal)
        await clerk("Note it.", session_id=7)
        await journal.run(Desk(), run_id="desk")
    return commander.usage()


def begin(folder: Path, seconds: float | None, *, first: bool = False) -> None:
    """Fork an execution that is killed after `seconds`, and wait for it."""
    global is_killed
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise SystemExit("a life has failed: see above")
        return
    try:
        if seconds is not None:
            is_killed = True
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
            if first:
                begun.append(timer.start)
            else:
                timer.start()
        usage = asyncio.run(live(folder))
        said = {"usage": {model: used.model_dump() for model, used in usage.items()}}
        (folder / "said").write_text(json.dumps(said))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main(folder: Path, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(kills):
        begin(folder, draw.uniform(0.0 if number == 0 else 0.06, 0.4), first=number == 0)
    begin(folder, None)
    print((folder / "said").read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
