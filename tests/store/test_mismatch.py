"""D8, D15: a run whose code does not match its journal is parked, also if it catches the error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from support.killed_executions import Kill, effects_in_doubt, run_execution
from support.memory_journal import act

from anabranch.commander import Node
from anabranch.handlers import call_tools, handler
from anabranch.messages import ToolCall
from anabranch.store import Durable, JournalMismatch
from anabranch.tools import tool

pytestmark = pytest.mark.contract("D8")

# The current version of the code.
NOW: dict[str, Any] = {}


class Gone(Exception):
    pass


@tool(effect="keyed")
async def charge(cents: int) -> str:
    """Charge."""
    return await act("charged", cents)


@handler
async def says(node: Node[Any], job: Changes) -> None:
    job.durable.conversation("talk").add(NOW["word"])


class Fails(Durable[str]):
    async def task(self) -> str:
        raise Gone("lost")


class Gives(Durable[int]):
    async def task(self) -> int:
        return 1


class Changes(Durable[str]):
    """Makes a call in one of several places, and continues after any exception there."""

    where: str

    async def task(self) -> str:
        with suppress(Exception):
            await self.change()
        await act("after", NOW["word"])
        return "ended"

    async def change(self) -> None:
        match self.where:
            case "message":
                self.durable.conversation("talk").add(NOW["word"])
            case "recovered":
                node = says(self).at_exception(lambda node: node.recover(None))
                await self.call_handler(node)
            case "effect":
                await act("charge", NOW["word"])
            case "tool":
                cents = len(NOW["word"])
                call = ToolCall(id="c", name="charge", arguments={"cents": cents})
                await self.call_handler(call_tools([call], [charge]))
            case "statement":
                async with self.durable.transaction() as tx:
                    await tx.execute(f"select '{NOW['word']}'")
            case "failure":
                with suppress(Exception):
                    await self.put_job(Fails(), claim=True)
            case "result":
                await self.put_job(Gives(), claim=True)
            case _:
                raise AssertionError(self.where)


WHERES = ["message", "recovered", "effect", "tool", "failure", "result"]


@pytest.mark.parametrize("where", WHERES)
def test_a_mismatch_parks_the_run_wherever_it_is_caught(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row and no effect follows, and the error says why; with the old code the run continues."""
    NOW["word"] = "one"
    first = run_execution(lambda: Changes(where))
    kinds = {"failure": "failure", "result": "result", "message": "message", "recovered": "message"}
    kind = kinds.get(where, "gave")
    row = next(number for number, row in enumerate(first.rows, 1) if row.kind == kind)
    NOW["word"] = "other"
    with monkeypatch.context() as patch:
        if where == "failure":
            patch.delattr(f"{__name__}.Gone")
        if where == "result":
            patch.setattr(Gives, "_node_codec", Changes("x")._node_codec.__get__(Changes("x")))
        execution = run_execution(
            lambda: Changes(where), Kill(row, frozenset(effects_in_doubt(first, row))).of(first)
        )
    assert isinstance(execution.error, JournalMismatch)
    assert execution.state == "parked"
    assert len(execution.rows) == row
    assert execution.disk.runs["run"].error
    assert not [name for name in execution.disk.done.values() if name.startswith("after(other")]
    NOW["word"] = "one"
    again = run_execution(lambda: Changes(where), execution.disk)
    assert (again.result, again.state) == ("ended", "completed")
