"""D3, D19: random programs on a real file whose disk fails at any statement, done or not."""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.failing_disk import FailingDisk as FaultyDisk
from support.killed_executions import Execution, require_same, run_execution
from support.memory_journal import RUN_ID, Disk
from support.random_program_checks import require_same_rows
from support.random_program_draw import draw_body
from support.random_programs import LIVE, program, send_signals
from support.seeds import example_count, seeds

from anabranch.store._journal_file import JournalFile
from anabranch.store.errors import JournalError
from anabranch.testing import run_seeded

pytestmark = pytest.mark.contract("D3")

QUICK = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a sync is free


def live(path: Path, body: Any, seed: int, world: Disk) -> Execution:
    """Run the runs of a file with the present outside world, and return their state."""
    return run_execution(
        program(body),
        world,
        seed=seed,
        live=LIVE,
        beside=send_signals(body),
        file=lambda _: JournalFile(str(path)),
        max_recoveries=1000,
    )


async def _read(path: Path, execution: Execution) -> None:
    file = JournalFile(str(path))
    await file.open()
    execution.disk.runs[RUN_ID], execution.rows = await file.run(RUN_ID), await file.rows(RUN_ID)
    await file.close()


@pytest.mark.parametrize("seed", seeds(example_count(12, 300)))
def test_a_disk_that_fails_at_any_statement_ends_a_life_with_one_error(seed: int) -> None:
    """All waiters get it, nothing hangs, and the next execution is as if it had not failed."""
    body, draw = draw_body(f"file {seed}", depth=1, unit=0.1), random.Random(seed)
    with tempfile.TemporaryDirectory(dir=QUICK) as name, pytest.MonkeyPatch.context() as patch:
        folder, disk = Path(name), FaultyDisk(patch)
        disk.fail_after(1 << 30)
        first = live(folder / "first", body, seed, Disk())
        run_seeded(lambda: _read(folder / "first", first))
        assert first.error is None
        total = (1 << 30) - (disk.left or 0)
        for number in draw.sample(range(total), min(example_count(5, 20), total)):
            path, world = folder / f"runs{number}", Disk()
            where = f"statement {number} of {total} fails: {body}"
            disk.fail_after(number, done=draw.random() < 0.5)
            with suppress(JournalError):  # the letters were not sent, or the file not opened
                assert isinstance(live(path, body, seed, world).error, JournalError | None), where
            disk.mend()
            last = live(path, body, seed + 1, world)
            run_seeded(lambda path=path, last=last: _read(path, last))
            require_same(first, last, where)
            require_same_rows(first, last)
