"""Seeds find different orders, tasks that are slow throughout, and replies of unequal speed."""

import asyncio
from math import factorial

import pytest

from anabranch import BudgetExceeded, Commander, Message
from anabranch.backends import Limits
from anabranch.handlers import respond
from anabranch.messages import Conversation, Request, Usage
from anabranch.testing import ScriptedBackend, explore, pause, run_seeded

REQUEST = Request([Message(role="user", content="Hello?")])


async def turns(count: int, rounds: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return the order of `count` tasks in each of `rounds` turns."""
    orders: list[list[int]] = [[] for _ in range(rounds)]

    async def step(number: int) -> None:
        for order in orders:
            order.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(step(number))
    return tuple(map(tuple, orders))


@pytest.mark.parametrize("start", [0, 1, 1000, 12_345])
def test_seeds_in_a_row_try_every_first_order_before_any_again(start: int) -> None:
    """For two of three seeds. The third one ranks the tasks."""
    seeds = range(start, start + 3 * factorial(5) // 2)
    orders = explore(lambda: turns(5), [seed for seed in seeds if seed % 3 != 2])
    assert len(orders) == len(set(orders)) == factorial(5)


@pytest.mark.parametrize("start", [0, 7, 1000])
def test_pauses_are_tried_in_all_their_lengths(start: int) -> None:
    """All 144 ways to pause twice occur within 216 consecutive seeds."""

    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        turn = 0

        def count() -> None:
            nonlocal turn, handle
            turn += 1
            handle = loop.call_soon(count)

        handle = loop.call_soon(count)
        await pause(11)
        first = turn
        await pause(11)
        handle.cancel()
        return first, turn - first

    found = set(explore(main, range(start, start + 216)))
    assert len(found) == 144


@pytest.mark.parametrize("place", [0, -1])
def test_a_task_that_is_early_or_late_again_and_again_is_found(place: int) -> None:
    """With independent choices, one seed in 1,728 would find it."""

    async def main() -> bool:
        return all(order[place] == 7 for order in await turns(12, 3))

    for start in (0, 1000, 1_000_000):
        assert any(explore(main, range(start, start + 300)))


async def first_to_end(delay: float | None = None) -> str:
    """Return the reply that ended first."""
    ended: list[str] = []

    async def read(name: str, length: int) -> None:
        async for _ in ScriptedBackend("x" * length, delay=delay).stream(REQUEST):
            pass
        ended.append(name)

    await asyncio.gather(read("short", 8), read("long", 400))
    return ended[0]


def test_a_long_reply_may_be_there_before_a_short_one() -> None:
    """Under some seeds, even if it is fifty times as long. The same seed gives the same result."""
    found = explore(first_to_end, range(100))
    assert set(found) == {"long", "short"}
    assert found == explore(first_to_end, range(100))


def test_where_nothing_is_drawn_the_short_reply_comes_first() -> None:
    """With a delay, without a seed, and on other loops."""
    assert set(explore(lambda: first_to_end(delay=0.0), range(30))) == {"short"}
    assert set(explore(lambda: first_to_end(delay=1.0), range(5))) == {"short"}
    assert run_seeded(first_to_end, None) == asyncio.run(first_to_end()) == "short"


# --- what scripted replies cost


async def test_a_scripted_reply_is_charged() -> None:
    """By the message's usage, or else by an estimate; also if the stream is closed early."""
    usage = Usage(input_tokens=30, output_tokens=12)
    backend = ScriptedBackend(Message(role="assistant", content="Yes.", usage=usage), "Maybe so.")
    async with Commander() as commander:
        for total in (42, 42 + 10 + 4):
            conversation = Conversation()
            conversation.add("Hello?")
            await commander.call_handler(respond(backend, conversation))
            assert commander.usage()["scripted"].total_tokens == total


@pytest.mark.parametrize("budget", [14, 15, 16])
async def test_a_budget_is_tested_with_a_script(budget: int) -> None:
    """The next request is refused, and the script does not receive it."""
    limits = Limits(budget=budget)
    backend = ScriptedBackend(otherwise="Maybe so.", limits=limits)  # 10 and 4 tokens
    for _ in range(1 if budget == 14 else 2):
        await backend.complete(REQUEST)
    with pytest.raises(BudgetExceeded):
        await backend.complete(REQUEST)
    assert limits.spent == (14 if budget == 14 else 28)
