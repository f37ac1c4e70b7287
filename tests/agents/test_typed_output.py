"""`Agent(output_type=...)`: the answer's `output` has that type."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from anabranch import (
    Agent,
    BadResponse,
    ConfigurationError,
    ContentFiltered,
    Context,
    Message,
    ModelRetry,
    OutputInvalid,
    Refused,
    ReplyTruncated,
    ToolCall,
    tool,
)
from anabranch.agents import (
    ConversableAgent,
    JsonParser,
    Sequential,
    StepAgent,
    StringParser,
)
from anabranch.messages import OutputMode
from anabranch.testing import ScriptedBackend


class Invoice(BaseModel):
    total: int
    items: list[str] = []


@dataclass
class Point:
    x: int


class Movie(TypedDict):
    title: str


FULL = Invoice(total=12, items=["paper", "ink"])
TEXT = FULL.model_dump_json()
MODES: list[OutputMode] = ["text", "schema", "grammar", "tool"]


def reply(value: Any, mode: OutputMode) -> Any:
    """Return a model's reply with a value in a mode."""
    if mode != "tool":
        return value if isinstance(value, str) else json.dumps(value)
    arguments = json.loads(value) if isinstance(value, str) else value
    call = ToolCall(id="f", name="final_answer", arguments=arguments)
    return Message(role="assistant", tool_calls=[call])


@tool(read_only=True)
def price(item: str) -> str:
    """Look a price up."""
    return f"{item}: 6"


def asks_price(calls: int = 1) -> Message:
    found = [ToolCall(id=f"c{n}", name="price", arguments={"item": "ink"}) for n in range(calls)]
    return Message(role="assistant", tool_calls=found)


# --- the value


@pytest.mark.parametrize("mode", MODES)
async def test_the_output_is_the_value_in_each_mode(mode: OutputMode) -> None:
    """The answer's text is the value's JSON, and the status is ok."""
    agent = Agent(ScriptedBackend(reply(TEXT, mode)), output_type=Invoice, output_mode=mode)
    answer = await agent("Read this invoice.")
    assert answer.output == FULL
    assert type(answer.output) is Invoice
    assert (json.loads(answer.text), answer.extra["status"]) == (FULL.model_dump(), "ok")
    assert pickle.loads(pickle.dumps(answer)).output == FULL


KINDS: list[tuple[Any, Any, Any]] = [
    (Point, {"x": 1}, Point(1)),
    (Movie, {"title": "M"}, {"title": "M"}),
    (list[int], [1, 2], [1, 2]),
    (Invoice | Point, {"x": 2}, Point(2)),
    (Literal["yes", "no"], "yes", "yes"),
    (Annotated[int, Field(ge=0)], 3, 3),
    (bool, True, True),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Invoice | None, None, None),
]


@pytest.mark.parametrize(("kind", "value", "expected"), KINDS, ids=lambda each: f"{each!r:.40}")
@pytest.mark.parametrize("mode", ["text", "tool"])
async def test_any_type_works_and_is_restored(
    kind: Any, value: Any, expected: Any, mode: OutputMode, tmp_path: Path
) -> None:
    """From a state and from a journal, as the same value."""
    path = str(tmp_path / "j.db")
    said = value
    if mode == "tool" and kind not in (Point, Movie, dict[str, int]):
        said = {"response": value}

    def make(*replies: Any) -> Agent[Any]:
        backend = ScriptedBackend(*replies)
        return Agent(backend, output_type=kind, output_mode=mode, name="a", journal=path)

    agent = make(reply(json.dumps(said), mode))
    answer = await agent("?", session_id="s")
    assert answer.output == expected
    assert [each.output for each in await make().recall("s")][1] == expected
    other = Agent[Any](ScriptedBackend(), output_type=kind, name="a")
    other.load_state_dict(agent.state_dict("s"))
    assert other.memory.messages()[1].output == expected
    assert type(other.memory.messages()[1].output) is type(expected)


async def test_a_text_output_is_the_whole_reply() -> None:
    """It is not stored twice."""
    agent = Agent(ScriptedBackend("Plain words."), output_type=str, name="a")
    assert (await agent("?", session_id=1)).output == "Plain words."
    assert agent.state_dict(1)["memory"][1]["formatted"] is None


# --- with tools, and after answers that do not fit


@pytest.mark.parametrize("mode", ["text", "schema", "tool"])
@given(wrong=st.integers(0, 2), rounds=st.integers(0, 2))
async def test_the_model_is_asked_again_and_only_the_answer_is_remembered(
    mode: OutputMode, wrong: int, rounds: int
) -> None:
    """Its tool calls are, too; failed answers and calls of `final_answer` are not."""
    replies = [asks_price()] * rounds + [reply({"total": "?"}, mode)] * wrong + [reply(TEXT, mode)]
    backend = ScriptedBackend(*replies, reply(TEXT, mode))
    agent = Agent(backend, tools=[price], output_type=Invoice, output_mode=mode, name="a")

    answer = await agent("One.", session_id=1)
    assert answer.output == FULL
    assert len(backend.requests) == rounds + wrong + 1
    stored = agent.memory.messages(1)
    assert [each.type for each in stored] == [None, *["tools"] * rounds, None]
    assert stored[-1].output == FULL
    await agent("Two.", session_id=1)
    called = [c.name for m in backend.requests[-1].messages for c in m.tool_calls]
    assert called == ["price"] * rounds


async def test_an_answer_beside_another_call_is_remembered_apart() -> None:
    """The other call and its result stay."""
    both = asks_price()
    both.tool_calls.append(reply(TEXT, "tool").tool_calls[0])
    backend = ScriptedBackend(both, reply(TEXT, "tool"))
    agent = Agent(backend, tools=[price], output_type=Invoice, output_mode="tool", name="a")
    assert (await agent("?", session_id=1)).output == FULL
    _, tools, answer = agent.memory.messages(1)
    assert [each.role for each in tools.output] == ["assistant", "tool"]
    assert [each.name for each in tools.output[0].tool_calls] == ["price"]
    assert answer.output == FULL


BROKEN: list[tuple[Any, type[BadResponse], str]] = [
    (Message(role="assistant", refusal="I would rather not."), Refused, "I would rather not"),
    (Message(role="assistant", content="{", finish_reason="content_filter"), ContentFiltered, "{"),
    (Message(role="assistant", content='{"to', finish_reason="length"), ReplyTruncated, '{"to'),
    ("no JSON", OutputInvalid, "no JSON"),
]


@pytest.mark.parametrize(("said", "kind", "words"), BROKEN, ids=lambda each: f"{each!r:.30}")
async def test_a_failure_has_its_kind_the_agent_and_the_model_s_words(
    said: Any, kind: type[BadResponse], words: str
) -> None:
    """And the reply; the failure survives a pickle."""
    backend = ScriptedBackend(otherwise=said)
    agent = Agent(backend, output_type=Invoice, output_retries=1, name="clerk")
    with pytest.raises(kind, match="clerk") as caught:
        await agent("?", session_id=1)
    assert words in str(caught.value)
    error: Any = caught.value
    assert pickle.loads(pickle.dumps(error)).message == error.message
    assert len(backend.requests) == (2 if kind is OutputInvalid else 1)


# --- validators


async def test_validators_change_the_output_or_ask_again() -> None:
    """In their order; plain and async; with the context if they take it."""
    backend = ScriptedBackend('{"total": 1}', '{"total": 2}', '{"total": 3}')
    agent = Agent(backend, output_type=Invoice, name="clerk")

    @agent.output_validator
    def at_least(invoice: Invoice, ctx: Context[int]) -> Invoice:
        if invoice.total < ctx.value:
            raise ModelRetry(f"The total must be {ctx.value} or more.")
        return invoice

    @agent.output_validator
    async def double(invoice: Invoice) -> Invoice:
        return invoice.model_copy(update={"total": 2 * invoice.total})

    answer = await agent("?", session_id=1, context=2)
    assert answer.output.total == 4
    assert "must be 2 or more" in str(backend.requests[1].messages[-1].content)
    other = Agent(ScriptedBackend(), output_type=Invoice, name="clerk")
    other.load_state_dict(agent.state_dict(1))
    assert other.memory.messages()[1].output.total == 4
    with pytest.raises(OutputInvalid, match=r"clerk.*must be 9 or more"):
        await agent_of(3, at_least)("?", context=9)


def agent_of(replies: int, validator: Any) -> Agent[Invoice]:
    backend = ScriptedBackend(*['{"total": 1}'] * replies)
    agent = Agent(backend, output_type=Invoice, name="clerk")
    agent.output_validator(validator)
    return agent


async def test_a_validator_of_plain_text() -> None:
    """The agent needs no type for it."""
    agent = Agent(ScriptedBackend("Maybe.", "Yes."))

    @agent.output_validator
    def decided(text: str) -> str:
        if "Maybe" in text:
            raise ModelRetry("Decide.")
        return text.rstrip(".")

    answer = await agent("?", session_id=1)
    assert (answer.output, answer.text) == ("Yes", "Yes.")
    assert agent.memory.messages(1)[1].output == "Yes"


async def test_a_validator_that_fails_fails_the_call() -> None:
    """With its own error, and with advice if it forgot to return."""

    def fails(_: Invoice) -> int:
        return 1 // 0

    def forgets(_: Invoice) -> None:
        """Check something, and return nothing."""

    with pytest.raises(ZeroDivisionError):
        await agent_of(1, fails)("?")
    with pytest.raises(ConfigurationError, match="must return the output"):
        await agent_of(1, forgets)("?")


# --- streams


@pytest.mark.parametrize("mode", ["text", "schema", "tool"])
async def test_output_grows_and_ends_with_the_answer_s(mode: OutputMode) -> None:
    """Each value has all required fields."""
    backend = ScriptedBackend(asks_price(), reply(TEXT, mode), size=3)
    agent = Agent(backend, tools=[price], output_type=Invoice, output_mode=mode)
    stream = agent.stream("?")
    values = [value async for value in stream.output()]
    assert all(type(value) is Invoice for value in values)
    assert len(values) > 3
    assert [len(each.items) for each in values] == sorted(len(each.items) for each in values)
    assert all(one != other for one, other in pairwise(values))
    assert values[-1] == (await stream.answer()).output == FULL


@pytest.mark.parametrize("mode", ["text", "tool"])
async def test_values_begin_again_after_a_reply_that_cannot_be_used(mode: OutputMode) -> None:
    """No value has parts of two replies."""
    wrong = '{"total": 1, "items": ["a", "b", 7]}'
    backend = ScriptedBackend(reply(wrong, mode), reply(TEXT, mode), size=2)
    agent = Agent(backend, output_type=Invoice, output_mode=mode)
    values = [value async for value in agent.stream("?").output()]
    assert values[-1] == FULL
    totals = [each.total for each in values]
    assert totals == sorted(totals)
    assert all(
        "".join(each.items) in ("paperink" if each.total == 12 else "ab")
        or "paperink".startswith("".join(each.items))
        for each in values
    )


async def test_a_team_streams_the_output_of_its_last_agent() -> None:
    """And its answer has that output."""
    first = Agent(ScriptedBackend("Draft."), name="one")
    last = Agent(ScriptedBackend(TEXT, size=4), output_type=Invoice, name="two")
    stream = Sequential(first, last).stream("?")
    values = [value async for value in stream.output()]
    assert {type(value) for value in values} == {Invoice}
    assert values[-1] == FULL == (await stream.answer()).output


async def test_a_failed_attempt_is_a_failed_message_of_the_stream() -> None:
    """As for parsers."""
    agent = Agent(ScriptedBackend("no JSON", TEXT), output_type=Invoice)
    parts = [each async for each in agent.stream("?")]
    assert [each.content for each in parts if each.stream_state == "failed"] == ["no JSON"]
    assert parts[-1].output == FULL


# --- other agents


async def test_agents_that_converse_give_typed_answers() -> None:
    """In a chat, and by themselves."""
    bob = ConversableAgent("bob", ScriptedBackend(TEXT, TEXT), output_type=Invoice)
    ann = ConversableAgent("ann")
    result = await ann.initiate_chat(bob, "?", max_turns=1)
    assert result.last.output == FULL
    assert (await bob("?")).output == FULL


async def test_an_agent_with_its_own_forward_may_return_its_own_output() -> None:
    """Nothing else sets it."""

    class Adds(Agent[Invoice]):
        async def forward(self, *messages: Any, **options: Any) -> Any:
            answer = await super().forward(*messages, **options)
            assert not isinstance(answer, str)
            return answer.model_copy(update={"output": Invoice(total=answer.output.total + 1)})

    agent = Adds(ScriptedBackend(TEXT), output_type=Invoice)
    assert (await agent("?")).output == Invoice(total=13)


# --- mistakes


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"output_format": Invoice}, "write output_type=Invoice"),
    ({"output_format": list[int]}, r"write output_type=list\[int\]"),
    ({"output_format": StringParser(), "output_type": str}, "not both"),
    ({"output_type": JsonParser(Invoice)}, "Give a parser as output_format="),
    ({"output_type": lambda: 1}, "must be a type"),
    ({"output_type": Invoice, "output_mode": "grammar", "tools": [price]}, "not possible"),
    ({"output_type": Invoice, "output_retries": -1}, "0 or more"),
    ({"output_mode": "text"}, "needs output_type="),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=lambda each: f"{each!r:.40}")
def test_what_does_not_fit_is_refused_when_the_agent_is_made(
    given: dict[str, Any], words: str
) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match=words):
        Agent(ScriptedBackend(), **given)


def test_a_validator_that_would_never_run_is_refused() -> None:
    """For a team, an agent of steps, and one with a parser."""
    parsing = Agent(ScriptedBackend(), output_format=StringParser())
    agents: list[Any] = [parsing, Sequential(parsing), StepAgent(ScriptedBackend())]
    for agent in agents:
        with pytest.raises(ConfigurationError, match="no output validator runs"):
            agent.output_validator(print)
    plain: Any = Agent(ScriptedBackend())
    for wrong in (Invoice, 3):
        with pytest.raises(ConfigurationError, match="must be a function"):
            plain.output_validator(wrong)
