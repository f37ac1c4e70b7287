"""Failures on the wire: closed streams, broken connections, refusals, retries, timeouts."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import pytest
from support.clock import advance_clock
from support.scripted_server import DONE, Reply, Step, calls, chunk, event, text
from support.wire_backends import ASK, WireBackends, backend_error, make_request, read_all, wire

from anabranch.backends import Fallback, Limits, Retries, Timeouts
from anabranch.commander import (
    BackendError,
    BackendUnavailable,
    RateLimited,
    StreamInterrupted,
)
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("B1")

__all__ = ["wire"]  # the fixture


async def test_nobody_there_is_unavailable(wire: WireBackends) -> None:
    """The error comes after all attempts."""
    await wire.server.__aexit__()

    failure = await backend_error(wire.connect())

    assert isinstance(failure, BackendUnavailable)
    assert "127.0.0.1" in str(failure)


async def test_leaving_early_closes_the_connection(wire: WireBackends) -> None:
    """The server sees it closed."""
    wire.server.script(Reply([chunk({"content": "a"}), Step.HANG]))

    async with aclosing(wire.connect().stream(ASK)) as deltas:
        assert (await anext(deltas)).text == "a"

    await wire.server.gone.wait()


@pytest.mark.parametrize("before", [[], [chunk({"content": "a"})]], ids=["first", "next"])
async def test_cancelling_the_reader_closes_the_connection(
    wire: WireBackends, before: list[bytes]
) -> None:
    """Before the first delta and after it."""
    got = asyncio.Event()
    wire.server.script(Reply([*before, Step.HANG]))
    backend = wire.connect()

    async def read() -> None:
        async with aclosing(backend.stream(ASK)) as deltas:
            async for _ in deltas:
                got.set()

    reader = asyncio.create_task(read())
    await (got if before else wire.server.asked).wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader

    await wire.server.gone.wait()


async def test_connections_are_used_again(wire: WireBackends) -> None:
    """A reply that was read to its end frees its connection."""
    backend = wire.connect()

    for _ in range(5):
        await read_all(backend)

    assert len({r.headers["Peer"] for r in wire.server.requests}) == 1


async def test_a_drop_in_mid_stream_is_interrupted_with_what_came(wire: WireBackends) -> None:
    """The error has the text and usage; nothing is retried."""
    wire.server.script(Reply([chunk({"content": "Hel"}), chunk({"content": "lo"}), Step.DROP]))

    failure = await backend_error(wire.connect())

    assert isinstance(failure, StreamInterrupted)
    assert failure.partial.content == "Hello"
    assert len(wire.server.requests) == 1


async def test_an_end_without_an_end_mark_is_interrupted(wire: WireBackends) -> None:
    """The connection was closed properly, but the reply is incomplete."""
    wire.server.script(Reply([chunk({"content": "Hel"})]))

    assert isinstance(await backend_error(wire.connect()), StreamInterrupted)


@pytest.mark.parametrize(
    "told",
    [
        {"error": {"message": "oom"}},
        {"error": "oom"},
        {"object": "error", "message": "oom", "code": 500},
        {"error": {"message": "oom"}, "choices": [{"delta": {}, "finish_reason": "error"}]},
    ],
    ids=["error", "text", "object", "finish_reason"],
)
async def test_an_error_in_mid_stream_is_interrupted_with_its_words(
    wire: WireBackends, told: Any
) -> None:
    """For each form that servers use."""
    wire.server.script(Reply([chunk({"content": "Hel"}), event(told)]))

    failure = await backend_error(wire.connect())

    assert isinstance(failure, StreamInterrupted)
    assert "oom" in str(failure)


async def test_a_reply_that_ends_in_an_unnamed_error_is_interrupted(wire: WireBackends) -> None:
    """The finish reason alone shows it."""
    wire.server.script(Reply([chunk({"content": "Hel"}), chunk(finish="error"), DONE]))

    failure = await backend_error(wire.connect())

    assert isinstance(failure, StreamInterrupted)
    assert failure.partial.content == "Hel"


@pytest.mark.parametrize("last", [chunk(finish="stop"), DONE], ids=["finish_reason", "done"])
async def test_what_happens_after_the_end_does_not_matter(wire: WireBackends, last: bytes) -> None:
    """A broken connection after the end loses nothing."""
    wire.server.script(Reply([chunk({"content": "Hi"}), last, Step.DROP]))

    assert (await wire.connect().complete(ASK)).content == "Hi"


@pytest.mark.parametrize(
    "first",
    [
        Reply.error(503, "loading"),
        Reply.error(429, "slowly", Retry_After="0"),
        Reply([Step.DROP]),
        Reply([event({"error": {"message": "overloaded", "code": 503}})]),
        Reply([]),
    ],
    ids=["503", "429", "drop", "error", "empty"],
)
async def test_a_failure_before_the_first_delta_is_tried_again(
    wire: WireBackends, first: Reply
) -> None:
    """Three attempts by default; then the last failure is raised."""
    wire.server.script(first, first, text("Hi"))
    assert (await wire.connect().complete(ASK)).content == "Hi"

    wire.server.script(first)
    wire.server.requests.clear()
    await backend_error(wire.connect())
    assert len(wire.server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_that_will_not_change_is_not_tried_again(
    wire: WireBackends, status: int
) -> None:
    """There is one attempt."""
    wire.server.script(Reply.error(status, "no"))

    await backend_error(wire.connect())

    assert len(wire.server.requests) == 1


async def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(wire: WireBackends) -> None:
    """The error has the time to wait."""
    wire.server.script(Reply.error(429, "tomorrow", Retry_After="86400"))

    failure = await backend_error(wire.connect())

    assert isinstance(failure, RateLimited)
    assert failure.retry_after == 86400


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "900"}, 900),
        ({"Retry_After": "900.5"}, 900.5),
        ({"retry_after_ms": "900000", "Retry_After": "1"}, 900),
        ({"Retry_After": "soon"}, None),
        ({"Retry_After": "-3"}, None),
        ({}, None),
    ],
    ids=["seconds", "fraction", "milliseconds", "words", "negative", "none"],
)
async def test_retry_after_is_read_however_it_is_written(
    wire: WireBackends, headers: dict[str, str], seconds: float | None
) -> None:
    """In seconds, or None if it makes no sense."""
    wire.server.script(Reply.error(429, "slowly", **headers))

    failure = await backend_error(wire.connect(retries=Retries(attempts=1)))

    assert isinstance(failure, RateLimited)
    assert failure.retry_after == seconds


async def test_retry_after_may_be_a_date(wire: WireBackends) -> None:
    """The request waits until then."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=9))
    wire.server.script(Reply.error(429, "slowly", Retry_After=date))

    failure = await backend_error(wire.connect(retries=Retries(attempts=1)))

    assert isinstance(failure, RateLimited)
    assert failure.retry_after == pytest.approx(9 * 3600, abs=60)


@pytest.mark.parametrize("ahead", [-9.0, 0.0, 9.0])
async def test_a_date_of_retry_after_is_that_of_the_servers_clock(
    wire: WireBackends, ahead: float
) -> None:
    """Even if it differs by hours. If the server sends no time, our clock is used."""
    hour, moment = timedelta(hours=1), datetime.now(UTC) + timedelta(hours=ahead)
    dates = {"Date": format_datetime(moment), "Retry_After": format_datetime(moment + hour)}
    wire.server.script(Reply.error(429, "slowly", **dates))
    failure = await backend_error(wire.connect(retries=Retries(attempts=1)))
    assert isinstance(failure, RateLimited)
    assert failure.retry_after == 3600

    later = format_datetime(datetime.now(UTC) + hour)
    wire.server.script(Reply.error(429, "slowly", Date="soon", Retry_After=later))
    failure = await backend_error(wire.connect(retries=Retries(attempts=1)))
    assert isinstance(failure, RateLimited)
    assert failure.retry_after == pytest.approx(3600, abs=60)


@pytest.mark.parametrize("named", [{"code": "insufficient_quota"}, {"type": "insufficient_quota"}])
async def test_a_used_up_quota_is_not_asked_again(
    wire: WireBackends, named: dict[str, str]
) -> None:
    """It is not a rate limit that passes; a `Fallback` asks the next backend."""
    error = {"message": "You exceeded your current quota", **named}
    wire.server.script(Reply.error(429, error, Retry_After="1"))
    backend = wire.connect()

    failure = await backend_error(backend)

    assert (type(failure), failure.status) == (BackendError, 429)
    assert "current quota" in str(failure)
    assert len(wire.server.requests) == 1
    other = ScriptedBackend("Hi")
    assert (await Fallback([backend, other]).complete(ASK)).content == "Hi"


class Passing(Limits):
    """Advances the clock over the pause that a server asks for."""

    held = 0.0

    def slow_down(self, seconds: float) -> None:
        super().slow_down(seconds)
        self.held = seconds
        asyncio.get_running_loop().call_soon(advance_clock, seconds)


async def test_retry_after_is_waited_for(wire: WireBackends) -> None:
    """It replaces the usual pause."""
    wire.server.script(Reply.error(429, "slowly", Retry_After="30"), text("Hi"))
    limits = Passing()

    backend = wire.connect(retries=Retries(backoff=0), limits=limits)

    assert (await backend.complete(ASK)).content == "Hi"
    assert 30 <= limits.held <= 33


async def test_going_on_asks_for_the_rest_of_the_message(wire: WireBackends) -> None:
    """In the form of vLLM and SGLang, with the options of the request."""
    wire.server.script(Reply([chunk({"content": "Once "}), Step.DROP]), text("upon"))

    message = await wire.connect(resume="continue").complete(make_request(seed=3))

    assert message.content == "Once upon"
    first, second = (got.body for got in wire.server.requests)
    said = {"role": "assistant", "content": "Once "}
    go_on = {"continue_final_message": True, "add_generation_prompt": False}
    assert second == first | go_on | {"messages": [*first["messages"], said]}


async def test_a_reply_with_calls_does_not_go_on(wire: WireBackends) -> None:
    """Its position in a call is unknown."""
    begun = calls(("add", '{"a": 1}')).steps[0]
    wire.server.script(Reply([chunk({"content": "So: "}), begun, Step.DROP]), text("no"))

    assert isinstance(await backend_error(wire.connect(resume="continue")), StreamInterrupted)
    assert len(wire.server.requests) == 1


async def test_a_silent_server_is_unavailable(wire: WireBackends) -> None:
    """The first token has a timeout, which starts again with each attempt."""
    wire.server.script(Reply([partial(advance_clock, 30), Step.HANG]))

    failure = await backend_error(wire.connect(timeouts=Timeouts(first_token=30)))

    assert isinstance(failure, BackendUnavailable)
    assert "first token within 30 s" in str(failure)
    assert len(wire.server.requests) == 3
    await wire.server.gone.wait()


async def test_a_server_that_stops_is_interrupted(wire: WireBackends) -> None:
    """The wait between tokens has a timeout; comments do not count as tokens."""
    wire.server.script(Reply([chunk({"content": "a"}), b": ping\n\n", Step.HANG]))

    failure = await backend_error(wire.connect(timeouts=Timeouts(between_tokens=0.05)))

    assert isinstance(failure, StreamInterrupted)
    assert failure.partial.content == "a"
    await wire.server.gone.wait()


async def test_an_endless_reply_is_interrupted(wire: WireBackends) -> None:
    """The whole reply has a timeout, even if tokens arrive."""
    wire.server.script(Reply([chunk({"content": "a"}), Step.HANG]))
    backend = wire.connect(timeouts=Timeouts(whole=30))

    async with aclosing(backend.stream(ASK)) as deltas:
        await anext(deltas)
        advance_clock(30)
        with pytest.raises(StreamInterrupted, match="not complete within 30 s"):
            await anext(deltas)


async def test_a_slow_reader_is_no_late_token(wire: WireBackends) -> None:
    """Only waiting for the server counts."""
    gate = asyncio.Event()
    wire.server.script(Reply([chunk({"content": "a"}), gate, chunk(finish="stop"), DONE]))
    backend = wire.connect(timeouts=Timeouts(between_tokens=30))

    async with aclosing(backend.stream(ASK)) as deltas:
        await anext(deltas)
        advance_clock(60)  # the reader's own time
        gate.set()
        assert [delta async for delta in deltas][-1].done
