"""D5: nodes find their own results, whatever runs beside them and in whatever order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.killed_executions import kill_everywhere, run_execution
from support.memory_journal import act
from support.seeds import seeds

from anabranch.commander import ConfigurationError, Node, settle
from anabranch.handlers import handler
from anabranch.store import Durable

pytestmark = pytest.mark.contract("D5")


class Nothing(Durable[None]):
    number: int

    async def task(self) -> None:
        await asyncio.sleep(self.number)


class TwoKeys(Durable[str]):
    async def task(self) -> str:
        self.put_job(Nothing(1), key="a")
        with pytest.raises(ConfigurationError, match=r"two .* have the key 'a'"):
            self.put_job(Nothing(2), key="a")
        await self.put_job(Nothing(2), key="b")
        return "ok"


def test_a_key_is_given_once() -> None:
    """The second put with the same key is refused in every execution."""
    assert kill_everywhere(TwoKeys).result == "ok"


class Unlike(Durable[list[Any]]):
    """Makes the same requests in two concurrent branches."""

    async def task(self) -> list[Any]:
        return await settle(*[branch(number) for number in (0, 1)])


@handler
async def branch(node: Node[Any], number: int) -> list[Any]:
    return [number, *[await act("same", turns=1 + 3 * number) for _ in range(2)]]


@pytest.mark.parametrize("seed", seeds(10))
def test_equal_effects_of_two_branches_are_not_swapped(seed: int) -> None:
    """Each of two branches that do the same twice gets its own results again."""
    first = kill_everywhere(Unlike, seeds=(seed, seed + 1, None))
    assert len(first.disk.done) == 4


class Aside(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        async def put(value: object) -> Any:
            return await self.call_handler(opaque(value))

        return list(await asyncio.gather(put(object()), put(object())))


@handler
async def opaque(node: Node[Any], value: object) -> str:
    return "x"


def test_what_nothing_tells_apart_needs_a_key() -> None:
    """Tasks of one body that put equal nodes with inputs that cannot be stored are refused."""
    error = run_execution(Aside).error
    assert isinstance(error, ConfigurationError)
    assert "key=" in str(error)
