"""The strategy of a single agent: it acts, sees what comes of it, and acts again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...backends import Backend
from ...messages import Message
from ._engineer import PromptedAgent, PromptEngineer
from ._modules import Module
from ._orchestrator import Orchestrator
from ._state import Namespace, State
from ._strategy import Prompts, describe_notes, read_move

__all__ = ["SingleAgentState", "single_agent"]


class Actor(Namespace):
    """What the actor gave as its answer, None while it acts."""

    answer: str | None = None


class SingleAgentState(State):
    """The state of a single agent at its task."""

    task: str
    actor: Actor = Actor()


class ActorEngineer(PromptEngineer[SingleAgentState]):
    """Goes on with one conversation; the task stands in the system prompt, which always stays."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts

    def render_prompt(
        self, obs: str | None, history: list[Message], state: SingleAgentState
    ) -> None:
        """Add what the environment shows."""
        notes = describe_notes(state, scene=False)  # the history begins with the scene
        system = self.prompts.fill("single_agent", task=state.task, notes=notes)
        history[:1] = [Message(role="system", content=system)]
        seen = "Begin." if obs is None else obs.strip() or "(no output)"
        history.append(Message(role="user", content=seen))

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: SingleAgentState
    ) -> str:
        """Read an action for the environment, or the answer."""
        kind, text = read_move(response, state)
        if kind == "Answer":
            state.actor.answer = text
        return text


def transition(obs: str | None, state: SingleAgentState) -> str | None:
    """Let the actor act until it has an answer."""
    return "actor" if state.actor.answer is None else None


def single_agent(
    backend: Backend,
    task: str,
    *,
    max_steps: int | None = 20,
    max_errors: int = 3,
    modules: Iterable[Module] = (),
    prompts: str | Path | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Orchestrator[SingleAgentState]:
    """Make an orchestrator of one agent, `actor`, which acts until it answers or the end comes.

    Its replies end with `Action: ...` or `Answer: ...`. `prompts` is a folder with a
    `single_agent.md` of your own; `options` are the model's.
    """
    engineer = ActorEngineer(Prompts(prompts))
    actor = PromptedAgent("actor", engineer, backend, modules=modules, **options)
    state = SingleAgentState(task=task, max_steps=max_steps, max_errors=max_errors)
    return Orchestrator([actor], transition, state, timeout=timeout)
