"""Guards: checks of a message beside the first request. Before they pass, nothing is visible."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.killed_executions import kill_everywhere
from support.memory_journal import act
from support.openai_client import serve_to_client
from support.seeds import SEED, example_count

from anabranch import Agent, AgentMessage, Commander, Context, Retry, tool
from anabranch.agents import ConversableAgent, Memory, Sequential, StepAgent
from anabranch.agents.errors import InputRefused
from anabranch.backends import Backend
from anabranch.commander.errors import ConfigurationError
from anabranch.handlers import View
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend, run_seeded


class Refused(Exception):
    """A guard refused."""


def calls(*names: str) -> Message:
    listed = [ToolCall(id=f"c{n}", name=name, arguments={}) for n, name in enumerate(names)]
    return Message(role="assistant", content="Let me look.", tool_calls=listed)


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Scene:
    """An agent with a tool, a view, listeners and a guard that waits for `go`."""

    def __init__(self, *guards: Any, forward: type[Agent[Any]] = Agent, **options: Any) -> None:
        self.seen: list[str] = []
        self.go = asyncio.Event()
        scene = self

        class Noted(View):
            def write(self, text: str) -> None:
                scene.seen.append(f"text {text}")

        @tool(read_only=True)
        def look() -> str:
            """Look."""
            scene.seen.append("look")
            return "found"

        @tool
        async def do() -> str:
            """Do."""
            scene.seen.append("do")
            return "done"

        def say(request: Request) -> Any:
            return "answer" if request.messages[-1].role == "tool" else calls("look", "do")

        self.backend = ScriptedBackend(otherwise=say)
        self.agent = forward(
            self.backend,
            name="agent",
            tools=[look, do],
            view=Noted(),
            guards=guards or [self.guard],
            **options,
        )

    async def guard(self, message: AgentMessage) -> None:
        await self.go.wait()
        if "bad" in message.text:
            raise Refused("no")


async def test_nothing_is_visible_before_the_guards_have_passed() -> None:
    """The request is sent at once. Text, reasoning, tools and the memory wait."""
    scene = Scene()
    feed: list[AgentMessage] = []
    events: list[str] = []

    async def read() -> None:
        async for message in scene.agent.stream("good", session_id=1):
            feed.append(message)  # noqa: PERF401 - at once

    async with Commander() as commander:

        async def listen() -> None:
            kinds = ["text", "reasoning", "tool_call"]
            async for event in commander.events(kinds):
                events.append(event.kind)  # noqa: PERF401 - at once

        listening = asyncio.ensure_future(listen())
        reading = asyncio.ensure_future(read())
        await turns()
        assert scene.backend.opened == 1
        assert scene.seen == feed == events == []
        assert scene.agent.memory.messages(1) == scene.agent.memory.sessions == []
        assert scene.agent.state_dict(1) == {"memory": []}
        scene.go.set()
        await reading
        await turns()
        listening.cancel()
    assert {"look", "do"} < {*scene.seen}
    assert feed[-1].text == "answer"
    assert {*events} == {"text", "tool_call"}
    assert [each.text for each in scene.agent.memory.messages(1)][0::2] == ["good", "answer"]
    assert scene.backend.opened == scene.backend.closed == 2


async def test_a_refusal_cancels_the_reply_and_is_the_failure_of_the_call() -> None:
    """Nothing stays: no message, no stream, no task. What the model wrote is charged."""
    scene, tasks = Scene(), asyncio.all_tasks()
    never = asyncio.Event()
    scene.agent.backend = ScriptedBackend(["Hello, ", never])
    call = asyncio.ensure_future(scene.agent("bad", session_id=1))
    await turns()
    scene.go.set()
    with pytest.raises(Refused, match="no"):
        await call
    assert (scene.agent.backend.opened, scene.agent.backend.closed) == (1, 1)
    assert (scene.seen, scene.agent.memory.messages(1)) == ([], [])
    assert asyncio.all_tasks() == tasks
    assert scene.agent.usage()["scripted"].input_tokens > 0


async def test_plain_guards_and_several_guards_and_messages() -> None:
    """Each guard sees each message, as a copy, after the hooks."""
    seen: list[str] = []

    def one(message: AgentMessage) -> None:
        seen.append(f"one {message.text}")
        message.content = "changed"

    async def two(message: AgentMessage) -> None:
        seen.append(f"two {message.text}")

    scene = Scene(one, two)
    scene.agent.before_agent(lambda _, message, __: message.model_copy(update={"content": "B"}))
    await scene.agent("a", "b")
    assert sorted(seen) == ["one B", "one B", "two B", "two B"]
    assert scene.backend.requests[0].messages[-1].content == "B\nB"


async def test_a_hanging_guard_obeys_the_timeout_and_each_attempt_is_checked() -> None:
    """A retry runs the guards again."""
    scene = Scene()
    async with Commander() as commander:
        with pytest.raises(TimeoutError):
            await commander.run(scene.agent.call("bad"), timeout=0.01)
    attempts = 0

    def flaky(message: AgentMessage) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Refused("later")

    scene = Scene(flaky)
    async with Commander() as commander:
        answer = await commander.run(scene.agent.call("x"), retry=Retry(attempts=3))
    assert (answer.text, attempts) == ("answer", 3)


async def test_any_policy_of_the_call_keeps_the_refusal() -> None:
    """A policy that ignores failures of children does not open the gate."""
    for policy in ("isolate", "collect"):
        scene = Scene()
        scene.go.set()
        async with Commander() as commander:
            call = commander.call_handler(scene.agent.call("bad"), policy=policy, claim=True)
            with pytest.raises(Refused):
                await call
        assert scene.seen == []


async def test_a_guard_may_ask_an_agent() -> None:
    """Its reply does not wait for the guards, and is not a part of the stream."""
    judge = Agent(ScriptedBackend(otherwise="fine"), name="judge")

    async def ask(message: AgentMessage) -> None:
        if (await judge(message.text)).text != "fine":
            raise Refused("no")

    scene = Scene(ask)
    senders = {each.sender async for each in scene.agent.stream("x")}
    assert "judge" not in senders
    assert len(judge.backend.requests) == 1
    # Its usage is a part of the call, because the call has caused it.
    assert scene.agent.usage()["scripted"].output_tokens > 4


async def test_agents_below_wait_too() -> None:
    """The forward of an outer agent gets no answer of an agent below before the guards pass."""
    scene, steps = Scene(), []

    class Outer(Agent[Any]):
        async def forward(self, message: Any, session_id: Any = 0) -> Any:
            steps.append("asked")
            answer = await scene.agent(message, session_id=session_id)
            steps.append(answer.text)
            return answer

    scene.agent.guards, guard = [], scene.guard
    outer = Outer(name="outer", guards=[guard])
    call = asyncio.ensure_future(outer("bad", session_id=1))
    await turns()
    assert (steps, scene.seen, scene.backend.opened) == (["asked"], [], 1)
    assert scene.agent.memory.messages(1) == []
    scene.go.set()
    with pytest.raises(Refused):
        await call
    assert (steps, scene.seen, scene.agent.memory.messages(1)) == (["asked"], [], [])
    assert (await outer("good", session_id=1)).text == "answer"


async def test_an_agent_that_runs_tools_itself_waits() -> None:
    """A `StepAgent` asks, and acts after the guards."""
    scene = Scene()
    fence = '```json\n{"name": "look", "parameters": {}}\n```'
    steps = StepAgent(
        ScriptedBackend(fence, "answer"), plugins=[scene.agent.tools[0]], guards=[scene.guard]
    )
    call = asyncio.ensure_future(steps("good"))
    await turns()
    assert (scene.seen, steps.agent.backend.opened) == ([], 1)
    scene.go.set()
    assert (await call).text == "answer"
    assert scene.seen == ["look"]


async def test_steering_passes_the_guards() -> None:
    """A refused message of `steer` ends the call; the tools that ran stay in the memory."""
    scene = Scene()
    scene.go.set()

    @tool
    async def steer() -> str:
        """Steer."""
        call.steer("a bad idea")
        return "ok"

    scene.agent.tools.append(steer)
    scene.agent.backend = ScriptedBackend(calls("steer"), "answer")
    call = scene.agent.call("good", session_id=1)
    async with Commander() as commander:
        with pytest.raises(Refused):
            await commander.run(call)
    assert len(scene.agent.backend.requests) == 1
    assert [each.text for each in call.undelivered] == ["a bad idea"]
    assert "ok" in scene.agent.memory.messages(1)[-1].text


async def test_a_guard_must_be_a_function_that_raises_or_returns_nothing() -> None:
    """A guard that returns False was meant to refuse. So it fails the call."""

    async def three(message: AgentMessage, context: Any, more: int) -> None: ...
    async def yields(message: AgentMessage) -> Any:
        yield message

    for guard, text in [
        (3, "must be a function"),
        (Refused, "must be a function"),
        (three, "must take the message"),
        (yields, "not yield"),
    ]:
        with pytest.raises(ConfigurationError, match=text):
            Agent(name="a", guards=[guard])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="must be a list"):
        Agent(name="a", guards=three)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="reply function"):
        ConversableAgent("a", guards=[lambda message: None])
    scene = Scene(lambda message: "bad" not in message.text)
    with pytest.raises(TypeError, match="must raise to refuse"):
        await scene.agent("good")
    assert scene.seen == []


async def test_a_guard_that_raises_cancelled_error_does_not_let_the_call_hang() -> None:
    """No code has cancelled it, so it is a failure."""

    async def confused(message: AgentMessage) -> None:
        raise asyncio.CancelledError

    scene = Scene(confused)
    with pytest.raises(BaseException) as caught:
        await asyncio.wait_for(scene.agent("x"), 5)
    assert not isinstance(caught.value, TimeoutError)
    assert scene.seen == []


async def test_sessions_in_a_journal_forget_what_a_guard_refused(tmp_path: Any) -> None:
    """The next call continues, in this process and in another one."""
    path = tmp_path / "notes.db"
    scene = Scene(journal=str(path))
    scene.go.set()
    await scene.agent("good", session_id="s")
    with pytest.raises(Refused):
        await scene.agent("bad", session_id="s")
    remembered = await scene.agent.recall("s")
    assert [each.text for each in remembered][0::2] == ["good", "answer"]
    again = Scene(journal=str(path))
    again.go.set()
    assert await again.agent.recall("s") == remembered
    assert (await again.agent("good", session_id="s")).text == "answer"


@tool(effect="nested")
async def pay() -> str:
    """Pay."""
    return await act("pay")


class Guarded(Durable[str]):
    """An agent with a tool and a guard that asks a model. The model may refuse."""

    backend: Live[Backend] = later()
    question: str = "good"

    async def task(self) -> str:
        judge = Agent(self.backend, "judge", name="judge")

        async def ask(message: AgentMessage) -> None:
            if "no" in (await judge(message.text)).text:
                raise ValueError("refused")

        agent = Agent(self.backend, "agent", name="agent", tools=[pay], guards=[ask])
        try:
            return (await agent(self.question)).text
        except ValueError as error:
            return str(error)


@pytest.mark.parametrize("question", ["good", "bad"])
def test_a_durable_run_asks_its_guards_again_and_ends_the_same(question: str) -> None:
    """Their requests are in the journal, so they decide in the same way."""

    def answer(request: Request) -> Message | str:
        role, last = request.messages[0].content, request.messages[-1]
        if role == "judge":
            return "no" if last.content == "bad" else "yes"
        return "paid" if last.role == "tool" else calls("pay")

    def make() -> Guarded:
        return Guarded(ScriptedBackend(otherwise=answer), question)

    first = kill_everywhere(make, seeds=(None, SEED))
    assert first.result == ("paid" if question == "good" else "refused")


async def test_a_server_sends_the_text_of_a_refusal_and_hides_other_failures() -> None:
    """`InputRefused` is written for the person; any other exception is not."""

    def guard(message: AgentMessage) -> None:
        if "password" in message.text:
            raise InputRefused("Please send no passwords.")
        if "secret" in message.text:
            raise ValueError("internal")

    agent = Agent(ScriptedBackend(otherwise="hi"), name="agent", guards=[guard])
    asked: list[Any] = [{"role": "user", "content": "hello"}]
    async with serve_to_client(agent) as client:
        made = await client.chat.completions.create(model="agent", messages=asked)
        assert made.choices[0].message.content == "hi"
        asked[0]["content"] = "my password"
        with pytest.raises(Exception, match="Please send no passwords") as caught:
            await client.chat.completions.create(model="agent", messages=asked)
        assert getattr(caught.value, "status_code", None) == 400
        events = await client.responses.create(model="agent", input="my password", stream=True)
        *_, last = [event async for event in events]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.code == "input_refused"
        asked[0]["content"] = "my secret"
        with pytest.raises(Exception, match="See the server log"):
            await client.chat.completions.create(model="agent", messages=asked)


class Play:
    """A call with guards and calls beside it, at random times."""

    def __init__(self, seed: int) -> None:
        self.chosen = chosen = random.Random(seed)
        self.refuses = [chosen.random() < 0.3 for _ in range(chosen.randrange(1, 4))]
        self.cancelled_after = chosen.choice([None, None, chosen.randrange(1, 60)])
        self.passed = 0
        self.log: list[str] = []

    async def wait(self) -> None:
        await turns(self.chosen.randrange(0, 30))

    def guard(self, refuses: bool) -> Any:
        async def check(message: AgentMessage) -> None:
            await self.wait()
            if refuses:
                raise Refused(message.text)
            self.passed += 1

        return check

    def note(self, what: str) -> None:
        assert self.passed == len(self.refuses), f"{what} before all guards had passed"
        self.log.append(what)

    async def run(self) -> None:
        play = self

        class Noted(View):
            def write(self, text: str) -> None:
                play.note("text")

        @tool(read_only=True)
        async def look() -> str:
            """Look."""
            play.note("look")
            await play.wait()
            return "found"

        @tool
        def do() -> str:
            """Do."""
            play.note("do")
            return "done"

        def say(request: Request) -> Any:
            count = sum(each.role == "tool" for each in request.messages)
            return "answer" if count > 3 else calls(*play.chosen.choices(["look", "do"], k=2))

        backend = ScriptedBackend(otherwise=say, size=3)
        guards = [self.guard(each) for each in self.refuses]
        agent = Agent(backend, name="a", tools=[look, do], view=Noted(), guards=guards)
        agent.memory.add("earlier", session_id=1)
        before, tasks = agent.memory.messages(1), asyncio.all_tasks()

        async def read() -> None:
            async for message in agent.stream("go", session_id=1):
                play.note(f"feed {message.type}")

        async def watch() -> None:
            while not reading.done():
                if self.passed < len(self.refuses):
                    assert agent.memory.messages(1) == before
                await asyncio.sleep(0)

        reading = asyncio.ensure_future(read())
        watching = asyncio.ensure_future(watch())
        if self.cancelled_after is not None:
            await turns(self.cancelled_after)
            reading.cancel()
        outcome = await asyncio.gather(reading, return_exceptions=True)
        await watching
        assert backend.opened == backend.closed
        assert asyncio.all_tasks() == tasks
        if any(self.refuses) or not self.log:
            assert (self.log, agent.memory.messages(1)) == ([], before)
        if any(self.refuses) and self.cancelled_after is None:
            assert isinstance(outcome[0], Refused)
        if not any(self.refuses) and self.cancelled_after is None:
            assert (outcome, self.log[-1]) == ([None], "feed None")


@pytest.mark.parametrize("number", range(example_count(25, 2000)))
def test_at_any_time_nothing_is_visible_before_all_guards_have_passed(number: int) -> None:
    """With random times of guards, deltas, tools and a cancel. A refusal leaves nothing."""
    play = Play(SEED + number)
    run_seeded(play.run, SEED + number)


async def test_another_call_of_the_session_does_not_read_a_message_that_is_being_checked() -> None:
    """It reads the message once the guards have passed."""
    scene = Scene(memory=Memory())
    first = asyncio.ensure_future(scene.agent("bad"))
    await turns()
    other = Agent(ScriptedBackend(otherwise="hi"), name="other", memory=scene.agent.memory)
    await other("hello")
    assert other.backend.requests[0].messages[-1].content == "hello"
    scene.go.set()
    with pytest.raises(Refused):
        await first
    assert [each.text for each in scene.agent.memory.messages()] == ["hello", "hi"]


async def test_a_guard_may_read_the_context() -> None:
    """It takes it as its second parameter."""
    seen: list[Any] = []

    def check(message: AgentMessage, ctx: Context[str]) -> None:
        seen.append((message.text, ctx.value))

    await Scene(check).agent("hi", context="ann")
    assert seen == [("hi", "ann")]


async def test_a_sequential_may_have_guards_and_a_description() -> None:
    """No agent of it shows anything before they pass."""

    def refuse(message: AgentMessage) -> None:
        raise InputRefused("not here")

    one = Agent(ScriptedBackend("one"), name="one")
    team = Sequential(one, name="team", description="Writes.", guards=[refuse])
    assert team.as_tool().description == "Writes."
    with pytest.raises(InputRefused, match="not here"):
        await team("Hello", session_id="s")
    assert one.memory.messages("s") == []
