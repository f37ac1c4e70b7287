"""Two runs in one file, whose process is repeatedly killed with SIGKILL until both end.

    python tests/programs/killed.py FOLDER TOOL KILLS SEED

Each execution is a fork of this process. It is killed after a random time, or kills itself: right
after an effect, or while SQLite executes a statement. The effects are lines of a file that no
journal knows. The program prints the numbers of kills and errors as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - once, and not in each life

from anabranch import ToolCall, run, tool
from anabranch.handlers import call_tools
from anabranch.store import Done, Durable, Journal, NotDone, _file_thread, effect_key

RUNS = ("a", "b")
MAILS = 4

_acts: list[int] = []  # the number of effects until the process kills itself


def die(within: float = 0.0) -> None:
    """Kill this process, now or within `within` seconds."""
    if within:
        threading.Timer(within, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


# --- the outside world


def did(folder: str, text: str) -> str:
    file = os.open(Path(folder, "outside"), os.O_APPEND | os.O_WRONLY | os.O_CREAT)
    os.write(file, f"{effect_key()} {text}\n".encode())
    os.close(file)
    if _acts:
        _acts[0] -= 1
        if not _acts[0]:
            die()
    return text


def lines(folder: Path) -> list[list[str]]:
    path = folder / "outside"
    return [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []


def find(folder: str, text: str, *, effect_key: str) -> Done | NotDone:
    found = any(key == effect_key for key, _ in lines(Path(folder)))
    return Done(text) if found else NotDone()


@tool(reconcile=find, reconcile_after=0)
async def asked(folder: str, text: str) -> str:
    await asyncio.sleep(0.001)
    return did(folder, text)


@tool(effect="keyed")
async def again(folder: str, text: str) -> str:
    """Repeat a call in doubt. This is wrong, because the outside world ignores the key."""
    return await asked.function(folder, text)


TOOLS = {"asked": asked, "again": again}


async def call(name: str, folder: str, text: str) -> AsyncIterator[ToolCall]:
    arguments = {"folder": folder, "text": text}
    yield ToolCall(id="c", name=name, arguments=arguments, index=0)


# --- the run


class Mails(Durable[list[str]]):
    name: str
    tool: str
    folder: str

    async def task(self) -> list[str]:
        sent: list[str] = []
        for number in range(MAILS):
            text = await self.durable.step(word, self.name, number)
            calls = call(self.tool, self.folder, text)
            sent += [str(each.content) for each in await call_tools(calls, [TOOLS[self.tool]])]
            await self.put_job(Pays(text))
        return sent


def word(name: str, number: int) -> str:
    return f"{name}{number}"


class Pays(Durable[None]):
    text: str

    async def task(self) -> None:
        async with self.durable.transaction() as tx:
            await tx.execute("create table if not exists paid (text)")
            await tx.execute("insert into paid values (?)", self.text)


async def live(folder: Path, tool: str) -> list[list[str]]:
    """Start or resume both runs."""
    async with Journal(str(folder / "runs.db"), max_recoveries=1_000_000) as journal:
        jobs = [journal.run(Mails(name, tool, str(folder)), run_id=name) for name in RUNS]
        return list(await asyncio.gather(*jobs))


class Hand:
    """A connection that kills the process at a given statement, before the statement ends."""

    def __init__(self, connection: Any, statements: int, within: float) -> None:
        self._connection = connection
        self._left = statements
        self._within = within

    def execute(self, *arguments: Any) -> Any:
        self._left -= 1
        if not self._left:
            die(self._within)
        return self._connection.execute(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


# --- a run that waits for a signal


class Waits(Durable[str]):
    """Prints that it waits, then returns the signal."""

    async def task(self) -> str:
        await self.durable.step(word, "before", 0)
        print("waits", flush=True)
        said: str = await self.durable.signal("word", str)
        return f"{said} {await self.durable.step(word, 'after', 0)}"


def wait(journal: str) -> None:
    print(run(Waits(), journal=journal, run_id="waits"), flush=True)


# --- killing


def begin(folder: Path, tool: str, act: int | None, statement: int | None, within: float) -> int:
    """Fork an execution, which kills itself at the given effect or statement, if it gets there."""
    if pid := os.fork():
        return pid
    try:
        _acts[:] = [] if act is None else [act]
        if statement is not None:
            connect = _file_thread.connect
            _file_thread.connect = lambda name: Hand(connect(name), statement, within)  # type: ignore[assignment,return-value]
        asyncio.run(live(folder, tool))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def end(pid: int, seconds: float | None) -> bool:
    """Wait for an execution, and kill it after `seconds`; return whether it ended before."""
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a life has failed: see above")
    return os.WIFEXITED(status)


def kill(folder: Path, tool: str, kills: int, seed: int) -> dict[str, Any]:
    """Kill executions `kills` times, in as many folders as needed; count kills and errors."""
    rng, killed, places = random.Random(seed), Counter[str](), list[Path]()
    ways = ["act"] if tool == "again" else ["act", "statement", "time"]
    while killed.total() < kills:
        places.append(place := folder / f"n{len(places)}")
        place.mkdir()
        over = False
        while not over:
            way = rng.choice(ways) if killed.total() < kills else "none"
            act = rng.randint(1, 3) if way == "act" else None
            statement = rng.randint(1, 60) if way == "statement" else None
            pid = begin(place, tool, act, statement, rng.choice([0, rng.uniform(0, 0.002)]))
            over = end(pid, rng.uniform(0, 0.1) if way == "time" else None)
            killed[way] += not over
    return {"killed": killed, "found": look(places, tool)}


def look(places: list[Path], tool: str) -> Counter[str]:
    """Count the errors in all folders. No fork may follow, because the journal starts a thread."""
    found = Counter[str](doubled=0, lost=0, wrong=0, unpaid=0)
    expected = [[word(name, number) for number in range(MAILS)] for name in RUNS]
    for place in places:
        times = Counter(text for _, text in lines(place))
        found["doubled"] += sum(count - 1 for count in times.values())
        found["lost"] += sum(text not in times for run in expected for text in run)
        found["wrong"] += asyncio.run(live(place, tool)) != expected
        found["unpaid"] += asyncio.run(paid(place)) != sorted(itertools.chain(*expected))
    return found


async def paid(folder: Path) -> list[str]:
    async with Journal(str(folder / "runs.db")) as journal:
        rows = await journal._file.call(lambda sql: sql.execute("select text from paid").fetchall())
    return sorted(text for (text,) in rows)


if __name__ == "__main__":
    print(json.dumps(kill(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))))
