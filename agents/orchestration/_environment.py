"""Environments: what an orchestrator acts upon, and what it sees of it."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ...commander import Node
from ...commander.awaitable import require_awaitable
from ...handlers import handler

__all__ = ["Environment", "EpisodeStep", "Observation", "act", "observe"]

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows: a text, perhaps a reward, and whether it has come to its end."""

    text: str | None
    reward: float | None = None
    done: bool = False


Shown: TypeAlias = Observation | str | None


class Environment(Protocol):
    """Anything with these two methods; a plain text is an observation of it."""

    def reset(self) -> Awaitable[Shown]:
        """Begin anew; return what there is to see, None if nothing is."""
        ...

    def step(self, action: str) -> Awaitable[Shown]:
        """Do something; return what came of it. An action that is refused is told, not raised."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeStep(Generic[A]):
    """What an orchestrator did and what it saw then, None if the environment did not hear of it."""

    action: A
    observation: Observation | None


@handler
async def observe(node: Node[Any], environment: Environment) -> Observation:
    """Begin anew, and look."""
    shown = await require_awaitable(environment.reset(), environment, "reset")
    return _observation(shown, "reset")


@handler
async def act(node: Node[Any], environment: Environment, action: str) -> Observation:
    """Do something, and look."""
    shown = await require_awaitable(environment.step(action), environment, "step")
    return _observation(shown, "step")


def _observation(shown: object, method: str) -> Observation:
    if isinstance(shown, Observation):
        return shown
    if shown is None or isinstance(shown, str):
        return Observation(shown)
    raise TypeError(f"{method} of the environment gives a text or an Observation: {shown!r:.200}")
