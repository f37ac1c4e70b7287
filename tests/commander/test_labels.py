"""Events carry the path, agent and key of their node, so readers need not rebuild the tree."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
from typing import Any

import pytest
from support.seeds import seeds

from anabranch import Agent, Commander, Job, Node
from anabranch.agents import ConversableAgent, UserProxyAgent
from anabranch.commander import Actor, Event, act_as, actor_of
from anabranch.testing import ScriptedBackend, explore

pytestmark = pytest.mark.usefixtures("light_heap")


class Branch(Node[None]):
    """A node of a random tree. Some nodes name an agent."""

    key: str | None = None

    def __init__(self, depth: int, seen: dict[int, tuple[str, Actor | None, Any]]) -> None:
        super().__init__(random.choice(["a", "b", "a[b]"]))
        self.depth, self.seen = depth, seen
        self.own = Actor(f"agent{random.randint(0, 9)}", random.choice([None, 7]))
        self.acts = random.random() < 0.3
        if self.acts:
            act_as(self, *self.own)

    async def task(self) -> None:
        above = self.parent.actor if isinstance(self.parent, Branch) else None
        own = self.own
        if own.session_id is None and above is not None:  # it belongs to the session around it
            own = own._replace(session_id=above.session_id)
        self.actor = own if self.acts else above
        assert actor_of(self) == self.actor
        self.seen[self.node_id] = self.path, self.actor, self.key
        await asyncio.sleep(random.randint(0, 2))
        for _ in range(random.randint(0, 3) if self.depth else 0):
            child = Branch(self.depth - 1, self.seen)
            child.key = random.choice([None, "7", "a]", "[", "b[c]", ""])
            self.call_handler(child, key=child.key)


def test_every_event_knows_its_path_its_agent_and_its_key() -> None:
    """Events match the node's own labels in random trees, also pickled and after its end."""

    async def main() -> int:
        seen: dict[int, tuple[str, Actor | None, Any]] = {}
        async with Commander() as commander:
            events = commander.events()
            commander.call_handler(Branch(4, seen))
        found: list[Event] = [event async for event in events]
        gc.collect()
        for event in found + [pickle.loads(pickle.dumps(each)) for each in found]:
            if event.node_id:
                path, actor, key = seen[event.node_id]
                assert event.path == path
                assert event.key == key
                assert event.node_name in ("a", "b", "a[b]")
                assert event.name == event.node_name + ("" if key is None else f"[{key}]")
                assert (event.agent, event.session_id) == (actor or (None, None))[:2]
        return len(found)

    assert sum(explore(main, seeds(100))) > 1000


def test_a_long_path_is_cut_as_the_nodes_own() -> None:
    """A long path leaves out its middle, in the event as in the node."""

    class Deep(Job[str]):
        depth: int

        async def task(self) -> str:
            if self.depth:
                return await self.put_job(Deep(self.depth - 1))
            return self.path

    async def main() -> None:
        async with Commander() as commander:
            events = commander.events(["started"])
            deepest = await commander.run(Deep(100))
        assert [event.path async for event in events][-1] == deepest
        assert "more..." in deepest

    asyncio.run(main())


async def test_text_of_agents_is_labelled() -> None:
    """Five agents run at once. Each piece of text names its agent and its session."""
    backend = ScriptedBackend(otherwise=lambda request: f"for {request.messages[-1].content}")
    agents = [Agent(backend, name=f"researcher{n}") for n in range(5)]
    said: dict[tuple[str | None, Any], str] = {}
    async with Commander() as commander:
        events = commander.events(["text"])
        for number, agent in enumerate(agents):
            session = number if number % 2 else None
            commander.call_handler(agent.call(f"q{number}", session_id=session))
    async for event in events:
        key = event.agent, event.session_id
        said[key] = said.get(key, "") + event.data
        assert event.path.startswith(f"Commander/{event.agent}#")

    assert said == {(f"researcher{n}", n if n % 2 else None): f"for q{n}" for n in range(5)}


async def test_text_of_a_conversation_is_labelled() -> None:
    """Each piece of text names its speaker and the session of the shared memory."""
    bob = ConversableAgent("bob", ScriptedBackend("I am Bob."))
    user = UserProxyAgent("user", human_input_mode="NEVER", max_consecutive_auto_reply=0)

    class Asks(Job[None]):
        async def task(self) -> None:
            await user.send("Who?", bob, session_id=7)

    async with Commander() as commander:
        events = commander.events(["text"])
        await commander.run(Asks())
    assert {(event.agent, event.session_id) async for event in events} == {("bob", "user#7")}
