"""`Sequential`: a chain of agents; each answers the answer of the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ...commander.errors import ConfigurationError
from ...commander.kinds import require
from ._agent import Agent
from ._guards import Guard
from ._memory import SessionId
from ._message import AgentMessage
from ._stream import lend_voice

if TYPE_CHECKING:
    from ...store import Journal

__all__ = ["Sequential"]


class Sequential(Agent[Any]):
    """Passes messages to the first agent, its answer to the second, and so on.

        team = Sequential({"writer": writer, "critic": critic})  # or Sequential(writer, critic)
        answer = await team("Write a poem.")

    `description`, `guards` and `journal` are as in `Agent`. With `exit_at=n` a call ends after the
    answer of agent `n`. Raises `ValueError` without agents, `ConfigurationError` if two have the
    same `name=` or key.
    """

    def __init__(
        self,
        *agents: Agent[Any] | Mapping[str, Agent[Any]],
        name: str | None = None,
        description: str = "",
        guards: Iterable[Guard] = (),
        journal: str | Journal | None = None,
    ) -> None:
        super().__init__(name=name, description=description, guards=guards, journal=journal)
        self.agents: dict[str, Agent[Any]] = {}
        for each in agents:
            named = {str(len(self.agents)): each} if isinstance(each, Agent) else each
            require(named, Mapping, "a Sequential must be of Agents, or mappings of Agents")
            for key, agent in named.items():
                require(agent, Agent, "a Sequential must be of Agents")
                if key in self.agents:
                    raise ConfigurationError(f"a Sequential cannot have two agents as {key!r}")
                self.agents[key] = agent
        if not self.agents:
            raise ValueError("a Sequential needs at least one agent")
        speakers: dict[str, Agent[Any]] = {}
        for agent in _speakers(self):
            if agent._has_own_name and speakers.setdefault(agent.name, agent) is not agent:
                raise ConfigurationError(
                    f"a Sequential cannot have two agents called {agent.name!r}: each would take"
                    " the other's answers for its own. Give one another name="
                )

    async def forward(
        self,
        *messages: AgentMessage,
        session_id: SessionId = 0,
        exit_at: int | None = None,
        **options: Any,
    ) -> AgentMessage:
        """Let each agent answer in turn. All get the same options."""
        agents = list(self)[: None if exit_at is None else exit_at + 1]
        for agent in agents:
            with lend_voice() if agent is agents[-1] else nullcontext():
                messages = (await agent(*messages, session_id=session_id, **options),)
        return messages[0]

    @property
    def conversant(self) -> None:
        """None: each of its agents has a memory."""

    def __iter__(self) -> Iterator[Agent[Any]]:
        return iter(self.agents.values())

    def __len__(self) -> int:
        return len(self.agents)

    def __getitem__(self, key: int | str) -> Agent[Any]:
        return self.agents[key] if isinstance(key, str) else list(self)[key]


def _speakers(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """Yield the agents that answer each other in `agent`."""
    if not isinstance(agent, Sequential):
        yield agent
        return
    for each in agent:
        yield from _speakers(each)
