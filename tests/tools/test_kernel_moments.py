"""Kernels that are ended and called at the same moment (Linux, to count processes)."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.leaks import child_processes, find_leaks
from support.waiting import settle_loop, wait_until

from anabranch import AgentMessage
from anabranch.agents import ToolExecutor
from anabranch.tools import PythonKernel, _kernel
from anabranch.tools._interpreter import _end_if_idle
from anabranch.tools._kernel import KERNELS, Kernel
from anabranch.tools._kernel_loop import kernel_loop, submit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")


def doing(code: str) -> AgentMessage:
    return AgentMessage(content={"name": "python", "parameters": {"code": code}})


async def caught_up() -> None:
    """Let this loop and the kernels' loop run all that is ready."""
    for _ in range(5):
        await settle_loop()
        await asyncio.wrap_future(submit(asyncio.sleep(0)))


class HeldKill:
    """Blocks the end of kernels until `let_go`; counts the kernels when one starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.most = 0
        self._free = asyncio.Event()
        before = set(KERNELS)
        end, start = _kernel._end, Kernel.start

        async def held(*parts: Any) -> None:
            self.reached.set()
            await self._free.wait()
            await end(*parts)

        async def counted(*args: object, **options: object) -> Kernel:
            kernel = await start(*args, **options)  # type: ignore[arg-type]
            self.most = max(self.most, sum(each.is_alive for each in KERNELS if each not in before))
            return kernel

        monkeypatch.setattr(_kernel, "_end", held)
        monkeypatch.setattr(Kernel, "start", counted)

    def let_go(self) -> None:
        kernel_loop().call_soon_threadsafe(self._free.set)


@pytest.mark.parametrize("how", ["aclose", "reset"])
async def test_a_kernel_that_only_starts_ends_with_its_session_too(how: str):
    """Its call fails with a text for the model; it is not cancelled."""
    before, executor = child_processes(), ToolExecutor([PythonKernel()])
    running = asyncio.create_task(executor(doing("1")))
    await wait_until(lambda: child_processes() > before)
    if how == "aclose":
        await executor.aclose()
        assert child_processes() <= before
    else:
        executor.reset()
    assert "Python was closed while it started" in (await running).content
    assert not find_leaks(child_processes, before)


async def test_a_call_cancelled_while_another_kernel_makes_room_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The cancel waits for the end of that kernel, and is not lost."""
    executor, ran = ToolExecutor([PythonKernel(max_kernels=1)]), tmp_path / "ran"
    await executor(doing("1"), session_id=1)
    kills = HeldKill(monkeypatch)
    running = asyncio.create_task(executor(doing(f"open({str(ran)!r}, 'w')"), session_id=2))
    await wait_until(kills.reached.is_set)
    running.cancel()
    await caught_up()
    kills.let_go()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not ran.exists()
    await executor.aclose()


async def test_no_more_run_than_allowed_while_one_makes_room(monkeypatch: pytest.MonkeyPatch):
    """A session whose kernel is being ended waits for a place like any other."""
    executor = ToolExecutor([PythonKernel(max_kernels=1)])
    await executor(doing("1"), session_id=1)
    kills = HeldKill(monkeypatch)
    newcomer = asyncio.create_task(executor(doing("2"), session_id=2))
    await wait_until(kills.reached.is_set)
    again = asyncio.create_task(executor(doing("3"), session_id=1))
    await caught_up()
    kills.let_go()
    said = [(await each).content.splitlines()[-1] for each in (newcomer, again)]
    assert (said, kills.most) == (["2", "3"], 1)
    await executor.aclose()


async def test_whoever_closes_waits_for_the_end_that_another_began(
    monkeypatch: pytest.MonkeyPatch,
):
    """Neither of two closers returns before the kernel has ended."""
    executor = ToolExecutor([PythonKernel()])
    await executor(doing("1"))
    kills = HeldKill(monkeypatch)
    closing = [asyncio.create_task(executor.aclose()) for _ in range(2)]
    await wait_until(kills.reached.is_set)
    await caught_up()
    done = [each.done() for each in closing]
    kills.let_go()
    await asyncio.gather(*closing)
    assert done == [False, False]


async def test_a_kernel_called_as_its_idle_time_ends_is_not_dropped():
    """The call starts before the kernel would be ended."""
    async with PythonKernel() as kernel:
        interpreter = kernel.interpreters.get()
        kernel.interpreters.shared, kernel.idle = False, 600
        await interpreter.run("x = 1")

        async def call_now() -> str:
            _end_if_idle(weakref.ref(interpreter))
            return await interpreter._run("x")

        assert await asyncio.wrap_future(submit(call_now())) == "1"


async def test_the_kernel_of_a_block_takes_no_place_of_the_others(tmp_path: Path):
    """It neither waits for a place nor ends another kernel, whatever the limit."""
    kernel, started, end = PythonKernel(max_kernels=1), tmp_path / "started", tmp_path / "end"
    code = f"import os\nopen({str(started)!r}, 'w')\nwhile not os.path.exists({str(end)!r}): pass"
    async with ToolExecutor([kernel]) as executor:
        running = asyncio.create_task(executor(doing(code)))
        await wait_until(started.exists)
        async with kernel:
            async with asyncio.timeout(30):
                assert (await executor(doing("2 + 2"))).content == "4"
            assert not running.done()
            end.touch()
            assert (await running).content == "(no output)"
