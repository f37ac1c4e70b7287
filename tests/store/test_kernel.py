"""State that tools hold in their process is lost after a restart, and the model learns that."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.waiting import wait_until

from anabranch.commander import ToolError
from anabranch.store import Durable, Journal, Live, live
from anabranch.tools import PythonKernel, Toolkit, tool

pytestmark = pytest.mark.contract("D22")


class Computes(Durable[str]):
    kernel: Live[PythonKernel] = live()
    steps: Live[list[str]] = live()

    async def task(self) -> str:
        python = self.kernel.tools[0]
        self.steps.append(str(await self.durable.call(python, code="x = 6; x")))
        await self.durable.signal("go")
        try:
            await self.durable.call(python, code="x * 7")
        except ToolError as error:
            self.steps.append(str(error))
        return str(await self.durable.call(python, code="y = 5; y"))


@pytest.mark.skipif(sys.platform != "linux", reason="as in test_toolbox_python")
@pytest.mark.xdist_group("python kernel")
async def test_a_python_session_says_in_a_later_life_that_its_variables_are_gone(
    tmp_path: Path,
) -> None:
    """Once; earlier results come from the journal."""
    steps: list[str] = []
    name = str(tmp_path / "runs.db")
    async with Journal(name) as journal, PythonKernel() as kernel:
        fields = {"kernel": kernel, "steps": steps}
        running = asyncio.create_task(journal.run(Computes(), run_id="a", live=fields))
        await wait_until(lambda: steps)
        running.cancel()
        await asyncio.wait([running])
    async with Journal(name) as journal, PythonKernel() as kernel:
        await journal.signal("a", "go")
        fields = {"kernel": kernel, "steps": steps}
        assert await journal.run(Computes(), run_id="a", live=fields) == "5"
    assert steps[:2] == ["6", "6"]
    assert steps[2].startswith(
        "[a new session, earlier variables are lost: the program was started again]\n"
    )
    assert "NameError" in steps[2]


class Counter(Toolkit):
    """Counts; only `read` returns the count."""

    @tool
    def add(self) -> int:
        return 1

    @tool(read_only=True)
    def count(self) -> int:
        return 1


def test_a_toolkit_may_say_for_its_tools_that_they_are_run_again() -> None:
    kit = Counter()
    assert [each.effect for each in kit.tools] == [None, None]
    kit.effect = "keyed"
    assert [each.effect for each in kit.tools] == ["keyed", None]
