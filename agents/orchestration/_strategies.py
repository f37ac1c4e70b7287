"""Ready-made strategies: a single agent, Reflexion, and a planner with reviewer and executor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from ...backends import Backend
from ...messages import Message
from ._engineer import JsonEngineer, PromptedAgent, PromptEngineer, Prompts
from ._modules import Module
from ._orchestrator import Orchestrator
from ._state import Namespace, State

__all__ = [
    "PastAction",
    "PlannerState",
    "ReflexionState",
    "SingleAgentState",
    "find_repetition",
    "planner_reviewer_executor",
    "reflexion",
    "single_agent",
]

_MOVE = re.compile(r"^[ \t*]*(Action|Answer)[ \t*]*:[ \t*]*", re.MULTILINE)


class PastAction(Namespace):
    """An action and the observation after it, None before that."""

    action: str
    seen: str | None = None


def describe_actions(actions: Iterable[PastAction]) -> str:
    """Return the actions and their observations as text for a prompt."""
    return "\n".join(f"> {past.action}\n{(past.seen or '').strip()}" for past in actions)


def describe_notes(state: State, *, scene: bool = True, modules: bool = True) -> str:
    """Return the first observation and the notes of modules as text for a prompt.

    Without both it is "".
    """
    first = (state.scene or "").strip() if scene else ""
    notes = {"What the environment showed at first": first} if first else {}
    notes |= state.notes if modules else {}
    return "".join(f"\n{name}:\n{text}\n" for name, text in notes.items())


def number_lines(lines: Iterable[str]) -> str:
    """Return a numbered list for a prompt."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)) or "(none)"


def read_move(response: str, state: State) -> tuple[str | None, str]:
    """Return "Action" or "Answer" and the text after it, from a reply that ends with one of them.

    An action goes to the environment. Any other reply is an error, and is returned after None.
    """
    found = list(_MOVE.finditer(response))
    if len(found) == 1 and (text := response[found[0].end() :].strip().strip("`").strip()):
        if found[0][1] == "Action":
            state.step_environment()
        return found[0][1], text
    state.signal_error(
        "no action in the reply",
        "Your reply must end with exactly one line that begins with `Action:`, or with `Answer:` "
        f"when the task is done, and has text after it; it has {len(found)}.",
    )
    return None, response


# --- a single agent


class SingleActor(Namespace):
    """The actor's answer, None while it acts."""

    answer: str | None = None


class SingleAgentState(State):
    """The state of a single agent and its task."""

    task: str
    actor: SingleActor = SingleActor()


class SingleActorEngineer(PromptEngineer[SingleAgentState]):
    """Continues one conversation. The task is in the system prompt, which always stays."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts

    def render_prompt(
        self, obs: str | None, history: list[Message], state: SingleAgentState
    ) -> None:
        """Add the observation."""
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


def single_agent(
    backend: Backend | str,
    task: str,
    *,
    max_steps: int | None = 20,
    max_errors: int = 3,
    modules: Iterable[Module] = (),
    prompts: str | Path | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Orchestrator[SingleAgentState]:
    """Make an orchestrator with one agent, `actor`, that acts until it answers or a limit ends it.

        result = await single_agent(backend, "Open the chest.").play(environment)

    Its replies end with `Action: ...` or `Answer: ...`. `prompts` is a folder with your own
    `single_agent.md`. `options` are the model's.
    """

    def transition(obs: str | None, state: SingleAgentState) -> str | None:
        return "actor" if state.actor.answer is None else None

    engineer = SingleActorEngineer(Prompts(prompts))
    actor = PromptedAgent("actor", engineer, backend, modules=modules, **options)
    state = SingleAgentState(task=task, max_steps=max_steps, max_errors=max_errors)
    return Orchestrator([actor], transition, state, timeout=timeout)


# --- Reflexion


class ReflexionActor(Namespace):
    """The actor's actions in this trial, and its answer, None while it acts."""

    trial: list[PastAction] = []  # noqa: RUF012 - pydantic copies it
    answer: str | None = None


class Reflector(Namespace):
    """The lessons of trials, and the fault of this one, None without a fault."""

    reflections: list[str] = []  # noqa: RUF012 - pydantic copies it
    fault: str | None = None


class ReflexionState(State):
    """The state of Reflexion; `max_reflections` limits the number of reflections."""

    task: str
    max_reflections: int = 3
    actor: ReflexionActor = ReflexionActor()
    reflector: Reflector = Reflector()


def find_repetition(state: ReflexionState) -> str | None:
    """Return a fault if the last three actions and their observations were the same."""
    last = state.actor.trial[-3:]
    if len(last) == 3 and last[0] == last[1] == last[2]:
        return "the same action was repeated and gave nothing new"
    return None


class ReflexionActorEngineer(PromptEngineer[ReflexionState]):
    """Writes a new prompt with the task, the lessons and the trial each time."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts

    def render_prompt(self, obs: str | None, history: list[Message], state: ReflexionState) -> None:
        """Make the prompt."""
        lessons = "\n".join(f"- {each}" for each in state.reflector.reflections) or "(none yet)"
        system = self.prompts.fill(
            "reflexion_actor", task=state.task, lessons=lessons, notes=describe_notes(state)
        )
        trial = describe_actions(state.actor.trial) or "Begin."
        history[:] = [
            Message(role="system", content=system),
            Message(role="user", content=trial),
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
    """Asks for a lesson, and lets a new trial begin."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts

    def render_prompt(self, obs: str | None, history: list[Message], state: ReflexionState) -> None:
        """Show the trial."""
        trial, fault = describe_actions(state.actor.trial), state.reflector.fault
        scene = describe_notes(state, modules=False)
        text = self.prompts.fill(
            "reflexion_reflector", task=state.task, scene=scene, trial=trial, fault=fault
        )
        history[:] = [Message(role="user", content=text)]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: ReflexionState
    ) -> str:
        """Store the lesson."""
        if not response.strip():
            state.signal_error("an empty reflection", "Write what should be done differently.")
            return response
        state.reflector.reflections.append(response.strip())
        state.reflector.fault, state.actor.trial = None, []
        return response


def reflexion(
    backend: Backend | str,
    task: str,
    *,
    reflector: Backend | str | None = None,
    evaluate: Callable[[ReflexionState], str | None] = find_repetition,
    max_reflections: int = 3,
    max_steps: int | None = 20,
    max_errors: int = 3,
    modules: Iterable[Module] = (),
    prompts: str | Path | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Orchestrator[ReflexionState]:
    """Make an orchestrator with an `actor` and a `reflector`.

    After each step `evaluate` returns a fault, or None. After a fault the reflector, which may have
    another model, writes a lesson, and the actor starts a new trial with it. The rest is as in
    `single_agent`.
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
    actor = PromptedAgent(
        "actor", ReflexionActorEngineer(files), backend, modules=modules, **options
    )
    thinker = PromptedAgent("reflector", ReflectorEngineer(files), reflector or backend, **options)
    state = ReflexionState(
        task=task, max_steps=max_steps, max_errors=max_errors, max_reflections=max_reflections
    )
    return Orchestrator([actor, thinker], transition, state, timeout=timeout)


# --- a planner, a reviewer and an executor

# The first three have comments in place of docstrings: pydantic would put a docstring into the JSON
# schema, and so into the prompts.


class Plan(BaseModel):  # the planner's answer: the tasks to do
    plan: list[str] = Field(min_length=1, max_length=20)


class Review(BaseModel):  # the reviewer's answer: the faults of the plan, empty to accept it
    feedback: list[str] = Field(max_length=20)


class Move(BaseModel):  # the executor's answer
    status: Literal["progress", "done"]
    action: str = ""
    summary: str = ""


class Planner(Namespace):
    """The remaining tasks of the plan."""

    plan: list[str] = []  # noqa: RUF012 - pydantic copies it


class Reviewer(Review):
    """The last review; `rejects` counts the rejections in a row."""

    rejects: int = 0


class Executor(Namespace):
    """`trial` has the actions for the first task of the plan, `finished` the completed tasks."""

    trial: list[PastAction] = []  # noqa: RUF012 - pydantic copies it
    finished: list[str] = []  # noqa: RUF012 - pydantic copies it


class PlannerState(State):
    """The state of the three agents; `max_task_steps` limits the steps for each task."""

    task: str
    max_rejects: int = Field(default=1, ge=0)
    max_task_steps: int = Field(default=10, ge=1)
    planner: Planner = Planner()
    reviewer: Reviewer = Reviewer(feedback=[])
    executor: Executor = Executor()


class PlanningEngineer(JsonEngineer[PlannerState, Any]):
    """The base of the three prompt engineers, whose prompts have the same fields."""

    def values(self, obs: str | None, state: PlannerState) -> dict[str, Any]:
        executor, plan = state.executor, state.planner.plan
        if obs is not None and executor.trial:
            executor.trial[-1].seen = obs
        return {
            "task": state.task,
            "scene": describe_notes(state, modules=False),
            "plan": number_lines(plan),
            "now": plan[0] if plan else "",
            "feedback": number_lines(state.reviewer.feedback),
            "done": number_lines(executor.finished),
            "trial": describe_actions(executor.trial),
            "left": state.max_task_steps - len(executor.trial),
            "notes": describe_notes(state),
        }


class PlannerEngineer(PlanningEngineer):
    def accept(self, value: Plan, state: PlannerState) -> None:
        state.planner.plan = value.plan


class ReviewerEngineer(PlanningEngineer):
    def accept(self, value: Review, state: PlannerState) -> str | None:
        state.reviewer.feedback = value.feedback
        state.reviewer.rejects = state.reviewer.rejects + 1 if value.feedback else 0
        return None if state.planner.plan else "\n".join(state.executor.finished[-1:])


class ExecutorEngineer(PlanningEngineer):
    def accept(self, value: Move, state: PlannerState) -> str:
        if value.status == "done":
            state.executor.finished.append(f"{state.planner.plan.pop(0)}: {value.summary}")
            state.executor.trial, state.reviewer.rejects = [], 0
            return value.summary
        if not value.action:
            raise ValueError("the status is progress, but there is no action")
        if len(state.executor.trial) == state.max_task_steps:
            raise ValueError("no steps are left for this task: set the status to done")
        state.executor.trial.append(PastAction(action=value.action))
        state.step_environment()
        return value.action


def planner_reviewer_executor(
    backend: Backend | str,
    task: str,
    *,
    reviewer: Backend | str | None = None,
    executor: Backend | str | None = None,
    max_steps: int | None = 30,
    max_errors: int = 3,
    max_rejects: int = 1,
    max_task_steps: int = 10,
    constrain: bool = False,
    modules: Iterable[Module] = (),
    prompts: str | Path | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Orchestrator[PlannerState]:
    """Make an orchestrator with a `planner`, a `reviewer` and an `executor`.

    The planner makes a plan, which the reviewer may reject `max_rejects` times in a row. The
    executor acts for the first task, at most `max_task_steps` times. Then the reviewer checks the
    rest of the plan. The run is done when no task is left and the reviewer accepts that.

    Each may have another model. With `constrain` the server allows nothing but the JSON. `modules`
    are the executor's. The rest is as in `single_agent`.
    """

    def transition(obs: str | None, state: PlannerState) -> str | None:
        if state.agent is None:
            return "planner"
        if state.agent == "planner" or (state.agent == "executor" and not state.executor.trial):
            return "reviewer"
        if state.agent == "reviewer" and 0 < state.reviewer.rejects <= state.max_rejects:
            return "planner"
        return "executor" if state.planner.plan else None

    files = Prompts(prompts)
    engineers: list[tuple[PlanningEngineer, Backend | str, Iterable[Module]]] = [
        (PlannerEngineer("planner", Plan, files), backend, ()),
        (ReviewerEngineer("reviewer", Review, files), reviewer or backend, ()),
        (ExecutorEngineer("executor", Move, files), executor or backend, modules),
    ]
    agents: list[PromptedAgent[PlannerState]] = []
    for engineer, model, model_modules in engineers:
        engineer.parser.constrain = constrain
        settings = {**engineer.parser.options(), **options}
        agents.append(
            PromptedAgent(engineer.name, engineer, model, modules=model_modules, **settings)
        )
    state = PlannerState(task=task, max_steps=max_steps, max_errors=max_errors)
    state.max_rejects, state.max_task_steps = max_rejects, max_task_steps
    return Orchestrator(agents, transition, state, timeout=timeout)
