"""Handoffs: another agent gets the conversation, and its answer is the answer of the turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from support.killed_executions import kill_everywhere
from support.memory_journal import act
from support.openai_client import serve_to_client

from anabranch import Agent, Approvals, Commander, handoff, tool
from anabranch.agents import (
    AgentHook,
    ConversableAgent,
    JsonParser,
    Memory,
    PromptedAgent,
    PromptEngineer,
    State,
    StepAgent,
    ToolExecutor,
)
from anabranch.backends import Backend, Limits
from anabranch.commander.errors import ConfigurationError
from anabranch.handlers import View
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend


def calls(*names: str, text: str | None = None) -> Message:
    listed = [ToolCall(id=f"c{n}", name=name, arguments={}) for n, name in enumerate(names)]
    return Message(role="assistant", content=text, tool_calls=listed)


def read(request: Request) -> list[tuple[str, str | None, list[str]]]:
    return [
        (each.role, each.content, [call.name for call in each.tool_calls])
        for each in request.messages
    ]


@tool
def look() -> str:
    """Look."""
    return "found"


class Desk:
    """Two agents: `front` hands over to `billing`."""

    def __init__(self, *front: Any, billing: Any = ("Paid.",), **options: Any) -> None:
        below = options.pop("below", {})
        self.billing = Agent(
            ScriptedBackend(*billing), "Bills.", name="billing", tools=[look], **below
        )
        self.front = Agent(
            ScriptedBackend(*(front or (calls("transfer_to_billing"),))),
            "Greets.",
            name="front",
            tools=[handoff(self.billing), look],
            **options,
        )

    @property
    def asked(self) -> list[Any]:
        return [read(each) for each in self.billing.backend.requests]


async def test_the_other_agent_answers_the_conversation() -> None:
    """It reads the question, with its own prompt and without the transfer. Usage counts twice."""
    desk = Desk()
    answer = await desk.front("My money!")
    assert (answer.text, answer.sender) == ("Paid.", "billing")
    assert answer.extra["handoff"] == ["front", "billing"]
    assert desk.asked == [[("system", "Bills.", []), ("user", "My money!", [])]]
    assert desk.billing.usage()["scripted"].output_tokens > 0
    assert answer.usage == desk.front.usage()["scripted"]


async def test_it_reads_the_tools_that_have_run() -> None:
    """Ordinary calls in the same reply run, and their results are a part of the conversation."""
    desk = Desk(calls("look", text="Let me see."), calls("transfer_to_billing", "look", text="Ok."))
    await desk.front("My money!")
    assert desk.asked == [
        [
            ("system", "Bills.", []),
            ("user", "My money!", []),
            ("assistant", "Let me see.", ["look"]),
            ("tool", "found", []),
            ("assistant", "Ok.", ["look"]),
            ("tool", "found", []),
        ]
    ]


async def test_a_text_beside_the_transfer_stays_and_the_request_ends_with_a_user() -> None:
    """Some providers accept no request that ends with a reply."""
    desk = Desk(calls("transfer_to_billing", text="One moment."))
    await desk.front("My money!")
    note = "(front has handed the conversation over to you. Answer the user.)"
    assert desk.asked[0][1:] == [
        ("user", "My money!", []),
        ("assistant", "One moment.", []),
        ("user", note, []),
    ]


async def test_the_first_agent_answers_the_next_turn_and_knows_all() -> None:
    """Its session has the other agent's calls and its answer, as its own."""
    desk = Desk(calls("transfer_to_billing"), "Bye.", billing=(calls("look"), "Paid."))
    await desk.front("My money!", session_id=1)
    answer = await desk.front("Thanks.", session_id=1)
    assert (answer.text, answer.sender) == ("Bye.", "front")
    assert read(desk.front.backend.requests[1]) == [
        ("system", "Greets.", []),
        ("user", "My money!", []),
        ("assistant", None, ["transfer_to_billing"]),
        ("tool", "Handoff to billing.", []),
        ("assistant", None, ["look"]),
        ("tool", "found", []),
        ("assistant", "Paid.", []),
        ("user", "Thanks.", []),
    ]
    assert desk.billing.memory.sessions == []


async def test_a_later_handoff_passes_the_earlier_turns_on() -> None:
    """Without the transfers of these turns."""
    over = calls("transfer_to_billing")
    desk = Desk(over, over, billing=(calls("look"), "Paid.", "Yes."))
    await desk.front("My money!", session_id=1)
    await desk.front("Really?", session_id=1)
    assert desk.asked[-1] == [
        ("system", "Bills.", []),
        ("user", "My money!", []),
        ("assistant", None, ["look"]),
        ("tool", "found", []),
        ("assistant", "Paid.", []),
        ("user", "Really?", []),
    ]


async def test_the_first_of_two_handoffs_counts() -> None:
    """The other one gets a result that says so."""
    desk = Desk(calls("transfer_to_support", "transfer_to_billing"))
    support = Agent(ScriptedBackend("Hi."), name="support")
    desk.front.tools.insert(0, handoff(support))
    answer = await desk.front("Help!", session_id=1)
    assert answer.sender == "support"
    results = desk.front.memory.messages(1)[1].output[1:]
    assert [each.status for each in results] == ["ok", "failed"]
    assert "went to support" in results[1].content


async def test_chains_and_loops() -> None:
    """A loop ends when no handoff is left: the present agent has to answer."""
    first = Agent(ScriptedBackend(), name="first", max_rounds=4)
    second = Agent(ScriptedBackend(), name="second", tools=[handoff(first)])
    first.tools.append(handoff(second))

    def other(request: Request, to: str) -> Any:
        last = request.messages[-1]
        return "I answer." if last.role == "tool" else calls(f"transfer_to_{to}")

    first.backend = ScriptedBackend(otherwise=lambda request: other(request, "second"))
    second.backend = ScriptedBackend(otherwise=lambda request: other(request, "first"))
    answer = await first("go", session_id=1)
    assert answer.text == "I answer."
    assert answer.extra["handoff"] == ["first", "second", "first", "second", "first"]
    assert (await first("go", session_id=1)).text == "I answer."
    assert first.memory.sessions == [1]
    assert second.memory.sessions == []


async def test_a_stream_has_both_texts_and_one_end() -> None:
    """Each text has its sender."""
    desk = Desk(calls("transfer_to_billing", text="One moment."))
    messages = [each async for each in desk.front.stream("My money!")]
    texts = [(each.sender, each.extra["delta"]) for each in messages if "delta" in each.extra]
    assert {sender for sender, _ in texts} == {"front", "billing"}
    assert "".join(text for sender, text in texts if sender == "billing") == "Paid."
    ends = [each for each in messages if each.type is None and each.stream_state == "end"]
    assert [(each.sender, each.text) for each in ends] == [("billing", "Paid.")]
    assert messages[-1] is ends[0]


async def test_approvals_views_and_hooks() -> None:
    """The other agent asks as the first one does, and shows its text there."""
    asked, shown, hooked = [], [], []

    @tool(approve=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    class Shows(View):
        def write(self, text: str) -> None:
            shown.append(text)

        async def approve(self, call: ToolCall) -> bool:
            asked.append(call.name)
            return True

    desk = Desk(view=Shows(), billing=(calls("pay"), "Paid."))
    desk.billing.tools.append(pay)
    desk.billing.before_agent(lambda _, message, __: hooked.append(message.text))
    desk.front.memory.add("Earlier.", session_id=1)
    await desk.front("My money!", session_id=1)
    assert (asked, "".join(shown), hooked) == (["pay"], "Paid.", ["My money!"])
    waiting = Approvals(on_ask=lambda question: question.approve())
    desk = Desk(approve=waiting, billing=(calls("pay"), "Paid."))
    desk.billing.tools.append(pay)
    await desk.front("My money!")
    assert desk.asked[-1][-1] == ("tool", "paid", [])


async def test_a_failure_of_the_other_agent_is_the_failure_of_the_call() -> None:
    """The tools that ran stay in the session, so that the next turn does not repeat them."""
    desk = Desk(calls("transfer_to_billing"), "Hm.", billing=(calls("look"), ValueError("down")))
    with pytest.raises(ValueError, match="down"):
        await desk.front("My money!", session_id=1)
    assert (await desk.front("So?", session_id=1)).text == "Hm."
    assert ("assistant", None, ["look"]) in read(desk.front.backend.requests[-1])


async def test_cancels_limits_and_steering_reach_the_other_agent() -> None:
    """It is below the call of the first one."""
    never, steered = asyncio.Event(), asyncio.Event()
    desk = Desk(billing=(["Pa", never],))
    async with Commander() as commander:
        call = commander.call_handler(desk.front.call("My money!"))
        while not desk.billing.backend.opened:  # noqa: ASYNC110
            await asyncio.sleep(0)
        call.cancel("enough")
    assert (desk.billing.backend.opened, desk.billing.backend.closed) == (1, 1)

    @tool
    async def wait() -> str:
        """Wait."""
        assert call.steer("Hurry!")
        steered.set()
        return "ok"

    desk = Desk(billing=(calls("wait"), "Paid."))
    desk.billing.tools.append(wait)
    call = desk.front.call("My money!", session_id=1)
    async with Commander() as commander:
        await commander.run(call)
    assert desk.asked[-1][-1] == ("user", "Hurry!", [])
    assert [each.text for each in desk.front.memory.messages(1)][-2:] == ["Hurry!", "Paid."]
    desk = Desk()
    async with Commander() as commander:
        with pytest.raises(Exception, match="1 tokens are used"):
            await commander.run(desk.front.call("go"), limits=Limits(budget=1))


async def test_the_other_agent_may_have_a_memory_guards_and_a_journal() -> None:
    """Its own sessions stay unchanged. Its guards check the question."""

    def guard(message: Any) -> None:
        if "money" in message.text:
            raise PermissionError("no money")

    desk = Desk(below={"memory": Memory(recent_n=1)})
    desk.billing.memory.add("Mine.")
    await desk.front("My money!", session_id=1)
    assert [each.text for each in desk.billing.memory.messages()] == ["Mine."]
    assert desk.billing.memory.sessions == [0]
    desk = Desk(below={"guards": [guard]})
    with pytest.raises(PermissionError):
        await desk.front("My money!", session_id=1)
    desk = Desk(below={"journal": ":memory:"})
    assert (await desk.front("My money!")).text == "Paid."


async def test_a_session_in_a_journal_has_the_handoff(tmp_path: Any) -> None:
    """Another process continues it."""
    over = calls("transfer_to_billing")
    path = str(tmp_path / "desk.db")
    desk = Desk(over, journal=path)
    first = await desk.front("My money!", session_id="s")
    again = Desk("Bye.", journal=path)
    assert (await again.front("Thanks.", session_id="s")).text == "Bye."
    remembered = await again.front.recall("s")
    assert remembered[2].extra["handoff"] == first.extra["handoff"] == ["front", "billing"]
    assert read(again.front.backend.requests[0])[-2] == ("assistant", "Paid.", [])


class City(BaseModel):
    name: str


class Land(BaseModel):
    name: str


async def test_an_agent_hands_over_only_to_agents_with_its_output_type(tmp_path: Any) -> None:
    """Its output is a promise. The type is known where the agent is made."""
    typed = Agent(ScriptedBackend('{"name": "Rome"}'), name="t", output_format=JsonParser(City))
    with pytest.raises(ConfigurationError, match="own output type"):
        Agent(name="front", tools=[handoff(typed)])
    with pytest.raises(ConfigurationError, match="own output type"):
        Agent(name="front", tools=[handoff(typed)], output_format=JsonParser(Land))
    for journal in None, str(tmp_path / "typed.db"):
        typed.backend = ScriptedBackend('{"name": "Rome"}')
        front = Agent(
            ScriptedBackend(calls("transfer_to_t")),
            name="front",
            tools=[handoff(typed)],
            output_format=JsonParser(City),
            journal=journal,
        )
        assert (await front("Where?", session_id="s")).output == City(name="Rome")
        assert (await front.recall("s"))[-1].output == City(name="Rome")
    front = Agent(ScriptedBackend(calls("transfer_to_t")), name="front")
    front.tools.append(handoff(typed))
    with pytest.raises(ConfigurationError, match="own output type"):
        await front("Where?")


def test_what_cannot_hand_over_says_so() -> None:
    """Members of conversations, agents of orchestrators, and loops of an own."""
    other = Agent(name="other")

    class Engineer(PromptEngineer[State]):
        def render_prompt(self, obs: Any, state: State, history: list[Message]) -> None: ...
        def process_response(self, response: Any, state: State, *_: Any) -> None: ...

    for make in (
        lambda: ConversableAgent("a", tools=[handoff(other)]),
        lambda: PromptedAgent("a", Engineer(), ScriptedBackend(), tools=[handoff(other)]),
        lambda: StepAgent(ScriptedBackend(), plugins=[handoff(other)]),
        lambda: ToolExecutor([handoff(other)]),
        lambda: handoff("other"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match="hand"):
            make()
    assert handoff(other, "ask_other", "Knows it.").description == "Knows it."
    assert handoff(other).description == "Hand the conversation over to other."


async def test_an_agent_around_the_first_one_gets_the_answer() -> None:
    """Also as a tool, and as a layer of a larger agent."""
    desk = Desk()

    class Around(Agent[Any]):
        async def forward(self, message: Any, session_id: Any = 0) -> Any:
            return await desk.front(message, session_id=session_id)

    answer = await Around(name="around")("My money!", session_id=1)
    assert (answer.sender, answer.text) == ("billing", "Paid.")
    desk = Desk()
    boss = Agent(
        ScriptedBackend(
            Message(
                role="assistant",
                tool_calls=[ToolCall(id="1", name="desk", arguments={"request": "pay"})],
            ),
            "Done.",
        ),
        name="boss",
        tools=[desk.front.as_tool("desk", "Pays.")],
    )
    await boss("go")
    assert boss.backend.requests[-1].messages[-1].content == "Paid."


@tool(effect="nested")
async def pay() -> str:
    """Pay."""
    return await act("pay")


class HandsOver(Durable[str]):
    """An agent that hands over to one with an effect, twice in one reply."""

    backend: Live[Backend] = later()

    async def task(self) -> str:
        billing = Agent(self.backend, "billing", name="billing", tools=[pay])
        support = Agent(self.backend, "support", name="support")
        front = Agent(
            self.backend, "front", name="front", tools=[handoff(billing), handoff(support), pay]
        )
        first = await front("My money!", session_id=1)
        remembered = [each.text for each in front.memory.messages(1)]
        return f"{first.sender} {first.text} {remembered}"


def test_a_killed_run_hands_over_to_the_same_agent_and_repeats_no_effect() -> None:
    """After a kill at any row."""

    def answer(request: Request) -> Message | str:
        role, last = request.messages[0].content, request.messages[-1]
        if role == "front":
            return calls("transfer_to_billing", "pay", "transfer_to_support")
        return "Paid." if last.content != "My money!" and pays(request) > 1 else calls("pay")

    def pays(request: Request) -> int:
        return sum(each.role == "tool" for each in request.messages)

    first = kill_everywhere(lambda: HandsOver(ScriptedBackend(otherwise=answer)), seeds=(None, 1))
    assert first.result.startswith("billing Paid.")


async def test_a_server_sends_the_text_of_both() -> None:
    """The text of the other agent is a part of the answer; that of an agent as a tool is not."""
    helper = Agent(ScriptedBackend(otherwise="aside"), name="helper", description="Helps.")
    ask = Message(
        role="assistant",
        tool_calls=[ToolCall(id="1", name="helper", arguments={"request": "how?"})],
    )
    for stream in (False, True):
        desk = Desk(calls("transfer_to_billing", text="One moment. "), billing=(ask, "Paid."))
        desk.billing.tools.append(helper.as_tool())
        async with serve_to_client(desk.front) as client:
            asked: Any = [{"role": "user", "content": "My money!"}]
            made: Any = await client.chat.completions.create(
                model="front", messages=asked, stream=stream
            )
            if stream:
                chunks = [each async for each in made]
                text = "".join(
                    each.choices[0].delta.content or "" for each in chunks if each.choices
                )
            else:
                text = made.choices[0].message.content
        assert text.split() == ["One", "moment.", "Paid."]


async def test_agents_with_output_types_hand_over() -> None:
    """The output of the other agent is that of the turn. As a tool it is JSON."""
    city = Agent(ScriptedBackend('{"name": "Rome"}'), name="city", output_type=City)
    front = Agent(
        ScriptedBackend(calls("transfer_to_city")),
        name="front",
        tools=[handoff(city)],
        output_type=City,
    )
    assert (await front("Where?", session_id=1)).output == City(name="Rome")
    with pytest.raises(ConfigurationError, match="own output type"):
        Agent(name="front", tools=[handoff(city)], output_type=Land)
    city.backend = ScriptedBackend('{"name": "Rome"}')
    city.output_validator(lambda output: City(name=output.name.upper()))
    assert await city.as_tool("city", "Knows it.").run({"request": "?"}) == '{"name":"ROME"}'


@pytest.mark.parametrize("session", ["ann", None])
async def test_hooks_of_both_agents_have_the_session_of_the_call(session: str | None) -> None:
    """Never the name of a temporary session."""
    seen: list[object] = []

    class Note(AgentHook):
        def before_agent(self, agent: Any, message: Any, session_id: object) -> None:
            seen.append((agent.name, session_id))

    backend = ScriptedBackend("done")
    billing = Agent(backend, name="billing", hooks=[Note()])
    call = ToolCall(id="1", name="transfer_to_billing", arguments={})
    first = ScriptedBackend(Message(role="assistant", tool_calls=[call]))
    triage = Agent(first, name="triage", tools=[handoff(billing)], hooks=[Note()])
    await triage("My bill is wrong.", session_id=session)
    assert seen == [("triage", session), ("billing", session)]
