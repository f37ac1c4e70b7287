"""The strategy Reflexion: an agent that gets nowhere thinks about why, and begins again wiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...backends import Backend
from ...messages import Message
from ._engineer import PromptedAgent, PromptEngineer
from ._modules import Module
from ._orchestrator import Orchestrator
from ._state import Namespace, State
from ._strategy import PastAction, Prompts, describe_actions, describe_notes, read_move

__all__ = ["ReflexionState", "find_repetition", "reflexion"]


class Actor(Namespace):
    """What the actor did in this trial, and its answer, None while it acts."""

    trial: list[PastAction] = []  # noqa: RUF012 - pydantic copies it
    answer: str | None = None


class Reflector(Namespace):
    """What was learned from trials, and what is wrong with this one, None if nothing is."""

    reflections: list[str] = []  # noqa: RUF012 - pydantic copies it
    fault: str | None = None


class ReflexionState(State):
    """The state of Reflexion; `max_reflections` is how often it reflects at most."""

    task: str
    max_reflections: int = 3
    actor: Actor = Actor()
    reflector: Reflector = Reflector()


def find_repetition(state: ReflexionState) -> str | None:
    """Say what is wrong if the last three actions, and what came of them, were the same."""
    last = state.actor.trial[-3:]
    if len(last) == 3 and last[0] == last[1] == last[2]:
        return "the same action was repeated and gave nothing new"
    return None


class ActorEngineer(PromptEngineer[ReflexionState]):
    """Writes the task, the lessons and the trial into a new prompt each time."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts

    def render_prompt(self, obs: str | None, history: list[Message], state: ReflexionState) -> None:
        """Make the prompt."""
        lessons = "\n".join(f"- {each}" for each in state.reflector.reflections) or "(none yet)"
        system = self.prompts.fill(
            "reflexion_actor", task=state.task, lessons=lessons, notes=describe_notes(state)
        )
        seen = describe_actions(state.actor.trial) or "Begin."
        history[:] = [
            Message(role="system", content=system),
            Message(role="user", content=seen),
        ]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: ReflexionState
    ) -> str:
        """Read an action for the environment, or the answer."""
        kind, text = read_move(response, state)
        if kind == "Answer":
            state.actor.answer = text
        elif kind == "Action":
            state.actor.trial.append(PastAction(action=text))
        return text


class ReflectorEngineer(PromptEngineer[ReflexionState]):
    """Asks what should be done differently, and lets a new trial begin."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts

    def render_prompt(self, obs: str | None, history: list[Message], state: ReflexionState) -> None:
        """Show the trial."""
        trial, fault = describe_actions(state.actor.trial), state.reflector.fault
        scene = describe_notes(state, modules=False)
        asked = self.prompts.fill(
            "reflexion_reflector", task=state.task, scene=scene, trial=trial, fault=fault
        )
        history[:] = [Message(role="user", content=asked)]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: ReflexionState
    ) -> str:
        """Keep the lesson."""
        if not response.strip():
            state.signal_error("an empty reflection", "Write what should be done differently.")
            return response
        state.reflector.reflections.append(response.strip())
        state.reflector.fault, state.actor.trial = None, []
        return response


def reflexion(
    backend: Backend,
    task: str,
    *,
    reflector: Backend | None = None,
    evaluate: Callable[[ReflexionState], str | None] = find_repetition,
    max_reflections: int = 3,
    max_steps: int | None = 20,
    max_errors: int = 3,
    modules: Iterable[Module] = (),
    prompts: str | Path | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Orchestrator[ReflexionState]:
    """Make an orchestrator of an `actor` and a `reflector`.

    After each step `evaluate` says what is wrong, None if nothing is; then the reflector, which
    may have a model of its own, writes what should be done differently, and the actor begins
    anew with that before its eyes. The rest is as in `single_agent`.
    """

    def transition(obs: str | None, state: ReflexionState) -> str | None:
        if state.actor.answer is not None:
            return None
        if state.agent == "actor" and obs is not None:
            state.actor.trial[-1].seen = obs
            if len(state.reflector.reflections) < state.max_reflections:
                state.reflector.fault = evaluate(state)
        return "actor" if state.reflector.fault is None else "reflector"

    files = Prompts(prompts)
    actor = PromptedAgent("actor", ActorEngineer(files), backend, modules=modules, **options)
    thinker = PromptedAgent("reflector", ReflectorEngineer(files), reflector or backend, **options)
    state = ReflexionState(
        task=task, max_steps=max_steps, max_errors=max_errors, max_reflections=max_reflections
    )
    return Orchestrator([actor, thinker], transition, state, timeout=timeout)
