"""The strategy of a planner, a reviewer and an executor: who thinks, who doubts, and who acts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from ...backends import Backend
from ._engineer import JsonEngineer, PromptedAgent
from ._modules import Module
from ._orchestrator import Orchestrator
from ._state import Namespace, State
from ._strategy import PastAction, Prompts, describe_actions, describe_notes, number_lines

__all__ = ["PlannerState", "planner_reviewer_executor"]


class Plan(BaseModel):  # what the planner says: the tasks that are to be done
    plan: list[str] = Field(min_length=1, max_length=20)


class Review(BaseModel):  # what the reviewer says: what is wrong, nothing to accept
    feedback: list[str] = Field(max_length=20)


class Move(BaseModel):  # what the executor says
    status: Literal["progress", "done"]
    action: str = ""
    summary: str = ""


class Planner(Namespace):
    plan: list[str] = []  # noqa: RUF012 - pydantic copies it


class Reviewer(Review):  # `rejects` counts the rejections in a row
    rejects: int = 0


class Executor(Namespace):  # `trial` is for the first task of the plan, `finished` for those done
    trial: list[PastAction] = []  # noqa: RUF012 - pydantic copies it
    finished: list[str] = []  # noqa: RUF012 - pydantic copies it


class PlannerState(State):
    """The state of the three at their task; `max_task_steps` are for each task of the plan."""

    task: str
    max_rejects: int = Field(default=1, ge=0)
    max_task_steps: int = Field(default=10, ge=1)
    planner: Planner = Planner()
    reviewer: Reviewer = Reviewer(feedback=[])
    executor: Executor = Executor()


class Engineer(JsonEngineer[PlannerState, Any]):
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


class PlannerEngineer(Engineer):
    def accept(self, said: Plan, state: PlannerState) -> None:
        state.planner.plan = said.plan


class ReviewerEngineer(Engineer):
    def accept(self, said: Review, state: PlannerState) -> str | None:
        state.reviewer.feedback = said.feedback
        state.reviewer.rejects = state.reviewer.rejects + 1 if said.feedback else 0
        return None if state.planner.plan else "\n".join(state.executor.finished[-1:])


class ExecutorEngineer(Engineer):
    def accept(self, said: Move, state: PlannerState) -> str:
        if said.status == "done":
            state.executor.finished.append(f"{state.planner.plan.pop(0)}: {said.summary}")
            state.executor.trial, state.reviewer.rejects = [], 0
            return said.summary
        if not said.action:
            raise ValueError("the status is progress, but there is no action")
        if len(state.executor.trial) == state.max_task_steps:
            raise ValueError("no steps are left for this task: set the status to done")
        state.executor.trial.append(PastAction(action=said.action))
        state.step_environment()
        return said.action


def transition(obs: str | None, state: PlannerState) -> str | None:
    if state.agent is None:
        return "planner"
    if state.agent == "planner" or (state.agent == "executor" and not state.executor.trial):
        return "reviewer"
    if state.agent == "reviewer" and 0 < state.reviewer.rejects <= state.max_rejects:
        return "planner"
    return "executor" if state.planner.plan else None


def planner_reviewer_executor(
    backend: Backend,
    task: str,
    *,
    reviewer: Backend | None = None,
    executor: Backend | None = None,
    max_steps: int | None = 30,
    max_errors: int = 3,
    constrain: bool = False,
    modules: Iterable[Module] = (),
    prompts: str | Path | None = None,
    timeout: float | None = None,
    **options: Any,
) -> Orchestrator[PlannerState]:
    """Make an orchestrator of a `planner`, a `reviewer` and an `executor`.

    The planner makes a plan, which the reviewer may reject `state.max_rejects` times in a row. The
    executor acts for the first task, `state.max_task_steps` times at most; then the reviewer says
    whether the rest of the plan still holds. All is done when it accepts that nothing is left.

    They may have models of their own. With `constrain` the server allows nothing but the JSON.
    `modules` are the executor's; the rest is as in `single_agent`.
    """
    files = Prompts(prompts)
    engineers: list[tuple[Engineer, Backend, Iterable[Module]]] = [
        (PlannerEngineer("planner", Plan, files), backend, ()),
        (ReviewerEngineer("reviewer", Review, files), reviewer or backend, ()),
        (ExecutorEngineer("executor", Move, files), executor or backend, modules),
    ]
    agents: list[PromptedAgent[PlannerState]] = []
    for each, own, has in engineers:
        each.parser.constrain = constrain
        wanted = {**each.parser.options(), **options}
        agents.append(PromptedAgent(each.name, each, own, modules=has, **wanted))
    state = PlannerState(task=task, max_steps=max_steps, max_errors=max_errors)
    return Orchestrator(agents, transition, state, timeout=timeout)
