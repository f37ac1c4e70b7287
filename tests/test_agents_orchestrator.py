"""Orchestrators: who is next, what is asked again, where it ends, and what it leaves behind."""

import asyncio
import logging
from typing import Any

import pytest
from _left import processes, threads
from _server import ScriptedServer, text
from pydantic import ValidationError

from anabranch import (
    Agent,
    BackendUnavailable,
    Commander,
    ConfigurationError,
    ContextTooLong,
    Message,
    Retry,
    connect,
)
from anabranch.agents import (
    Action,
    Episode,
    LimitReached,
    ListMemory,
    Namespace,
    Observation,
    Orchestrator,
    PromptedAgent,
    PromptEngineer,
    Retrieval,
    RunningSummary,
    State,
    UnknownAgent,
)
from anabranch.dispatch import Request, Usage
from anabranch.testing import ScriptedBackend


class Counter(Namespace):
    number: int = 0


class CountState(State):
    counter: Counter = Counter()


class Counting(PromptEngineer[CountState]):
    """Asks for numbers; what is no number is asked for again."""

    def __init__(self) -> None:
        self.resets = 0

    def render_prompt(self, obs: str | None, history: list[Message], state: CountState) -> None:
        history.append(Message(role="user", content=obs or "Count."))

    async def process_response(
        self, obs: str | None, response: str, history: list[Message], state: CountState
    ) -> str:
        if not response.isdigit():
            state.signal_error("no number", "Say a number.")
            return ""
        state.counter.number = int(response)
        state.step_environment()
        return response

    def reset(self) -> None:
        self.resets += 1


class Talking(PromptEngineer[State]):
    def render_prompt(self, obs: str | None, history: list[Message], state: State) -> None:
        history[:] = [Message(role="user", content="Talk.")]


def counter(backend: ScriptedBackend, **options: Any) -> PromptedAgent[CountState]:
    return PromptedAgent("counter", Counting(), backend, **options)


def counting(*replies: Any, modules: Any = (), **limits: Any) -> Orchestrator[CountState]:
    """An orchestrator that always lets the counter count."""
    agent = counter(ScriptedBackend(*replies), modules=modules)
    return Orchestrator([agent], lambda obs, state: "counter", CountState(**limits))


def backend_of(orchestrator: Orchestrator[Any], name: str = "counter") -> ScriptedBackend:
    backend = orchestrator.agents[name].backend
    assert isinstance(backend, ScriptedBackend)
    return backend


def said(request: Request) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in request.messages]


def hanging() -> tuple[ScriptedBackend, asyncio.Event]:
    asked = asyncio.Event()

    async def reply(request: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    return ScriptedBackend(reply), asked


class Echo:
    """An environment that repeats what is done, three times."""

    def __init__(self, last: int = 3) -> None:
        self.done: list[str] = []
        self.last = last

    async def reset(self) -> None:
        self.done = []

    async def step(self, action: str) -> Observation | str:
        self.done.append(action)
        if len(self.done) == self.last:
            return Observation("the end", reward=1.0, done=True)
        return f"saw {action}"


# --- who is next


async def test_the_transition_names_the_next_until_the_environment_is_to_act() -> None:
    """It is asked after each answer, sees the observation once, and may be async."""
    asked: list[tuple[str | None, str | None]] = []

    async def transition(obs: str | None, state: CountState) -> str:
        asked.append((obs, state.agent))
        return "counter" if state.agent == "talker" else "talker"

    talker = PromptedAgent("talker", Talking(), ScriptedBackend("blah", "blah"))
    agents: list[Agent[Any]] = [talker, counter(ScriptedBackend("1", "2"))]
    orchestrator = Orchestrator(agents, transition, CountState())

    assert await orchestrator.forward("go") == Action("1", "counter")
    assert await orchestrator.forward("on", reward=0.5) == Action("2", "counter")
    assert asked == [("go", None), (None, "talker"), ("on", "counter"), (None, "talker")]
    assert orchestrator.state.counter.number == 2
    assert (orchestrator.state.steps, orchestrator.state.reward) == (2, 0.5)


async def test_a_transition_that_names_nobody_ends_it() -> None:
    """The last answer is what it ends with."""

    def transition(obs: str | None, state: State) -> str | None:
        return "talker" if state.agent is None else None

    talker = PromptedAgent("talker", Talking(), ScriptedBackend("blah"))
    orchestrator = Orchestrator([talker], transition, State())
    assert await orchestrator.forward() == Action("blah", "talker", done=True)


async def test_any_agent_may_be_orchestrated() -> None:
    """It hears the environment, or else the agent before it; and of its mistakes."""

    def transition(obs: str | None, state: State) -> str | None:
        if state.agent == "critic" and state.response != "good":
            state.signal_error("no judgement", "Say good or bad.")
        return {None: "writer", "writer": "critic"}.get(state.agent)

    writer, critic = ScriptedBackend("a text"), ScriptedBackend("hm", "good")
    agents = [Agent(writer, name="writer"), Agent(critic, "Judge.", name="critic")]
    orchestrator = Orchestrator(agents, transition, State())

    assert await orchestrator.forward("Write.") == Action("good", "critic", done=True)
    assert said(writer.requests[0]) == [("user", "Write.")]
    assert said(critic.requests[0]) == [("system", "Judge."), ("user", "a text")]
    assert said(critic.requests[1])[-1] == ("user", "Say good or bad.")


async def test_an_unknown_name_is_an_error_that_says_who_is_there() -> None:
    """Also what is no name at all; and the same call may be made again."""
    names: list[Any] = ["nobody", 7, "counter"]
    orchestrator = Orchestrator(
        [counter(ScriptedBackend("1"))], lambda obs, state: names.pop(0), CountState()
    )
    with pytest.raises(UnknownAgent, match="'nobody' in orchestrator: it has counter"):
        await orchestrator.forward()
    with pytest.raises(TypeError, match="a name or None, not 7"):
        await orchestrator.forward()
    assert (await orchestrator.forward()).content == "1"


def test_agents_need_names_of_their_own() -> None:
    """And there has to be one."""
    backend = ScriptedBackend()
    with pytest.raises(ValueError, match="two agents called 'counter'"):
        Orchestrator([counter(backend), counter(backend)], lambda obs, state: None, CountState())
    with pytest.raises(ValueError, match="at least one agent"):
        Orchestrator([], lambda obs, state: None, State())


# --- the state


def test_the_state_is_typed_and_has_a_namespace_for_each_agent() -> None:
    """A name or a value that does not fit is refused where it is written."""
    state = CountState()
    with pytest.raises(ValidationError):
        state.counter.number = "many"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError):
        CountState(counters=Counter())  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="numbr"):
        state.counter.numbr = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError):
        CountState(max_errors=-1)
    assert CountState().counter is not state.counter


async def test_a_run_goes_on_from_its_saved_state() -> None:
    """All is in it, what the models have read too."""
    first = counting("1")
    await first.forward("go")
    saved = first.state.model_dump_json()

    second = counting("2")
    second.state = CountState.model_validate_json(saved)
    assert (await second.forward("on")).content == "2"
    assert said(backend_of(second).requests[0]) == [
        ("user", "go"),
        ("assistant", "1"),
        ("user", "on"),
    ]


async def test_reset_begins_anew() -> None:
    """The state is as it was at first, and all is forgotten but what was spent."""
    orchestrator = counting("1", "2", "3", modules=[ListMemory()])
    await orchestrator.forward("go")
    await orchestrator.forward("on")
    orchestrator.reset()
    assert orchestrator.state == CountState()
    agent = orchestrator.agents["counter"]
    assert isinstance(agent, PromptedAgent)
    assert agent.memory.messages() == []
    assert agent.prompt_engineer.resets == 1
    await orchestrator.forward("go")
    assert orchestrator.state.notes == {}


# --- errors and limits


async def test_a_signalled_error_asks_the_same_agent_again(caplog: Any) -> None:
    """It reads its own answer and the improvement; the transition is not asked."""
    caplog.set_level(logging.INFO, "anabranch.agents")
    orchestrator = counting("lots", "7")
    assert (await orchestrator.forward()).content == "7"
    assert said(backend_of(orchestrator).requests[1]) == [
        ("user", "Count."),
        ("assistant", "lots"),
        ("user", "Say a number."),
    ]
    assert "cannot be used: no number" in caplog.text
    assert orchestrator.state.errors == 0


async def test_too_many_errors_in_a_row_end_it() -> None:
    """`max_errors` may be mended; the next ends it, also when it is called again."""
    orchestrator = counting("a", "b", "c", max_errors=2)
    with pytest.raises(LimitReached, match=r"counter gave no answer .* no number") as caught:
        await orchestrator.forward()
    assert (caught.value.limit, caught.value.value, caught.value.agent) == (
        "max_errors",
        2,
        "counter",
    )
    with pytest.raises(LimitReached, match="max_errors"):
        await orchestrator.forward()
    assert len(backend_of(orchestrator).requests) == 3


async def test_the_environment_is_asked_max_steps_times() -> None:
    """Then nothing more is asked of a model."""
    orchestrator = counting("1", "2", "3", max_steps=2)
    await orchestrator.forward()
    await orchestrator.forward()
    with pytest.raises(LimitReached, match="max_steps=2"):
        await orchestrator.forward()
    assert len(backend_of(orchestrator).requests) == 2


async def test_agents_who_only_talk_come_to_an_end() -> None:
    """After `max_turns` answers without an environment step."""
    talker = PromptedAgent("talker", Talking(), ScriptedBackend(otherwise="blah"))
    orchestrator = Orchestrator([talker], lambda obs, state: "talker", State(max_turns=4))
    with pytest.raises(LimitReached, match="max_turns=4"):
        await orchestrator.forward()
    assert len(backend_of(orchestrator, "talker").requests) == 4


async def test_an_error_before_anybody_answered_is_refused() -> None:
    """There is nobody to ask again."""

    def transition(obs: str | None, state: State) -> str:
        state.signal_error("too early", "?")
        return "counter"

    orchestrator = Orchestrator([counter(ScriptedBackend())], transition, CountState())
    with pytest.raises(RuntimeError, match="before anybody answered"):
        await orchestrator.forward()


async def test_a_failed_answer_can_be_asked_for_again() -> None:
    """The state is that of the last answer, the mistake that is to be mended included."""
    orchestrator = counting("lots", BackendUnavailable("gone"), "7")
    with pytest.raises(BackendUnavailable):
        await orchestrator.forward()
    assert (await orchestrator.forward()).content == "7"
    assert said(backend_of(orchestrator).requests[1]) == said(backend_of(orchestrator).requests[2])
    assert orchestrator.state.errors == 0


@pytest.mark.parametrize("given", [None, 7])
async def test_an_engineer_that_gives_no_text_is_named(given: Any) -> None:
    """As one that renders nothing is."""

    class Bad(Talking):
        def process_response(self, *_: Any) -> str:
            return given

    class Empty(Talking):
        def render_prompt(self, *_: Any) -> None: ...

    for engineer, fault in (
        (Bad(), "process_response of bad gave no text"),
        (Empty(), "no prompt"),
    ):
        agent = PromptedAgent("bad", engineer, ScriptedBackend("x"))
        orchestrator = Orchestrator([agent], lambda obs, state: "bad", State())
        with pytest.raises(TypeError, match=fault):
            await orchestrator.forward()


async def test_a_prompted_agent_alone_says_what_it_needs() -> None:
    """Its prompt is made of a state that only an orchestrator has."""
    with pytest.raises(ConfigurationError, match="counter takes its prompt from an Orchestrator"):
        await counter(ScriptedBackend())("go")


# --- a prompt that is too long


class Fits(ScriptedBackend):
    """A model whose context has room for so many characters."""

    def __init__(self, room: int) -> None:
        def reply(request: Request) -> Any:
            length = sum(len(message.content or "") for message in request.messages)
            return "1" if length <= room else ContextTooLong(f"{length} is too long")

        super().__init__(otherwise=reply)


async def test_a_prompt_that_is_too_long_loses_its_oldest_messages() -> None:
    """The system's and the last one stay, and the next prompt is as short."""
    state = CountState()
    state.histories["counter"] = [
        Message(role="system", content="Be brief."),
        *(Message(role="user", content=f"{number}" * 100) for number in range(9)),
    ]
    backend = Fits(400)
    orchestrator = Orchestrator([counter(backend)], lambda obs, state: "counter", state)
    assert (await orchestrator.forward("last")).content == "1"
    contents = [message.content for message in backend.requests[-1].messages]
    assert contents == ["Be brief.", "7" * 100, "8" * 100, "last"]
    assert len(state.histories["counter"]) == 5


async def test_a_single_message_that_is_too_long_loses_its_middle() -> None:
    """Its beginning and its end are kept."""
    backend = Fits(2500)
    orchestrator = Orchestrator([counter(backend)], lambda obs, state: "counter", CountState())
    await orchestrator.forward("begin" + "x" * 8000 + "end")
    (message,) = backend.requests[-1].messages
    assert message.content is not None
    assert message.content.startswith("begin")
    assert "left out" in message.content
    assert message.content.endswith("end")


async def test_a_prompt_that_cannot_be_shortened_is_an_error() -> None:
    """After a few attempts, not for ever."""
    backend = Fits(10)
    orchestrator = Orchestrator([counter(backend)], lambda obs, state: "counter", CountState())
    async with asyncio.timeout(10):
        with pytest.raises(ContextTooLong):
            await orchestrator.forward("x" * 100_000)
    assert len(backend.requests) < 15
    assert orchestrator.state.histories == {}


# --- modules


async def test_a_list_memory_notes_the_last_steps() -> None:
    """What was done and what came of it, long outputs cut."""
    orchestrator = counting("1", "2", "3", "4", modules=[ListMemory(last=2, max_output=8)])
    for obs in ("go", "seen one", "", "x" * 9):
        await orchestrator.forward(obs)
    assert orchestrator.state.notes["memory"] == "> 2\n(no output)\n> 3\nxxxxxxxx [...]"
    with pytest.raises(ValueError, match="last=0"):
        ListMemory(last=0)


async def test_a_summary_and_a_retrieval_note_what_they_find() -> None:
    """Before the prompt is made; the summary's model is told what it knows."""

    async def search(question: str) -> list[str]:
        return [f"{question} {number}" for number in range(9)]

    summarist = ScriptedBackend("It saw b.", "It saw b and c.")
    orchestrator = counting(
        "1", "2", "3", modules=[RunningSummary(summarist), Retrieval(search, limit=2)]
    )
    for obs in "abc":
        await orchestrator.forward(obs)
    assert orchestrator.state.notes == {
        "summary": "It saw b and c.",
        "knowledge": "c 0\n\nc 1",
    }
    assert "It saw b." in (summarist.requests[1].messages[0].content or "")


async def test_what_modules_note_of_a_step_they_note_once() -> None:
    """Also when the answer after it fails and is asked for again, here by the node's own retry."""
    summarist = ScriptedBackend("It saw b.")
    orchestrator = counting(
        "1",
        BackendUnavailable("gone"),
        "2",
        modules=[ListMemory(), RunningSummary(summarist)],
    )
    await orchestrator.forward("a")
    async with Commander() as commander:
        node = commander.call_handler(orchestrator.call("b"), retry=Retry(attempts=2))
        assert (await node).content == "2"
    assert orchestrator.state.notes == {"memory": "> 1\nb", "summary": "It saw b."}
    assert len(summarist.requests) == 1


async def test_a_module_that_fails_fails_the_answer() -> None:
    """With its own error, and the model is not asked."""

    async def search(question: str) -> list[str]:
        raise ConnectionError("no index")

    orchestrator = counting("1", modules=[Retrieval(search)])
    with pytest.raises(ConnectionError, match="no index"):
        await orchestrator.forward("a")
    assert backend_of(orchestrator).requests == []


# --- environments


async def test_it_plays_with_an_environment_to_the_end() -> None:
    """Each turn is an action and what came of it."""
    orchestrator, environment = counting("1", "2", "3"), Echo()
    turns = [turn async for turn in orchestrator.over(environment)]
    assert [turn.action.content for turn in turns] == ["1", "2", "3"]
    assert turns[0].observation == Observation("saw 1")
    assert turns[-1].observation == Observation("the end", 1.0, done=True)


async def test_an_episode_ends_with_a_status() -> None:
    """The environment's end, the transition's, or a limit."""
    assert (await counting("1", "2", "3").play(Echo())).status == "over"
    limited = await counting("1", "2", max_steps=2).play(Echo())
    assert (limited.status, len(limited.turns)) == ("max_steps", 2)
    assert (await counting("a", max_errors=0).play(Echo())).status == "max_errors"

    def transition(obs: str | None, state: CountState) -> str | None:
        return None if state.counter.number else "counter"

    agent = counter(ScriptedBackend("5"))
    done = await Orchestrator([agent], transition, CountState()).play(Echo())
    assert (done.status, done.turns[-1].action.content) == ("done", "5")
    assert done.turns[-1].observation is None


async def test_an_environment_that_gives_garbage_or_fails_is_an_error() -> None:
    """With the environment's own exception, or one that says what it gave."""

    class Garbage(Echo):
        async def step(self, action: str) -> Any:
            if action == "1":
                raise OSError("the disk is gone")
            return 7

    with pytest.raises(OSError, match="the disk is gone"):
        await counting("1").play(Garbage())
    with pytest.raises(TypeError, match="a text or an Observation: 7"):
        await counting("2").play(Garbage())


# --- in the tree


async def test_two_calls_at_once_are_refused() -> None:
    """The state is for one at a time; the first goes on."""
    backend, asked = hanging()
    orchestrator = Orchestrator([counter(backend)], lambda obs, state: "counter", CountState())
    async with asyncio.timeout(10):
        first = asyncio.create_task(orchestrator.forward())
        await asked.wait()
        with pytest.raises(RuntimeError, match="one at a time"):
            await orchestrator.forward()
        with pytest.raises(RuntimeError, match="is running"):
            orchestrator.reset()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_model_that_hangs_is_left_after_the_timeout() -> None:
    """Its request is closed."""
    backend, _ = hanging()
    orchestrator = Orchestrator(
        [counter(backend)], lambda obs, state: "counter", CountState(), timeout=0.01
    )
    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            await orchestrator.forward()
    assert backend.opened == backend.closed == 1


async def test_a_cancelled_run_leaves_nothing_behind() -> None:
    """While a model answers, and while the environment acts: no task, thread or process."""
    backend, asked = hanging()

    class Slow(Echo):
        async def step(self, action: str) -> str:
            asked.set()
            await asyncio.Event().wait()
            return ""

    slow = counting("1")
    asks = Orchestrator([counter(backend)], lambda obs, state: "counter", CountState())
    before = asyncio.all_tasks(), threads(), processes()
    for orchestrator in (asks, slow):
        asked.clear()
        async with asyncio.timeout(10):
            task = asyncio.create_task(orchestrator.play(Slow()))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert (asyncio.all_tasks(), threads(), processes()) == before
    assert backend.opened == backend.closed == 1
    assert asks.state.histories == {}
    assert not asks._busy


async def test_each_answer_is_a_node_and_a_limit_of_time_holds_for_all() -> None:
    """Under the names of the orchestrator, its agents and its environment."""
    async with Commander() as commander:
        events = commander.events({"started"}, capacity=100)
        result = await commander.run(Episode(counting("1", "2", "3"), Echo()), timeout=30)
    assert result.status == "over"
    names = {event.name async for event in events}
    assert {"orchestrator-episode", "orchestrator", "counter", "act"} <= {
        str(name).partition("#")[0] for name in names
    }


async def test_tokens_are_counted_for_each_agent_and_model() -> None:
    """Mistakes and modules too; the commander has the same by model."""
    replies = text("lots"), text("7"), text("sum"), text("8")
    async with (
        ScriptedServer(*replies) as server,
        connect(server.url, model="big") as big,
        connect(server.url, model="small") as small,
        Commander() as commander,
    ):
        agent = PromptedAgent("counter", Counting(), big, modules=[RunningSummary(small)])
        orchestrator = Orchestrator([agent], lambda obs, state: "counter", CountState())
        await commander.run(orchestrator.call("go"))
        await commander.run(orchestrator.call("on"))
        total = commander.usage()
    spent = {
        "big": Usage(input_tokens=15, output_tokens=21),
        "small": Usage(input_tokens=5, output_tokens=7),
    }
    assert orchestrator.usage == {"counter": spent}
    assert orchestrator.usage_by_model() == spent == total
