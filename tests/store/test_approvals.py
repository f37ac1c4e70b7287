"""Questions to a person in durable runs (D12): recorded, asked once, answered by any process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from support.killed_executions import run_execution
from support.memory_journal import RUN_ID, mounted
from support.seeds import SEED, example_count

from anabranch import Retry, run, tool
from anabranch.commander.durable import scope_here
from anabranch.handlers import View, call_tools
from anabranch.jobs import Job
from anabranch.messages import ToolCall
from anabranch.store import (
    Done,
    Durable,
    DurableCalls,
    Journal,
    Live,
    NotDone,
    NotPending,
    RunNotFound,
    live,
)
from anabranch.tools import Approvals, Decision
from tests.store.test_effects import change, kills, require_alike, told

pytestmark = pytest.mark.contract("D12")


async def found(n: int, *, effect_key: str) -> Done | NotDone:
    done = mounted[-1].done
    return Done(done[effect_key]) if effect_key in done else NotDone()


@tool(approve=True, reconcile=found, reconcile_after=0)
async def send(n: int) -> str:
    return change(f"sent {n}")


async def calls(numbers: list[int]) -> AsyncIterator[ToolCall]:
    for index, n in enumerate(numbers):
        yield ToolCall(id=f"c{index}", name="send", arguments={"n": n}, index=index)


class Send(Durable[list[Any]]):
    numbers: list[int]
    view: Live[View] = live()

    async def task(self) -> list[Any]:
        return told(await self.call_handler(call_tools(calls(self.numbers), [send], self.view)))


class Here(View):
    """A person at this process; `later` counts the questions."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[int] = []

    async def approve(self, call: ToolCall) -> bool | Decision:
        self.asked.append(call.arguments["n"])
        await asyncio.sleep(call.arguments["n"])
        return self.answer(call.arguments["n"])


async def waiting(journal: Journal, count: int = 1) -> list[Any]:
    while len(found := await journal.approvals()) < count:  # noqa: ASYNC110 - of other processes, too
        await asyncio.sleep(1)
    return found


def answer_in(order: list[int], answers: list[str]) -> Callable[[Journal], Any]:
    """Answer all questions through the journal, in this order, days later."""

    async def beside(journal: Journal) -> None:
        while True:
            for approval in sorted(await waiting(journal), key=lambda a: order[a.arguments["n"]]):
                await asyncio.sleep(86_400)
                n = approval.arguments["n"]
                if answers[n] == "no":
                    await approval.deny("not now")
                else:
                    await approval.approve({"n": n + 10} if answers[n] == "other" else None)

    return beside


ANSWERS = st.lists(st.sampled_from(["yes", "no", "other"]), min_size=4, max_size=4)


@seed(SEED)
@settings(max_examples=example_count(7, 200), deadline=None)
@given(
    numbers=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    order=st.permutations(range(4)),
    again=st.permutations(range(4)),
    answers=ANSWERS,
    ahead=st.integers(0, 2),
)
def test_an_answer_from_elsewhere_is_asked_for_once(
    numbers: list[int], order: list[int], again: list[int], answers: list[str], ahead: int
) -> None:
    """In any order, also for equal calls: a kill at any row loses no answer and repeats no call.

    Some answers arrive before the run receives them.
    """

    def make() -> Send:
        return Send(numbers, View())

    first = run_execution(make, beside=answer_in(order, answers))
    assert first.error is None
    assert [each[0] for each in first.result] == [
        "failed" if answers[n] == "no" else "ok" for n in numbers
    ]
    for where, disk in kills(first):
        taken = sum(row.kind == "letter" for row in disk.rows[RUN_ID])
        del disk.mail[taken + ahead :]
        execution = run_execution(make, disk, beside=answer_in(again, answers))
        require_alike(first, execution, where)
        assert sum(row.kind == "question" for row in execution.rows) == len(numbers)


@seed(SEED)
@settings(max_examples=example_count(15, 200), deadline=None)
@given(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=3), answers=ANSWERS)
def test_an_answer_from_here_is_asked_for_once(numbers: list[int], answers: list[str]) -> None:
    """The program's own answer is recorded: no later execution asks about that call here."""

    def answer(n: int) -> bool | Decision:
        if answers[n] == "other":
            return Decision(True, {"n": n + 10})
        return answers[n] == "yes" or Decision(False, reason="not now")

    def views() -> tuple[Here, Callable[[], Send]]:
        view = Here(answer)
        return view, lambda: Send(numbers, view)

    view, make = views()
    first = run_execution(make)
    assert sorted(view.asked) == sorted(numbers)
    for where, disk in kills(first):
        answered = len(disk.mail)
        view, make = views()
        require_alike(first, run_execution(make, disk), where)
        assert len(view.asked) == len(numbers) - answered, where


@pytest.mark.parametrize("first_is_here", [True, False])
def test_the_first_answer_counts(first_is_here: bool) -> None:
    places: list[Approvals] = []

    def make() -> Send:
        view = View()
        view.approvals = Approvals()
        places.append(view.approvals)
        return Send([1], view)

    async def both(journal: Journal) -> None:
        (approval,) = await waiting(journal)
        (question,) = places[-1].pending
        if first_is_here:
            assert question.deny("no")
            await asyncio.sleep(1)
            with pytest.raises(NotPending, match="answered"):
                await approval.approve()
        else:
            await approval.approve({"n": 5})
            with pytest.raises(NotPending, match="answered"):
                await approval.deny()
            while places[-1].pending:  # noqa: ASYNC110
                await asyncio.sleep(1)
        assert not await journal.approvals()

    execution = run_execution(make, beside=both)
    if first_is_here:
        assert execution.result[0][1] == "Error: the user did not allow this call: no"
    else:
        assert "sent 5, " in execution.result[0][1]
    for where, disk in kills(execution):
        if disk.mail:
            require_alike(execution, run_execution(make, disk), where)


def test_a_question_says_who_asks_and_what() -> None:
    async def see(journal: Journal) -> None:
        (approval,) = await waiting(journal)
        assert (approval.run_id, approval.tool, approval.arguments) == (RUN_ID, "send", {"n": 2})
        assert approval.path.endswith("ask_first:send#3")
        assert (approval.agent, approval.session_id) == (None, None)
        assert approval.asked.tzinfo is not None
        await approval.approve()

    execution = run_execution(lambda: Send([2], View()), beside=see)
    number = next(row.seq for row in execution.rows if row.kind == "question")
    assert number == 1


class Given(Durable[str]):
    """Withdraws its question after a day."""

    view: Live[View] = live()

    async def task(self) -> str:
        node = self.call_handler(call_tools(calls([1]), [send], self.view))
        await asyncio.sleep(86_400)
        node.cancel("too late")
        await asyncio.sleep(86_400)
        return "given up"


def test_a_question_that_was_cancelled_is_asked_no_more() -> None:
    async def late(journal: Journal) -> None:
        (approval,) = await waiting(journal)
        while await journal.approvals():  # noqa: ASYNC110
            await asyncio.sleep(1000)
        with pytest.raises(NotPending, match="answered or withdrawn"):
            await approval.approve()

    execution = run_execution(lambda: Given(View()), beside=late)
    assert execution.result == "given up"
    assert not execution.disk.done


class Flaky(Job[str]):
    async def task(self) -> str:
        gave = await DurableCalls(self).call(send, 1)
        if scope_here().attempt == 1:  # type: ignore[union-attr]
            raise KeyError
        return gave


class Retried(Durable[str]):
    async def task(self) -> str:
        return await self.put_job(Flaky(), retry=Retry(attempts=2, on=KeyError, backoff=1))


def test_the_next_attempt_gets_the_answer_that_was_given() -> None:
    async def allow(journal: Journal) -> None:
        (approval,) = await waiting(journal)
        await approval.approve()

    first = run_execution(Retried, beside=allow)
    assert first.error is None
    assert first.count("question") == first.count("letter") == len(first.disk.done) == 1


async def test_a_question_of_a_run_that_is_over_takes_no_answer(tmp_path: Path) -> None:
    async with Journal(str(tmp_path / "runs.db")) as journal:
        running = asyncio.create_task(journal.run(Given(View()), run_id="a"))
        (approval,) = await waiting_soon(journal)
        running.cancel()
        await asyncio.wait([running])
        assert [each.number for each in await journal.approvals()] == [approval.number]
        _, _ = await journal._file.acquire("a", "me")
        await journal._file.release("a", 2, "cancelled")
        assert not await journal.approvals()
        with pytest.raises(NotPending, match="is over"):
            await approval.approve()


@pytest.mark.parametrize("at", range(4))
async def test_a_purge_between_two_reads_hides_only_its_own_run(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The questions of the other runs are listed, whichever read came before the purge."""
    name, reads = str(tmp_path / "runs.db"), 0
    async with Journal(name) as journal, Journal(name) as reader:
        runs = [asyncio.create_task(journal.run(Given(View()), run_id=each)) for each in "ab"]
        waiting = await waiting_soon(journal, 2)
        (approval,) = [each for each in waiting if each.run_id == "a"]
        call = reader._file.call

        async def purge_at(*args: Any, **options: Any) -> Any:
            nonlocal reads
            if reads == at:
                await journal.cancel("a")
                await asyncio.wait(runs[:1])
                assert await journal.purge(time.time() + 1, prefix="a") == 1
            reads += 1
            return await call(*args, **options)

        monkeypatch.setattr(reader._file, "call", purge_at)
        found = [each.run_id for each in await reader.approvals()]
        assert "b" in found
        if at < reads:
            with pytest.raises(NotPending, match="the run was purged"):
                await approval.approve()
            with pytest.raises(RunNotFound):
                await journal.approvals("a")
        for each in runs:
            each.cancel()
        await asyncio.wait(runs)


async def waiting_soon(journal: Journal, number: int = 1) -> list[Any]:
    async with asyncio.timeout(60):
        while len(found := await journal.approvals()) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


SENT: list[int] = []


@tool(approve=True)
def ship(n: int) -> str:
    SENT.append(n)
    return f"shipped {n}"


class Ship(Durable[str]):
    async def task(self) -> str:
        async def one() -> AsyncIterator[ToolCall]:
            yield ToolCall(id="c", name="ship", arguments={"n": 3})

        (answer,) = await self.call_handler(call_tools(one(), [ship]))
        return answer.content or ""


ANSWER = """
import asyncio, sys
from anabranch.store import Journal

async def main():
    async with Journal(sys.argv[1]) as journal:
        while not (found := await journal.approvals()):
            await asyncio.sleep(0.01)
        await found[0].approve({"n": 4})

asyncio.run(main())
"""


def test_another_process_answers(tmp_path: Path) -> None:
    """With a real file and a plain tool in its thread, the next execution does not ask again."""
    name = str(tmp_path / "runs.db")
    SENT.clear()
    with subprocess.Popen([sys.executable, "-c", ANSWER, name]) as other:
        text = run(Ship(), journal=name, run_id="a")
        assert other.wait(30) == 0
    assert text.startswith("(The user changed the arguments to ")
    assert text.endswith("shipped 4")
    assert run(Ship(), journal=name, run_id="a") == text
    assert SENT == [4]


async def test_a_question_outlives_the_process_that_asked(tmp_path: Path) -> None:
    """It is answered while no process owns the run, which then continues with that answer."""
    name = str(tmp_path / "runs.db")
    SENT.clear()
    async with Journal(name) as journal:
        running = asyncio.create_task(journal.run(Ship(), run_id="a"))
        await waiting_soon(journal)
        running.cancel()
        await asyncio.wait([running])
    async with Journal(name) as journal:
        (approval,) = await journal.approvals()
        await approval.approve()
        with pytest.raises(NotPending):
            await approval.deny()
        assert not await journal.approvals()
    async with Journal(name) as journal:
        assert await journal.run(Ship(), run_id="a") == "shipped 3"
    assert SENT == [3]


async def test_of_two_answers_at_the_same_time_one_counts(tmp_path: Path) -> None:
    """The sender of the second answer gets an error; the run uses the first."""
    name = str(tmp_path / "runs.db")
    SENT.clear()
    async with Journal(name) as journal, Journal(name) as other:
        running = asyncio.create_task(journal.run(Ship(), run_id="a"))
        (here,) = await waiting_soon(journal)
        (there,) = await other.approvals()
        answers = await asyncio.gather(here.approve(), there.deny("no"), return_exceptions=True)
        assert [type(each) for each in answers].count(NotPending) == 1
        said = await running
    approved = answers[0] is None
    assert said == ("shipped 3" if approved else "Error: the user did not allow this call: no")
    assert [3] * approved == SENT
