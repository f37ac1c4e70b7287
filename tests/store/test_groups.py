"""Groups in a durable run: the speakers and their order are the same in each execution."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from support.killed_executions import Kill, kill_everywhere, run_execution
from support.memory_journal import act
from support.seeds import SEED, example_count

from anabranch import AgentMessage, StreamInterrupted, tool
from anabranch.agents import (
    NOT_MINE,
    ConversableAgent,
    GroupChat,
    GroupTalk,
    ReplyResult,
    reply,
)
from anabranch.agents.conversation import GroupConversation, choose_by_model, random_speaker
from anabranch.backends import Backend
from anabranch.commander.durable import scope_here
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D22")


@tool(effect="nested")
async def look(at: str) -> str:
    """Look at something."""
    return await act("look", at)


def answers(seed: int) -> Callable[[Request], Message | str]:
    """Ask for the turn, speak, pass or look at something, by chance and by the conversation."""

    def answer(request: Request) -> Message | str:
        read = "|".join(f"{each.role}{each.content}" for each in request.messages)
        chance = random.Random(f"{seed} {read}")
        last = request.messages[-1]
        if "choose" in read or "speak next" in read:
            return chance.choice("abc")
        if last.role != "tool" and chance.random() < 0.2:
            call = ToolCall(id="c", name="look", arguments={"at": f"{len(read)}"})
            return Message(role="assistant", tool_calls=[call])
        if "you have the floor" in str(last.content):
            return f"speech {chance.randrange(1000)}"
        return chance.choice(["Can I speak?", "Can I speak?", " ", f"word {chance.random():.3f}"])

    return answer


def breaks_off(seed: int) -> Callable[[Request], Message | str | Exception]:
    """Answer in the same way, or fail."""
    answer = answers(seed)

    def answer_or_fail(request: Request) -> Message | str | Exception:
        read = "|".join(f"{each.role}{each.content}" for each in request.messages)
        fails = random.Random(f"{seed} fails {read}").random() < 0.2
        return StreamInterrupted(read[-20:]) if fails else answer(request)

    return answer_or_fail


class Talks(Durable[list[str]]):
    """A conversation of three agents in one of the ways."""

    how: str
    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        members = [
            ConversableAgent(name, self.backend, f"You are {name}.", tools=[look]) for name in "abc"
        ]
        speaker: dict[str, Any] = {
            "random": random_speaker(),
            "seeded": random_speaker(3),
            "model": choose_by_model(self.backend),
        }
        if self.how == "floor":
            team: Any = GroupTalk("team", members, max_turns=4)
        else:
            team = GroupChat("team", members, speaker=speaker[self.how], max_turns=4)
        failed = []
        try:
            await ConversableAgent("user").initiate_chat(team, "Go.")
        except StreamInterrupted as error:
            failed.append(str(error))
        said = [f"{each.sender}: {each.text}" for each in team.talks["user"].messages]
        heard = [f"{m.name} {each.text}" for m in members for each in m.chat_messages["team"]]
        return failed + said + heard


HEARD: list[tuple[int, str]] = []


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note each message of a conversation, and the number of rows at that time."""
    hear = GroupConversation.add

    def note(self: GroupConversation, message: Any) -> None:
        scope: Any = scope_here()
        rows: int = scope.execution.last_number
        HEARD.append((rows, f"{message.sender}: {message.text}"))
        hear(self, message)

    monkeypatch.setattr(GroupConversation, "add", note)


@pytest.mark.usefixtures("heard")
def test_everybody_at_a_talk_goes_on_where_it_stood_after_any_kill() -> None:
    """All messages stay, in their order, with any order of the loop; then the conversation ends.

    A conversation that has ended is the same for all members, and requests nothing again.
    """
    for seed in range(SEED, SEED + example_count(2, 60)):
        asked: list[Request] = []

        def answer(request: Request, seed: int = seed, asked: list[Request] = asked) -> Any:
            asked.append(request)
            return answers(seed)(request)

        def talk(answer: Any = answer) -> Talks:
            return Talks("floor", ScriptedBackend(otherwise=answer))

        HEARD.clear()
        first = run_execution(talk, seed=seed)
        said = list(HEARD)
        for rows in range(seed % 2, len(first.rows) + 1, example_count(2, 1)):
            kill = Kill(rows, frozenset())
            HEARD.clear()
            execution = run_execution(talk, kill.of(first), seed=seed + rows)
            before = [text for number, text in said if number <= rows]
            assert [text for _, text in HEARD][: len(before)] == before or not HEARD
            ended = execution.rows[
                -1 - sum(row.kind in ("result", "over", "usage") for row in execution.rows)
            ]
            asked.clear()
            again = run_execution(talk, Kill(ended.seq, frozenset()).of(execution), seed=rows)
            assert (again.outcome, asked) == (execution.outcome, []), (seed, rows)


@pytest.mark.parametrize("how", ["random", "model", "seeded"])
def test_who_is_next_is_the_same_in_each_life(how: str) -> None:
    """Whether chance or a model chooses the speaker."""
    for seed in range(SEED, SEED + example_count(1, 20)):
        backend = ScriptedBackend(otherwise=answers(seed))
        kill_everywhere(lambda b=backend: Talks(how, b), seeds=(None, seed))  # type: ignore[misc]


def test_a_talk_fails_in_each_life_as_it_has_failed() -> None:
    """A member whose model fails ends it, whatever the other members were about to do."""
    failed = 0
    for seed in range(SEED, SEED + example_count(3, 60)):
        asked: list[Request] = []

        def answer(request: Request, seed: int = seed, asked: list[Request] = asked) -> Any:
            asked.append(request)
            return breaks_off(seed)(request)

        def talk(answer: Any = answer) -> Talks:
            return Talks("floor", ScriptedBackend(otherwise=answer))

        first = run_execution(talk, seed=seed)
        for rows in range(seed % 3, len(first.rows) + 1, example_count(3, 1)):
            execution = run_execution(talk, Kill(rows, frozenset()).of(first), seed=seed + rows)
            assert execution.error is None
            failed += any(row.kind == "broken" for row in execution.rows)
            result = next(row.seq for row in reversed(execution.rows) if row.kind == "result")
            asked.clear()
            again = run_execution(talk, Kill(result - 1, frozenset()).of(execution), seed=rows)
            assert (again.outcome, asked) == (execution.outcome, []), (seed, rows)
    assert failed


class Changes(Talks):
    """Members who come and go in their answers, by chance and by the conversation."""

    async def task(self) -> list[str]:
        class Changing(ConversableAgent):
            @reply
            def change(self, message: AgentMessage) -> ReplyResult:
                read = "|".join(each.text for each in self.chat_messages["team"])
                chance = random.Random(f"{self.name} {read}")
                name = chance.choice("abcd")
                if chance.random() < 0.5:
                    team.members[name] = everybody[name]
                elif len(team.members) > 1:
                    team.members.pop(name, None)
                return NOT_MINE

        everybody = {name: Changing(name, self.backend, f"You are {name}.") for name in "abcd"}
        kind: Any = GroupTalk if self.how == "floor" else GroupChat
        team = kind("team", [everybody[name] for name in "abc"], max_turns=5)
        await ConversableAgent("user").initiate_chat(team, "Go.", max_turns=1)
        said = [f"{each.sender}: {each.text}" for each in team.talks["user"].messages]
        return [*said, *team.members]


@pytest.mark.parametrize("how", ["floor", "turns"])
def test_who_comes_and_goes_during_a_talk_is_the_same_in_each_life(how: str) -> None:
    """Members are added or removed while they speak; the conversation always ends."""
    changed = 0
    for seed in range(SEED, SEED + example_count(4, 20)):

        def answer(request: Request, seed: int = seed) -> str:
            read = "|".join(f"{each.role}{each.content}" for each in request.messages)
            floor = "you have the floor" in str(request.messages[-1].content)
            chance = random.Random(f"{seed} {read}")
            return f"speech {chance.random():.3f}" if floor or chance.random() < 0.7 else " "

        def talk(answer: Any = answer, how: str = how) -> Changes:
            return Changes(how, ScriptedBackend(otherwise=answer))

        first = run_execution(talk, seed=seed)
        assert first.error is None, first.error
        changed += first.result[-3:] != [*"abc"]
        result = next(row.seq for row in reversed(first.rows) if row.kind == "result")
        again = run_execution(talk, Kill(result - 1, frozenset()).of(first), seed=seed + 1)
        assert again.outcome == first.outcome, seed
        for rows in range(seed % 3, result, example_count(5, 1)):
            execution = run_execution(talk, Kill(rows, frozenset()).of(first), seed=seed + rows)
            assert execution.error is None, (seed, rows, execution.error)
    assert changed
