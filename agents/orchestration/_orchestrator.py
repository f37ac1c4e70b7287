"""`Orchestrator`: a function names the next agent, until the environment is to act."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from ...commander import Node
from ...commander.awaitable import require_awaitable
from ...commander.errors import ConfigurationError
from ...commander.kinds import checked, require
from ...commander.waiting import observe as observe_end
from ...commander.waiting import outlast
from ...handlers import handler
from ...messages import Usage
from ...tools.sessions import do_all
from ..errors import Limit, LimitReached, UnknownAgent
from ..layers import Agent, AgentMessage, SessionId
from ..layers._call import add_usage, run_in_tree, usage_of
from ..layers._memory import CALLS, TemporarySession
from ..layers._message import TOOLS
from ._engineer import PromptedAgent, resolve
from ._state import State, restore, snapshot

__all__ = [
    "Action",
    "Environment",
    "Episode",
    "EpisodeResult",
    "EpisodeStatus",
    "EpisodeStep",
    "Observation",
    "Orchestration",
    "Orchestrator",
    "Transition",
    "act",
    "observe",
]

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment shows: a text, perhaps a reward, and whether it has ended."""

    text: str | None
    reward: float | None = None
    done: bool = False


Shown: TypeAlias = Observation | str | None


class Environment(Protocol):
    """Anything with these two methods; a plain text is an observation of it."""

    def reset(self) -> Awaitable[Shown]:
        """Start again; return the first observation, None for nothing to see."""
        ...

    def step(self, action: str) -> Awaitable[Shown]:
        """Do something; return the observation, also of an action that is refused."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeStep(Generic[A]):
    """An action and the observation after it, None if the environment did not get the action."""

    action: A
    observation: Observation | None


@handler
async def observe(node: Node[Any], environment: Environment) -> Observation:
    """Reset the environment and observe it."""
    shown = await require_awaitable(environment.reset(), environment, "reset")
    return _observation(shown, "reset")


@handler
async def act(node: Node[Any], environment: Environment, action: str) -> Observation:
    """Do something and observe the environment."""
    shown = await require_awaitable(environment.step(action), environment, "step")
    return _observation(shown, "step")


def _observation(shown: object, method: str) -> Observation:
    if isinstance(shown, Observation):
        return shown
    if shown is None or isinstance(shown, str):
        return Observation(shown)
    raise TypeError(f"{method} of the environment gives a text or an Observation: {shown!r:.200}")


logger = logging.getLogger("anabranch.agents")

S = TypeVar("S", bound=State)

Transition: TypeAlias = Callable[[str | None, S], Awaitable[str | None] | str | None]
"""From the observation and the state to the name of the next agent; None to end."""


@dataclass(frozen=True, slots=True)
class Action:
    """An answer of an orchestrator for the environment.

    `agent` gave it. `done`: nobody is next, and this was the last answer.
    """

    content: str
    agent: str
    done: bool = False


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
    hears what the environment showed or else what the agent before it said. The session
    `session_id` of their memories, by default one that nobody else has, and the state are this
    orchestrator's own, one `forward` at a time. `timeout` is in seconds, for each answer.
    """

    @checked
    def __init__(
        self,
        agents: Iterable[Agent[Any]],
        transition: Transition[S],
        state: S,
        *,
        name: str = "orchestrator",
        session_id: SessionId | None = None,
        timeout: float | None = None,
    ) -> None:
        self.agents: dict[str, Agent[Any]] = {}
        require(state, State, "state must be a State")
        for agent in agents:
            require(agent, Agent, "agents must be a list of Agents, each")
            if agent.name in ("environment", "orchestrator"):
                raise ConfigurationError(
                    f"no agent of an Orchestrator can be called {agent.name!r}: it would take the"
                    f" messages of the {agent.name} for its own; give it another name="
                )
            if self.agents.setdefault(agent.name, agent) is not agent:
                raise ValueError(f"there are two agents called {agent.name!r}")
        if not self.agents:
            raise ValueError("an Orchestrator needs at least one agent")
        self.transition = transition
        self.state = state
        self.name = name
        if session_id is None:
            session_id = TemporarySession()
            session_id.end_with(self)
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
        raise. A second call while one runs is a `RuntimeError`.

        An answer, with the transition that named its agent, has happened or it has not: after an
        error or a cancel the state and the agents' memories are those of the last answer, and the
        same call goes on from there. Called with another observation, it lets the agent that is
        next hear that, beside the mistake that it may have to mend. What modules have noted stays.
        So do calls of tools that have run: the agent's model reads them, and what they gave, when
        it is asked again. What other callers have added to the memories is theirs.
        """
        call = self.call(obs, reward)
        try:
            return await run_in_tree(call)
        except asyncio.CancelledError:
            call.take_back()
            raise

    def call(self, obs: str | None = None, reward: float | None = None) -> Orchestration[S]:
        """Make the same call as a node that has not started."""
        return Orchestration(self, obs, reward)

    async def over(self, environment: Environment) -> AsyncGenerator[EpisodeStep[Action], None]:
        """Play with an environment, from its `reset` to its end, and give each step of it.

        Ends when the environment or the transition says so; raises what `forward` and the
        environment raise, `LimitReached` too. It may be left at any time; the environment is the
        caller's to close.
        """
        seen = await run_in_tree(observe(environment))
        while not seen.done:
            action = await self.forward(seen.text, seen.reward)
            if action.done:
                yield EpisodeStep(action, None)
                return
            seen = await run_in_tree(act(environment, action.content))
            yield EpisodeStep(action, seen)

    async def play(self, environment: Environment) -> EpisodeResult:
        """Play with an environment to the end, which may be a limit; see `Episode`."""
        return await run_in_tree(Episode(self, environment))

    @property
    def usage(self) -> dict[str, dict[str, Usage]]:
        """The usage of each agent, by model: modules, retries and failed answers included."""
        return {agent: dict(models) for agent, models in self._usage.items()}

    def usage_by_model(self) -> dict[str, Usage]:
        """Return the usage of all agents together, by model."""
        total: dict[str, Usage] = {}
        for models in self._usage.values():
            add_usage(total, models)
        return total

    def reset(self, state: S | None = None) -> None:
        """Begin anew: with `state`, or with the state as it was at first; agents forget theirs.

        What was spent is kept. Raises `RuntimeError` while a call runs.
        """
        if self._busy:
            raise RuntimeError(f"{self.name} is running: end its call before you reset it")
        self.state = self._first.model_copy(deep=True) if state is None else state
        do_all(partial(agent.reset, self.session_id) for agent in self.agents.values())

    def _find(self, name: object) -> Agent[Any]:
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
        # The state to go back to after an error: that of the last answer.
        self._last: S | None = None

    async def task(self) -> Action:
        """Go on to the next environment step."""
        orchestrator, state = self._orchestrator, self._orchestrator.state
        if orchestrator._busy:
            raise RuntimeError(f"{orchestrator.name} is running: its state is for one at a time")
        if state.max_steps is not None and state.steps >= state.max_steps:
            why = "the environment was asked often enough"
            raise LimitReached("max_steps", state.max_steps, state.agent, why)
        orchestrator._busy = True
        self._last = snapshot(state)
        try:
            if not state.transitions or state.obs != self._obs:  # else such a call was broken off
                if state.mistake is not None and self._obs not in (None, state.obs):
                    state.mistake.improve += f"\n\nThis is what there is to see now:\n{self._obs}"
                state.obs, state.reward, state.transitions = self._obs, self._reward, 0
                if state.agent is None:
                    state.scene = self._obs
            while not (state.transitions and state.env_step and state.mistake is None):
                agent = await self._choose(state)
                if agent is None:
                    state.transitions = 0
                    return Action(state.response or "", state.agent or "", done=True)
                if state.transitions == state.max_transitions:
                    why = "the environment was not asked for too long"
                    raise LimitReached("max_transitions", state.transitions, state.agent, why)
                await self._ask(agent, state)
            state.env_step, state.errors, state.transitions = False, 0, 0
            state.steps += 1
            return Action(state.response or "", state.agent or "")
        except BaseException:
            restore(state, self._last)
            raise
        finally:
            orchestrator._busy = False

    def take_back(self) -> None:
        """Let the same call give the action once more: nobody has heard of it."""
        if self.state == "completed" and self._last is not None:
            restore(self._orchestrator.state, self._last)

    async def _choose(self, state: S) -> Agent[Any] | None:
        """Return the agent that is next: the same once more if it made a mistake."""
        orchestrator = self._orchestrator
        if state.mistake is None:
            state.env_step = False
            obs = None if state.transitions else state.obs
            name: object = await resolve(orchestrator.transition(obs, state))
            if state.mistake is None:
                state.errors = 0
                return None if name is None else orchestrator._find(name)
            _count_error(state)
            if state.agent is None:
                raise RuntimeError(
                    f"an error was signalled before anybody answered: {state.mistake}"
                )
            self._last = snapshot(state)  # the answer was judged
        assert state.agent is not None
        if state.errors > state.max_errors:
            why = f"{state.agent} gave no answer that can be used: {state.mistake.log}"
            raise LimitReached("max_errors", state.max_errors, state.agent, why)
        return orchestrator._find(state.agent)

    async def _ask(self, agent: Agent[Any], state: S) -> None:
        """Tell an agent its mistake, the environment, or the agent before; take its answer."""
        orchestrator, obs = self._orchestrator, None if state.transitions else state.obs
        heard: list[AgentMessage] = []
        if state.mistake is not None:
            heard.append(AgentMessage(content=state.mistake.improve, sender="orchestrator"))
        elif obs is not None:
            heard.append(AgentMessage(content=obs, sender="environment"))
        elif state.response is not None and state.agent is not None:
            heard.append(AgentMessage(content=state.response, sender=state.agent))
        if heard and _has_heard(agent, heard[0], orchestrator.session_id):
            heard = []
        prompted = isinstance(agent, PromptedAgent)
        options: dict[str, Any] = {"state": state, "obs": obs} if prompted else {}
        call = agent.call(*heard, session_id=orchestrator.session_id, **options)

        def take(_: object) -> None:  # as the call ends: no cancel parts state and memory
            assert call.result is not None
            state.response, state.agent = call.result.text, agent.name
            if not prompted:
                state.mistake = None
            if state.mistake is None:
                state.transitions += 1
            else:
                _count_error(state)
            self._last = snapshot(state)

        call.at_end(take)
        below = agent.named_agents().values()
        token = CALLS.set((*CALLS.get(), object()))  # what is remembered below can be told apart
        try:
            self.call_handler(call, timeout=orchestrator.timeout, claim=True)
            await call
        except BaseException:
            await outlast(
                observe_end(call)
            )  # a wait that is cancelled ends before what it waits for
            if call.state != "completed":
                for each in below:
                    each.memory.retract_answers(orchestrator.session_id)
            raise
        finally:
            CALLS.reset(token)
            add_usage(orchestrator._usage.setdefault(agent.name, {}), usage_of(call))


def _has_heard(agent: Agent[Any], message: AgentMessage, session_id: SessionId) -> bool:
    """Return whether an answer to `message` has failed after calls of tools, which are kept.

    The model then continues behind these. An agent with a `forward` of its own needs the message.
    """
    if type(agent).forward is not Agent.forward:
        return False
    said = agent.memory.messages(session_id)
    last = len(said)
    while last and said[last - 1].type == TOOLS and said[last - 1].sender == agent.name:
        last -= 1
    asked = said[last - 1] if 0 < last < len(said) else None
    return asked is not None and (asked.sender, asked.text) == (message.sender, message.text)


def _count_error(state: State) -> None:
    assert state.mistake is not None
    state.errors += 1
    logger.info("an answer of %s cannot be used: %s", state.agent, state.mistake.log)


# --- episodes

EpisodeStatus: TypeAlias = Literal["done", "over"] | Limit
"""`done`: the transition named nobody. `over`: the environment came to its end. Else the limit."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What was done and seen, oldest first, and why it ended."""

    status: EpisodeStatus
    steps: tuple[EpisodeStep[Action], ...]


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
        """Act and look until one of the two has come to its end."""
        steps: list[EpisodeStep[Action]] = []
        status: EpisodeStatus = "over"
        try:
            async with aclosing(self._orchestrator.over(self._environment)) as playing:
                async for step in playing:
                    steps.append(step)
                    status = "done" if step.action.done else "over"
        except LimitReached as limit:
            logger.warning("%s: %s", self.path, limit)
            status = limit.limit
        return EpisodeResult(status, tuple(steps))
