"""`self.durable.call`: a tool that a run's own code calls is an effect with a typed result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from support.killed_executions import Execution, run_execution
from support.media_files import PIXEL
from support.memory_journal import RUN_ID, mounted
from support.seeds import SEED, example_count

from anabranch import ConfigurationError, Node, Retry, ToolError, handler, tool
from anabranch.handlers import call_tools
from anabranch.messages import ToolCall
from anabranch.store import (
    Done,
    Durable,
    DurableCalls,
    Journal,
    NotDone,
    NotDurable,
    NotStorable,
    effect_key,
)
from anabranch.tools import Illustrated, InvalidArguments
from tests.store.test_effects import CALL, TOOLS, change, kills, left_after, require_alike
from tests.store.test_resume import resume

pytestmark = pytest.mark.contract("D7")


@dataclass
class Receipt:
    """A result that is not plain JSON."""

    text: str
    days: tuple[date, ...]


def made(n: int) -> Receipt:
    """Note that the call with this number is done."""
    return Receipt(mounted[-1].done[effect_key()], (date(2026, 1, n + 1),))


async def find_receipt(n: int, on: date | None = None, *, effect_key: str) -> Done | NotDone:
    done = mounted[-1].done
    if effect_key not in done:
        return NotDone()
    return Done(Receipt(done[effect_key], (date(2026, 1, n + 1),)))


@tool(reconcile=find_receipt, reconcile_after=0)
async def buy(n: int, on: date | None = None) -> Receipt:
    change(f"bought {n} {on}")
    return made(n)


@tool(approve=True, reconcile=find_receipt, reconcile_after=0)
def order(n: int, on: date | None = None) -> Receipt:
    change(f"ordered {n} {on}")
    return made(n)


@tool
async def unsure(n: int) -> dict[str, int]:
    change(f"unsure {n}")
    return {"n": n}


@tool(effect="keyed")
async def nothing(n: int) -> None:
    change(f"nothing {n}", again=True)


BY_NAME = {each.name: each for each in TOOLS}


@handler
async def below(node: Node[Any], name: str, n: int, fails: int) -> Any:
    """Call from a plain handler below the job."""
    return await DurableCalls(node).call(BY_NAME[name], n=n, fails=fails)


class Calls(Durable[list[Any]]):
    """Calls tools itself and from concurrent handlers, also with equal arguments."""

    groups: list[list[tuple[str, int, int]]]

    async def task(self) -> list[Any]:
        gave: list[Any] = []
        for group in self.groups:
            called = [self.durable.call(BY_NAME[name], n, fails) for name, n, fails in group]
            called += [self.call_handler(below(*each), claim=True) for each in group]
            gave += await asyncio.gather(*called, return_exceptions=True)
        return [f"{type(each).__name__} {each} {getattr(each, 'parts', '')}" for each in gave]


@seed(SEED)
@settings(max_examples=example_count(8, 200), deadline=None)
@given(
    groups=st.lists(st.lists(CALL, min_size=1, max_size=2), min_size=1, max_size=2),
    order=st.integers(0, 999),
)
def test_each_call_happens_once_whenever_the_run_is_killed(
    groups: list[list[tuple[str, int, int]]], order: int
) -> None:
    """D3, D7: it returns or raises the same in each execution, also for equal concurrent calls."""
    first = run_execution(lambda: Calls(groups), seed=order)
    assert first.error is None
    for where, disk in kills(first):
        require_alike(first, run_execution(lambda: Calls(groups), disk, seed=order + 1), where)


class Typed(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        receipt: Receipt = await self.durable.call(buy, 2, on=date(2026, 5, 6))
        again: Receipt = await self.durable.call(buy, n=2, on=date(2026, 5, 6))
        picture: Illustrated = await self.durable.call(draw)
        assert (await self.durable.call(nothing, 1)) is None
        return [receipt.text, str(again.days), str(picture), [part.url for part in picture.parts]]


@tool(effect="keyed")
def draw() -> Illustrated:
    return Illustrated("a cat", [PIXEL])


def test_a_call_gives_what_the_tool_returns_of_its_own_type() -> None:
    """A dataclass, a text with images, None: also if `reconcile` returns the result."""
    first = run_execution(Typed)
    assert first.error is None
    assert first.result[0].startswith("bought 2 2026-05-06, ")
    assert first.result[1:] == ["(datetime.date(2026, 1, 3),)", "a cat", [PIXEL.url]]
    for where, disk in kills(first):
        require_alike(first, run_execution(Typed, disk), where)


# --- a person


class Orders(Durable[str]):
    async def task(self) -> str:
        try:
            return (await self.durable.call(order, 2)).text
        except ToolError as error:
            return f"{type(error).__name__}: {error}"


def answers(what: str) -> Any:
    async def beside(journal: Journal) -> None:
        while not (found := await journal.approvals()):  # noqa: ASYNC110 - of another process, too
            await asyncio.sleep(1)
        if what == "no":
            await found[0].deny("too dear")
        else:
            await found[0].approve({"yes": None, "other": {"n": 3}, "wrong": {"n": "x"}}[what])

    return beside


@pytest.mark.parametrize(
    ("what", "gave"),
    [
        ("yes", "ordered 2 None, "),
        ("other", "ordered 3 None, "),
        ("no", "ToolError: the call of order was denied: too dear"),
        ("wrong", "InvalidArguments: "),
    ],
)
def test_a_person_is_asked_about_a_call(what: str, gave: str) -> None:
    """Once in the lifetime of the run; the plain tool then runs in its thread."""
    first = run_execution(Orders, beside=answers(what))
    assert first.error is None
    assert first.result.startswith(gave)
    for where, disk in kills(first):
        beside = None if disk.mail else answers(what)
        require_alike(first, run_execution(Orders, disk, beside=beside), where)


class Careless(Durable[str]):
    async def task(self) -> str:
        return (await self.durable.call(order, 2)).text


@pytest.mark.parametrize("times", [1, 2, 3])
def test_who_has_answered_with_wrong_arguments_is_asked_anew_after_resume(times: int) -> None:
    """As often as the arguments are invalid; until then each execution fails with that answer."""
    execution = run_execution(Careless, beside=answers("wrong"))
    for again in ["wrong"] * (times - 1) + ["other"]:
        assert isinstance(execution.error, InvalidArguments)
        assert isinstance(run_execution(Careless, execution.disk).error, InvalidArguments)
        resume(execution.disk)
        execution = run_execution(Careless, execution.disk, beside=answers(again))
    assert execution.error is None
    assert execution.result.startswith("ordered 3 None, ")
    for where, disk in kills(execution):
        if sum(row.kind == "resumed" for row in disk.rows[RUN_ID]) == times:
            beside = None if len(disk.mail) > times else answers("other")
            require_alike(execution, run_execution(Careless, disk, beside=beside), where)


class Unsure(Durable[str]):
    async def task(self) -> str:
        return repr(await self.durable.call(unsure, 1))


def in_doubt(job: type[Durable[Any]]) -> tuple[Execution, Any]:
    """Return an execution, and a disk on which the process died right after the effect."""
    first = run_execution(job)
    assert first.error is None
    intent = next(row.seq for row in first.rows if row.kind == "intent")
    return first, left_after(first, intent, done=True)


@pytest.mark.parametrize("said", [{"n": 1}, '{"n": 1}'])
def test_what_a_person_says_that_a_call_gave_has_to_be_of_its_type(said: object) -> None:
    """Else it is asked again; a text, as from a terminal, may be the JSON of the value."""
    first, disk = in_doubt(Unsure)
    notes: list[str] = []

    async def say(journal: Journal) -> None:
        for value in ("nonsense", said):
            while not (doubts := await journal.doubts()):  # noqa: ASYNC110
                await asyncio.sleep(1)
            notes.append(doubts[0].note)
            await doubts[0].done(value)

    execution = run_execution(Unsure, disk, beside=say)
    assert (execution.outcome, execution.disk.done) == (first.outcome, first.disk.done)
    assert notes == [
        "the tool has no reconcile function",
        "the answer is not a result of the tool: 'nonsense' is not a result of unsure",
    ]
    require_alike(
        execution,
        run_execution(Unsure, execution.disk.cut(len(execution.rows) - 3, execution.disk.done)),
        "",
    )


# --- with calls by models, and refused calls


class Mixed(Durable[list[str]]):
    """One attempt makes a call through a model's message, the next one in code, or vice versa."""

    by_model_first: bool

    async def task(self) -> list[str]:
        return [await self.call_handler(mixed(self.by_model_first), retry=TWICE)]


TWICE = Retry(attempts=2, on=KeyError, backoff=0)


@handler
async def mixed(node: Node[Any], by_model: bool) -> str:
    second = failed_before(node)
    if by_model != second:

        async def one() -> AsyncIterator[ToolCall]:
            yield ToolCall(id="c", name="buy", arguments={"n": 1})

        (answer,) = await node.call_handler(call_tools(one(), [buy]))
        given = str(answer.content)
    else:
        given = str(await DurableCalls(node).call(buy, n=1))
    if not second:
        raise KeyError
    return given


def failed_before(node: Node[Any]) -> bool:
    from anabranch.commander.durable import scope_of

    scope: Any = scope_of(node)
    return scope.attempt > 1


@pytest.mark.parametrize("by_model", [False, True])
def test_what_a_model_has_called_in_a_failed_attempt_is_not_done_again(by_model: bool) -> None:
    """D21: and the other way round; each gets the result in its own form."""
    first = run_execution(lambda: Mixed(by_model))
    assert first.error is None
    assert len(first.disk.done) == 1
    (text,) = first.result
    assert ("Receipt(" in text) == by_model
    assert "bought 1" in text
    for where, disk in kills(first):
        require_alike(first, run_execution(lambda: Mixed(by_model), disk), where)


@tool
async def lock() -> asyncio.Lock:
    return asyncio.Lock()


class Wrong(Durable[list[str]]):
    async def task(self) -> list[str]:
        said: list[str] = []
        for make in (
            lambda: self.durable.call(buy, n="x"),  # type: ignore[call-overload]
            lambda: self.durable.call(buy, 1, on=object()),  # type: ignore[call-overload]
            lambda: self.durable.call(lock),
            lambda: self.durable.call(asyncio.sleep, 1),  # type: ignore[call-overload]
        ):
            with pytest.raises((InvalidArguments, NotStorable, TypeError)) as caught:
                make()
            said.append(type(caught.value).__name__)
        async with self.durable.transaction():
            with pytest.raises(ConfigurationError, match="transaction"):
                self.durable.call(buy, n=1)
        return said


def test_a_call_that_cannot_be_made_is_refused_at_once() -> None:
    """Before anything is written; D9: inside a transaction too."""
    execution = run_execution(Wrong)
    assert execution.error is None, execution.error
    assert execution.result == ["InvalidArguments", "NotStorable", "NotStorable", "TypeError"]
    assert not any(row.kind == "intent" for row in execution.rows)


@tool(effect="keyed", retry=Retry(attempts=3, on=Exception, backoff=0))
async def mistyped(n: int) -> str:
    change(f"mistyped {n}", again=True)
    return n  # type: ignore[return-value]


class Mistyped(Durable[None]):
    async def task(self) -> None:
        await self.durable.call(mistyped, 1)


def test_what_cannot_be_kept_of_a_call_is_told_and_the_call_not_made_again() -> None:
    """The call has happened: no `retry=` repeats it in any execution."""
    first = run_execution(Mistyped)
    assert isinstance(first.error, NotStorable)
    assert sum(row.kind == "intent" for row in first.rows) == 1
    for where, disk in kills(first):
        require_alike(first, run_execution(Mistyped, disk), where)


class AtOnce(Durable[None]):
    async def task(self) -> None:
        async def branch() -> None:
            await self.durable.call(buy, 1)

        await asyncio.gather(branch(), branch())


def test_equal_calls_of_several_tasks_at_once_are_refused() -> None:
    """D5: a later execution could not assign the results."""
    execution = run_execution(AtOnce)
    assert isinstance(execution.error, ConfigurationError)
    assert "several tasks start buy with equal inputs" in str(execution.error)


async def test_outside_a_run_there_is_nothing_to_call() -> None:
    with pytest.raises(NotDurable):
        _ = Unsure().durable
