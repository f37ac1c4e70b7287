"""The strategies: each works as intended, and each ends."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import anabranch.agents.orchestration
from anabranch.agents import Observation, planner_reviewer_executor, reflexion, single_agent
from anabranch.agents.errors import LimitReached
from anabranch.agents.orchestration import Action, ListMemory, Prompts
from anabranch.testing import ScriptedBackend

ROOM = Path(anabranch.agents.orchestration.__file__).resolve().parent
TASK = "Open the {door}."


class Door:
    """It opens when pulled."""

    async def reset(self) -> str:
        return "A door."

    async def step(self, action: str) -> Observation:
        opened = action == "pull"
        return Observation("It opens." if opened else "Nothing happens.", done=opened)


def contents(backend: ScriptedBackend, number: int) -> list[str]:
    return [message.content or "" for message in backend.requests[number].messages]


def json_of(**fields: Any) -> str:
    return json.dumps(fields)


def test_a_strategy_is_small() -> None:
    """Each has less than 150 lines, and its prompts are files."""
    source = (ROOM / "_strategies.py").read_text(encoding="utf-8")
    _, *strategies = source.split("\n# --- ")
    assert len(strategies) == 3
    assert all(each.count("\n") < 150 for each in strategies)
    assert len(list((ROOM / "prompts").glob("*.md"))) == 6


async def test_a_single_agent_acts_until_the_environment_is_over() -> None:
    """It reads the observations; it answers again after an unusable reply."""
    backend = ScriptedBackend("Push!\nAction: push", "Hm.", "I pull.\n**Action:** `pull`")
    orchestrator = single_agent(backend, TASK, modules=[ListMemory()])
    result = await orchestrator.play(Door())

    assert result.status == "over"
    assert [step.action.content for step in result.steps] == ["push", "pull"]
    assert contents(backend, 0)[1:] == ["A door."]
    assert contents(backend, 1)[1:] == ["A door.", "Push!\nAction: push", "Nothing happens."]
    assert "memory:\n> push\nNothing happens." in contents(backend, 1)[0]
    assert TASK in contents(backend, 1)[0]
    assert "exactly one line" in contents(backend, 2)[-1]


async def test_a_single_agent_may_answer() -> None:
    """Then the run is done."""
    orchestrator = single_agent(ScriptedBackend("Answer: it is locked"), TASK)
    assert await orchestrator.forward("A door.") == Action("it is locked", "actor", done=True)


async def test_two_moves_in_one_reply_are_none() -> None:
    """The first might change the situation for the second."""
    backend = ScriptedBackend(otherwise="Action: push\nAction: pull")
    result = await single_agent(backend, TASK, max_errors=1).play(Door())
    assert (result.status, result.steps) == ("max_errors", ())


async def test_reflexion_thinks_about_find_repetition() -> None:
    """The next trial starts with the lesson in the actor's prompt."""
    push = "Action: push"
    backend = ScriptedBackend(push, push, push, "Action: pull")
    thinker = ScriptedBackend("", "Do not push, pull.")
    orchestrator = reflexion(backend, TASK, reflector=thinker)
    result = await orchestrator.play(Door())

    assert result.status == "over"
    assert [step.action.content for step in result.steps] == ["push", "push", "push", "pull"]
    assert "> push\nNothing happens." in contents(thinker, 0)[0]
    assert contents(thinker, 1)[-1] == "Write what should be done differently."
    assert "- Do not push, pull." in contents(backend, 3)[0]
    assert "> push" not in contents(backend, 3)[1]
    assert contents(backend, 1)[1] == "> push\nNothing happens."


async def test_reflexion_ends_even_if_nothing_is_learned() -> None:
    """After `max_reflections` it only acts, and after `max_steps` it ends."""
    thinker = ScriptedBackend(otherwise="Push harder.")
    orchestrator = reflexion(
        ScriptedBackend(otherwise="Action: push"),
        TASK,
        reflector=thinker,
        evaluate=lambda state: "no luck",
        max_reflections=2,
        max_steps=5,
    )
    result = await orchestrator.play(Door())
    assert (result.status, len(result.steps)) == ("max_steps", 5)
    assert len(thinker.requests) == 2


async def test_the_planner_is_reviewed_and_the_executor_acts() -> None:
    """A rejected plan is replaced; tasks are done one by one, each reviewed."""
    backend = ScriptedBackend(
        json_of(plan=["wait"]),
        json_of(feedback=["waiting opens no door"]),
        f"Better: {json_of(plan=['try', 'tell'])}",
        json_of(feedback=[]),
        json_of(status="progress", action="push"),
        json_of(status="done", summary="pushing does nothing"),
        json_of(feedback=[]),
        json_of(status="done", summary="told"),
        json_of(feedback=[]),
    )
    orchestrator = planner_reviewer_executor(backend, TASK)
    result = await orchestrator.play(Door())

    assert result.status == "done"
    assert [step.action.content for step in result.steps] == ["push", "tell: told"]
    assert "1. waiting opens no door" in contents(backend, 2)[0]
    assert "Your task now: try" in contents(backend, 4)[0]
    assert "> push\nNothing happens." in contents(backend, 5)[0]
    assert "You may act 9 times more" in contents(backend, 5)[0]
    assert "1. try: pushing does nothing" in contents(backend, 7)[0]
    assert set(orchestrator.agents) == {"planner", "reviewer", "executor"}


async def test_a_reviewer_who_is_never_content_is_overruled() -> None:
    """After `max_rejects` in a row the executor acts."""
    planner, reviewer = (
        ScriptedBackend(otherwise=json_of(plan=["try"])),
        ScriptedBackend(otherwise=json_of(feedback=["no"])),
    )
    executor = ScriptedBackend(json_of(status="progress", action="pull"))
    orchestrator = planner_reviewer_executor(
        planner, TASK, reviewer=reviewer, executor=executor, max_rejects=2
    )
    assert (await orchestrator.play(Door())).status == "over"
    assert len(reviewer.requests) == 3


async def test_an_executor_without_steps_or_action_is_told() -> None:
    """If it repeats the mistake, the run ends."""
    backend = ScriptedBackend(
        json_of(plan=["try"]),
        json_of(feedback=[]),
        json_of(status="progress"),
        json_of(status="progress", action="push"),
        otherwise=json_of(status="progress", action="push"),
    )
    orchestrator = planner_reviewer_executor(backend, TASK, max_task_steps=1)
    result = await orchestrator.play(Door())
    assert (result.status, len(result.steps)) == ("max_errors", 1)
    assert "there is no action" in contents(backend, 3)[-1]
    assert "no steps are left" in contents(backend, 5)[-1]


async def test_garbage_for_json_ends_with_a_status() -> None:
    """Each agent reads the fault."""
    backend = ScriptedBackend("no idea", '{"plan": []}', '{"plan": "all"}', "[1, 2")
    result = await planner_reviewer_executor(backend, TASK).play(Door())
    assert result.status == "max_errors"
    assert "That cannot be used" in contents(backend, 3)[-1]


async def test_constrained_agents_ask_the_server_for_their_form() -> None:
    """Each with its schema."""
    backend = ScriptedBackend(
        json_of(plan=["try"]), json_of(feedback=[]), json_of(status="progress", action="pull")
    )
    await planner_reviewer_executor(backend, TASK, constrain=True, seed=1).play(Door())
    schemas = [each.options["response_format"]["json_schema"] for each in backend.requests]
    assert [schema["name"] for schema in schemas] == ["Plan", "Review", "Move"]
    assert backend.requests[0].options["seed"] == 1


async def test_prompts_may_be_your_own(tmp_path: Path) -> None:
    """A folder with some of them; the error names a faulty one."""
    (tmp_path / "single_agent.md").write_text("Do it: {task} {{so}}", encoding="utf-8")
    backend = ScriptedBackend("Action: pull")
    await single_agent(backend, TASK, prompts=tmp_path).play(Door())
    assert contents(backend, 0)[0] == f"Do it: {TASK} {{so}}"

    assert Prompts(tmp_path).text("planner") == Prompts().text("planner")
    with pytest.raises(FileNotFoundError):
        Prompts().text("poet")
    with pytest.raises(FileNotFoundError, match="no folder of prompts"):
        Prompts(tmp_path / "none")
    with pytest.raises(LookupError, match="'single_agent' has no value for 'task'"):
        Prompts().fill("single_agent", notes="")


async def test_every_model_of_a_planner_s_team_reads_the_first_observation() -> None:
    """At each step, because each prompt is made again."""
    backend = ScriptedBackend(
        json_of(plan=["try"]),
        json_of(feedback=[]),
        json_of(status="progress", action="push"),
        json_of(status="progress", action="pull"),
    )
    result = await planner_reviewer_executor(backend, TASK).play(Door())
    assert (result.status, len(backend.requests)) == ("over", 4)
    for number in range(4):
        prompt = contents(backend, number)[0]
        assert "What the environment showed at first:\nA door.\n" in prompt


async def test_reflexion_keeps_the_first_observation_before_its_eyes() -> None:
    """In later trials too, and for the reflector."""
    push = "Action: push"
    backend, thinker = ScriptedBackend(push, push, push, "Action: pull"), ScriptedBackend("Pull.")
    await reflexion(backend, TASK, reflector=thinker).play(Door())
    for each in (backend, thinker):
        for number in range(len(each.requests)):
            assert "showed at first:\nA door.\n" in contents(each, number)[0]
    assert [contents(backend, number)[1] for number in (0, 3)] == ["Begin.", "Begin."]


@pytest.mark.parametrize("strategy", [planner_reviewer_executor, reflexion])
async def test_an_environment_that_shows_nothing_at_first_is_not_spoken_of(strategy: Any) -> None:
    """Prompts have no empty part."""
    backend = ScriptedBackend(json_of(plan=["try"]), otherwise="Answer: done")
    orchestrator = strategy(backend, TASK, max_errors=0)
    with contextlib.suppress(LimitReached):
        await orchestrator.forward()
    assert "at first" not in contents(backend, 0)[0]
