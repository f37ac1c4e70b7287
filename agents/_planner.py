"""The strategy of a planner, a reviewer and an executor: who thinks, who doubts, and who acts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field

from ..backends import Backend
from ._engineer import PromptedAgent
from ._json_engineer import JsonEngineer
from ._module import Module
from ._orchestrator import Orchestrator
from ._state import Namespace, State
from ._strategy import Deed, Prompts, deeds_text, listed, notes_text

__all__ = ["PlannerState", "planner_reviewer_executor"]

T = TypeVar("T")


class Plan(Namespace):  # what the planner says: the tasks that are to be done
    plan: list[str] = Field(default=[], max_length=20)


class Review(BaseModel):  # what the reviewer says: what is wrong, nothing to accept
    feedback: list[str] = Field(max_length=20)


class Move(BaseModel):  # what the executor says
    status: Literal["progress", "done"]
    action: str = ""
    summary: str = ""


class Reviewer(Namespace):  # `rejects` counts the rejections in a row
    feedback: list[str] = []  # noqa: RUF012 - pydantic copies it
    rejects: int = 0


class Executor(Namespace):  # `trial` is for the first task of the plan, `finished` for those done
    trial: list[Deed] = []  # noqa: RUF012 - pydantic copies it
    finished: list[str] = []  # noqa: RUF012 - pydantic copies it


class PlannerState(State):
    """The state of the three at their task; `max_task_steps` are for each task of the plan."""

    task: str
    max_rejects: int = Field(default=1, ge=0)
    max_task_steps: int = Field(default=10, ge=1)
    planner: Plan = Plan()
    reviewer: Reviewer = Reviewer()
    executor: Executor = Executor()


class Engineer(JsonEngineer[PlannerState, T]):
    def values(self, obs: str | None, state: PlannerState) -> dict[str, Any]:
        executor, plan = state.executor, state.planner.plan
        if obs is not None and executor.trial:
            executor.trial[-1].seen = obs
        return {
            "task": state.task,
            "plan": listed(plan),
            "now": plan[0] if plan else "",
            "feedback": listed(state.reviewer.feedback),
            "done": listed(executor.finished),
            "trial": deeds_text(executor.trial),
            "left": state.max_task_steps - len(executor.trial),
            "notes": notes_text(state),
        }


class PlannerEngineer(Engineer[Plan]):
    def accept(self, said: Plan, state: PlannerState) -> None:
        if not said.plan:
            raise ValueError("the plan is empty")
        state.planner = said


class ReviewerEngineer(Engineer[Review]):
    def accept(self, said: Review, state: PlannerState) -> str | None:
        state.reviewer.feedback = said.feedback
        state.reviewer.rejects = state.reviewer.rejects + 1 if said.feedback else 0
        return None if state.planner.plan else "\n".join(state.executor.finished[-1:])


class ExecutorEngineer(Engineer[Move]):
    def accept(self, said: Move, state: PlannerState) -> str:
        trial, plan = state.executor.trial, state.planner.plan
        if said.status == "done":
            state.executor.finished.append(f"{plan.pop(0)}: {said.summary}")
            state.executor.trial, state.reviewer.rejects = [], 0
            return said.summary
        if not said.action:
            raise ValueError("the status is progress, but there is no action")
        if len(trial) >= state.max_task_steps:
            raise ValueError("no steps are left for this task: set the status to done")
        trial.append(Deed(action=said.action))
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

    They may have models of their own. `constrain` lets the server allow nothing but the JSON that
    is asked for. `modules` are the executor's; the rest is as in `single_agent`.
    """
    files = Prompts(prompts)
    engineers: list[tuple[Engineer[Any], Backend, Iterable[Module]]] = [
        (PlannerEngineer("planner", Plan, files, constrain=constrain), backend, ()),
        (ReviewerEngineer("reviewer", Review, files, constrain=constrain), reviewer or backend, ()),
        (
            ExecutorEngineer("executor", Move, files, constrain=constrain),
            executor or backend,
            modules,
        ),
    ]
    agents = [
        PromptedAgent(it.name, it, own, modules=has, **{**it.parser.options(), **options})
        for it, own, has in engineers
    ]
    state = PlannerState(task=task, max_steps=max_steps, max_errors=max_errors)
    return Orchestrator(agents, transition, state, timeout=timeout)
