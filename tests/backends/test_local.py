"""The local backend on the real small model: its replies, cancellation and order."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.local_model import Tool, count_chunks, make_request, story_request, wait_idle

from anabranch.backends import Limits, connect
from anabranch.backends._local import LocalBackend, LocalEngine
from anabranch.commander import (
    BackendUnavailable,
    ConfigurationError,
    ContextTooLong,
    StreamInterrupted,
)
from anabranch.messages import Delta, Message, Request, ToolCall

pytestmark = pytest.mark.usefixtures("small_model")
PATIENCE = 240.0  # seconds; the first test of a new machine fetches the model
FRANCE = "What is the capital of France?"


def tool(name: str, description: str, *fields: str) -> Tool:
    properties = {field: {"type": "string"} for field in fields}
    return Tool(
        name, description, {"type": "object", "properties": properties, "required": [*fields]}
    )


WEATHER = tool("get_current_weather", "Get the current weather in a given location.", "location")
TIME = tool("get_time", "Get the current local time in a place.", "place")


async def deltas_of(backend: LocalBackend, request: Request) -> list[Delta]:
    async with asyncio.timeout(PATIENCE), aclosing(backend.stream(request)) as deltas:
        return [delta async for delta in deltas]


async def said(request: Request, **settings: Any) -> str:
    async with LocalBackend(**settings) as backend:
        return "".join(delta.text for delta in await deltas_of(backend, request))


async def complete(request: Request, **settings: Any) -> Message:
    async with asyncio.timeout(PATIENCE), LocalBackend(**settings) as backend:
        return await backend.complete(request)


# --- replies


async def test_a_question_is_answered_in_pieces() -> None:
    """Text in pieces, then the finish reason with the usage."""
    async with LocalBackend() as backend:
        deltas = await deltas_of(backend, make_request(FRANCE))

    assert "Paris" in "".join(delta.text for delta in deltas)
    assert sum(1 for delta in deltas if delta.text) > 3
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].done
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.input_tokens > 10
    assert deltas[-1].usage.output_tokens > 5


async def test_a_tool_is_called_in_pieces() -> None:
    """First id and name, then the arguments in pieces."""
    async with LocalBackend() as backend:
        deltas = await deltas_of(
            backend, make_request("What is the weather in Paris?", WEATHER, TIME)
        )

    head, *pieces = [call for delta in deltas for call in delta.tool_calls]
    assert (head.index, head.name, head.arguments) == (0, WEATHER.name, "")
    assert head.id
    assert len(pieces) > 1
    assert json.loads("".join(piece.arguments for piece in pieces)) == {"location": "Paris"}
    assert not any(delta.text for delta in deltas)
    assert deltas[-1].finish_reason == "tool_calls"


async def test_a_question_that_needs_no_tool_is_answered_as_if_there_were_none() -> None:
    """The tools do not make the answer worse."""
    assert await said(make_request(FRANCE, WEATHER, TIME)) == await said(make_request(FRANCE))


async def test_a_tools_result_is_answered_in_text() -> None:
    """With the result, although the question alone would call the tool again."""
    question = Message(role="user", content="What is the weather in Paris?")
    call = ToolCall(id="a", name=WEATHER.name, arguments={"location": "Paris"})
    called = Message(role="assistant", tool_calls=[call])
    result = Message(role="tool", tool_call_id="a", content="12 degrees and light rain")

    async with LocalBackend() as backend:
        deltas = await deltas_of(backend, Request([question, called, result], [WEATHER]))

    assert "12 degrees" in "".join(delta.text for delta in deltas)
    assert not any(delta.tool_calls for delta in deltas)


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("none", []),
        ("required", ["get_time"]),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_time"]),
    ],
)
async def test_tool_choice_is_obeyed(choice: Any, called: list[str]) -> None:
    """For any question."""
    question = "What is the weather?" if isinstance(choice, dict) else "What time is it in Rome?"
    request = make_request(question, WEATHER, TIME, tool_choice=choice, max_tokens=30)

    message = await complete(request)

    assert [call.name for call in message.tool_calls] == called


@pytest.mark.parametrize(
    "choice", ["sometimes", {"type": "function", "function": {"name": "no_such_tool"}}]
)
async def test_a_tool_choice_that_is_none_is_an_error(choice: Any) -> None:
    """It is the caller's error, raised before the model starts."""
    with pytest.raises(ConfigurationError, match="tool_choice"):
        await complete(make_request(FRANCE, WEATHER, tool_choice=choice))


async def test_a_warmed_model_answers_as_ever_and_reads_little() -> None:
    """S19: the beginning of requests is read in advance; a cancel loses none of it."""
    tools = [WEATHER, TIME]
    async with asyncio.timeout(PATIENCE), LocalBackend() as backend:
        warming = asyncio.create_task(backend.warm(Request([], tools)))
        await asyncio.sleep(0)
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await backend.warm(Request([], tools))
        await backend.warm(Request([], tools))
        # A question that no other test asks: the engine reads an identical prompt from the start
        # again.
        message = await backend.complete(make_request("What is the weather in Vienna?", *tools))

    assert [call.name for call in message.tool_calls] == [WEATHER.name]
    assert message.usage is not None
    assert message.usage.cached_input_tokens > message.usage.input_tokens * 2 // 3


# --- options


async def test_generation_stops_at_a_stop_string_and_leaves_it_out() -> None:
    """Also at one of several tokens."""
    assert await said(make_request(FRANCE), stop=[" is Par"]) == "The capital of France"
    assert await said(make_request(FRANCE, stop=" of")) == "The capital"


async def test_max_tokens_cuts_a_reply_off() -> None:
    """The finish reason says so."""
    message = await complete(story_request(max_tokens=7))
    assert message.finish_reason == "length"
    assert message.usage is not None
    assert message.usage.output_tokens == 7


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "A tool is a function that a model may call, and each call has its own time limit. ",
            id="English",
            marks=pytest.mark.long,
        ),
        pytest.param(
            '{"id": 4711, "price": 12.5, "tags": ["new", "sale"], "active": true}, ', id="JSON"
        ),
        pytest.param(
            "ツールとは、モデルが呼び出すことのできる関数です。",
            id="Japanese",
            marks=pytest.mark.long,
        ),
    ],
)
async def test_estimates_learn_how_the_model_counts(text: str) -> None:
    """One reply corrects the estimate of a longer prompt; no prompt exceeds the upper bound."""
    async with LocalBackend(limits=Limits(budget=1e6), max_tokens=1) as backend:
        for count in 2, 4:
            request = make_request(text * count)
            estimate = backend._estimator.estimate(request, backend.default_options)
            usage = (await backend.complete(request)).usage
            assert usage is not None
            assert estimate.most is not None
            assert usage.input_tokens <= estimate.most.input_tokens
        # It counts up to twice as many tokens as others for scripts that it hardly knows.
        assert estimate.tokens - 1 == pytest.approx(usage.input_tokens, rel=0.25)


async def test_at_temperature_0_a_reply_repeats() -> None:
    """With any other requests in between."""
    first = await said(story_request(max_tokens=30))
    await said(story_request("a bear", max_tokens=3))
    assert await said(story_request(max_tokens=30)) == first


async def test_a_seed_repeats_a_reply_and_another_seed_gives_another() -> None:
    """At a temperature above 0."""
    replies = [
        await said(story_request(max_tokens=6), temperature=1.0, seed=seed) for seed in (1, 2, 1)
    ]
    assert replies[0] == replies[2] != replies[1]


async def test_a_response_format_is_obeyed() -> None:
    """A reply under a JSON schema is JSON of that schema."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    reply = json.loads(await said(make_request(FRANCE, response_format=wanted, max_tokens=60)))
    assert "Paris" in reply["city"]


@pytest.mark.parametrize("options", [{"tempo": 1}, {"response_format": "json"}])
def test_an_option_nobody_knows_is_refused_when_the_backend_is_made(options: Any) -> None:
    """The error is one line with its name."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        LocalBackend(**options)


async def test_an_option_of_a_wrong_type_is_refused() -> None:
    """As a wrong setting, not as a failure of the model."""
    with pytest.raises(ConfigurationError, match="options"):
        await said(make_request(FRANCE, top_k="many"))


async def test_a_conversation_that_does_not_fit_is_an_error_that_says_so() -> None:
    """The model then serves the next request."""
    with pytest.raises(ContextTooLong):
        await said(make_request("word " * 12_000))
    assert await said(make_request(FRANCE, max_tokens=2)) == "The capital"


# --- stopping and turns


async def test_leaving_a_stream_stops_the_model(small_model: LocalEngine) -> None:
    """The current token is dropped, no other one is drawn, and the thread waits for work."""
    async with (
        asyncio.timeout(PATIENCE),
        LocalBackend(max_tokens=4000) as backend,
        count_chunks(small_model) as drawn,
    ):
        async with aclosing(backend.stream(story_request())) as deltas:
            async for delta in deltas:
                if delta.text:
                    break
        made = drawn.chunks
        assert drawn.under_way == 0
        assert 0 < made < 4000
        await wait_idle(small_model)
        assert drawn.chunks == made


async def test_a_cancelled_reader_stops_the_model(small_model: LocalEngine) -> None:
    """The next request is served."""
    async with (
        asyncio.timeout(PATIENCE),
        LocalBackend() as backend,
        count_chunks(small_model) as drawn,
    ):
        begun = asyncio.Event()

        async def read() -> None:
            async with aclosing(backend.stream(story_request(max_tokens=4000))) as deltas:
                async for _ in deltas:
                    begun.set()

        reader = asyncio.create_task(read())
        await begun.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        made = drawn.chunks
        assert drawn.under_way == 0
        assert 0 < made < 4000
        await wait_idle(small_model)
        assert drawn.chunks == made
        assert "Paris" in ((await backend.complete(make_request(FRANCE))).content or "")


async def test_requests_made_together_are_served_in_order_and_do_not_mix(
    small_model: LocalEngine,
) -> None:
    """One at a time, each with the answer that it gets alone."""
    ended: list[int] = []
    questions = [FRANCE, "What is the capital of Japan?", FRANCE]

    async def read(backend: LocalBackend, number: int) -> str:
        deltas = await deltas_of(backend, make_request(questions[number], max_tokens=12))
        ended.append(number)
        return "".join(delta.text for delta in deltas)

    async with LocalBackend() as backend, count_chunks(small_model) as drawn:
        replies = await asyncio.gather(*(read(backend, number) for number in range(3)))

    assert ended == [0, 1, 2]
    assert drawn.most_at_once == 1
    assert "Tokyo" in replies[1]
    assert "Paris" in replies[0]
    assert replies[0] == replies[2]


async def test_the_loop_turns_while_the_model_speaks() -> None:
    """The engine's thread releases the interpreter."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with LocalBackend() as backend:
        turner = asyncio.create_task(turn())
        await deltas_of(backend, story_request(max_tokens=20))
        turner.cancel()
    assert turns > 1000


async def test_a_reply_breaks_off_when_the_last_user_closes_the_model() -> None:
    """The error has the text so far. The test loads and frees its own copy of the model."""
    async with asyncio.timeout(PATIENCE):
        backend = LocalBackend(in_situ_quant="Q8_0")
        with pytest.raises(StreamInterrupted) as caught:
            async with aclosing(backend.stream(story_request())) as deltas:
                async for delta in deltas:
                    if delta.text:
                        closing = asyncio.create_task(backend.aclose())
        await closing
        assert caught.value.partial.content
        assert "Paris" in ((await backend.complete(make_request(FRANCE))).content or "")
        await backend.aclose()


async def test_a_silent_model_runs_into_the_timeout() -> None:
    """Of the whole reply, if set; the error has the text so far."""
    from anabranch.backends import Timeouts

    async with LocalBackend() as warm, LocalBackend(timeouts=Timeouts(whole=0.5)) as backend:
        await warm.complete(story_request(max_tokens=1))
        with pytest.raises((StreamInterrupted, BackendUnavailable)):
            await deltas_of(backend, story_request(max_tokens=4000))


def test_it_can_be_read_without_a_loop() -> None:
    """The model does not depend on a loop."""
    backend = LocalBackend(max_tokens=12)
    assert "Paris" in "".join(delta.text for delta in backend.stream_sync(make_request(FRANCE)))
    asyncio.run(backend.aclose())


# --- which model


@pytest.mark.parametrize("name", ["nowhere.gguf", "./a/b/nowhere.gguf", "smollm", "org/repo"])
def test_a_model_that_is_not_there_is_an_error_that_says_what_to_name(name: str) -> None:
    """It is raised when the backend is made."""
    with pytest.raises(ConfigurationError, match="GGUF file"):
        connect(f"local:{name}")


def test_a_file_on_a_hub_is_told_from_one_on_the_disk(tmp_path: Path) -> None:
    """By the existence of the file."""
    file = tmp_path / "model.gguf"
    file.touch()

    here = LocalBackend(str(file))._file
    hub = LocalBackend("org/repo/sub/model.gguf")._file

    assert (here.folder, here.file) == (str(tmp_path.resolve()), "model.gguf")
    assert (hub.folder, hub.file) == ("org/repo", "sub/model.gguf")
    assert here.in_situ_quant is None


async def test_a_file_that_is_no_model_is_a_one_line_error(tmp_path: Path) -> None:
    """Without the native backtrace."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"no model at all")
    with pytest.raises(ConfigurationError) as caught:
        await said(make_request(FRANCE), model=str(file))
    assert str(caught.value).startswith("cannot load model.gguf")
    assert "\n" not in str(caught.value)


def test_the_log_setting_of_the_engine_is_left_as_it_was() -> None:
    """It is only changed while the model loads."""
    assert "RUST_LOG" not in os.environ


def test_the_figure_is_the_small_models_alone(tmp_path: Path) -> None:
    """Other models have not been measured."""
    file = tmp_path / "model.gguf"
    file.touch()
    assert "of 40" in LocalBackend().tool_choice_accuracy
    assert LocalBackend(str(file)).tool_choice_accuracy == ""
