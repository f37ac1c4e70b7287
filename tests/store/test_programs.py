"""D1 to D21 over random programs: killed, suspended, or with a failing store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, effects_in_doubt, require_same, run_execution
from support.memory_journal import RUN_ID, Disk, MemoryFile
from support.random_program_checks import require_contracts, require_same_rows
from support.random_program_draw import draw_body, shrink_body
from support.random_programs import LIVE, program, send_signals
from support.seeds import example_count, seeds

from anabranch.store._journal_file import Row
from anabranch.store.errors import JournalError

pytestmark = pytest.mark.contract("D14")

Body = list[Any]


def live(
    body: Body, disk: Disk | None = None, seed: int | None = None, **options: Any
) -> Execution:
    return run_execution(
        program(body), disk, seed=seed, live=LIVE, beside=send_signals(body), **options
    )


def first_life(body: Body, seed: int | None) -> Execution:
    first = live(body, seed=seed)
    assert first.error is None
    require_contracts(first)
    return first


def require_like(first: Execution, execution: Execution, where: str) -> None:
    require_contracts(execution)
    require_same(first, execution, where)
    require_same_rows(first, execution)


def shrinking(check: Callable[[Body, int], None], seed: int, deepest: int = 3) -> None:
    """Check a random program; if it fails, show a smaller one that fails in the same way."""
    body = draw_body(seed, 1 + seed % deepest)

    def fails(body: Body) -> type[BaseException] | None:
        try:
            check(body, seed)
        except (Exception, asyncio.CancelledError) as error:
            return type(error)
        return None

    try:
        check(body, seed)
    except Exception as error:
        kind = type(error)
        small = shrink_body(body, lambda each: fails(each) is kind)
        error.add_note(f"seed {seed}: {body}; and so does {small}")
        raise


# --- kills


def killed_twice(body: Body, seed: int) -> None:
    first, draw = first_life(body, seed), random.Random(seed)
    for _ in range(2):
        execution, where = first, f"seed {seed}"
        for _ in range(2):
            rows = draw.randint(min(execution.before, len(execution.rows)), len(execution.rows))
            done = frozenset(
                key for key in effects_in_doubt(execution, rows) if draw.random() < 0.5
            )
            where += f", killed after row {rows} with {len(done)} done"
            execution = live(body, Kill(rows, done).of(execution), draw.randrange(1 << 30))
            require_like(first, execution, where)


@pytest.mark.parametrize("seed", seeds(example_count(60, 3000)))
def test_any_program_ends_alike_however_often_it_is_killed(seed: int) -> None:
    """Random programs in random orders, each killed twice, two times, at random."""
    shrinking(killed_twice, seed)


def killed_everywhere(body: Body, seed: int) -> None:
    first = first_life(body, seed)
    for rows in range(len(first.rows) + 1):
        unsure = effects_in_doubt(first, rows)
        for done in [unsure, []] if unsure else [[]]:
            execution = live(body, Kill(rows, frozenset(done)).of(first), seed + 1)
            require_like(first, execution, f"killed after row {rows} with {done} done")


@pytest.mark.parametrize("seed", seeds(example_count(12, 500)))
def test_any_program_ends_alike_after_each_kill(seed: int) -> None:
    """A kill after each row; calls in doubt were done or not."""
    shrinking(killed_everywhere, seed, 1)


# --- suspensions


class Suspending(MemoryFile):
    """A file that suspends the run after this number of rows."""

    def __init__(self, disk: Disk, at: int) -> None:
        super().__init__(disk)
        self._at = at

    async def acquire(self, run_id: str, owner: str) -> Any:
        self._driver = asyncio.current_task()
        return await super().acquire(run_id, owner)

    def append(self, run_id: str, fence: int, row: Row) -> int:
        number = super().append(run_id, fence, row)
        if number == self._at and self._driver is not None:
            asyncio.get_running_loop().call_soon(self._driver.cancel)
        return number


def suspended(body: Body, seed: int) -> None:
    first, draw = first_life(body, seed), random.Random(seed)
    for at in draw.sample(range(1, len(first.rows) + 1), min(4, len(first.rows))):
        left = live(body, None, seed, file=lambda disk, at=at: Suspending(disk, at))
        require_contracts(left)
        if left.state == "suspended":
            assert isinstance(left.error, asyncio.CancelledError)
            left.disk.seen.clear()
            left = live(body, left.disk, seed + 1)
        if not isinstance(left.error, asyncio.CancelledError):  # it had ended nevertheless
            require_like(first, left, f"suspended after row {at}")


@pytest.mark.parametrize("seed", seeds(example_count(25, 2000)))
def test_any_program_ends_alike_after_it_was_suspended(seed: int) -> None:
    """D20: nothing of it is recorded as cancelled or failed, and effects happen once."""
    shrinking(suspended, seed)


# --- stores that fail


class Failing(MemoryFile):
    """A file that fails after this number of calls; the next call is executed or not."""

    def __init__(self, disk: Disk, calls: int, *, done: bool) -> None:
        super().__init__(disk)
        self.calls = calls
        self._done = done

    def _count(self) -> bool:
        self.calls -= 1
        return self.calls >= 0 or (self.calls == -1 and self._done)

    def append(self, run_id: str, fence: int, row: Row) -> int:
        if not self._count():
            raise _trouble()
        return super().append(run_id, fence, row)


def _trouble() -> JournalError:
    return JournalError(":disk:", "has failed", "mend it")


def _failing(name: str) -> Any:
    async def call(self: Failing, *args: Any, **options: Any) -> Any:
        does = self._count()
        given = await getattr(MemoryFile, name)(self, *args, **options) if does else None
        if self.calls < 0:
            raise _trouble()
        return given

    return call


for _name in ("barrier", "transact", "post", "mail", "watch", "release", "acquire"):
    setattr(Failing, _name, _failing(_name))


def failed(body: Body, seed: int) -> None:
    first, draw = first_life(body, seed), random.Random(seed)
    counted: list[Failing] = []

    def file(disk: Disk, calls: int = 1 << 30, done: bool = False) -> Failing:
        counted.append(Failing(disk, calls, done=done))
        return counted[-1]

    live(body, None, seed, file=file)
    for calls in draw.sample(range(total := (1 << 30) - counted[0].calls), min(8, total)):
        disk, error = Disk(), None
        where = f"the call {calls} of {total} fails"
        try:
            error = live(
                body, disk, seed, file=lambda d, n=calls: file(d, n, draw.random() < 0.5)
            ).error
        except JournalError as other:  # the letters could not be sent, or the run not released
            error = other
        assert isinstance(error, JournalError | None), where
        rows = disk.rows.get(RUN_ID, [])
        left = disk.cut(draw.randint(disk.safe.get(RUN_ID, 0), len(rows)), disk.done)
        require_like(first, live(body, left, seed + 1), where)


@pytest.mark.parametrize("seed", seeds(example_count(15, 2000)))
def test_a_store_that_fails_ends_a_life_with_one_error(seed: int) -> None:
    """D19: whichever call fails first; the next execution is as if it had not."""
    shrinking(failed, seed)
