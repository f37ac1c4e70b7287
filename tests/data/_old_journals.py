"""A journal with runs that stopped at every kind of place, for the tests of later versions.

    PYTHONPATH=tests python tests/data/_old_journals.py     # writes tests/data/durable-vN.sql

`tests/data/retried.sql` was written by this program with the argument `retried`, before effects had
one key over all attempts of the jobs above them.

Each version of the format has such a file, as SQL text, and every later version resumes its runs
(`test_old_journals.py`). A released file is not written again, and the code that it needs does not
change here. A change of the format or the identities needs a migration (`MIGRATIONS` in
`store/_open_file.py`) and a new file beside the old ones.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.memory_journal import Disk, use_disk_clock

from anabranch import Message, Retry, ToolCall, tool
from anabranch.commander.durable import scope_here
from anabranch.handlers import call_tools, handler, respond
from anabranch.jobs import Job
from anabranch.messages import Request, Usage
from anabranch.store import Done, Durable, DurableCalls, Journal, Live, NotDone, live
from anabranch.store._open_file import MIGRATIONS
from anabranch.testing import ScriptedBackend, run_seeded

__all__ = ["DATA", "DID", "LIVE", "RETRIED", "RUNS", "STANDS", "main"]

DATA = Path(__file__).parent
DID: list[str] = []  # the effects and the requests to models in this process
STOPS: list[Callable[[], object]] = []  # how the recorded execution ends


# --- the outside world


def did(text: str) -> str:
    DID.append(text)
    return text


def stop_here(place: str) -> None:
    """Stop the run here, if the file is being made."""
    if STOPS:
        STOPS[0]()


def play(request: Request) -> Message | str:
    """Play the model: call `refund` if asked to, else report the number of messages."""
    did(f"asked with {len(request.messages)}")
    last = request.messages[-1]
    usage = Usage(input_tokens=len(request.messages))
    if last.role == "user" and "refund" in str(last.content):
        call = ToolCall(id="c", name="refund", arguments={"cents": 500})
        return Message(role="assistant", content="I ask.", tool_calls=[call], usage=usage)
    return Message(role="assistant", content=f"After {len(request.messages)}.", usage=usage)


LIVE: dict[str, Any] = {"backend": ScriptedBackend(otherwise=play)}


@tool(approve=True, effect="keyed")
async def refund(cents: int) -> str:
    """Pay back."""
    return did(f"refund {cents}")


async def found(n: int, *, effect_key: str) -> Done | NotDone:
    did(f"was {n} mailed?")
    return Done(f"mail {n}") if n == 1 else NotDone()


@tool(reconcile=found, reconcile_after=0)
async def mail(n: int) -> str:
    if n and STOPS:
        stop_here("mail")
        await asyncio.Event().wait()
    return did(f"mail {n}")


async def mails(*numbers: int) -> Any:
    for index, n in enumerate(numbers):
        yield ToolCall(id=f"c{index}", name="mail", arguments={"n": n}, index=index)


def load(what: str) -> list[str]:
    return [did(f"load {what}"), "é 😀"]


# --- the runs


class Sum(Durable[int]):
    numbers: tuple[int, ...]
    name: str | None = None

    async def task(self) -> int:
        did(f"sum {self.numbers}")
        return sum(self.numbers)


class Over(Durable[dict[str, Any]]):
    """Completes after every operation that a journal stores."""

    async def task(self) -> dict[str, Any]:
        jobs = [self.put_job(Sum((1, 2)), key="a"), self.put_job(Sum((1, 2)))]
        given = {"sums": [await job for job in jobs], "loaded": await self.durable.step(load, "x")}
        sent = await call_tools(mails(0, 0), [mail])
        async with self.durable.transaction() as tx:
            await tx.execute("create table paid (cents)")
            await tx.execute("insert into paid values (?)", 5)
        try:
            await self.put_job(Fails("caught"), claim=True)
        except Failure as error:
            given["error"] = [error.args[0], error.code]
        given["now"], given["random"] = self.durable.now().isoformat(), self.durable.random()
        return {**given, "sent": [each.content for each in sent]}


class Failure(Exception):
    def __init__(self, text: str, code: int = 7) -> None:
        super().__init__(text)
        self.code = code


class Fails(Durable[str]):
    text: str

    async def task(self) -> str:
        await self.durable.step(load, self.text)
        raise Failure(self.text)


class Rounds(Durable[int]):
    """Puts rounds one after the other. The last but one waits in its middle."""

    left: int

    def __post_init__(self) -> None:
        if self.left:
            self.at_end(put_round)

    async def task(self) -> int:
        await self.durable.step(load, f"round {self.left}")
        if self.left == 1:
            stop_here("round")
            did(await self.durable.signal("go", str))
        return self.left


def put_round(job: Rounds) -> None:
    job.put_job(Rounds(job.left - 1), parent=job.commander, retry=Retry(attempts=2))


class Asks(Durable[list[str]]):
    """Talks to a model. The second question comes after a signal, or is about a refund."""

    question: str
    backend: Live[Any] = live()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk", "Be short.")
        talk.add("Hello, é 😀")
        await self.call_handler(respond(self.backend, talk, [refund]))
        if self.question == "refund":
            if STOPS:
                asyncio.get_running_loop().call_later(5, stop_here, "approval")
        else:
            stop_here("talk")
            talk.add(await self.durable.signal("next", str))
        talk.add(self.question)
        await self.call_handler(respond(self.backend, talk, [refund]))
        return [f"{each.role}: {each.content}" for each in talk]


class Mails(Durable[list[str]]):
    """Stops with one of its mails in doubt."""

    n: int

    async def task(self) -> list[str]:
        return [str(each.content) for each in await call_tools(mails(0, self.n), [mail])]


class Tries(Durable[list[Any]]):
    """Waits for its next attempt, beside a sleep and a signal that never arrives."""

    async def task(self) -> list[Any]:
        began = self.durable.now()
        retry = Retry(attempts=3, on=KeyError, backoff=50, factor=1, jitter=0)
        tried = self.call_handler(tries(), retry=retry)
        await self.durable.sleep(days=2)
        try:
            await self.durable.signal("never", timeout=0.01)
        except TimeoutError:
            return [await tried, (self.durable.now() - began).days >= 2]
        return []


@handler
async def tries(node: Any) -> str:
    attempt = scope_here().attempt  # type: ignore[union-attr]
    await call_tools(mails(0), [mail])
    did(f"attempt {attempt}")
    if attempt == 2:
        stop_here("attempt")
    if attempt < 3:
        raise KeyError(attempt)
    return f"attempt {attempt}"


@tool(effect="keyed")
async def pay(n: int) -> str:
    return did(f"paid {n}")


class Pays(Durable[str]):
    n: int

    async def task(self) -> str:
        return await self.durable.call(pay, self.n)


class Flaky(Job[str]):
    """Pays in child jobs in some of its attempts. All attempts but the last fail."""

    stops: str
    pays: tuple[int, ...]

    async def task(self) -> str:
        attempt = scope_here().attempt  # type: ignore[union-attr]
        if attempt in self.pays:
            await self.put_job(Pays(1))
        if self.stops == f"in {attempt}":
            stop_here(self.stops)
            await DurableCalls(self).signal("go", str)
        if attempt == 3:
            return await self.put_job(Pays(1))
        if self.stops == f"after {attempt}" and STOPS:
            asyncio.get_running_loop().call_later(0.05, stop_here, self.stops)
        raise KeyError(attempt)


class Retried(Durable[str]):
    """A job with retries and with durable child jobs that pay."""

    stops: str
    pays: tuple[int, ...]

    async def task(self) -> str:
        retry = Retry(attempts=3, on=KeyError, backoff=0.1, factor=1, jitter=0)
        return await self.put_job(Flaky(self.stops, self.pays), retry=retry)


def put_retried(job: Ends) -> None:
    job.put_job(Retried("in 1", (1, 2)), parent=job.commander)


class Ends(Durable[None]):
    """Its final callback puts a round, with a durable job below it that pays."""

    def __post_init__(self) -> None:
        self.at_end(put_retried)

    async def task(self) -> None: ...


RETRIED: dict[str, Callable[[], Durable[Any]]] = {
    "between attempts": lambda: Retried("after 1", (1, 2)),
    "second attempt": lambda: Retried("in 2", (1, 2)),
    "paid by the second alone": lambda: Retried("after 2", (2,)),
    "round of a callback": Ends,
}


RUNS: dict[str, Callable[[], Durable[Any]]] = {
    "pending": lambda: Sum((4, 5), "accepted"),
    "over": Over,
    "failed": lambda: Fails("for good"),
    "round": lambda: Rounds(2),
    "approval": lambda: Asks("refund"),
    "talk": lambda: Asks("And now?"),
    "doubt": lambda: Mails(1),
    "not done": lambda: Mails(2),
    "tries": Tries,
    "cancelled": lambda: Asks("Never asked"),
}
STANDS = {
    "pending": "pending",
    "over": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    **dict.fromkeys(("round", "approval", "talk", "doubt", "not done", "tries"), "suspended"),
}


# --- writing the file


async def make(runs: dict[str, Callable[[], Durable[Any]]] = RUNS) -> list[str]:
    """Play each run until it stops, and return the SQL of the journal."""
    async with Journal(":memory:", grace=0) as journal:
        for name, run in runs.items():
            if name == "pending":
                await journal.start(run(), run_id=name, queue="later")
                continue
            driver = asyncio.create_task(journal.run(run(), run_id=name, live=LIVE))
            STOPS[:] = [driver.cancel]
            await asyncio.gather(driver, return_exceptions=True)
            STOPS.clear()
            if name == "cancelled":
                await journal.cancel(name, "not wanted")
            stands = (await journal._file.run(name)).state
            assert stands == STANDS.get(name, "suspended"), f"{name} is {stands}: {driver}"
        if runs is RUNS:
            await journal.signal("talk", "next", "It goes on.")
        return await journal._file.call(lambda sql: [*sql.iterdump(), *_numbers(sql)])


def _numbers(sql: Any) -> list[str]:
    names = ("application_id", "user_version")
    return [f"PRAGMA {each} = {sql.execute(f'pragma {each}').fetchone()[0]};" for each in names]


def _readable(blob: re.Match[str]) -> str:
    """Write JSON as readable text."""
    try:
        text = bytes.fromhex(blob[1]).decode()
        json.loads(text)
    except ValueError:
        return blob[0]
    return "cast('" + text.replace("'", "''") + "' as blob)"


def main(name: str = f"durable-v{len(MIGRATIONS)}") -> None:
    runs = RETRIED if name == "retried" else RUNS

    async def write() -> list[str]:
        with use_disk_clock(Disk()):
            return await make(runs)

    lines = [re.sub("X'([0-9A-F]+)'", _readable, line) for line in run_seeded(write, None)]
    path = DATA / f"{name}.sql"
    path.write_text("\n".join(lines) + "\n")
    print(f"{path}: {len(runs)} runs")


if __name__ == "__main__":
    from _old_journals import main as write_down  # so that the stored class names can be found

    write_down(*sys.argv[1:])
