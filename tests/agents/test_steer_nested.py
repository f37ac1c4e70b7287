"""Steering of calls inside calls: each message is delivered once, or stays undelivered."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.memory_journal import Disk, journal_of, use_disk_clock
from support.seeds import SEED, example_count

from anabranch import Agent, Commander, tool
from anabranch.agents import AgentMessage
from anabranch.agents.layers import AgentCall
from anabranch.commander import current_node
from anabranch.messages import Message, Request, ToolCall
from anabranch.testing import ScriptedBackend, run_seeded

RUN = "boss/s"
Tell = Callable[[str, "Boss"], Awaitable[None]]


class Boss(Agent[Any]):
    """An agent whose `forward` calls another one, and steers it."""

    def __init__(self, tell: Tell, rounds: int, **options: Any) -> None:
        super().__init__(name="boss", **options)
        self.requests = 0
        self.asked: AgentCall[Any] | None = None
        self._tell = tell
        self._rounds = rounds

        @tool(read_only=True)
        async def work(number: int) -> str:
            """Work."""
            await tell(f"tool {number}", self)
            return f"worked {number}"

        self.worker = Agent(ScriptedBackend(otherwise=self._say), name="worker", tools=[work])

    def _say(self, request: Request) -> Message | str:
        self.requests += 1
        done = sum(each.role == "tool" for each in request.messages)
        if done >= self._rounds:
            return f"answer after {done}"
        call = ToolCall(id=f"c{done}", name="work", arguments={"number": done})
        return Message(role="assistant", content=f"round {done}", tool_calls=[call])

    async def forward(self, *messages: AgentMessage, session_id: Any = 0) -> AgentMessage:
        """Let the worker answer."""
        self.asked = self.worker.call(*messages, session_id=session_id)
        await self._tell("forward", self)
        node = current_node()
        assert node is not None
        return await node.call_handler(self.asked)


class Play:
    """A boss that is steered, itself or its worker, and killed between any two rows."""

    def __init__(self, chosen: random.Random) -> None:
        self.rounds = chosen.randrange(1, 4)
        points = chosen.sample(["forward", "tool 0", "tool 1", "tool 2"], 2)
        self.at = {point: chosen.choice(["inner", "outer", "both"]) for point in points}

    async def run(self, disk: Disk, *, steers: bool) -> tuple[list[str], list[str], int]:
        """Return the worker's remembered and undelivered messages, and its number of requests."""

        async def tell(point: str, boss: Boss) -> None:
            whom = self.at.get(point) if steers else None
            if whom in ("inner", "both") and boss.asked is not None:
                boss.asked.steer(f"told inner at {point}")
            if whom in ("outer", "both"):
                call.steer(f"told outer at {point}")

        with use_disk_clock(disk):
            async with journal_of(disk) as journal:
                boss = Boss(tell, self.rounds, journal=journal)
                call = boss.call("go", session_id="s")
                async with Commander() as commander:
                    await commander.run(call)
                asked = [] if boss.asked is None else boss.asked.undelivered
                return (
                    told(boss.worker.memory.messages("s")),
                    told([*call.undelivered, *asked]),
                    boss.requests,
                )

    async def stop(self, disk: Disk) -> list[str]:
        """End the interrupted call, and return the remembered messages."""

        async def tell(point: str, boss: Boss) -> None:
            """Tell nothing."""

        with use_disk_clock(disk):
            async with journal_of(disk) as journal:
                boss = Boss(tell, self.rounds, journal=journal)
                assert await boss.end_interrupted("s")
                return told(boss.memory.messages("s"))


def told(messages: list[AgentMessage]) -> list[str]:
    return [each.text for each in messages if each.text.startswith("told")]


@pytest.mark.parametrize("number", range(example_count(4, 100)))
def test_calls_in_calls_that_are_killed_hear_once_what_they_were_told(number: int) -> None:
    """S20, S21: each stored message is delivered once or undelivered; no reply is repeated."""
    play, first = Play(random.Random(SEED + number)), Disk()
    run_seeded(lambda: play.run(first, steers=True), None)
    rows = first.rows[RUN]
    over = next(n for n, row in enumerate(rows) if row.kind == "result")
    for kept in range(1, over):
        notes: list[Any] = [json.loads(row.value) for row in rows[:kept] if row.kind == "note"]
        was_told = sorted(each["message"]["content"] for each in notes if "message" in each)
        cut = first.cut(kept, first.done)
        heard, undelivered, requests = run_seeded(lambda cut=cut: play.run(cut, steers=False), None)
        assert sorted([*heard, *undelivered]) == was_told, f"killed after {kept} rows"
        replies = sum(row.kind == "reply" for row in rows[:kept])
        assert replies + requests == play.rounds + 1, f"killed after {kept} rows"
        cut = first.cut(kept, first.done)
        stopped = run_seeded(lambda cut=cut: play.stop(cut), None)
        assert sorted(stopped) == was_told, f"stopped after {kept} rows"


async def test_what_a_hook_refuses_waits_again_for_all_calls_around() -> None:
    """S21: the request had no effect, so the messages of all calls wait again."""

    class Refuses:
        def before_agent(self, agent: Any, message: AgentMessage, session_id: Any) -> None:
            if message.text.startswith("told"):
                raise ValueError("not that")

    async def tell(point: str, boss: Boss) -> None:
        if point == "tool 0" and boss.asked is not None:
            boss.asked.steer("told inner")
            call.steer("told outer")

    boss = Boss(tell, 1)
    boss.worker.add_hook(Refuses())
    call = boss.call("go", session_id="s")
    with pytest.raises(ValueError, match="not that"):
        async with Commander() as commander:
            await commander.run(call)
    assert boss.asked is not None
    assert (told(call.undelivered), told(boss.asked.undelivered)) == (
        ["told outer"],
        ["told inner"],
    )
    assert told(boss.worker.memory.messages("s")) == []
