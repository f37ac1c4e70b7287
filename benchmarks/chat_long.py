"""The chat in the terminal: the cost of turns in a long session, and of listing many sessions.

    python benchmarks/chat_long.py            # some minutes, on a quiet machine
    python benchmarks/chat_long.py --turns 300 --sessions 100

CPU of this process per turn of an agent in a session of a journal on disk, without a screen and
with a model that answers at once with 400 characters. All in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import tempfile
import time
from pathlib import Path

from anabranch import Agent, Commander, Message
from anabranch.cli.chat._agent_partner import AgentPartner
from anabranch.cli.chat._sessions import AGENT, open_sessions
from anabranch.handlers import View
from anabranch.testing import ScriptedBackend

ANSWER = "The planner splits the work into parts, and each of them runs by itself. " * 6


async def measure(turns: int, sessions: int, folder: Path) -> None:
    path = folder / "chats.db"
    async with open_sessions(path) as opened, Commander() as commander:
        backend = ScriptedBackend(*[ANSWER] * turns)
        partner = AgentPartner(Agent(name=AGENT, backend=backend), opened, opened.new())
        print("turn     CPU a turn    passed    memory    file")
        used, passed, last = time.process_time(), time.perf_counter(), 0
        for turn in range(1, turns + 1):
            said = Message(role="user", content=f"Question number {turn}: how is it done?")
            await commander.call_handler(partner.answer(said, View()))
            if turn in (10, 100, 200, 300, 500, 1000) or turn == turns:
                count = turn - last
                cpu = (time.process_time() - used) / count * 1000
                clock = (time.perf_counter() - passed) / count * 1000
                print(
                    f"{turn:5} {cpu:9.1f} ms {clock:8.1f} ms"
                    f" {memory():6.1f} MB {path.stat().st_size / 1e6:6.2f} MB",
                    flush=True,
                )
                gc.collect()
                used, passed, last = time.process_time(), time.perf_counter(), turn
        for name, look in (("messages()", partner.messages), ("usage()", partner.usage)):
            began = time.process_time()
            look()
            print(f"{name:24} {(time.process_time() - began) * 1000:9.1f} ms")
        info = partner.info
    async with open_sessions(path) as opened:
        began, clock = time.process_time(), time.perf_counter()
        await AgentPartner(Agent(name=AGENT), opened, info).open()
        print(f"{'opened again':24} {took(began, clock)}")
        for number in range(sessions - 1):
            await opened.begin(opened.new(folder="/tmp"), f"Question number {number}")
        for name, look in (("list", opened.list), ("newest", opened.newest)):
            began, clock = time.process_time(), time.perf_counter()
            await look()
            print(f"{name + f' of {sessions} sessions':24} {took(began, clock)}")
        began, clock = time.process_time(), time.perf_counter()
        await opened.list("planner splits")
        print(f"{'list those with words':24} {took(began, clock)}")


def took(began: float, clock: float) -> str:
    cpu, passed = time.process_time() - began, time.perf_counter() - clock
    return f"{cpu * 1000:9.1f} ms CPU, {passed * 1000:.1f} ms passed"


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--turns", type=int, default=1000)
    options.add_argument("--sessions", type=int, default=1000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(given.turns, given.sessions, Path(folder)))


if __name__ == "__main__":
    main()
