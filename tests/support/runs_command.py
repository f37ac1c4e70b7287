"""Run the command `anabranch runs` as a user does, and a module with runs to resume."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pexpect

from support.chat_command import ForkedTerminal, environment, run_program

__all__ = ["RUNS", "begin", "python", "run_runs", "runs_json", "screen", "table"]

RUNS = [sys.executable, "-m", "anabranch", "runs"]
ORDERS = '''
import asyncio
from pathlib import Path
from anabranch import tool
from anabranch.handlers import call_tools
from anabranch.messages import ToolCall
from anabranch.store import Durable, Journal, Live, live

def log(text):
    with open("outside.log", "a") as file:
        file.write(text + "\\n")

class Shop:
    """Counts how often it was opened and closed."""

    async def __aenter__(self):
        log("open")
        return self

    async def __aexit__(self, *_):
        log("close")

    async def load(self, order):
        if Path("closed").exists():
            raise ValueError(f"the shop is closed for {order}")
        return ["pen", "ink"]

def shop():
    return Shop()

async def found_shop():
    return Shop()

THE_SHOP = Shop()

def weigh(item: str) -> int:
    log(f"weigh {item}")
    return len(item)

class Pack(Durable[int]):
    item: str

    async def task(self):
        return await self.durable.step(weigh, self.item)

class Order(Durable[str]):
    order: str
    note: str = ""
    shop: Live[Shop] = live()

    async def task(self):
        jobs = [self.put_job(Pack(item), key=item) for item in ("pen", "ink")]
        total = sum([await job for job in jobs])
        items = await self.shop.load(self.order)
        word = await self.durable.signal("feedback", str)
        return f"{self.order}: {total} for {len(items)}, {word}"

class Nap(Durable[dict[str, float]]):
    hours: float

    async def task(self):
        await self.durable.sleep(hours=self.hours)
        return {"slept": self.hours}

class Loud(Durable[str]):
    async def task(self):
        print("printed by the run")
        return "done"

@tool(approve=True)
async def send(to: str, text: str = "") -> str:
    """Send a mail."""
    log(f"send {to} {text}")
    return f"sent to {to}"

async def calls(to):
    yield ToolCall(id="c", name="send", arguments={"to": to, "text": "hello"}, index=0)

class Mail(Durable[str]):
    """Sends a mail, if a person says yes."""

    to: str

    async def task(self):
        results = await self.call_handler(call_tools(calls(self.to), [send]))
        return results[-1].content

@tool
async def pay(cents: int) -> str:
    """Pay."""
    log(f"pay {cents}")
    if Path("hang").exists():
        await asyncio.Event().wait()
    return f"paid {cents}"

async def payments(cents):
    yield ToolCall(id="c", name="pay", arguments={"cents": cents}, index=0)

class Pay(Durable[str]):
    cents: int

    async def task(self):
        results = await self.call_handler(call_tools(payments(self.cents), [pay]))
        return results[-1].content
'''


async def begin(folder: Path, *jobs: str) -> None:
    """Store runs, each given as `name=Job(...)`, without executing them."""
    (folder / "orders.py").write_text(ORDERS)
    starts = "".join(
        f"        await journal.start({job}, run_id={name!r})\n"
        for name, _, job in (each.partition("=") for each in jobs)
    )
    program = (
        "import asyncio\nfrom orders import *\nasync def main():\n"
        f"    async with Journal('runs.db') as journal:\n{starts or '        pass'}\n"
        "asyncio.run(main())\n"
    )
    await python(folder, "-c", program)


async def python(folder: Path, *options: str) -> None:
    """Run a Python program, which must succeed without errors on its output."""
    status, _, err = await run_program([sys.executable, *options], folder)
    # On a busy machine any body or import may be slow enough for a warning.
    said = [line for line in err.splitlines() if " for more than " not in line]
    assert (status, said) == (0, []), err


async def run_runs(folder: Path, *options: str, said: str = "", **env: str) -> tuple[int, str, str]:
    """Run the command; return its status, output and errors."""
    return await run_program([*RUNS, *options], folder, said, **env)


async def runs_json(folder: Path, *options: str) -> Any:
    """Run the command, which must succeed, and return its JSON."""
    status, out, err = await run_runs(folder, *options, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def screen(folder: Path, *options: str, width: int = 80, **env: str) -> Any:
    """Start the command in a terminal of this width."""
    env = {**environment(), "TERM": "xterm", **env}
    return ForkedTerminal([*RUNS[1:], *options], folder, env, (60, width))


def table(child: Any) -> str:
    """Return the output of a command, which must succeed."""
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    return child.before
