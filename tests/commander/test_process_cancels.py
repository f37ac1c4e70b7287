"""No process is left, whenever and however often its starting task is cancelled."""

import asyncio
import sys

import anyio
import pytest
from support.leaks import child_processes
from support.waiting import run_turns, wait_until

from anabranch.commander._blocking import ProcessCall
from anabranch.commander.process import end_process, start_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

FOREVER = "import time\ntime.sleep(1000)"
PIPES = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}


async def started_and_held():
    process = await start_process(sys.executable, "-c", FOREVER, **PIPES)
    try:
        await process.wait()
    finally:
        await end_process(process)


async def in_process():
    await ProcessCall(exec, (FOREVER,), {}, grace=0.01).task()


async def cancel_in_each_turn(work, first):
    """Cancel a task after `turns` turns, then on every turn until it has ended."""
    task = asyncio.create_task(work())
    await run_turns(first)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()


@pytest.mark.parametrize("work", [started_and_held, in_process])
@pytest.mark.parametrize("first", [*range(12), 100])
async def test_cancelled_again_in_every_turn_no_process_is_left(work, first):
    """Cancels interrupt neither start nor reaping. A zombie would still be a child."""
    before = child_processes()
    await cancel_in_each_turn(work, first)
    assert child_processes() <= before


@pytest.mark.parametrize("first", range(12))
async def test_a_scope_that_cancels_in_every_turn_leaves_no_process(first):
    """The scope cancels as a task group does when one of its tasks has failed."""
    before = child_processes()
    async with anyio.create_task_group() as group:
        group.start_soon(started_and_held)
        group.start_soon(started_and_held)
        await run_turns(first)
        group.cancel_scope.cancel()
    assert child_processes() <= before


async def test_a_start_that_fails_raises_its_error_or_the_cancel():
    """A failed start does not lose a cancel of the same turn."""
    with pytest.raises(FileNotFoundError):
        await start_process("/no/such/program")
    starting = asyncio.create_task(start_process("/no/such/program"))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_process_that_fills_its_pipe_is_ended():
    """The process blocks on a full pipe without a reader. asyncio's own wait would hang."""
    process = await start_process(
        sys.executable, "-c", "while True: print('x' * 10_000)", **PIPES, limit=1000
    )
    await wait_until(lambda: process.stdout._paused)
    async with asyncio.timeout(30):
        await end_process(process)
    assert process.returncode == -9


async def test_a_process_that_ignores_being_terminated_is_killed_after_its_grace():
    """A process that ignores SIGTERM gets SIGKILL. One that handles it has time to exit."""
    code = "import signal, time\nsignal.signal(signal.SIGTERM, {})\nprint(1, flush=True)\n"
    code += "time.sleep(1000)"
    for how, status in (("signal.SIG_IGN", -9), ("lambda *_: exit(7)", 7)):
        process = await start_process(sys.executable, "-c", code.format(how), **PIPES)
        await process.stdout.readline()
        await end_process(process, grace=0.05 if status < 0 else 30)
        assert process.returncode == status
