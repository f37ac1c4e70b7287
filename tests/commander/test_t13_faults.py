"""T13: faulty exceptions, predicates, callbacks and log handlers cannot keep a tree open."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broken_objects import (
    ERRORS,
    FATAL_ERRORS,
    Broken,
    broken_log,
    make_error,
    retry_predicate,
)
from support.nodes import failure_notes, give, hang
from support.waiting import turn_until

from anabranch.commander import Commander, Node, NodeCancelled, NodeClosed, Retry, quorum
from anabranch.commander._report import describe, group, note, notes_of
from anabranch.dispatch import fork
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import pause, run_seeded

pytestmark = pytest.mark.contract("T13")

ALL_ERRORS = (*ERRORS, *FATAL_ERRORS)


class Throws(Job[None]):
    """A job that raises the given exception at a given moment, in its body or a callback."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        self.ended: list[str] = []
        self.at_start(self.maybe("start"))
        self.at_end(self.maybe("end")).at_exception(self.maybe("exception"))
        self.at_terminate(self.maybe("terminate"))
        self.at_done(lambda node: self.ended.append(node.state))

    def maybe(self, where: str) -> Any:
        def at_once(node: Node[Any]) -> None:
            if self.where == where:
                raise make_error(self.name)

        async def later(node: Node[Any]) -> None:
            await pause()
            if self.where == "late " + where:
                raise make_error(self.name)

        return later if self.where.startswith("late") else at_once

    async def task(self) -> None:
        if "end" in self.where:
            return
        if "start" not in self.where:
            self.call_handler(hang())
            await pause()
            raise make_error(self.name if self.where == "body" else "Frozen")


WHERE = [
    late + where for late in ("", "late ") for where in ("start", "end", "exception", "terminate")
] + ["body"]


@settings(max_examples=80)
@given(
    seed=st.integers(0, 999),
    names=st.lists(st.sampled_from(ALL_ERRORS), min_size=1, max_size=3),
    where=st.sampled_from(WHERE),
    policy=st.sampled_from(["fail_fast", "collect", "isolate", quorum(1)]),
    on=st.sampled_from(["true", "false", "odd", "Mute", "Own", "GeneratorExit"]),
    awaited=st.booleans(),
    log=st.booleans(),
)
def test_a_node_reaches_its_end_whatever_is_raised(
    seed: int, names: list[str], where: str, policy: Any, on: str, awaited: bool, log: bool
) -> None:
    """Bodies and callbacks raise at any moment, under each policy, with odd retry predicates."""
    nodes: list[Throws] = []

    class Parent(Job[None]):
        async def task(self) -> None:
            for name in names:
                retry = Retry(attempts=2, on=retry_predicate(on)) if seed % 2 else None
                nodes.append(self.put_job(Throws(name, where), retry=retry, claim=awaited))
            if awaited:
                for node in nodes:
                    try:
                        await node
                    except BaseException as error:
                        if type(error) is asyncio.CancelledError:
                            raise

    async def main() -> str:
        async with asyncio.timeout(60), Commander(slow_after=None) as commander:
            parent = commander.put_job(Parent(), policy=policy)
        return parent.state

    with broken_log(lambda: make_error("Mute")) if log else pytest.MonkeyPatch.context():
        state = run_seeded(main, seed)
    assert state in ("completed", "failed", "cancelled")
    assert {node.state for node in nodes} <= {"completed", "failed", "cancelled"}
    assert all(len(node.ended) == 1 for node in nodes)


async def taken(node: Node[Any]) -> BaseException | None:
    try:
        await node
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("name", ALL_ERRORS)
async def test_an_odd_failure_reaches_who_awaits_it_as_it_is(name: str) -> None:
    """The awaiter receives the same exception object, and other children are cancelled."""
    error = make_error(name)

    class Fails(Job[None]):
        async def task(self) -> None:
            self.call_handler(hang())
            raise error

    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        node = commander.put_job(Fails(), claim=True)
        assert await taken(node) is error
        assert node.state == "failed"
        assert node.error is error


@pytest.mark.parametrize("name", [*ERRORS, "Own", "MaskedBase"])
async def test_an_odd_failure_is_collected_and_logged(name: str, monkeypatch: Any) -> None:
    """It goes into a group that is logged. An error that no group accepts is described there."""
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("anabranch"), "handle", records.append)

    @handler
    async def fails(node: Node[Any]) -> None:
        raise make_error(name)

    class Collects(Job[None]):
        async def task(self) -> None:
            self.call_handler(fails())
            self.call_handler(fails())

    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        commander.put_job(Collects(), policy="collect")
    (record,) = records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], BaseExceptionGroup)
    assert len(record.exc_info[1].exceptions) == 2


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, asyncio.CancelledError])
async def test_what_python_itself_treats_as_special_ends_a_node_too(
    kind: type[BaseException],
) -> None:
    """The error is raised in a plain function body and in a callback."""

    class Plain(Job[None]):
        def task(self) -> Any:
            raise kind

    def callback(node: Node[Any]) -> None:
        raise kind

    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        nodes = [commander.put_job(Plain()), commander.call_handler(give()).at_end(callback)]
        for node in nodes:
            # In an await, which is a generator, Python turns a StopIteration into a RuntimeError.
            with pytest.raises((kind, NodeCancelled, RuntimeError)):
                await node
    assert {node.state for node in nodes} <= {"failed", "cancelled"}


async def test_a_frozen_exception_carries_its_note() -> None:
    """An exception whose notes are not a list stays unchanged."""
    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        for name, expected in (("Frozen", 1), ("Slotted", 1), ("NoNotes", 1), ("NotesTuple", 0)):
            node = commander.put_job(Throws(name, "end"), claim=True)
            with pytest.raises(Exception) as caught:
                await node
            assert len(failure_notes(caught.value) if name != "NotesTuple" else []) == expected


@pytest.mark.parametrize("name", ALL_ERRORS)
def test_an_exception_is_described_and_noted_without_its_help(name: str) -> None:
    """A short description never calls the exception's own code."""
    error = make_error(name, "x" * 1000)
    note(error, "a note")
    assert isinstance(notes_of(error), list)
    assert len(describe(error)) < 300
    assert len(group("two", [error, error]).exceptions) == 2


@pytest.mark.parametrize("kind", [Broken, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_log_handler_that_raises_keeps_no_node_from_its_end(kind: type[BaseException]) -> None:
    """An interrupt in the handler leaves the loop after the node has ended."""
    ended: list[str] = []

    @handler
    async def fails(node: Node[Any]) -> None:
        node.at_done(lambda node: ended.append(node.state))
        raise ValueError

    async def main() -> None:
        async with asyncio.timeout(5), Commander(slow_after=None) as commander:
            node = commander.call_handler(fails())
            await turn_until(lambda: node.state == "failed")

    with broken_log(kind):
        if kind in (KeyboardInterrupt, SystemExit):
            with pytest.raises(kind):
                asyncio.run(main())
        else:
            asyncio.run(main())
    assert ended == ["joining"]


def test_what_a_broken_log_handler_lost_is_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error has the path and the failure, so no failure is lost."""

    @handler
    async def fails(node: Node[Any]) -> None:
        raise ValueError("the cause")

    async def main() -> None:
        async with asyncio.timeout(5), Commander(slow_after=None) as commander:
            commander.call_handler(fails())

    with broken_log():
        monkeypatch.setattr(logging, "raiseExceptions", True)
        asyncio.run(main())
    said = capsys.readouterr().err
    assert "Commander/fails#1" in said
    assert "ValueError: the cause" in said


@pytest.mark.parametrize("option", [{"timeout": "1"}, {"timeout": float("nan")}, {"retry": 3}])
async def test_options_that_could_only_fail_later_are_refused_at_once(option: Any) -> None:
    """A `TypeError` names the remedy. The node can still be put."""
    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        node = give(1)
        with pytest.raises(TypeError, match=r"must be a"):
            commander.call_handler(node, **option)
        assert await commander.call_handler(node) == 1


@pytest.mark.parametrize("factor", [2.0, 2, 1e300])
def test_the_pauses_between_attempts_grow_to_their_limit_however_many_there_were(
    factor: float,
) -> None:
    """The pause stays at its maximum although factor ** n exceeds a float."""
    for waits in (1, 1024, 100_000):
        retry = Retry(attempts=200_000, backoff=1, factor=factor, max_backoff=7, jitter=0)
        assert retry.next_delay(ValueError(), [0.0] * (waits + 5), 0.0) == 7
        assert Retry(attempts=200_000).next_delay(ValueError(), [0.0] * waits, 0.0) == 0


def test_a_predicate_that_nobody_would_await_is_refused() -> None:
    """An async predicate would be true for every failure."""

    async def predicate(error: BaseException) -> bool:
        return False

    with pytest.raises(TypeError, match="plain function"):
        Retry(on=predicate)  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", ["high", [], None, float("nan"), 1.5])
async def test_a_priority_that_is_no_integer_is_refused_at_once(priority: Any) -> None:
    """No node enters the tree, and the tree ends."""
    async with asyncio.timeout(5), Commander(max_concurrency=1, slow_after=None) as commander:
        with pytest.raises(TypeError):
            commander.put_job(Throws("Frozen", "never"), priority=priority)
        assert not commander.children


async def test_any_reason_cancels() -> None:
    """None means without a reason, but still cancels. Other objects become text."""
    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        reasons: tuple[Any, ...] = (None, 7, ValueError("because"))
        for reason, text in zip(reasons, ("", "7", "because"), strict=True):
            node = commander.call_handler(hang())
            await asyncio.sleep(0)
            node.cancel(reason)
            with pytest.raises(NodeCancelled) as caught:
                await node
            assert caught.value.reason == text


async def test_a_future_that_refuses_to_be_cancelled_keeps_no_other_from_it(caplog: Any) -> None:
    """The refusal is logged as in asyncio. The rest of the tree is cancelled."""

    class Stubborn(asyncio.Future[None]):
        def cancel(self, msg: object = None) -> bool:
            raise Broken

    @handler
    async def waits(node: Node[Any]) -> None:
        await Stubborn()

    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        others = [commander.call_handler(hang()), commander.call_handler(waits())]
        others += [commander.call_handler(hang())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        commander.exit()
        for node in (others[0], others[2]):
            with pytest.raises(NodeCancelled):
                await node
    assert others[1].state == "cancelled"
    assert "cannot be cancelled" in caplog.text


@pytest.mark.parametrize("kind", ["commander", "node"])
def test_rounds_that_put_the_next_one_end_with_what_they_are_put_below(kind: str) -> None:
    """Each `at_done` puts another round. A round that never ran puts none and does not fail."""
    states: list[str] = []

    def next_round(node: Node[Any]) -> None:
        states.append("round")
        assert node.parent is not None
        node.call_handler(give().at_done(next_round), parent=node.parent)

    @handler
    async def top(node: Node[Any]) -> None:
        node.call_handler(give().at_done(next_round))
        await asyncio.Event().wait()

    async def main() -> str:
        async with asyncio.timeout(60), Commander(slow_after=None) as commander:
            node = commander.call_handler(top())
            if kind == "commander":
                commander.call_handler(give().at_done(next_round))
            await pause()
            (commander if kind == "commander" else node).cancel()
            await pause()
        return node.state

    for seed in range(20):
        try:
            assert run_seeded(main, seed) == "cancelled"
        except NodeCancelled:
            assert kind == "commander"
    assert len(states) < 1000


@pytest.mark.parametrize("name", ALL_ERRORS)
async def test_who_reads_a_reply_is_told_of_an_odd_failure_of_its_source(name: str) -> None:
    """The branch raises the failure, and the node that forked fails with it."""
    error = make_error(name)

    async def source() -> Any:
        yield {"choices": [{"delta": {"content": "text"}}]}
        raise error

    @handler
    async def reads(node: Node[Any]) -> None:
        async for _ in fork(node, source()).text:
            pass

    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        node = commander.call_handler(reads(), claim=True)
        assert await taken(node) is error


# --- the cost of failing


class Slow(Exception):
    """An exception that counts requests for its text."""

    asked = 0

    def __repr__(self) -> str:
        type(self).asked += 1
        return "slow"

    __str__ = __repr__


def test_nested_failures_cost_no_more_for_each_level_than_one_does() -> None:
    """Under `collect`, or raised again at each level, no inner exception's text is requested."""

    class Level(Job[None]):
        depth: int

        async def task(self) -> None:
            self.call_handler(hang()).cancel()
            if not self.depth:
                raise Slow
            if self.depth % 2:
                self.put_job(Level(self.depth - 1))
                return
            self.call_handler(hang())
            try:
                await self.put_job(Level(self.depth - 1), policy="collect", claim=True)
            except Exception as error:
                raise Slow(error) from error

    async def main() -> None:
        async with Commander(slow_after=None) as commander:
            with pytest.raises(BaseExceptionGroup):
                await commander.run(Level(99), policy="collect")

    Slow.asked = 0
    asyncio.run(main())
    assert Slow.asked == 0


def test_the_paths_of_a_deep_failure_cost_its_depth_and_not_its_square() -> None:
    """Each level raises a new failure with a note, and no level walks to the top."""
    depth = 3_000

    class Level(Job[None]):
        def __init__(self, depth: int) -> None:
            self.depth = depth

        async def task(self) -> None:
            if not self.depth:
                raise ValueError("the deepest")
            self.put_job(Level(self.depth - 1), policy="collect")

    async def main() -> BaseException:
        async with Commander(slow_after=None) as commander:
            try:
                await commander.run(Level(depth), policy="collect")
            except ExceptionGroup as error:
                return error
        raise AssertionError

    began = time.process_time()
    error = asyncio.run(main())
    assert time.process_time() - began < 20, "a walk to the top at each level takes minutes"
    assert failure_notes(error) == ["anabranch: failed in Commander/Level#1"]
    levels = 0
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
        levels += 1
    assert levels == depth
    assert f"...{depth + 2 - 32} more..." in failure_notes(error)[0]


def test_a_node_closed_in_a_callback_of_a_node_that_ran_is_its_failure() -> None:
    """`NodeClosed` raised in a callback fails the node, unless its body never ran."""

    def puts(node: Node[Any]) -> None:
        node.call_handler(give())

    async def main() -> None:
        async with Commander(slow_after=None) as commander:
            with pytest.raises(NodeClosed):
                await commander.run(give().at_done(puts))

    asyncio.run(main())
