"""`Orchestrator`: a function names the agent that is next, until the environment is to act."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from ..commander import Node
from ..commander.errors import AnabranchError
from ..messages import Usage
from ._agent import Agent
from ._chat import in_tree
from ._directory import UnknownAgent
from ._engineer import PromptedAgent, settled
from ._environment import Environment, Turn, act, observe
from ._memory import SessionId, message_text
from ._message import AgentMessage
from ._state import State

if TYPE_CHECKING:
    from ._episode import EpisodeResult

__all__ = ["Action", "Limit", "LimitReached", "Orchestration", "Orchestrator", "Transition"]

logger = logging.getLogger("anabranch.agents")

S = TypeVar("S", bound=State)

Limit: TypeAlias = Literal["max_errors", "max_steps", "max_turns"]

Transition: TypeAlias = "Callable[[str | None, S], Awaitable[str | None] | str | None]"
"""From what the environment showed, and the state, to the name of the next agent; None to end."""


@dataclass(frozen=True, slots=True)
class Action:
    """What an orchestrator hands to its caller: an answer for the environment.

    `agent` gave it. `done`: nobody is next, and this was the last answer.
    """

    content: str
    agent: str
    done: bool = False


class LimitReached(AnabranchError):
    """An orchestrator came to a limit of its state.

    Attributes: `limit`, the limit's name, its `value`, and `agent`, who answered last.
    """

    def __init__(self, limit: Limit, value: int, agent: str | None, why: str) -> None:
        super().__init__(f"{why} ({limit}={value})")
        self.limit: Limit = limit
        self.value = value
        self.agent = agent


class Orchestrator(Generic[S]):
    """Lets agents answer in the order that `transition(obs, state)` says.

        orchestrator = Orchestrator([coin, poet], transition, CoinState(max_steps=10))
        action = await orchestrator.forward("Begin.")

    `transition`, plain or async, returns the name of the agent that is next, or None when all is
    done. It is asked again after each answer; `obs` is what the environment showed, None if it has
    done nothing since. When it, or a prompt engineer, says `state.step_environment()`, the answer
    goes to the caller, who gives `forward` what came of it. After `state.signal_error(log,
    improve)` it is not asked: the same agent answers again.

    Agents are `PromptedAgent`s, whose prompts are made of the state, or any other `Agent`: that
    hears what the environment showed or else what the agent before it said. They have a session of
    their memory, `session_id`; the state is this orchestrator's own, one `forward` at a time.
    `timeout` is in seconds, for each answer.
    """

    def __init__(
        self,
        agents: Iterable[Agent[Any]],
        transition: Transition[S],
        state: S,
        *,
        name: str = "orchestrator",
        session_id: SessionId = 0,
        timeout: float | None = None,
    ) -> None:
        self.agents: dict[str, Agent[Any]] = {}
        for agent in agents:
            if self.agents.setdefault(agent.name, agent) is not agent:
                raise ValueError(f"there are two agents called {agent.name!r}")
        if not self.agents:
            raise ValueError("an Orchestrator needs at least one agent")
        self.transition = transition
        self.state = state
        self.name = name
        self.session_id: SessionId = session_id
        self.timeout = timeout
        self._first = state.model_copy(deep=True)
        self._usage: dict[str, dict[str, Usage]] = {}
        self._busy = False

    async def forward(self, obs: str | None = None, reward: float | None = None) -> Action:
        """Let agents answer until the environment is to act, or all is done.

        Inside a node it is a child of it, outside it runs under a commander of its own; cancelling
        it cancels all below, and waits for that. Raises `LimitReached`, `UnknownAgent` for a name
        that no agent has, `TimeoutError`, and what the transition, a prompt engineer or a model
        raise. After an error the state is that of the last answer, so that the same call may be
        made again. A second call while one runs is a `RuntimeError`.
        """
        return await in_tree(self.call(obs, reward))

    def call(self, obs: str | None = None, reward: float | None = None) -> Orchestration[S]:
        """Make the same call as a node that has not started."""
        return Orchestration(self, obs, reward)

    async def over(self, environment: Environment) -> AsyncGenerator[Turn[Action], None]:
        """Play with an environment, from its `reset` to its end, and give each turn of it.

        Ends when the environment or the transition says so; raises what `forward` and the
        environment raise, `LimitReached` too. It may be left at any time; the environment is the
        caller's to close.
        """
        seen = await in_tree(observe(environment))
        while not seen.done:
            action = await self.forward(seen.text, seen.reward)
            if action.done:
                yield Turn(action, None)
                return
            seen = await in_tree(act(environment, action.content))
            yield Turn(action, seen)

    async def play(self, environment: Environment) -> EpisodeResult:
        """Play with an environment to the end, which may be a limit; see `Episode`."""
        from ._episode import Episode

        return await in_tree(Episode(self, environment))

    @property
    def usage(self) -> dict[str, dict[str, Usage]]:
        """What each agent has spent, by model: modules, retries and failed answers included."""
        return {agent: dict(models) for agent, models in self._usage.items()}

    def usage_by_model(self) -> dict[str, Usage]:
        """Return what all agents together have spent, by model."""
        total: dict[str, Usage] = {}
        for models in self._usage.values():
            _add(total, models)
        return total

    def reset(self, state: S | None = None) -> None:
        """Begin anew: with `state`, or with the state as it was at first; agents forget theirs.

        What was spent is kept. Raises `RuntimeError` while a call runs.
        """
        if self._busy:
            raise RuntimeError(f"{self.name} is running: end its call before you reset it")
        for agent in self.agents.values():
            agent.reset(self.session_id)
        self.state = self._first.model_copy(deep=True) if state is None else state

    def _agent_called(self, name: object) -> Agent[Any]:
        """Return the agent of this name; raise `UnknownAgent`, or `TypeError` for what is none."""
        if not isinstance(name, str):
            raise TypeError(f"the transition gives a name or None, not {name!r:.200}")
        if name not in self.agents:
            raise UnknownAgent(name, [*self.agents], self.name)
        return self.agents[name]


class Orchestration(Node[Action], Generic[S], internal=True):
    """One `forward` of an orchestrator, as a node; each answer is a child."""

    def __init__(
        self, orchestrator: Orchestrator[S], obs: str | None, reward: float | None
    ) -> None:
        super().__init__(orchestrator.name)
        self._orchestrator = orchestrator
        self._obs = obs
        self._reward = reward

    async def task(self) -> Action:
        """Go on to the next environment step."""
        orchestrator = self._orchestrator
        if orchestrator._busy:
            raise RuntimeError(f"{orchestrator.name} is running: its state is for one at a time")
        orchestrator._busy = True
        try:
            return await self._until_step(orchestrator, orchestrator.state)
        finally:
            orchestrator._busy = False

    async def _until_step(self, orchestrator: Orchestrator[S], state: S) -> Action:
        if state.max_steps is not None and state.steps >= state.max_steps:
            raise LimitReached(
                "max_steps", state.max_steps, state.agent, "the environment was asked often enough"
            )
        obs, state.reward = self._obs, self._reward
        for turn in count():
            agent = await self._next(orchestrator, obs)
            if agent is None:
                return Action(state.response or "", state.agent or "", done=True)
            if turn == state.max_turns:
                raise LimitReached(
                    "max_turns", turn, state.agent, "the environment was not asked for too long"
                )
            state.response = await self._answered(orchestrator, agent, obs)
            state.agent = agent.name
            _count_error(state)
            if state.mistake is None:
                obs = None
                if state.env_step:
                    break
        state.env_step, state.errors = False, 0
        state.steps += 1
        return Action(state.response or "", state.agent or "")

    async def _next(self, orchestrator: Orchestrator[S], obs: str | None) -> Agent[Any] | None:
        """Return the agent that is next: the same once more if it made a mistake."""
        state = orchestrator.state
        if state.mistake is None:
            state.env_step = False
            name: object = await settled(orchestrator.transition(obs, state))
            _count_error(state)
            if state.mistake is None:
                state.errors = 0
                return None if name is None else orchestrator._agent_called(name)
        if state.errors > state.max_errors:
            said = f"{state.agent} gave no answer that can be used: {state.mistake.log}"
            raise LimitReached("max_errors", state.max_errors, state.agent, said)
        if state.agent is None:
            raise RuntimeError(f"an error was signalled before anybody answered: {state.mistake}")
        return orchestrator._agent_called(state.agent)

    async def _answered(
        self, orchestrator: Orchestrator[S], agent: Agent[Any], obs: str | None
    ) -> str:
        state = orchestrator.state
        prompted = isinstance(agent, PromptedAgent)
        options: dict[str, Any] = {"state": state, "obs": obs} if prompted else {}
        call = agent.call(*_told(obs, state), session_id=orchestrator.session_id, **options)
        try:
            self.call_handler(call, timeout=orchestrator.timeout, claim=True)
            answer = await call
        finally:
            _add(orchestrator._usage.setdefault(agent.name, {}), self.commander.usage(call))
        if not prompted:
            state.mistake = None
        return message_text(answer)


def _count_error(state: State) -> None:
    if state.mistake is not None:
        state.errors += 1
        logger.info("an answer of %s cannot be used: %s", state.agent, state.mistake.log)


def _told(obs: str | None, state: State) -> list[AgentMessage]:
    """Return what the next agent hears: its mistake, the environment, or the agent before."""
    if state.mistake is not None:
        return [AgentMessage(content=state.mistake.improve, sender="orchestrator")]
    if obs is not None:
        return [AgentMessage(content=obs, sender="environment")]
    if state.response is not None and state.agent is not None:
        return [AgentMessage(content=state.response, sender=state.agent)]
    return []


def _add(total: dict[str, Usage], models: dict[str, Any]) -> None:
    for model, usage in models.items():
        if isinstance(usage, Usage):
            total[model] = total.get(model, Usage()) + usage
