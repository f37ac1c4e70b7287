"""`Episode`: an orchestrator and an environment, from the beginning to the end, as a node."""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..commander import Node
from ._environment import Environment, Turn
from ._orchestrator import Action, Limit, LimitReached, Orchestrator

__all__ = ["Episode", "EpisodeResult", "EpisodeStatus"]

logger = logging.getLogger("anabranch.agents")

EpisodeStatus: TypeAlias = Literal["done", "over"] | Limit
"""`done`: the transition named nobody. `over`: the environment came to its end. Else the limit."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What was done and seen, oldest first, and why it ended."""

    status: EpisodeStatus
    turns: tuple[Turn[Action], ...]


class Episode(Node[EpisodeResult], internal=True):
    """Plays an orchestrator with an environment; a limit is a result with its `status`.

    What `orchestrator.play(environment)` awaits; `node.call_handler(Episode(...), timeout=600)` and
    `commander.run(Episode(...))` do the same. Faults
    are raised, see `Orchestrator.forward`. The environment is the caller's to close.
    """

    def __init__(self, orchestrator: Orchestrator[Any], environment: Environment) -> None:
        super().__init__(f"{orchestrator.name}-episode")
        self._orchestrator = orchestrator
        self._environment = environment

    async def task(self) -> EpisodeResult:
        """Take turns until one of the two has come to its end."""
        turns: list[Turn[Action]] = []
        status: EpisodeStatus = "over"
        try:
            async with aclosing(self._orchestrator.over(self._environment)) as playing:
                async for turn in playing:
                    turns.append(turn)
                    status = "done" if turn.action.done else "over"
        except LimitReached as limit:
            logger.warning("%s: %s", self.path, limit)
            status = limit.limit
        return EpisodeResult(status, tuple(turns))
