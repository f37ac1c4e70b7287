"""A call of a tool is one effect over all attempts and executions: D5, D7, D21.

Two calls are the same if they have the same tool, the same inputs and the same ordinal under the
same node, whatever the attempts of the nodes above are. Random trees of jobs, durable jobs and
handlers call a tool with few different inputs, fail, are retried and killed. All durations differ
between attempts and executions.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, effects_in_doubt, run_execution
from support.memory_journal import current_disk
from support.seeds import example_count, seeds

from anabranch import Node, Retry, ToolCall, handler, tool
from anabranch.commander import settle
from anabranch.commander.durable import scope_here
from anabranch.handlers import call_tools
from anabranch.jobs import Job
from anabranch.store import Done, Durable, DurableCalls, NotDone, effect_key

pytestmark = pytest.mark.contract("D21")

Body = list[Any]

# A call by the code: the nodes above, the inputs, the ordinal.
CALL: ContextVar[tuple[str, int, int]] = ContextVar("call")
# The place of a node in the tree: the positions of the nodes above.
PATH: ContextVar[str] = ContextVar("path", default="")
# By key: the effects of each call, over all executions of one program.
KEYS: defaultdict[tuple[str, int, int], set[str]] = defaultdict(set)
CHANCE: list[random.Random] = []


def find(n: int, *, effect_key: str) -> Done | NotDone:
    done = current_disk().done
    return Done(done[effect_key]) if effect_key in done else NotDone()


@tool(reconcile=find, reconcile_after=0)
async def charge(n: int) -> str:
    KEYS[CALL.get()].add(effect_key())
    await wait()
    gave = current_disk().do(effect_key(), f"{n}")
    await wait()
    return gave


async def wait() -> None:
    """Wait for some turns of the loop or some time, others in each attempt and execution."""
    for _ in range(CHANCE[-1].randrange(4)):
        await asyncio.sleep(0)
    await asyncio.sleep(CHANCE[-1].choice([0, 0, 0.1, 1]))


# --- trees


class Kept(Durable[None]):
    body: Any
    tries: int

    async def task(self) -> None:
        await play_body(self, self.body, self.tries)


class Plain(Job[None]):
    body: Body
    tries: int

    async def task(self) -> None:
        await play_body(self, self.body, self.tries)


@handler
async def handles(node: Node[Any], body: Body, tries: int) -> None:
    await play_body(node, body, tries)


KINDS: dict[str, Any] = {"durable": Kept, "job": Plain, "handler": handles}


async def calls_of(n: int) -> AsyncIterator[ToolCall]:
    yield ToolCall(id="c", name="charge", arguments={"n": n})


async def play_body(node: Node[Any], body: Body, tries: int) -> None:
    """Follow the plan, and fail after a part of it in each attempt but the last."""
    path = PATH.get()
    attempt = scope_here().attempt  # type: ignore[union-attr]
    fails = CHANCE[-1].randint(0, len(body)) if attempt < tries else None
    calls: defaultdict[int, int] = defaultdict(int)
    for place, (name, *arguments) in enumerate(body):
        if fails == place:
            raise KeyError(path)
        await wait()
        if name == "call":
            many_at_once: list[Node[str]] = []
            for n in arguments:
                CALL.set((path, n, calls[n]))
                calls[n] += 1
                many_at_once.append(DurableCalls(node).call(charge, n))
            await asyncio.gather(*many_at_once)
        elif name == "tools":
            CALL.set((f"{path}/{place}", arguments[0], 0))
            await node.call_handler(call_tools(calls_of(*arguments), [charge]))
        else:
            below = [put(node, f"{path}/{place}.{n}", *each) for n, each in enumerate(arguments)]
            if name == "settle":
                ended = await settle(*below)
                for each in ended:
                    if isinstance(each, Exception):
                        raise each
            else:
                await asyncio.gather(*below)
    if fails == len(body):
        raise KeyError(path)


def put(node: Node[Any], path: str, kind: str, body: Body, tries: int) -> Node[Any]:
    PATH.set(path)
    below = KINDS[kind](body, tries)
    retry = Retry(attempts=tries, on=KeyError, backoff=0.5) if tries > 1 else None
    (node.put_job if below._node_is_queued else node.call_handler)(below, retry=retry)
    return below


def draw_body(draw: random.Random, depth: int) -> Body:
    body: Body = []
    for _ in range(draw.randint(1, 3)):
        name = draw.choice(["call", "tools", *["gather", "settle"] * (2 * depth)])
        if name == "call":
            body.append([name, *draw.choices([1, 2], k=draw.randint(1, 2))])
        elif name == "tools":
            body.append([name, draw.randint(1, 2)])
        else:
            kinds = draw.choices([*KINDS], k=draw.randint(1, 3))
            each = [[k, draw_body(draw, depth - 1), draw.choice([1, 1, 2, 3])] for k in kinds]
            body.append([name, *each])
    return body


def execution(seed: object, body: Body, *left: Any, order: int) -> Execution:
    CHANCE.append(random.Random(f"{seed} {order}"))
    try:
        return run_execution(lambda: Kept(body, 1), *left, seed=order)
    finally:
        CHANCE.pop()


@pytest.mark.parametrize("seed", seeds(example_count(30, 3000)))
def test_each_call_has_one_key_over_all_attempts_and_executions(seed: int) -> None:
    """And no other call has it: there are as many effects as calls."""
    draw = random.Random(seed)
    body = draw_body(draw, 2)
    KEYS.clear()
    life = execution(seed, body, order=draw.randrange(1 << 30))
    while True:
        keys = [key for each in KEYS.values() for key in each]
        assert all(len(each) == 1 for each in KEYS.values()), f"seed {seed}: {body}"
        assert len({*keys}) == len(keys), f"seed {seed}: {body}"
        assert life.error is None, f"seed {seed}: {body}"
        assert {*life.disk.done} == {*keys}, f"seed {seed}: {body}"
        if len(life.rows) - life.before < 4:
            break
        rows = draw.randint(life.before, len(life.rows) - 1)
        done = frozenset(key for key in effects_in_doubt(life, rows) if draw.random() < 0.5)
        left = Kill(rows, done).of(life)
        life = execution(seed, body, left, order=draw.randrange(1 << 30))
