"""An index whose process is repeatedly killed with SIGKILL while it changes the index.

    cd tests; python -m programs.index_killed FILE KILLS SEED

Each execution is a fork of this process. It removes documents, and adds documents with the same
number in every piece. It is killed after a random time, or at a statement of SQLite. After each
kill the program checks the file. It prints the number of kills and the errors found, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - once, and not in each life
from support.index_file import has_current_words, stored_pieces

from anabranch.knowledge import Index, _sqlite
from anabranch.knowledge._read_main import read_text

NAMES = ("a", "b", "c", "d")
PIECES = 6


async def embed(texts: Any) -> list[list[float]]:
    return [[float(len(text)), float(int(text.split()[-1])), 1.0] for text in texts]


def text(number: int) -> str:
    return "\n\n".join(f"# {part}\n\nround {number}" for part in range(PIECES))


async def live(path: Path, rng: random.Random, rounds: int) -> None:
    async with Index(path, embed=embed, embedder="own") as index:
        for _ in range(rounds):
            name = rng.choice(NAMES)
            if rng.random() < 0.3:
                await index.remove(name)
            else:
                await index.add(name, text(rng.randrange(1000)))


class Hand:
    """A connection that kills the process at a given statement, before or after it runs."""

    def __init__(self, connection: Any, statements: int, after: bool) -> None:
        self._connection = connection
        self._left = statements
        self._after = after

    def _act(self, do: Any, *arguments: Any) -> Any:
        self._left -= 1
        if not self._left and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = do(*arguments)
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def execute(self, *arguments: Any) -> Any:
        return self._act(self._connection.execute, *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self._act(self._connection.executemany, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def begin(path: Path, rng: random.Random, way: str) -> int:
    statement, after, seed = rng.randint(1, 150), rng.random() < 0.5, rng.random()
    if pid := os.fork():
        return pid
    try:
        if way == "statement":
            connect = sqlite3.connect
            _sqlite.sqlite3.connect = lambda *a, **k: Hand(connect(*a, **k), statement, after)  # type: ignore[assignment]
        else:
            delay = random.Random(seed).uniform(0, 0.15)
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        asyncio.run(live(path, random.Random(seed), 1000))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def look(path: Path) -> Counter[str]:
    """Count the errors of the file: documents that are stored only in part, and outdated words."""
    found = Counter[str](torn=0, words=0)
    if not path.exists() or not path.stat().st_size:
        return found
    with sqlite3.connect(path) as sql:
        tables = {name for (name,) in sql.execute("select name from sqlite_schema")}
    sql.close()
    if "piece" not in tables:
        found["torn"] += bool(tables)
        return found
    for texts in stored_pieces(path).values():
        found["torn"] += len(texts) != PIECES or len(set(texts)) != 1
    found["words"] += not has_current_words(path)
    return found


def main(path: Path, kills: int, seed: int) -> None:
    read_text(text(0), "markdown")  # import the parser once, and not in each execution
    rng, killed, found = random.Random(seed), Counter[str](), Counter[str]()
    while killed.total() < kills:
        way = rng.choice(["statement", "time"])
        _, status = os.waitpid(begin(path, rng, way), 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise SystemExit("a life has failed: see above")
        killed[way] += 1
        found.update(look(path))
        if rng.random() < 0.1:
            for each in path.parent.glob(f"{path.name}*"):
                each.unlink()  # a later execution creates the file again
    print(json.dumps({"killed": killed, "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
