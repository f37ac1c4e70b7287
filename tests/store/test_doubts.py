"""Calls in doubt: a `reconcile` that is late, wrong or silent, and the answer of a person."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.killed_executions import Execution, run_execution
from support.memory_journal import RUN_ID, Disk, mounted

from anabranch import Retry, handler, tool
from anabranch.commander.durable import scope_here
from anabranch.handlers import respond
from anabranch.messages import Message, ToolCall
from anabranch.store import Done, Durable, Journal, NotDone, NotPending, Unknown
from anabranch.testing import ScriptedBackend
from tests.store.test_effects import change, failures, kills, left_after, require_alike

pytestmark = pytest.mark.contract("D7")

# The answers of the outside world, set by a test.
SAYS: list[Callable[[str], Any]] = []
ASKED: list[str] = []


async def ask(n: int, effect_key: str) -> Any:
    ASKED.append(effect_key)
    answer = SAYS[-1](effect_key)
    return await answer if asyncio.iscoroutine(answer) else answer


@tool(reconcile=ask, reconcile_after=0)
async def pay(n: int) -> str:
    return change(f"paid {n}")


class Pay(Durable[str]):
    async def task(self) -> str:
        return await self.durable.call(pay, 1)


def truth(key: str) -> Done | NotDone:
    done = mounted[-1].done
    return Done(done[key]) if key in done else NotDone()


def in_doubt(*, done: bool = True) -> tuple[Execution, Disk]:
    """Return an execution, and a disk on which the process died after the effect began or ended."""
    SAYS[:] = [truth]
    ASKED.clear()
    first = run_execution(Pay)
    intent = next(row.seq for row in first.rows if row.kind == "intent")
    return first, left_after(first, intent, done=done)


async def doubts_of(journal: Journal) -> list[Any]:
    while not (found := await journal.doubts()):  # noqa: ASYNC110 - of another process, too
        await asyncio.sleep(1)
    return found


async def for_ever(key: str) -> Done:
    await asyncio.Event().wait()
    return Done("never")


def always(answer: object) -> Callable[[str], Any]:
    def say(key: str) -> object:
        return answer

    return say


def fails(key: str) -> Done:
    raise OSError("no line")


@pytest.mark.parametrize(
    ("says", "note"),
    [
        (for_ever, "reconcile did not answer within 60 seconds"),
        (fails, "reconcile raised OSError: no line"),
        (always(Unknown()), "reconcile returned None: it does not know"),
        (always(True), "reconcile raised TypeError: reconcile of pay must return Done(value)"),
        (always(None), "reconcile raised TypeError: reconcile of pay must return Done(value)"),
        (always(Done(5)), "reconcile raised NotStorable: the result of the tool pay"),
    ],
)
@pytest.mark.parametrize("done", [True, False])
def test_a_person_is_asked_where_reconcile_does_not_say(says: Any, note: str, done: bool) -> None:
    """It hangs, raises, or returns an impossible result: the person sees that, and decides."""
    first, disk = in_doubt(done=done)
    SAYS.append(says)
    notes: list[str] = []

    async def person(journal: Journal) -> None:
        (doubt,) = await doubts_of(journal)
        notes.append(doubt.note)
        await (doubt.done(first.result) if done else doubt.not_done())

    execution = run_execution(Pay, disk, beside=person)
    require_alike(first, execution, "")
    assert notes[0].startswith(note)
    assert len(ASKED) == 1


def asked_before() -> tuple[Execution, Disk]:
    """Return an execution, and the disk of a second one that has asked a person and died."""
    first, disk = in_doubt()
    SAYS.append(always(Unknown()))

    async def person(journal: Journal) -> None:
        await (await doubts_of(journal))[0].done("by hand")

    second = run_execution(Pay, disk, beside=person)
    asked = next(row.seq for row in second.rows if row.kind == "question")
    left = second.disk.cut(asked, first.disk.done)
    left.mail.clear()
    ASKED.clear()
    return first, left


def test_reconcile_is_asked_again_in_a_later_life_beside_the_person() -> None:
    """The run does not wait for the person if `reconcile` knows the result now."""
    first, disk = asked_before()
    SAYS.append(truth)
    seen: list[int] = []

    async def look(journal: Journal) -> None:
        (doubt,) = await doubts_of(journal)
        while await journal.doubts():  # noqa: ASYNC110
            await asyncio.sleep(0)
        seen.append(doubt.number)
        with pytest.raises(NotPending):
            await doubt.not_done()

    execution = run_execution(Pay, disk, beside=look)
    require_alike(first, execution, "")
    assert len(ASKED) == 1
    for where, left in kills(execution):
        if len(left.rows[RUN_ID]) >= execution.before:
            left.done = dict(first.disk.done)
            require_alike(first, run_execution(Pay, left), where)


def test_what_a_person_says_while_reconcile_is_asked_counts() -> None:
    first, disk = asked_before()

    async def slowly(key: str) -> NotDone:
        await asyncio.sleep(50)
        return NotDone()

    SAYS.append(slowly)

    async def person(journal: Journal) -> None:
        (doubt,) = await doubts_of(journal)
        await asyncio.sleep(20)
        await doubt.done("by hand")

    execution = run_execution(Pay, disk, beside=person)
    assert execution.result == "by hand"
    assert execution.disk.done == first.disk.done
    for where, left in kills(execution):
        if len(left.rows[RUN_ID]) >= execution.before:
            left.done = dict(first.disk.done)
            require_alike(execution, run_execution(Pay, left), where)


# --- failures after the work


@tool(effect="keyed", retry=Retry(attempts=2, on=OSError, backoff=1))
async def keyed(n: int) -> str:
    text = change(f"keyed {n}", again=True)
    if failures() == 0:
        raise OSError("the line broke")
    return text


class Keyed(Durable[str]):
    async def task(self) -> str:
        return await self.durable.call(keyed, 1)


def test_a_call_that_fails_after_its_work_is_made_again_under_its_key() -> None:
    """`retry=` allows it; the receiver recognizes the key in each execution."""
    first = run_execution(Keyed)
    assert first.error is None
    assert sum(row.kind == "intent" for row in first.rows) == 2
    assert len(first.disk.done) == 1
    for where, disk in kills(first):
        require_alike(first, run_execution(Keyed, disk), where)


class InCallback(Durable[str]):
    """Pays in a final callback."""

    async def task(self) -> str:
        self.call_handler(ends().at_end(pay_later))
        return "ended"


@handler
async def ends(node: Any) -> None: ...


async def pay_later(node: Any) -> None:
    effect = scope_here().effect("pay", {})  # type: ignore[union-attr]

    async def work() -> str:
        return mounted[-1].done.setdefault(effect.key, "paid")

    async def unknown(key: str) -> None:
        return None

    await effect.do(work, reconcile=unknown)


def test_a_person_may_be_asked_in_a_final_callback() -> None:
    """There no child can be put that asks `reconcile` beside the person."""

    async def person(journal: Journal) -> None:
        await (await doubts_of(journal))[0].done("paid")

    execution = run_execution(InCallback)
    for kind in ("intent", "question"):
        number = next(row.seq for row in execution.rows if row.kind == kind)
        left = execution.disk.cut(number, dict(execution.disk.done))
        left.mail.clear()
        execution = run_execution(InCallback, left, beside=person)
        assert execution.result == "ended"


class Calls(Durable[str]):
    """A model calls a tool with a large result, then repeats the result."""

    async def task(self) -> str:
        def answer(request: Any) -> Any:
            if (last := request.messages[-1]).role == "tool":
                return str(last.content)
            return Message(role="assistant", tool_calls=[ToolCall(id="1", name="give")])

        talk = self.durable.conversation("t")
        talk.add("go")
        backend = ScriptedBackend(otherwise=answer)
        return str((await self.call_handler(respond(backend, talk, [give]))).content)


GIVEN: list[str] = []


@tool
async def give() -> str:
    """Return more than a journal can store."""
    GIVEN.append("x" * 20_000)
    return GIVEN[-1]


async def test_what_was_done_is_in_no_doubt_though_its_result_is_too_large(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model gets the error in each execution, and no person is asked."""
    monkeypatch.setattr("anabranch.store._checksums.MAX_VALUE_BYTES", 10_000)
    GIVEN.clear()
    async with Journal(tmp_path / "runs.db") as journal:
        said = await journal.run(Calls(), run_id="r")
        assert "is too large for a journal" in said
        rows = (await journal.look("r")).rows
        at = next(row.seq for row in rows if row.kind == "failed")
        await journal.fork("r", "fork", at=at)
        assert await journal.run(Calls(), run_id="fork") == said
    assert len(GIVEN) == 1
