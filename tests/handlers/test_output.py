"""`respond(..., output_type=...)`: the value of a reply, attempts that fail, and the view."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from anabranch import (
    BadResponse,
    Commander,
    ConfigurationError,
    ContentFiltered,
    Conversation,
    Message,
    ModelRetry,
    OutputInvalid,
    Refused,
    ReplyTruncated,
    ToolCall,
    tool,
)
from anabranch.dispatch import ReAct
from anabranch.handlers import View, respond
from anabranch.messages import Delta, OutputMessage, OutputMode, ToolCallDelta
from anabranch.messages.output import GrowingOutput
from anabranch.testing import ScriptedBackend
from anabranch.tools import ToolResult


class City(BaseModel):
    name: str
    people: int = 0


PARIS = City(name="Paris", people=2)
MODES: tuple[OutputMode, ...] = ("text", "schema", "grammar", "tool")
EACH_MODE = pytest.mark.parametrize("mode", MODES)


class Seen(View):
    """Records the hooks for typed output, and the tools' names."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.values: list[Any] = []
        self.growing: GrowingOutput[Any] | None = None

    def output_begun(self, output: GrowingOutput[Any]) -> None:
        self.growing = output
        self.log.append("begun")
        self.values.clear()

    def output_grew(self) -> None:
        assert self.growing is not None
        if found := self.growing.read():
            self.values.append(found[0])

    def output_failed(self, reason: str) -> None:
        self.log.append(f"failed: {reason}")

    def called(self, call: ToolCall) -> None:
        self.log.append(f"called {call.name}")

    def answered(self, result: ToolResult) -> None:
        self.log.append(f"answered {result.name}")


def call(name: str, n: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{n}", name=name, arguments=arguments, index=n)


def calling(*calls: ToolCall, **fields: Any) -> Message:
    return Message(role="assistant", tool_calls=list(calls), **fields)


def answering(mode: OutputMode, text: str, **fields: Any) -> Message:
    """Return the reply of a model that is asked in this mode."""
    if mode != "tool":
        return Message(role="assistant", content=text, **fields)
    wire = {"id": "c0", "function": {"name": "final_answer", "arguments": text}}
    return calling(ToolCall.from_wire(wire), **fields)


async def ask(
    *replies: Any, conversation: Conversation | None = None, **options: Any
) -> tuple[OutputMessage[City], ScriptedBackend]:
    backend = ScriptedBackend(*replies)
    options.setdefault("output_type", City)
    async with asyncio.timeout(10), Commander() as commander:
        conversation = Conversation() if conversation is None else conversation
        exchange: Any = respond(backend, conversation, **options)
        return await commander.run(exchange), backend


@tool(read_only=True)
async def look(place: str) -> str:
    """Look somewhere."""
    return f"seen {place}"


@EACH_MODE
async def test_a_reply_that_does_not_fit_is_asked_for_again(mode: OutputMode) -> None:
    """The model reads the reason; the conversation has both answers and is valid."""
    view, conversation = Seen(), Conversation()
    wrong, right = answering(mode, '{"people": 1}'), answering(mode, PARIS.model_dump_json())

    message, backend = await ask(
        wrong, right, conversation=conversation, view=view, output_mode=mode
    )

    assert message.output == PARIS
    assert message.output_text == '{"name":"Paris","people":2}'
    assert view.log == ["begun", "failed: name: Field required", "begun"]
    assert view.values[-1] == PARIS
    assert "name: Field required" in (backend.requests[1].messages[-1].content or "")
    roles = [each.role for each in conversation]
    replied = ["assistant", "tool" if mode == "tool" else "user", "assistant"]
    assert roles == ([*replied, "tool"] if mode == "tool" else replied)


@EACH_MODE
async def test_after_all_retries_the_error_has_the_reply(mode: OutputMode) -> None:
    """The conversation stays valid: each call has its result."""
    conversation = Conversation()
    wrong = answering(mode, '{"name": 5}')

    with pytest.raises(
        OutputInvalid, match=r"City: name: Input should be a valid string"
    ) as caught:
        await ask(wrong, wrong, conversation=conversation, output_mode=mode, output_retries=1)

    assert isinstance(caught.value.message, Message)
    calls = [each.id for message in conversation for each in message.tool_calls]
    assert len(calls) == sum(message.role == "tool" for message in conversation)


@EACH_MODE
@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"refusal": "I will not."}, Refused, "I will not."),
        ({"finish_reason": "content_filter"}, ContentFiltered, "Pa"),
        ({"finish_reason": "length"}, ReplyTruncated, "Pa"),
    ],
)
async def test_a_reply_that_another_request_would_not_improve_is_an_error_at_once(
    mode: OutputMode, fields: dict[str, Any], kind: type[BadResponse], words: str
) -> None:
    """The error has the model's words and its reply, and it can be pickled."""
    text = "" if "refusal" in fields else '{"name": "Pa'
    reply: Any = answering(mode, text, **fields) if text else Message(role="assistant", **fields)
    if text and mode == "tool":  # the call breaks off
        piece = ToolCallDelta(0, "c0", "final_answer", text)
        reply = [Delta(tool_calls=[piece]), Delta(**fields), Delta(done=True)]

    with pytest.raises(kind, match=words) as caught:
        await ask(reply, output_mode=mode)

    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is kind
    assert (str(copy), copy.message) == (str(caught.value), caught.value.message)


@EACH_MODE
async def test_validators_change_the_output_or_ask_again(mode: OutputMode) -> None:
    """In their order, plain and async. Their reason goes to the model like any other."""

    def known(city: City) -> City:
        if city.name != "Paris":
            raise ModelRetry(f"there is no {city.name}")
        return city

    async def counted(city: City) -> City:
        await asyncio.sleep(0)
        return city.model_copy(update={"people": city.people + 1})

    view, conversation = Seen(), Conversation()
    rome, paris = answering(mode, '{"name": "Rome"}'), answering(mode, PARIS.model_dump_json())
    message, _ = await ask(
        *(rome, paris),
        conversation=conversation,
        view=view,
        output_mode=mode,
        output_validators=[known, counted],
    )

    assert message.output == City(name="Paris", people=3)
    assert view.log[1] == "failed: there is no Rome"
    assert "there is no Rome" in (conversation.messages[1].content or "")


async def test_the_conversation_is_valid_if_a_validator_raises_or_is_cancelled() -> None:
    """Its own exception is that of the exchange."""

    def broken(city: City) -> City:
        raise LookupError("no map")

    conversation = Conversation()
    with pytest.raises(LookupError, match="no map"):
        await ask(
            answering("tool", '{"name": "Rome"}'),
            conversation=conversation,
            output_mode="tool",
            output_validators=[broken],
        )
    assert [each.role for each in conversation] == ["assistant", "tool"]


async def test_a_validator_that_forgets_to_return_is_a_mistake() -> None:
    """It is not the model's."""
    with pytest.raises(ConfigurationError, match="must return the output"):
        await ask('{"name": "Rome"}', output_validators=[lambda city: None])


@EACH_MODE
async def test_tools_run_before_the_answer(mode: OutputMode) -> None:
    """The view sees their calls, and not that of `final_answer`."""
    if mode == "grammar":
        with pytest.raises(ConfigurationError, match=r"'grammar' is not possible.*these tools"):
            await ask("", tools=[look], output_mode=mode)
        return
    view = Seen()
    first = calling(call("look", place="Rome"))

    message, backend = await ask(
        first, answering(mode, '{"name": "Rome"}'), tools=[look], view=view, output_mode=mode
    )

    assert message.output == City(name="Rome")
    assert view.log == ["begun", "called look", "answered look", "begun"]
    if mode == "tool":
        assert backend.requests[0].options == {"tool_choice": "required"}
        assert [each.name for each in backend.requests[0].tools] == ["look", "final_answer"]


async def test_other_calls_of_the_answering_reply_run() -> None:
    """All results are in the conversation, and the model is not asked again."""
    conversation = Conversation()
    reply = calling(call("look", 0, place="Rome"), call("final_answer", 1, name="Rome"))

    message, backend = await ask(reply, tools=[look], conversation=conversation, output_mode="tool")

    assert message.output.name == "Rome"
    assert [each.content for each in conversation][1:] == ["seen Rome", "The answer was accepted."]
    assert len(backend.requests) == 1


async def test_the_name_of_the_final_answer_does_not_collide() -> None:
    """A tool of the user keeps its name."""

    @tool
    def final_answer() -> str:
        return "mine"

    message, backend = await ask(
        calling(call("final_answer")),
        calling(call("final_answer_2", name="Rome")),
        tools=[final_answer],
        output_mode="tool",
    )

    assert message.output.name == "Rome"
    assert [each.name for each in backend.requests[0].tools] == ["final_answer", "final_answer_2"]


async def test_out_of_rounds_only_the_final_answer_can_be_called() -> None:
    """The choice is forced."""
    _, backend = await ask(
        calling(call("look", place="Rome")),
        calling(call("final_answer", name="Rome")),
        tools=[look],
        output_mode="tool",
        max_rounds=1,
    )

    forced = {"type": "function", "function": {"name": "final_answer"}}
    assert backend.requests[1].options["tool_choice"] == forced


async def test_a_model_that_answers_in_text_instead_of_a_call_is_understood() -> None:
    """Some servers do not know `tool_choice`."""
    message, _ = await ask('{"name": "Rome"}', output_mode="tool")

    assert message.output.name == "Rome"


async def test_text_is_a_string_without_an_instruction() -> None:
    """A reply that was cut off is an error, though."""
    message, backend = await ask("Hello!", output_type=str)

    assert message.output == "Hello!"
    assert list(backend.requests[0].messages) == []
    with pytest.raises(ReplyTruncated):
        await ask(Message(role="assistant", content="He", finish_reason="length"), output_type=str)


async def test_a_word_needs_no_quotes() -> None:
    """Models that are asked for one of several words omit them. JSON that does not fit is wrong."""
    kind: Any = Literal["Nile", "Loire"] | dict[str, int]

    message, _ = await ask("Nile\n", output_type=kind)
    assert message.output == "Nile"

    for wrong in "Rhine", '{"Nile": "long"}':
        with pytest.raises(OutputInvalid):
            await ask(wrong, output_type=kind, output_retries=0)


@pytest.mark.parametrize("mode", ["text", "tool"])
def test_a_cancel_at_any_moment_leaves_a_valid_conversation(mode: OutputMode) -> None:
    """Each call has its result, and no other node or stream is left."""
    ended: set[int] = set()

    async def main(steps: int) -> None:
        def check(city: City) -> City:
            if city.name == "Rome":
                raise ModelRetry("not Rome")
            return city

        conversation = Conversation()
        look_first = calling(call("look", place="Rome"))
        answers = (answering(mode, f'{{"name": "{name}"}}') for name in ("Rome", "Paris"))
        backend = ScriptedBackend(look_first, *answers, size=None)
        async with Commander() as commander:
            node: Any = respond(
                backend,
                conversation,
                [look],
                output_type=City,
                output_mode=mode,
                output_validators=[check],
            )
            commander.call_handler(node)
            for _ in range(steps):
                await asyncio.sleep(0)
            node.cancel()
        ended.add(len(conversation))
        assert backend.opened == backend.closed
        waiting: list[str | None] = []
        for message in conversation:
            if message.role == "tool":
                waiting.remove(message.tool_call_id)
            else:
                assert waiting == []
                waiting = [each.id for each in message.tool_calls]
        assert waiting == []

    for steps in range(0, 90, 2):
        asyncio.run(main(steps))
    assert {0, 2} < ended


async def test_the_result_of_a_tool_that_ends_the_turn_is_the_output_if_it_fits() -> None:
    """Otherwise the error has the result."""

    @tool(ends_turn=True)
    def hand_over(to: str) -> str:
        return '{"name": "Rome"}' if to == "map" else "bye"

    message, _ = await ask(calling(call("hand_over", to="map")), tools=[hand_over])
    assert message.output == City(name="Rome")
    with pytest.raises(OutputInvalid, match=r"result of hand_over.*'bye'"):
        await ask(calling(call("hand_over", to="Bob")), tools=[hand_over])


async def test_validators_without_a_type_see_the_text_and_a_mode_needs_a_type() -> None:
    """As for an agent. Arguments are never ignored."""

    def short(text: str) -> str:
        if len(text) > 3:
            raise ModelRetry("too long")
        return text.upper()

    backend, conversation = ScriptedBackend("long text", "ok"), Conversation()
    conversation.add("?")
    validators: dict[str, Any] = {"output_validators": [short]}
    async with Commander() as commander:
        message: Any = await commander.run(respond(backend, conversation, **validators))
    assert message.output == "OK"
    mode: dict[str, Any] = {"output_mode": "schema"}
    with pytest.raises(ConfigurationError, match="output_mode= needs output_type="):
        async with Commander() as commander:
            await commander.run(respond(backend, conversation, **mode))
    with pytest.raises(ConfigurationError, match="output_mode= needs output_type="):
        await backend.complete(conversation.request(), **mode)


async def test_a_format_that_writes_tools_into_the_prompt_needs_the_text() -> None:
    """It knows no tool that must be called."""
    with pytest.raises(ConfigurationError, match="Use 'text'"):
        await ask("", tools=[look], formats=[ReAct()], output_mode="tool")


async def test_an_own_response_format_is_refused() -> None:
    """It would contradict the type."""
    with pytest.raises(ConfigurationError, match="not both"):
        await ask("", response_format={"type": "json_object"})


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_the_arguments_of_the_final_answer_grow_like_text(size: int) -> None:
    """The view reads values of its first call only, and its complete value at the end."""
    view = Seen()
    reply = calling(
        *(call("look", 0, place="Rome"), call("final_answer", 1, name="Paris", people=2)),
        call("final_answer", 2, name="Rome"),
        content="I know.",
    )

    backend = ScriptedBackend(reply, size=size)
    async with Commander() as commander:
        message = await commander.run(
            respond(backend, Conversation(), [look], view, output_type=City, output_mode="tool")
        )

    assert message.output == view.values[-1] == PARIS
    assert all(PARIS.name.startswith(value.name) for value in view.values)


async def test_text_before_a_call_is_not_output() -> None:
    """A new request begins a new output."""
    view = Seen()
    first = calling(call("look", place="Rome"), content='{"name": "Guess"}')

    await ask(first, '{"name": "Rome"}', tools=[look], view=view)

    assert [value.name for value in view.values][-1] == "Rome"
    assert not any(value.name == "Guess" for value in view.values)


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancel_while_a_validator_waits_leaves_a_valid_conversation(
    mode: OutputMode,
) -> None:
    """The reply and the results of its calls are in it."""
    waits, conversation = asyncio.Event(), Conversation()

    async def forever(city: City) -> City:
        waits.set()
        await asyncio.Event().wait()
        return city

    backend = ScriptedBackend(answering(mode, '{"name": "Rome"}'))
    async with Commander() as commander:
        node = commander.call_handler(
            respond(
                backend,
                conversation,
                output_type=City,
                output_mode=mode,
                output_validators=[forever],
            )
        )
        await waits.wait()
        node.cancel()

    roles = ["assistant", "tool"] if mode == "tool" else ["assistant"]
    assert [each.role for each in conversation] == roles


async def test_a_message_with_output_is_stored_as_a_plain_message() -> None:
    """The conversation, dumps and the wire do not contain the output."""
    conversation = Conversation()
    message, _ = await ask('{"name": "Rome"}', conversation=conversation)

    assert "output" not in message.model_dump()
    assert message.to_wire() == {"role": "assistant", "content": '{"name": "Rome"}'}
    assert type(conversation.messages[-1]) is Message
    assert pickle.loads(pickle.dumps(message)).output == message.output
