"""Orchestrators, agents and an environment that several test modules share."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch import (
    Message,
)
from anabranch.agents import (
    Namespace,
    Observation,
    Orchestrator,
    PromptedAgent,
    PromptEngineer,
    State,
)
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend

__all__ = [
    "CountState",
    "Counter",
    "CountingEngineer",
    "EchoEnvironment",
    "TalkingEngineer",
    "backend_of",
    "counter_agent",
    "counting_orchestrator",
    "hanging_backend",
    "role_contents",
]


class Counter(Namespace):
    number: int = 0


class CountState(State):
    counter: Counter = Counter()


class CountingEngineer(PromptEngineer[CountState]):
    """An engineer that asks for numbers, and asks again after a reply that is not a number."""

    def __init__(self) -> None:
        self.resets = 0

    def render_prompt(self, obs: str | None, history: list[Message], state: CountState) -> None:
        history.append(Message(role="user", content=obs or "Count."))

    async def process_response(
        self, obs: str | None, response: str, history: list[Message], state: CountState
    ) -> str:
        if not response.isdigit():
            state.signal_error("no number", "Say a number.")
            return ""
        state.counter.number = int(response)
        state.step_environment()
        return response

    def reset(self) -> None:
        self.resets += 1


class TalkingEngineer(PromptEngineer[State]):
    def render_prompt(self, obs: str | None, history: list[Message], state: State) -> None:
        history[:] = [Message(role="user", content="Talk.")]


def counter_agent(backend: ScriptedBackend, **options: Any) -> PromptedAgent[CountState]:
    return PromptedAgent("counter", CountingEngineer(), backend, **options)


def counting_orchestrator(
    *replies: Any, modules: Any = (), **limits: Any
) -> Orchestrator[CountState]:
    """Return an orchestrator whose next agent is always the counter."""
    agent = counter_agent(ScriptedBackend(*replies), modules=modules)
    return Orchestrator([agent], lambda obs, state: "counter", CountState(**limits))


def backend_of(orchestrator: Orchestrator[Any], name: str = "counter") -> ScriptedBackend:
    """Return the scripted backend of an orchestrator's agent."""
    backend = orchestrator.agents[name].backend
    assert isinstance(backend, ScriptedBackend)
    return backend


def role_contents(request: Request) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in request.messages]


def hanging_backend() -> tuple[ScriptedBackend, asyncio.Event]:
    """Return a backend that never replies, and an event that its first request sets."""
    asked = asyncio.Event()

    async def reply(request: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    return ScriptedBackend(reply), asked


class EchoEnvironment:
    """An environment that echoes each action and ends after `last` actions."""

    def __init__(self, last: int = 3) -> None:
        self.done: list[str] = []
        self.last = last

    async def reset(self) -> None:
        self.done = []

    async def step(self, action: str) -> Observation | str:
        self.done.append(action)
        if len(self.done) == self.last:
            return Observation("the end", reward=1.0, done=True)
        return f"saw {action}"
