"""`Orchestrator`: a function chooses the next agent, until the environment has to act."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from ...commander import Node
from ...commander.context import INHERITED, set_context
from ...commander.errors import ConfigurationError
from ...commander.kinds import checked, require, require_awaitable
from ...commander.waiting import observe as observe_end
from ...commander.waiting import wait_shielded
from ...handlers import handler
from ...messages import Usage
from ...tools.sessions import do_all
from ..errors import Limit, LimitReached, UnknownAgent
from ..layers import Agent, AgentMessage, SessionId
from ..layers._call import add_usage, run_in_tree, usage_of
from ..layers._memory import CURRENT_CALLS, TemporarySession
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
    """The output of an environment: a text, perhaps a reward, and whether it has ended."""

    text: str | None
    reward: float | None = None
    done: bool = False


Output: TypeAlias = Observation | str | None


class Environment(Protocol):
    """Any object with these two methods. A plain text is an observation too.

    class Door:
        async def reset(self) -> str:
            return "A door."

        async def step(self, action: str) -> Observation:
            return Observation("It opens.", done=action == "pull")
    """

    def reset(self) -> Awaitable[Output]:
        """Start again; return the first observation, or None."""
        ...

    def step(self, action: str) -> Awaitable[Output]:
        """Perform an action; return the observation, also for an action that is refused."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeStep(Generic[A]):
    """An action and its observation, None if the environment did not get the action."""

    action: A
    observation: Observation | None


@handler
async def observe(node: Node[Any], environment: Environment) -> Observation:
    """Reset the environment and return its observation."""
    shown = await require_awaitable(environment.reset(), environment, "reset")
    return _observation(shown, "reset")


@handler
async def act(node: Node[Any], environment: Environment, action: str) -> Observation:
    """Perform an action and return the observation."""
    shown = await require_awaitable(environment.step(action), environment, "step")
    return _observation(shown, "step")


def _observation(shown: object, method: str) -> Observation:
    if isinstance(shown, Observation):
        return shown
    if shown is None or isinstance(shown, str):
        return Observation(shown)
    raise TypeError(
        f"{method}() of the environment must return a text or an Observation, not {shown!r:.200}"
    )


logger = logging.getLogger("anabranch.agents")

S = TypeVar("S", bound=State)

Transition: TypeAlias = Callable[[str | None, S], Awaitable[str | None] | str | None]
"""Returns the next agent's name for the observation and the state, None to end."""


@dataclass(frozen=True, slots=True)
class Action:
    """An answer of an orchestrator for the environment.

    `agent` is its author. `done` means that no agent is next, and this was the last answer.
    """

    content: str
    agent: str
    done: bool = False


class Orchestrator(Generic[S]):
    """Lets agents answer in the order that `transition(obs, state)` chooses.

        orchestrator = Orchestrator([coin, poet], transition, CoinState(max_steps=10))
        action = await orchestrator.forward("Begin.")

    `transition`, plain or async, returns the name of the next agent, or None at the end. It is
    called after each answer. `obs` is the observation, None if the environment has not acted since.
    The transition and a `PromptEngineer` can call two methods of the state. After
    `state.step_environment()` the answer goes to the caller, who passes the observation to the next
    `forward`. After `state.signal_error(log, improve)` the same agent answers again.

    A `PromptedAgent` gets a prompt made of the state. Any other `Agent` receives the observation,
    or else the previous agent's answer. Only this orchestrator may use the state, and the session
    `session_id` of the agents (default: a temporary one). One `forward` runs at a time. `timeout`,
    in seconds, holds for each answer.
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
            require(agent, Agent, "agents must be a list, each item an Agent")
            if agent.name in ("environment", "orchestrator"):
                raise ConfigurationError(
                    f"an agent of an Orchestrator cannot be called {agent.name!r}: it would take"
                    f" the messages of the {agent.name} for its own. Give it another name="
                )
            if self.agents.setdefault(agent.name, agent) is not agent:
                raise ValueError(f"there are two agents called {agent.name!r}")
        if not self.agents:
            raise ValueError("an Orchestrator needs at least one agent")
        self.transition = transition
        self.state: S = state
        self.name = name
        if session_id is None:
            session_id = TemporarySession()
            session_id.end_with(self)
        self.session_id: SessionId = session_id
        self.timeout = timeout
        self._first = state.model_copy(deep=True)
        self._usage: dict[str, dict[str, Usage]] = {}
        self._busy = False

    async def forward(
        self,
        obs: str | None = None,
        reward: float | None = None,
        *,
        context: object = INHERITED,
    ) -> Action:
        """Let agents answer until the environment has to act, or the run is done.

        `context` is a value that all code below can read, see `Context`.

        Inside a node it is a child of that, outside it runs under a new commander. Cancelling it
        cancels everything below, and waits for that. Raises `LimitReached`, `UnknownAgent` for an
        unknown name, `TimeoutError`, and the errors of the transition, the prompt engineers and the
        models. A second call while one runs is a `RuntimeError`.

        An answer, with the transition that chose its agent, is atomic. After an error or a cancel
        the state and the agents' memories are as after the last answer, and the same call continues
        from there. If you call with another observation instead, the next agent sees it,
        together with any error that it has to correct. Not undone are the results of modules
        (`state.notes`), messages that other callers added to the memories, and tool calls that have
        run. The agent's model reads these calls and their results when it answers again.
        """
        call = self.call(obs, reward, context=context)
        try:
            return await run_in_tree(call)
        except asyncio.CancelledError:
            call.take_back()
            raise

    def call(
        self,
        obs: str | None = None,
        reward: float | None = None,
        *,
        context: object = INHERITED,
    ) -> Orchestration[S]:
        """Make the same call as a node that has not started."""
        call = Orchestration(self, obs, reward)
        call._node_context = context
        return call

    async def over(self, environment: Environment) -> AsyncGenerator[EpisodeStep[Action], None]:
        """Run with an environment, from its `reset` to its end, and yield each step.

            async for step in orchestrator.over(environment):
                print(step.action.content, step.observation)

        It ends when the environment or the transition ends. Raises the errors of `forward` and of
        the environment, also `LimitReached`. You may leave it at any time. The caller closes the
        environment.
        """
        observation = await run_in_tree(observe(environment))
        while not observation.done:
            action = await self.forward(observation.text, observation.reward)
            if action.done:
                yield EpisodeStep(action, None)
                return
            observation = await run_in_tree(act(environment, action.content))
            yield EpisodeStep(action, observation)

    async def play(self, environment: Environment) -> EpisodeResult:
        """Run with an environment to the end, which may be a limit; see `Episode`."""
        return await run_in_tree(Episode(self, environment))

    @property
    def usage(self) -> dict[str, dict[str, Usage]]:
        """The usage of each agent, by model, including its modules, retries and failed answers."""
        return {agent: dict(models) for agent, models in self._usage.items()}

    def usage_by_model(self) -> dict[str, Usage]:
        """Return the usage of all agents together, by model."""
        total: dict[str, Usage] = {}
        for models in self._usage.values():
            add_usage(total, models)
        return total

    def reset(self, state: S | None = None) -> None:
        """Start again with `state` or the first state. The agents forget their sessions.

        The usage stays. Raises `RuntimeError` while a call runs.
        """
        if self._busy:
            raise RuntimeError(f"{self.name} is running. End its call before you reset it.")
        self.state = self._first.model_copy(deep=True) if state is None else state
        do_all(partial(agent.reset, self.session_id) for agent in self.agents.values())

    def _find(self, name: object) -> Agent[Any]:
        """Return the agent of this name; raise `UnknownAgent`, or `TypeError` for another type."""
        if not isinstance(name, str):
            raise TypeError(f"the transition must return a name or None, not {name!r:.200}")
        if name not in self.agents:
            raise UnknownAgent(name, [*self.agents], self.name)
        return self.agents[name]


class Orchestration(Node[Action], Generic[S], internal=True):
    """One `forward` of an orchestrator, as a node. Each answer is a child."""

    _node_context: object = INHERITED

    def __init__(
        self, orchestrator: Orchestrator[S], obs: str | None, reward: float | None
    ) -> None:
        super().__init__(orchestrator.name)
        self._orchestrator = orchestrator
        self._obs = obs
        self._reward = reward
        # The state after the last answer, to restore after an error.
        self._last: S | None = None

    async def task(self) -> Action:
        """Run to the next environment step."""
        set_context(self, self._node_context)
        orchestrator, state = self._orchestrator, self._orchestrator.state
        if orchestrator._busy:
            raise RuntimeError(
                f"{orchestrator.name} is running. Its state allows one call at a time."
            )
        if state.max_steps is not None and state.steps >= state.max_steps:
            why = f"{orchestrator.name} reached its number of environment steps"
            raise LimitReached("max_steps", state.max_steps, state.agent, why)
        orchestrator._busy = True
        self._last = snapshot(state)
        try:
            # A call with the same observation as a failed one continues after its last answer.
            if not state.transitions or state.obs != self._obs:
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
                    why = f"{orchestrator.name} had too many answers without an environment step"
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
        """Undo the last answer, which no caller has received, so that the same call repeats it."""
        if self.state == "completed" and self._last is not None:
            restore(self._orchestrator.state, self._last)

    async def _choose(self, state: S) -> Agent[Any] | None:
        """Return the next agent, which is the last one again if it made a mistake."""
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
                    f"signal_error() was called before the first answer: {state.mistake}"
                )
            self._last = snapshot(state)  # a later failure must not undo the count of this error
        assert state.agent is not None
        if state.errors > state.max_errors:
            why = f"{state.agent} gave no usable answer: {state.mistake.log}"
            raise LimitReached("max_errors", state.max_errors, state.agent, why)
        return orchestrator._find(state.agent)

    async def _ask(self, agent: Agent[Any], state: S) -> None:
        """Let an agent correct its mistake, or answer the observation or the previous agent."""
        orchestrator, obs = self._orchestrator, None if state.transitions else state.obs
        received: list[AgentMessage] = []
        if state.mistake is not None:
            received.append(AgentMessage(content=state.mistake.improve, sender="orchestrator"))
        elif obs is not None:
            received.append(AgentMessage(content=obs, sender="environment"))
        elif state.response is not None and state.agent is not None:
            received.append(AgentMessage(content=state.response, sender=state.agent))
        if received and _is_remembered(agent, received[0], orchestrator.session_id):
            received = []
        is_prompted = isinstance(agent, PromptedAgent)
        options: dict[str, Any] = {"state": state, "obs": obs} if is_prompted else {}
        call = agent.call(*received, session_id=orchestrator.session_id, **options)

        # A callback at the end of the call, and not code after the await below, because a cancel
        # between the two would leave the answer in the memory and not in the state.
        def take(_: object) -> None:
            assert call.result is not None
            state.response, state.agent = call.result.text, agent.name
            if not is_prompted:
                state.mistake = None
            if state.mistake is None:
                state.transitions += 1
            else:
                _count_error(state)
            self._last = snapshot(state)

        call.at_end(take)
        below = agent.named_agents().values()
        # Mark the messages that are added during this answer, so that `retract_answers` finds them.
        token = CURRENT_CALLS.set((*CURRENT_CALLS.get(), object()))
        try:
            self.call_handler(call, timeout=orchestrator.timeout, claim=True)
            await call
        except BaseException:
            # A cancelled wait ends before the call that it waits for.
            await wait_shielded(observe_end(call))
            if call.state != "completed":
                for each in below:
                    each.memory.retract_answers(orchestrator.session_id)
            raise
        finally:
            CURRENT_CALLS.reset(token)
            add_usage(orchestrator._usage.setdefault(agent.name, {}), usage_of(call))


def _is_remembered(agent: Agent[Any], message: AgentMessage, session_id: SessionId) -> bool:
    """Return whether the memory has `message` and tool calls of a failed answer to it.

    The model then continues after these calls. An agent that overrides `forward` always gets the
    message.
    """
    if type(agent).forward is not Agent.forward:
        return False
    history = agent.memory.messages(session_id)
    last = len(history)
    while last and history[last - 1].type == TOOLS and history[last - 1].sender == agent.name:
        last -= 1
    question = history[last - 1] if 0 < last < len(history) else None
    return question is not None and (question.sender, question.text) == (
        message.sender,
        message.text,
    )


def _count_error(state: State) -> None:
    assert state.mistake is not None
    state.errors += 1
    logger.info("An answer of %s cannot be used: %s", state.agent, state.mistake.log)


# --- episodes

EpisodeStatus: TypeAlias = Literal["done", "over"] | Limit
"""`done`: the transition returned None. `over`: the environment has ended. Else the limit."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The steps of an episode, oldest first, and the reason for its end."""

    status: EpisodeStatus
    steps: tuple[EpisodeStep[Action], ...]


class Episode(Node[EpisodeResult], internal=True):
    """Runs an orchestrator with an environment. If it reaches a limit, the `status` names that.

    `orchestrator.play(environment)` awaits one. `node.call_handler(Episode(...), timeout=600)` and
    `commander.run(Episode(...))` do the same. Other failures are raised, see
    `Orchestrator.forward`. The caller closes the environment.
    """

    def __init__(self, orchestrator: Orchestrator[Any], environment: Environment) -> None:
        super().__init__(f"{orchestrator.name}-episode")
        self._orchestrator = orchestrator
        self._environment = environment

    async def task(self) -> EpisodeResult:
        """Act and observe until the orchestrator or the environment ends."""
        steps: list[EpisodeStep[Action]] = []
        status: EpisodeStatus = "over"
        try:
            async with aclosing(self._orchestrator.over(self._environment)) as episode_steps:
                async for step in episode_steps:
                    steps.append(step)
                    status = "done" if step.action.done else "over"
        except LimitReached as limit:
            logger.warning("%s: %s", self.path, limit)
            status = limit.limit
        return EpisodeResult(status, tuple(steps))
