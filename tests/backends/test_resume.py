"""`resume="continue"`: the requests after a broken reply, and their sum."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.byte_server import ByteServer, http_response
from support.scripted_server import DONE, Reply, Step, chunk, event, text
from support.wire_backends import ASK, WireBackends, backend_error, make_request, wire

from anabranch.backends import ModelBackend, Retries, connect
from anabranch.commander import (
    BackendUnavailable,
    BadResponse,
    ContextTooLong,
    StreamInterrupted,
)
from anabranch.messages import Delta, Message, Request, Usage
from anabranch.testing import ScriptedBackend
from anabranch.tools import tool

__all__ = ["wire"]  # the fixture

SCHEMA = {"type": "json_schema", "json_schema": {"name": "City", "schema": {"type": "object"}}}
ONCE = Reply([chunk({"content": '{"a": '}), Step.DROP])
GRAMMARS: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": SCHEMA},
    "structured_outputs": {"structured_outputs": {"regex": "a+"}},
    "extra": {"extra": {"guided_choice": ["a", "b"]}},
    "grammar": {"extra": {"grammar": 'root ::= "a"'}},
    "empty schema": {"extra": {"guided_json": {}}},  # any JSON, and JSON alone
}


@pytest.mark.parametrize("by_default", [True, False])
@pytest.mark.parametrize("name", GRAMMARS)
async def test_a_reply_that_follows_a_grammar_does_not_go_on(
    wire: WireBackends, name: str, *, by_default: bool
) -> None:
    """The server would start the grammar again in the middle of the JSON."""
    options = GRAMMARS[name]
    wire.server.script(ONCE, text("1}"))
    backend = wire.connect(resume="continue", **(options if by_default else {}))

    with pytest.raises(StreamInterrupted) as caught:
        await backend.complete(ASK if by_default else make_request(**options))

    assert caught.value.partial.content == '{"a": '
    assert len(wire.server.requests) == 1


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


async def test_a_reply_that_must_call_a_tool_does_not_go_on(wire: WireBackends) -> None:
    """A forced call follows a grammar; an optional one does not."""
    for choice, requests in ("required", 1), ("auto", 2):
        wire.server.requests.clear()
        wire.server.script(ONCE, text("1}"))
        request = Request(ASK.messages, [look], {"tool_choice": choice})
        try:
            await wire.connect(resume="continue").complete(request)
        except StreamInterrupted:
            assert requests == 1
        assert len(wire.server.requests) == requests


async def test_a_refusal_does_not_go_on(wire: WireBackends) -> None:
    """The rest would come as text after the refusal."""
    wire.server.script(Reply([chunk({"refusal": "I can"}), Step.DROP]), text("not"))

    with pytest.raises(StreamInterrupted):
        await wire.connect(resume="continue").complete(ASK)

    assert len(wire.server.requests) == 1


async def test_plain_text_as_a_format_is_no_grammar(wire: WireBackends) -> None:
    """Neither is an option with the value None."""
    wire.server.script(Reply([chunk({"content": "Once "}), Step.DROP]), text("upon"))
    backend = wire.connect(resume="continue", response_format=SCHEMA)

    for taken_back in None, {"type": "text"}:
        message = await backend.complete(make_request(response_format=taken_back))
        assert message.content == "Once upon"
        wire.server.script(Reply([chunk({"content": "Once "}), Step.DROP]), text("upon"))


async def test_the_rest_may_be_as_long_as_what_is_left(wire: WireBackends) -> None:
    """For each place of the bound; counted by usage, or by deltas."""
    spent = {"prompt_tokens": 5, "completion_tokens": 12}
    told = [chunk({"content": "Once "}, usage=spent), Step.DROP]
    counted = [*[chunk({"content": "a"})] * 12, Step.DROP]
    for steps in told, counted:
        wire.server.requests.clear()
        wire.server.script(Reply(steps), text("upon"))
        backend = wire.connect(
            resume="continue", max_tokens=20, extra={"max_completion_tokens": 30, "n_keep": 4}
        )
        await backend.complete(make_request(min_tokens=9, extra={"top_a": 1}))

        first, second = (got.body for got in wire.server.requests)
        bounds = {"max_tokens": 20, "max_completion_tokens": 30, "min_tokens": 9}
        rest = {"max_tokens": 8, "max_completion_tokens": 18, "min_tokens": 0}
        assert first.items() >= (bounds | {"n_keep": 4, "top_a": 1}).items()
        assert second.items() >= (rest | {"n_keep": 4, "top_a": 1}).items()


async def test_usage_is_that_of_all_attempts(wire: WireBackends) -> None:
    """Broken attempts are paid for too."""
    spent = {"prompt_tokens": 5, "completion_tokens": 1}
    wire.server.script(
        Reply([chunk({"content": "Once "}, usage=spent), Step.DROP]), text("upon", usage=(6, 2))
    )

    message = await wire.connect(resume="continue").complete(ASK)

    assert message.usage == Usage(input_tokens=11, output_tokens=3)


THOUGHTS = [chunk({"reasoning_content": "Hm, "}), chunk({"reasoning": "well"})]


async def test_what_came_of_the_reasoning_is_kept(wire: WireBackends) -> None:
    """In a message without content."""
    wire.server.script(Reply([*THOUGHTS, Step.DROP]))

    failure = await backend_error(wire.connect())

    assert isinstance(failure, StreamInterrupted)
    assert failure.partial == Message(role="assistant", reasoning="Hm, well")


async def test_a_reply_that_only_reasoned_begins_again(wire: WireBackends) -> None:
    """The same request is sent, also with a grammar, because no text has arrived."""
    wire.server.script(
        Reply([*THOUGHTS, Step.DROP]),
        Reply([chunk({"reasoning": "Ah."}), chunk({"content": "{}"}), chunk(finish="stop"), DONE]),
    )
    backend = wire.connect(resume="continue", max_tokens=50, response_format=SCHEMA)

    message = await backend.complete(ASK)

    assert (message.reasoning, message.content) == ("Hm, wellAh.", "{}")
    first, second = (got.body for got in wire.server.requests)
    assert first == second


@pytest.mark.parametrize(
    "rest",
    [
        Reply(
            [chunk({"reasoning": "upon"}), chunk({"reasoning": " a"}), chunk(finish="stop"), DONE]
        ),
        Reply([chunk({"reasoning": "upon a"}, "stop"), DONE]),
        Reply(
            [chunk({"reasoning": "Ah."}), chunk({"content": "Once"}), chunk(finish="stop"), DONE]
        ),
    ],
)
async def test_a_text_that_goes_on_as_reasoning_is_not_lost(
    wire: WireBackends, rest: Reply
) -> None:
    """Servers that parse reasoning may take the rest for reasoning: the reply fails."""
    wire.server.script(Reply([*THOUGHTS, chunk({"content": "Once "}), Step.DROP]), rest)

    failure = await backend_error(wire.connect(resume="continue"))

    assert isinstance(failure, StreamInterrupted)
    assert (failure.partial.reasoning, failure.partial.content) == ("Hm, well", "Once ")
    assert len(wire.server.requests) == 2


async def test_a_text_that_goes_on_may_be_followed_by_reasoning(wire: WireBackends) -> None:
    """After some of the rest has arrived as text."""
    rest = [chunk({"content": "upon"}), chunk({"reasoning": "Ah."}), chunk(finish="stop"), DONE]
    wire.server.script(Reply([chunk({"content": "Once "}), Step.DROP]), Reply(rest))

    message = await wire.connect(resume="continue").complete(ASK)

    assert (message.reasoning, message.content) == ("Ah.", "Once upon")


async def test_what_came_before_nonsense_is_kept(wire: WireBackends) -> None:
    """Also if the reply breaks the protocol."""
    wire.server.script(Reply([*THOUGHTS, chunk({"content": "Hel"}), b"data: {broken\n\n"]))

    failure = await backend_error(wire.connect(resume="continue"))

    assert isinstance(failure, BadResponse)
    assert failure.partial == Message(role="assistant", content="Hel", reasoning="Hm, well")
    assert len(wire.server.requests) == 1


async def test_what_came_before_a_failure_that_will_not_change_is_kept(wire: WireBackends) -> None:
    """It is not retried either."""
    error = {"message": "maximum context length is 9 tokens", "code": 400}
    wire.server.script(Reply([chunk({"content": "Hel"}), event({"error": error})]))

    failure = await backend_error(wire.connect(resume="continue"))

    assert isinstance(failure, StreamInterrupted)
    assert isinstance(failure.__cause__, ContextTooLong)
    assert failure.partial.content == "Hel"
    assert len(wire.server.requests) == 1


async def test_an_answer_of_reasoning_alone_does_not_enter_a_conversation() -> None:
    """A provider would refuse a message without content."""
    from anabranch import Agent, Commander

    backend = ScriptedBackend([Delta(reasoning="Hm"), StreamInterrupted("gone")], "Hello")
    agent = Agent(backend)
    async with Commander() as commander:
        with pytest.raises(StreamInterrupted) as caught:
            await commander.run(agent.call("Hi"))
        await commander.run(agent.call("Hi again"))

    assert caught.value.partial.reasoning == "Hm"
    assert all(message.content for message in backend.requests[-1].messages)


HI = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CUTS = {
    "before the status": (b"", "before it answered"),
    "in the head": (HEAD[:30], "before it answered"),
    "in a chunk": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nfff\r\n" + HI,
        "in the middle of the reply",
    ),
    "between chunks": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(HI), HI),
        "in the middle of the reply",
    ),
    "before its length": (
        HEAD + b"Content-Length: 999\r\n\r\n" + HI,
        "in the middle of the reply",
    ),
    "before the end mark": (http_response(HI), "before the reply was complete"),
}


@pytest.mark.parametrize("kind", ["http", "openai"])
@pytest.mark.parametrize("where", CUTS)
async def test_a_cut_connection_is_told_in_words(kind: str, where: str) -> None:
    """The error has the text so far."""
    raw, words = CUTS[where]
    async with asyncio.timeout(200), ByteServer(lambda _: [raw]) as server:
        spec = server.url if kind == "http" else "openai:m"
        address = {} if kind == "http" else {"base_url": server.url}
        model = "m" if kind == "http" else None
        async with connect(
            spec, model=model, api_key="sk-1234567", retries=Retries(attempts=1), **address
        ) as backend:
            with pytest.raises((StreamInterrupted, BackendUnavailable)) as caught:
                await backend.complete(ASK)

    assert words in str(caught.value)
    assert "400" not in str(caught.value).replace(server.url, "")
    assert "\n" not in str(caught.value)
    if HI in raw:
        assert isinstance(caught.value, StreamInterrupted)
        assert caught.value.partial.content == "Hi"


class Writer(ModelBackend):
    """Writes `a` for each token, up to its limit, and breaks off after those in `cuts`."""

    def __init__(self, cuts: list[tuple[int, bool]], *, each: int, **settings: Any) -> None:
        settings["retries"] = Retries(attempts=len(cuts) + 1, backoff=0)
        super().__init__("m", resume="continue", **settings)
        self.cuts = cuts
        self.each = each
        self.told: list[int] = []  # tokens, of attempts that sent usage
        self.estimated = False

    def continuation(self, request: Request, partial: Message) -> Request | None:
        return Request([*request.messages, partial], options=request.options)

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        most = {**self.default_options, **request.options}["max_tokens"]
        cut, tells = self.cuts.pop(0) if self.cuts else (most, True)
        written = 0
        while written < min(cut, most):
            count = min(self.each, most - written)
            written += count
            usage = Usage(input_tokens=1, output_tokens=written) if tells else None
            yield Delta("a" * count, usage=usage)
        if written:
            self.told.append(written)
            self.estimated = self.estimated or not tells
        if written < most:
            raise BackendUnavailable("down")
        yield Delta(usage=Usage(input_tokens=1, output_tokens=written), finish_reason="length")


@given(
    cuts=st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=4),
    most=st.integers(1, 40),
    each=st.integers(1, 3),
)
async def test_however_often_it_breaks_off_a_reply_is_as_long_as_it_may_be(
    cuts: list[tuple[int, bool]], most: int, each: int
) -> None:
    """At most one token longer, because one is always requested; the usage adds up."""
    backend = Writer([*cuts], each=each, max_tokens=most)

    message = await backend.complete(ASK)

    written = len(message.content or "")
    assert written == sum(backend.told)
    assert message.usage is not None
    if not backend.estimated:
        assert most <= written <= most + len(cuts)
        assert message.usage == Usage(input_tokens=len(backend.told), output_tokens=written)
