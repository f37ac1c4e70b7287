"""D5: results meet the nodes they belong to, whatever runs beside them and in whatever order."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from _lives import act, every_kill, play, random_kills
from _scale import LONG, many, seeds

from anabranch.commander import ConfigurationError, Node, Retry, settle
from anabranch.commander.scope import scope_here
from anabranch.handlers import handler
from anabranch.store import Durable

OPERATIONS = (
    "act",
    "step",
    "pause",
    "plain",
    "durable",
    "settle",
    "race",
    "later",
    "retry",
    "caught",
)


def draw_body(draw: random.Random, depth: int = 3) -> list[Any]:
    """Draw what a node does; few different inputs, so that many are equal."""
    names = OPERATIONS[: None if depth else 3]
    return [draw_operation(draw, draw.choice(names), depth) for _ in range(draw.randint(1, 3))]


def draw_operation(draw: random.Random, name: str, depth: int) -> list[Any]:
    if name in ("act", "step", "pause"):
        return [name, draw.randint(1, 2)]
    if name in ("settle", "race"):
        below = [draw_body(draw, depth - 1) for _ in range(draw.randint(2, 3))]
        return [name, below, draw.random() < 0.5]
    return [name, draw_body(draw, depth - 1), draw.random() < 0.5]


def double(value: int) -> int:
    return 2 * value


async def add_one(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


async def play_body(node: Node[Any], body: list[Any]) -> list[Any]:
    """Do it, one after the other; the result says all that was met."""
    results: list[Any] = []
    later: list[Node[Any]] = []
    for name, what, *rest in body:
        if name == "act":
            gave = await act("act", what)
            # Below a node that is tried again, equal effects are found by their inputs alone.
            results.append(gave.split("#")[0] if scope_here().retried else gave)  # type: ignore[union-attr]
        elif name == "step":
            results.append(await Walk.durable.fget(node).step(add_one, what))  # type: ignore[attr-defined]
        elif name == "pause":
            await asyncio.sleep(what / 10)
        elif name in ("settle", "race"):
            nodes = [(Walk if rest[0] else walk)(each) for each in what]
            if name == "settle":
                results.append(await settle(*nodes))
            else:
                put = [put_below(node, each) for each in nodes]
                ended = [json.dumps(await each) for each in asyncio.as_completed(put)]
                results.append(sorted(ended))
        elif name == "retry":
            results.append(await put_below(node, (Again if rest[0] else again)(what), retry=TWICE))
        elif name == "caught":
            try:
                await put_below(node, (Fails if rest[0] else fails)(what), claim=True)
            except ValueError as error:
                results.append(str(error))
        else:
            below = put_below(node, (Walk if rest[0] else walk)(what), claim=True)
            if name == "later":
                later.append(below)
            else:
                results.append(await below)
    return [*results, *[await each for each in later]]


def put_below(node: Node[Any], below: Node[Any], **options: Any) -> Node[Any]:
    call = node.put_job if below._node_queued else node.call_handler
    return call(below, **options)


TWICE = Retry(attempts=2, on=KeyError, backoff=0.1)


async def fail_first(node: Node[Any], body: list[Any]) -> list[Any]:
    results = await play_body(node, body)
    if scope_here().attempt == 1:  # type: ignore[union-attr]
        raise KeyError("once")
    return results


async def fail(node: Node[Any], body: list[Any]) -> list[Any]:
    raise ValueError(json.dumps(await play_body(node, body)))


@handler
async def walk(node: Node[Any], body: list[Any]) -> list[Any]:
    return await play_body(node, body)


@handler
async def again(node: Node[Any], body: list[Any]) -> list[Any]:
    return await fail_first(node, body)


@handler
async def fails(node: Node[Any], body: list[Any]) -> list[Any]:
    return await fail(node, body)


class Walk(Durable[Any]):
    body: Any

    async def task(self) -> Any:
        return await play_body(self, self.body)


class Again(Durable[Any]):
    body: Any

    async def task(self) -> Any:
        return await fail_first(self, self.body)


class Fails(Durable[Any]):
    body: Any

    async def task(self) -> Any:
        return await fail(self, self.body)


@pytest.mark.parametrize("seed", seeds(many(60, 1000)))
def test_any_program_ends_alike_however_often_it_is_killed(seed: int) -> None:
    """Random programs, random orders, two kills each at random places."""
    draw = random.Random(seed)
    body = draw_body(draw)
    first = play(lambda: Walk(body), seed=seed)
    assert first.error is None
    for number in range(4):
        random_kills(lambda: Walk(body), 10 * seed + number, first=first)


@pytest.mark.parametrize("seed", seeds(many(12, 200)))
def test_any_program_ends_alike_after_every_kill(seed: int) -> None:
    """The same, with a kill after each row, in both worlds, under several orders."""
    body = draw_body(random.Random(f"every {seed}"), depth=2)
    every_kill(lambda: Walk(body), seeds=(None, seed) if not LONG else (None, seed, seed + 1))


class TwoKeys(Durable[str]):
    async def task(self) -> str:
        self.put_job(Walk([["pause", 1]]), key="a")
        with pytest.raises(ConfigurationError, match="'a' is given to two"):
            self.put_job(Walk([["pause", 2]]), key="a")
        await self.put_job(Walk([["pause", 2]]), key="b")
        return "ok"


def test_a_key_is_given_once() -> None:
    """The second put with the same key is refused, in every life."""
    assert every_kill(TwoKeys).result == "ok"


class Unlike(Durable[list[Any]]):
    """Asks the same in two branches that stand beside each other."""

    async def task(self) -> list[Any]:
        return await settle(*[branch(number) for number in (0, 1)])


@handler
async def branch(node: Node[Any], number: int) -> list[Any]:
    return [number, *[await act("same", turns=1 + 3 * number) for _ in range(2)]]


@pytest.mark.parametrize("seed", seeds(10))
def test_equal_effects_of_two_branches_are_not_swapped(seed: int) -> None:
    """Two branches that do the same twice get back each its own."""
    first = every_kill(Unlike, seeds=(seed, seed + 1, None))
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
    """Tasks of one body that put the same with inputs that cannot be written are refused."""
    error = play(Aside).error
    assert isinstance(error, ConfigurationError)
    assert "key=" in str(error)
