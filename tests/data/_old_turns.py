"""A journal with one long turn, written by an earlier version.

In that version the row of each message named all nodes above it ("above"). A tool's result was
stored both in a row and in the message. Later versions resume such runs from every row
(`test_old_journals.py`). So do not run `python tests/data/_old_turns.py` again, and do not change
the code that the file needs.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

from _old_journals import DATA, _numbers, _readable
from support.memory_journal import Disk, use_disk_clock

from anabranch import Message, NodeCancelled, Retry, ToolCall, tool
from anabranch.handlers import handler, respond
from anabranch.messages import Part, Request, Usage
from anabranch.store import Durable, Journal, Live, live
from anabranch.testing import ScriptedBackend, run_seeded
from anabranch.tools import Illustrated

__all__ = ["DID", "FILE", "LIVE", "Turn"]

FILE = DATA / "turns-v1.sql"
DID: list[str] = []  # the requests to the model and the effects of tools in this process
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
ROUNDS = 5


def did(text: str) -> str:
    DID.append(text)
    return text


@tool(effect="keyed")
async def write(n: int) -> str:
    """Write."""
    return did(f"wrote {n}, é 😀")


@tool(read_only=True)
async def draw(n: int) -> str:
    """Draw."""
    return Illustrated(did(f"drew {n}"), [Part.from_bytes(PNG, "image/png", name=f"{n}.png")])


def play(request: Request) -> Message | str:
    """Play the model: it calls a tool in each round, and both tools in some."""
    n = sum(message.role == "assistant" for message in request.messages)
    did(f"asked {n} with {len(request.messages)}")
    if n >= ROUNDS:
        return "That is all."
    names = [["write"], ["draw"], ["write", "draw"]][n % 3]
    calls = [
        ToolCall(id=f"c{n}{name}", name=name, arguments={"n": n}, index=index)
        for index, name in enumerate(names)
    ]
    usage = Usage(input_tokens=n)
    return Message(role="assistant", content=f"Round {n}.", tool_calls=calls, usage=usage)


LIVE: dict[str, Any] = {"backend": ScriptedBackend(otherwise=play)}


class Beside(Durable[int]):
    """Adds a message and is not retried."""

    text: str

    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        talk.add(did(self.text))
        return len(talk)


@handler
async def deep(node: Any, talk: Any, left: int) -> None:
    """Put a job below several nested nodes. Each node adds a message."""
    talk.add(f"{left} left")
    if left:
        await node.call_handler(deep(talk, left - 1))
    else:
        await node.put_job(Beside("at the bottom"))


@handler
async def tries(node: Any, talk: Any) -> None:
    if not any(each.content == "first attempt" for each in talk):
        talk.add("first attempt")
        raise KeyError(1)
    talk.add("second attempt")


@handler
async def hangs(node: Any, talk: Any) -> None:
    talk.add("begun")
    await asyncio.Event().wait()


class Turn(Durable[list[str]]):
    """One turn of several rounds, with jobs, attempts and cancels that add to its conversation."""

    backend: Live[Any] = live()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk", "Be short.")
        talk.add("Go.")
        await self.call_handler(deep(talk, 2))
        retry = Retry(attempts=2, on=KeyError, backoff=0)
        await self.call_handler(tries(talk), retry=retry)
        node = self.call_handler(hangs(talk))
        for _ in range(20):
            await asyncio.sleep(0)
        node.cancel("enough")
        with suppress(NodeCancelled):
            await node
        talk.add(f"{len(talk)} so far")
        await respond(self.backend, talk, [write, draw], max_rounds=ROUNDS + 1)
        await self.put_job(Beside("after it"))
        return [each.model_dump_json(exclude_defaults=True) for each in talk]


async def make() -> list[str]:
    """Play the turn once, and return the SQL of the journal."""
    async with Journal(":memory:", grace=0) as journal:
        await journal.run(Turn(), run_id="turn", live=LIVE)
        return await journal._file.call(lambda sql: [*sql.iterdump(), *_numbers(sql)])


def main() -> None:
    async def write_down() -> list[str]:
        with use_disk_clock(Disk()):
            return await make()

    lines = [re.sub("X'([0-9A-F]+)'", _readable, line) for line in run_seeded(write_down, None)]
    FILE.write_text("\n".join(lines) + "\n")
    print(f"{FILE}: {len(lines)} lines")


if __name__ == "__main__":
    from _old_turns import main as write_down  # so that the stored class names can be found

    write_down()
