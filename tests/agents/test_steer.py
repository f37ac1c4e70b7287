"""Steering: messages to a call while it runs."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.killed_executions import resume_after_every_row
from support.memory_journal import Disk, journal_of, use_disk_clock
from support.seeds import SEED, example_count

from anabranch import Agent, Commander, tool
from anabranch.agents import AgentMessage, JsonParser, Sequential, StepAgent, SummaryMemory
from anabranch.agents.layers import AgentCall
from anabranch.commander import Node
from anabranch.commander.errors import NodeCancelled
from anabranch.handlers import View, respond
from anabranch.messages import Conversation, Message, Request, ToolCall
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend, run_seeded

Tell = Callable[[str], Awaitable[None]]


class Talk:
    """A model that calls `work` a number of times and then answers; all events are recorded."""

    def __init__(self, rounds: int, tell: Tell) -> None:
        self.rounds = rounds
        self.tell = tell
        self.requests: list[list[str]] = []

    def __call__(self, request: Request) -> Message | str:
        self.requests.append([f"{each.role}: {each.content}" for each in request.messages])
        done = sum(each.role == "tool" for each in request.messages)
        if done >= self.rounds:
            return f"answer after {done}"
        call = ToolCall(id=f"c{done}", name="work", arguments={"number": done})
        return Message(role="assistant", content=f"round {done}", tool_calls=[call])

    def agent(self, **options: Any) -> Agent[Any]:
        @tool(read_only=True)  # an interrupted call runs again without a question
        async def work(number: int) -> str:
            """Work."""
            await self.tell(f"tool {number}")
            return f"worked {number}"

        talk = self

        class Tells(View):
            async def write(self, text: str) -> None:
                await talk.tell("text")

        view = Tells()
        backend = ScriptedBackend(otherwise=self)
        return Agent(backend, "Work.", name="worker", tools=[work], view=view, **options)


def texts(messages: list[AgentMessage]) -> list[str]:
    """Return the texts of messages, and the kinds of tool messages."""
    return [each.type or f"{each.sender}: {each.text}" for each in messages]


async def ignore_message(point: str) -> None:
    """Ignore a message."""


async def test_a_steer_is_heard_by_the_next_request_behind_what_tools_gave() -> None:
    """S21: the model reads it after the results of the running tools; none is cancelled."""

    async def steer(point: str) -> None:
        if point == "tool 0":
            assert call.steer("faster", Message(role="user", content="please"))

    talk = Talk(2, steer)
    agent = talk.agent()
    call = agent.call("go", session_id="s")
    async with Commander() as commander:
        answer = await commander.run(call)

    assert answer.text == "answer after 2"
    assert talk.requests[1][-2:] == ["tool: worked 0", "user: faster\nplease"]
    assert call.undelivered == []
    assert texts(agent.memory.messages("s")) == [
        "user: go",
        "tools",
        "user: faster",
        "user: please",
        "tools",
        "worker: answer after 2",
    ]
    assert [f"{m.role}: {m.content}" for m in agent.aggregate("s")][:-1] == talk.requests[2]
    assert call.steer("too late") is False
    assert call.undelivered == []


async def test_what_no_request_had_is_unheard() -> None:
    """S21: the answer is as usual, and the late messages stay undelivered."""

    async def steer(point: str) -> None:
        if point == "text":
            call.steer(AgentMessage(content="wait"))

    talk = Talk(0, steer)
    agent = talk.agent()
    call = agent.call("go", session_id="s")
    async with Commander() as commander:
        await commander.run(call)

    assert {each.text for each in call.undelivered} == {"wait"}
    assert len(talk.requests) == 1
    assert texts(agent.memory.messages("s")) == ["user: go", "worker: answer after 0"]


async def test_a_call_may_be_steered_before_it_begins() -> None:
    """The first request has these messages."""
    talk = Talk(0, ignore_message)
    agent = talk.agent()
    call = agent.call("go", session_id="s")
    assert call.steer("now")
    async with Commander() as commander:
        await commander.run(call)

    assert talk.requests == [["system: Work.", "user: go", "user: now"]]
    assert texts(agent.memory.messages("s"))[:2] == ["user: go", "user: now"]


async def test_only_what_a_user_says_steers() -> None:
    """Any other message is refused, and none of the call is taken."""
    call = Talk(0, ignore_message).agent().call("go")
    for wrong in (3, Message(role="system", content="x"), {"role": "user"}):
        with pytest.raises(TypeError):
            call.steer("fine", wrong)  # type: ignore[arg-type]
    assert call.undelivered == []


async def test_a_call_that_fails_before_anything_was_said_gives_back_what_it_was_told() -> None:
    """No memory has it, so it stays undelivered; after a partial reply it is remembered."""

    def fail(request: Request) -> str:
        raise RuntimeError("no network")

    agent = Agent(ScriptedBackend(otherwise=fail), name="a")
    call = agent.call("go", session_id="s")
    call.steer("now")
    with pytest.raises(RuntimeError):
        async with Commander() as commander:
            await commander.run(call)

    assert agent.memory.messages("s") == []
    assert [each.text for each in call.undelivered] == ["now"]


async def test_an_answer_that_cannot_be_used_leaves_what_the_model_heard() -> None:
    """The correction is forgotten, the user's messages are not."""
    calls: list[AgentCall[Any]] = []

    def play(request: Request) -> str:
        if len(request.messages) < 4:
            calls[0].steer("be quick")
            return "no json"
        return "{}"

    agent = Agent(
        ScriptedBackend(otherwise=play),
        name="a",
        output_format=JsonParser(dict[str, int], retries=1),
    )
    calls.append(agent.call("go", session_id="s"))
    async with Commander() as commander:
        await commander.run(calls[0])

    assert texts(agent.memory.messages("s")) == ["user: go", "user: be quick", "a: {}"]


async def test_hooks_see_what_a_call_is_told() -> None:
    """The memory has the hook's change; after a failure the message waits again."""

    class Hush:
        def before_agent(self, agent: object, message: AgentMessage, session: object) -> Any:
            if message.text == "bad":
                raise ValueError("refused")
            return message.model_copy(update={"content": message.text.replace("secret", "***")})

    talk = Talk(0, ignore_message)
    agent = talk.agent(hooks=[Hush()])
    call = agent.call("go", session_id="s")
    call.steer("a secret")
    async with Commander() as commander:
        await commander.run(call)
    assert talk.requests[0][-1] == "user: a ***"
    assert texts(agent.memory.messages("s"))[1] == "user: a ***"

    call = agent.call("go", session_id="t")
    call.steer("bad")
    with pytest.raises(ValueError, match="refused"):
        async with Commander() as commander:
            await commander.run(call)
    assert [each.text for each in call.undelivered] == ["bad"]
    assert agent.memory.messages("t") == []


async def test_a_chain_is_steered_at_the_agent_whose_turn_it_is() -> None:
    """An agent with its own `forward` passes messages on; tools do not get them."""
    below = Agent(ScriptedBackend(otherwise=lambda request: f"read {len(request.messages)}"))

    @tool
    async def ask() -> str:
        """Ask another agent."""
        call.steer("for the second request")
        return (await below("a question")).text

    asked: list[Request] = []

    def play(request: Request) -> Message | str:
        asked.append(request)
        if len(asked) == 1:
            return Message(role="assistant", tool_calls=[ToolCall(id="1", name="ask")])
        return "done"

    chain = Sequential(
        Agent(ScriptedBackend(otherwise=play), name="one", tools=[ask]),
        Agent(ScriptedBackend(otherwise=lambda r: f"two read {r.messages[0].content}"), name="two"),
    )
    call = chain.call("go", session_id=1)
    async with Commander() as commander:
        answer = await commander.run(call)
    assert [each.content for each in asked[1].messages[-2:]] == [
        "read 1",
        "for the second request",
    ]
    assert answer.text == "two read done"
    assert texts(chain[0].memory.messages(1))[2] == "user: for the second request"


async def test_a_step_agent_hears_between_its_steps() -> None:
    """After an action it reads the message with its next request."""
    calls: list[AgentCall[Any]] = []

    @tool
    def look() -> str:
        """Look."""
        calls[0].steer("look again")
        return "seen"

    read: list[list[Any]] = []

    def play(request: Request) -> str:
        read.append([each.content for each in request.messages])
        return '```json\n{"name": "look", "parameters": {}}\n```' if len(read) == 1 else "done"

    agent = StepAgent(ScriptedBackend(otherwise=play), plugins=[look], name="steps")
    calls.append(agent.call("go", session_id=1))
    async with Commander() as commander:
        await commander.run(calls[0])
    assert "look again" in str(read[1][-1])
    assert calls[0].undelivered == []


async def test_a_summary_keeps_what_a_call_was_told() -> None:
    """The next summary includes it."""
    summed: list[str] = []

    def summarise(request: Request) -> str:
        summed.append(str(request.messages[-1].content))
        return "short"

    async def steer(point: str) -> None:
        if point == "tool 0":
            call.steer("remember the lamp")

    memory = SummaryMemory(ScriptedBackend(otherwise=summarise), max_tokens=20)
    agent = Talk(1, steer).agent(memory=memory)
    call = agent.call("go")
    async with Commander() as commander:
        await commander.run(call)
        await commander.run(agent.call("and now, with a long question, to be over the limit?"))
    assert "remember the lamp" in summed[0]


async def test_a_view_may_let_the_model_hear_more() -> None:
    """`respond` asks its view before each request, and adds the messages to the conversation."""

    class Says(View):
        async def heard(self, request: Request) -> list[Message]:
            return [Message(role="user", content=f"after {len(request.messages)}")]

    conversation = Conversation()
    conversation.add("go")
    async with Commander() as commander:
        backend = ScriptedBackend(otherwise=lambda r: f"{len(r.messages)}")
        await commander.run(respond(backend, conversation, view=Says()))
    assert [each.content for each in conversation] == ["go", "after 1", "2"]


# --- all places to steer a call


async def steered_at(number: int, rounds: int, cancel: int | None) -> None:
    """Steer a scripted call at its point `number`, twice, and cancel it at another."""
    points = 0

    async def at_point(point: str) -> None:
        nonlocal points
        points += 1
        if points == number:
            call.steer(f"first at {point}", f"second at {point}")
        if points == cancel:
            call.cancel()
        await asyncio.sleep(0)

    talk = Talk(rounds, at_point)
    agent = talk.agent()
    call = agent.call("go", session_id="s")
    try:
        async with Commander() as commander:
            await commander.run(call)
    except NodeCancelled:
        pass
    said = [each.text for each in agent.memory.messages("s") if each.text.startswith(("f", "s"))]
    left = [each.text for each in call.undelivered]
    told = 2 if points >= number else 0
    assert len(said) + len(left) == told
    assert len({*said, *left}) == told
    assert sorted(said) == said
    assert sorted(left) == left
    assert not (said and left)
    if cancel is None:
        heard = [each for each in talk.requests if any("first at" in line for line in each)]
        assert bool(said) == bool(heard)


@pytest.mark.parametrize("rounds", [0, 1, 2])
async def test_each_message_is_once_in_memory_or_unheard(rounds: int) -> None:
    """S21: wherever a call is steered and cancelled, no message is lost or doubled."""
    for number in range(1, 4 * rounds + 4):
        await steered_at(number, rounds, None)
        for cancel in range(1, 4 * rounds + 4):
            await steered_at(number, rounds, cancel)


# --- in a journal


RUN = "worker/s"


def play_lives(chosen: random.Random) -> None:
    """Steer a session's call at random, kill it between any two rows, and resume it."""
    rounds = chosen.randrange(1, 4)
    at = {chosen.choice(["tool 0", "tool 1", "tool 2", "text"]) for _ in range(2)}

    def live(disk: Disk, steers: bool) -> tuple[list[Any], list[str], list[list[str]]]:
        async def main() -> Any:
            calls: list[AgentCall[Any]] = []

            async def tell(point: str) -> None:
                if steers and point in at and point not in told:
                    told.append(point)
                    calls[0].steer(f"told at {point}")

            talk = Talk(rounds, tell)
            with use_disk_clock(disk):
                async with journal_of(disk) as journal:
                    agent = talk.agent(journal=journal)
                    calls.append(agent.call("go", session_id="s"))
                    async with Commander() as commander:
                        await commander.run(calls[0])
                    memory = agent.memory.save("s")
                    undelivered = [each.text for each in calls[0].undelivered]
                    # Another process reads the same.
                    other = talk.agent(journal=journal)
                    assert texts(await other.recall("s")) == texts(agent.memory.messages("s"))
            return memory, undelivered, talk.requests

        told = points if steers else []
        return run_seeded(main, None)

    points: list[str] = []  # at which the first life was steered
    first = Disk()
    memory, undelivered, requests = live(first, True)
    rows = first.rows[RUN]
    over = next(n for n, row in enumerate(rows) if row.kind == "result")
    for kept in range(over):
        disk = first.cut(kept, first.done)
        written = {row.kind for row in rows[:kept]}
        again, left, asked = live(disk, False)
        notes: list[Any] = [json.loads(row.value) for row in rows[:kept] if row.kind == "note"]
        texts_told: list[Any] = [each["message"]["content"] for each in notes if "message" in each]
        said = [each["content"] for each in again if str(each["content"]).startswith("told")]
        assert [*said, *left] == texts_told, f"killed after {kept} rows: {written}"
        replies = sum(row.kind == "reply" for row in rows[:kept])
        assert replies + len(asked) == rounds + 1, "no reply that was kept is asked for again"
    said = [each["content"] for each in memory if str(each["content"]).startswith("told")]
    assert sorted([*said, *undelivered]) == sorted(f"told at {point}" for point in points)
    assert len(requests) == rounds + 1


@pytest.mark.parametrize("number", range(example_count(6, 200)))
def test_a_session_that_is_killed_hears_again_what_it_was_told(number: int) -> None:
    """S20: each stored message is delivered once, at its earlier place if it has one."""
    play_lives(random.Random(SEED + number))


def test_a_session_that_nobody_steers_writes_no_row_more() -> None:
    """A call without steering costs the same as before."""

    async def main() -> list[str]:
        with use_disk_clock(disk):
            async with journal_of(disk) as journal:
                await Talk(2, ignore_message).agent(journal=journal)("go", session_id="s")
        return [row.kind for row in disk.rows[RUN]]

    disk = Disk()
    assert "note" not in run_seeded(main, None)


class Steers(Durable[list[str]]):
    """A durable job whose own code steers a call."""

    backend: Live[ScriptedBackend] = later()

    async def task(self) -> list[str]:
        @tool(read_only=True)
        async def work(number: int) -> str:
            """Work."""
            return f"worked {number}"

        agent = Agent(self.backend, name="worker", tools=[work])
        call = agent.call("go", session_id="s")
        call.steer("before")
        node: Node[Any] = self.call_handler(call)
        call.steer("at once")
        await node
        return texts(await agent.recall("s"))


async def test_a_durable_job_that_steers_does_so_once_in_each_life() -> None:
    """A repeated message of its code counts as that of the earlier execution."""
    await resume_after_every_row(
        lambda: Steers(ScriptedBackend(otherwise=Talk(2, ignore_message))),
        lambda first, again, rows: None,
    )
