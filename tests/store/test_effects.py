"""Effects: what the tools of a durable run do outside happens once, after any kill."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from support.killed_executions import Execution, require_consistent, run_execution
from support.media_files import PIXEL
from support.memory_journal import RUN_ID, Disk, effect_key_of, mounted
from support.seeds import SEED, example_count
from support.waiting import run_turns

from anabranch import Retry, handler, tool
from anabranch.commander.durable import scope_here
from anabranch.handlers import call_tools
from anabranch.messages import ToolCall
from anabranch.store import Done, Durable, Journal, NotDone, NotPending, Unknown, effect_key
from anabranch.store.errors import JournalMismatch
from anabranch.tools import AnyTool, Illustrated, ToolResult

pytestmark = pytest.mark.contract("D7")

Group = list[tuple[str, int, int]]
Program = list[Any]

# --- the outside world, and tools that change it


def failures() -> int:
    """Return how often the call around this code has failed, by the journal."""
    rows = mounted[-1].rows[RUN_ID]
    return sum(row.kind == "failed" and effect_key_of(row.ident) == effect_key() for row in rows)


def change(text: str, *, again: bool = False) -> str:
    """Do something outside; a repetition is noted, unless the receiver knows its key.

    The result names the key, so that the result of another call would be noticed.
    """
    disk, key = mounted[-1], effect_key()
    if key in disk.done and not again:
        disk.twice.append(text)
    disk.done[key] = f"{text}, {key[:6]}"
    return disk.done[key]


def find(n: int, fails: int = 0, *, effect_key: str) -> Done | NotDone:
    done = mounted[-1].done
    return Done(Illustrated(done[effect_key], [PIXEL], ["f"])) if effect_key in done else NotDone()


async def work(name: str, n: int, fails: int, *, again: bool = False) -> Illustrated:
    await run_turns(n)
    if failures() < fails:
        raise (Stubborn if n == 2 else ValueError)(f"{name} {n} fails")
    return Illustrated(change(f"{name} {n}", again=again), [PIXEL], ["f"])


async def found(n: int, fails: int = 0, *, effect_key: str) -> Done | NotDone:
    return find(n, fails, effect_key=effect_key)


@tool(reconcile=found)
async def mail(n: int, fails: int = 0) -> str:
    return await work("mail", n, fails)


@tool(reconcile=found, reconcile_after=0, retry=Retry(attempts=3, on=ValueError, backoff=0))
async def again(n: int, fails: int = 0) -> str:
    return await work("again", n, fails)


@tool(effect="keyed", timeout=60, retry=Retry(attempts=2, on=ValueError, backoff=1))
async def keyed(n: int, fails: int = 0) -> str:
    return await work("keyed", n, fails, again=True)


@tool(reconcile=found, timeout=60)
async def limited(n: int, fails: int = 0) -> str:
    return await work("limited", n, fails)


@tool(read_only=True)
async def look(n: int, fails: int = 0) -> str:
    await run_turns(n)
    if failures() < fails:
        raise ValueError(f"look {n}")
    return f"saw {n}"


@tool(effect="nested")
async def nested(n: int, fails: int = 0) -> str:
    """Call tools, as an agent does that is a tool."""
    results = await call_tools(calls([("mail", n, 0), ("mail", n, fails)]), [mail])
    return " and ".join(each.content or "" for each in results)


TOOLS: list[AnyTool] = [mail, again, keyed, limited, look, nested]


async def calls(group: Group) -> AsyncIterator[ToolCall]:
    for index, (name, n, fails) in enumerate(group):
        arguments = {"n": n, "fails": fails}
        yield ToolCall(id=f"c{index}", name=name, arguments=arguments, index=index)


def told(results: list[ToolResult]) -> list[Any]:
    return [
        [each.status, each.content, [part.url for part in each.parts], each.files]
        for each in results
    ]


class Stubborn(Exception):
    """An exception that contains something that is not data."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = asyncio.Lock()


@handler
async def round_of(node: Any, group: Group, second: Group | None) -> list[Any]:
    """Call tools; with a `second` group, fail after these, and call the others then."""
    if second is not None and scope_here().attempt > 1:  # type: ignore[union-attr]
        group = second
    results = await node.call_handler(call_tools(calls(group), TOOLS))
    if second is not None and scope_here().attempt == 1:  # type: ignore[union-attr]
        raise KeyError("again")
    return told(results)


class Work(Durable[list[Any]]):
    program: list[Any]

    async def task(self) -> list[Any]:
        gave: list[Any] = []
        for group, second, beside in self.program:
            retry = None if second is None else Retry(attempts=2, on=KeyError, backoff=0)
            rounds = [
                self.call_handler(round_of(group, second), retry=retry) for _ in range(1 + beside)
            ]
            gave += [await each for each in rounds]
        return gave


CALL = st.tuples(
    st.sampled_from([each.name for each in TOOLS]), st.integers(0, 2), st.integers(0, 2)
)
GROUP = st.lists(CALL, min_size=1, max_size=3)
PROGRAM = st.lists(
    st.tuples(GROUP, st.none() | GROUP, st.booleans()), min_size=1, max_size=2
) | GROUP.map(lambda group: [(group, group, True)])

# --- kills


def left_after(execution: Execution, rows: int, *, done: bool) -> Disk:
    """Return the disk of a process that died after this number of rows.

    An effect in progress is `done` outside or not, if it could have been done at all.
    """
    outside: set[str] = set()
    last = {
        row.ident: row for row in execution.rows[:rows] if row.kind in ("intent", "failed", "gave")
    }
    for ident, row in last.items():
        later = [each for each in execution.rows[row.seq :] if each.ident == ident]
        ends = [each.kind for each in later if each.kind in ("failed", "gave")]
        if row.kind == "gave" or (row.kind == "intent" and done and ends[:1] == ["gave"]):
            outside.add(effect_key_of(ident))
    return execution.disk.cut(
        rows, {key: execution.disk.done[key] for key in outside & {*execution.disk.done}}
    )


def kills(execution: Execution) -> Iterator[tuple[str, Disk]]:
    """Return the disk after a kill between each two rows, in both worlds."""
    for rows in range(len(execution.rows) + 1):
        for done in (True, False):
            yield f"killed after {rows} rows, done: {done}", left_after(execution, rows, done=done)


def require_alike(first: Execution, execution: Execution, where: str) -> None:
    require_consistent(execution, where)
    assert (execution.outcome, execution.state) == (first.outcome, first.state), where
    assert execution.disk.done == first.disk.done, where


@seed(SEED)
@settings(max_examples=example_count(8, 300), deadline=None)
@given(program=PROGRAM, order=st.integers(0, 999))
def test_each_effect_happens_once_whenever_the_run_is_killed(program: Program, order: int) -> None:
    """D3, D7, D21: result, seen failures and effects are the same after every kill."""
    first = run_execution(lambda: Work(program), seed=order)
    assert first.error is None
    # A take-over of an earlier attempt's call is recorded as soon as it happens.
    free = any(second is not None and second != group for group, second, _ in program)
    for where, disk in kills(first):
        execution = run_execution(lambda: Work(program), disk, seed=order + 1)
        if free:
            assert outside(execution) == outside(first), where
            assert KEY.sub("", str(execution.result)) == KEY.sub("", str(first.result)), where
        else:
            require_alike(first, execution, where)


KEY = re.compile(", [0-9a-f]{6}")


def outside(execution: Execution) -> list[str]:
    return sorted(KEY.sub("", each) for each in execution.disk.done.values())


# --- in doubt


@tool
async def unsure(n: int) -> str:
    return change(f"unsure {n}")


@tool(reconcile=lambda n, effect_key: Unknown(), reconcile_after=0)
async def unknown(n: int) -> str:
    return change(f"unknown {n}")


async def broken_look(n: int, effect_key: str) -> Done:
    raise OSError("no line")


@tool(reconcile=broken_look, reconcile_after=0)
async def unseen(n: int) -> str:
    return change(f"unseen {n}")


class One(Durable[list[Any]]):
    name: str

    async def task(self) -> list[Any]:
        call = ToolCall(id="c", name=self.name, arguments={"n": 7})

        async def one() -> AsyncIterator[ToolCall]:
            yield call

        return told(await self.call_handler(call_tools(one(), [unsure, unknown, unseen, slow])))


@pytest.mark.parametrize("name", ["unsure", "unknown", "unseen"])
@pytest.mark.parametrize("done", [True, False])
def test_one_in_doubt_waits_for_a_person_and_never_runs_again_in_silence(
    name: str, done: bool
) -> None:
    """D7: the control. The person's answer is the outcome."""
    first = run_execution(lambda: One(name))
    intent = next(row.seq for row in first.rows if row.kind == "intent")
    disk = left_after(first, intent, done=done)
    before = dict(disk.done)

    async def wait_and_say(journal: Journal) -> None:
        while not (doubts := await journal.doubts()):  # noqa: ASYNC110 - of another process, too
            await asyncio.sleep(1)
        await asyncio.sleep(86_400)
        assert disk.done == before
        (doubt,) = doubts
        assert (doubt.tool, doubt.arguments, doubt.run_id) == (name, {"n": 7}, RUN_ID)
        assert (
            doubt.note
            == {
                "unsure": "the tool has no reconcile function",
                "unknown": "reconcile returned None: it does not know",
                "unseen": "reconcile raised OSError: no line",
            }[name]
        )
        (text,) = first.disk.done.values()
        await (doubt.done(text) if done else doubt.not_done())
        with pytest.raises(NotPending):
            await doubt.not_done()
        assert not await journal.doubts()

    execution = run_execution(lambda: One(name), disk, beside=wait_and_say)
    require_alike(first, execution, "")
    # The answer is recorded.
    letter = next(row.seq for row in execution.rows if row.kind == "letter")
    require_alike(first, run_execution(lambda: One(name), execution.disk.cut(letter, before)), "")


def test_what_was_said_of_one_doubt_says_nothing_of_the_next() -> None:
    """It was not done, began again, and the process died once more: that is a new question."""
    first = run_execution(lambda: One("unsure"))
    disk = left_after(first, 1, done=False)

    async def say_not_done(journal: Journal) -> None:
        while not (doubts := await journal.doubts()):  # noqa: ASYNC110
            await asyncio.sleep(1)
        await doubts[0].not_done()

    second = run_execution(lambda: One("unsure"), disk, beside=say_not_done)
    begun = [row.seq for row in second.rows if row.kind == "intent"]
    assert len(begun) == 2
    asked: list[Any] = []

    async def see(journal: Journal) -> None:
        while not (doubts := await journal.doubts()):  # noqa: ASYNC110
            await asyncio.sleep(1)
        asked.extend(doubts)
        await doubts[0].done(*first.disk.done.values())

    third = run_execution(
        lambda: One("unsure"), left_after(second, begun[1], done=True), beside=see
    )
    assert len(asked) == 1
    require_alike(first, third, "")


@tool(timeout=5)
async def slow(n: int) -> str:
    await asyncio.sleep(10)
    return change(f"slow {n}")


def test_a_call_that_its_timeout_cut_off_is_told_alike_in_each_life() -> None:
    first = run_execution(lambda: One("slow"))
    assert first.result[0][1] == "Error: slow did not finish within 5 seconds"
    for where, disk in kills(first):
        kinds = {row.kind for row in disk.rows[RUN_ID]}
        if "failed" in kinds or "intent" not in kinds:  # else it is in doubt
            require_alike(first, run_execution(lambda: One("slow"), disk), where)


@tool(
    timeout=5,
    retry=Retry(attempts=2, on=TimeoutError, backoff=0),
    reconcile_after=0,
    reconcile=found,
)
async def sluggish(n: int) -> str:
    if not failures():
        change(f"sluggish {n}")
        await asyncio.sleep(10)
    return change(f"sluggish {n}")


def test_a_call_that_was_cut_off_is_in_doubt_for_its_next_attempt() -> None:
    """D7: it may have been done, so the next attempt reconciles it first."""

    class Sluggish(Durable[list[Any]]):
        async def task(self) -> list[Any]:
            group = [("sluggish", 1, 0)]
            only_n = (c.model_copy(update={"arguments": {"n": 1}}) async for c in calls(group))
            return told(await self.call_handler(call_tools(only_n, [sluggish])))

    ((status, content, images, _),) = run_execution(Sluggish).result
    assert (status, content[:12], images) == ("ok", "sluggish 1, ", [PIXEL.url])


# --- code that has changed


class Changing(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        return await CODE[-1](self)


CODE: list[Any] = []


async def do(node: Any, *numbers: int, of: str = "mail") -> list[Any]:
    group = [(of, n, 0) for n in numbers]
    return told(await node.call_handler(call_tools(calls(group), TOOLS)))


async def do_here(number: int) -> str:
    """Do something outside in the body itself."""

    async def act() -> str:
        return f"did {number}"

    effect = scope_here().effect("here", {"n": number})  # type: ignore[union-attr]
    return await effect.do(act)


def changed(before: Any, after: Any, rows: int) -> Execution:
    CODE.append(before)
    first = run_execution(Changing)
    CODE[-1] = after
    try:
        return run_execution(Changing, left_after(first, rows, done=True))
    finally:
        CODE.pop()


async def both_here(node: Any) -> list[Any]:
    return [*await asyncio.gather(do_here(1), do_here(2))]


async def others_here(node: Any) -> list[Any]:
    return [*await asyncio.gather(do_here(3), do_here(4))]


async def new_before_old(node: Any) -> list[Any]:
    """Recorded calls are still to come: the new one is held until then."""

    async def later(number: int) -> str:
        await asyncio.sleep(3)
        return await do_here(number)

    return [*await asyncio.gather(do_here(3), later(1), later(2))]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda node: do(node, 1, 2), lambda node: do(node, 1, 3)),
        (lambda node: do(node, 1), lambda node: do(node, 3, 4, 5)),
        (lambda node: do(node, 1, of="again"), lambda node: do(node, 3, of="again")),
        (both_here, others_here),
        (both_here, lambda node: asyncio.gather(do_here(5))),
    ],
)
def test_a_new_effect_in_the_place_of_a_recorded_one_is_refused(before: Any, after: Any) -> None:
    """D8: the run is parked, and records nothing of the refusal."""
    CODE.append(before)
    begun = sum(row.kind == "intent" for row in run_execution(Changing).rows)
    CODE.pop()
    for rows in (begun, begun + 1):
        execution = changed(before, after, rows)
        assert isinstance(execution.error, JournalMismatch), execution.outcome
        assert execution.state == "parked"
        assert not [row.kind for row in execution.rows[rows:] if row.kind != "gave"]


def test_a_parked_run_goes_on_with_the_code_as_it_was() -> None:
    execution = changed(both_here, others_here, 4)
    CODE.append(both_here)
    assert run_execution(Changing, execution.disk).result == ["did 1", "did 2"]
    CODE.pop()


def test_a_new_effect_is_held_until_the_recorded_ones_have_come() -> None:
    """D8: also by a caller that waits for something else first."""
    assert changed(both_here, new_before_old, 4).result == ["did 3", "did 1", "did 2"]


def test_a_new_effect_with_another_caller_or_of_another_tool_is_held_by_nobody() -> None:
    async def more(node: Any) -> list[Any]:
        return await do(node, 1) + await do(node, 2) + await do(node, 1, of="keyed")

    assert changed(lambda node: do(node, 1), more, 2).error is None


# --- results, and checks when a tool is created


def test_a_call_s_result_comes_back_equal() -> None:
    first = run_execution(lambda: Work([([("mail", 1, 0)], None, False)]))
    ((status, content, images, files),) = first.result[0]
    assert (status, content[:8], images, files) == ("ok", "mail 1, ", [PIXEL.url], ["f"])
    for where, disk in kills(first):
        require_alike(
            first, run_execution(lambda: Work([([("mail", 1, 0)], None, False)]), disk), where
        )


def takes(n: int, effect_key: str) -> NotDone:
    return NotDone()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"effect": "once"}, "effect must be"),
        ({"effect": "keyed", "read_only": True}, "a read_only tool must not have"),
        ({"reconcile": takes, "read_only": True}, "a read_only tool must not have"),
        ({"effect": "keyed", "reconcile": takes}, "must not be given"),
        ({"reconcile": takes, "reconcile_after": -1}, "a number of seconds"),
        ({"reconcile": 3}, "must be a function"),
        (
            {"reconcile": lambda n: NotDone()},
            "must take the tool's arguments and effect_key by name",
        ),
        ({"reconcile": lambda m, effect_key: NotDone()}, "must take the tool's arguments"),
    ],
)
def test_a_tool_that_says_what_cannot_be_is_refused(options: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):

        @tool(**options)
        async def charge(n: int) -> str:
            return ""


class Shop:
    """Tools and their `reconcile` as methods."""

    @tool(reconcile=lambda self, n, effect_key: Done(f"{self.name}: {n}"))
    def sell(self, n: int) -> str:
        return effect_key()

    name = "shop"


async def test_reconcile_may_be_a_method() -> None:
    assert await Shop().sell.run_reconcile({"n": 3}, "k") == Done("shop: 3")


async def test_outside_a_run_an_effect_has_a_key_of_its_own() -> None:
    """In the thread of a plain tool too, and the same in each attempt of one call."""
    from anabranch import Commander

    seen: list[str] = []

    @tool(retry=Retry(attempts=3, on=ValueError, backoff=0))
    def send(n: int) -> str:
        seen.append(effect_key())
        if len(seen) < 3:
            raise ValueError
        return effect_key()

    async def twice() -> AsyncIterator[ToolCall]:
        for index in range(2):
            yield ToolCall(id=f"{index}", name="send", arguments={"n": 1}, index=index)

    async with Commander() as commander:
        answers = await commander.run(call_tools(twice(), [send]))
    assert len({answer.content for answer in answers}) == 2
    assert {answer.content for answer in answers} == set(seen)
    assert effect_key() != effect_key()
