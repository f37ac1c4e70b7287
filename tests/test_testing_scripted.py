"""The scripted backend: what is written down is what comes, and every stream is accounted for."""

import asyncio
from contextlib import aclosing

import pytest
from _until import settled
from hypothesis import given
from hypothesis import strategies as st

from anabranch.commander import RateLimited, StreamInterrupted
from anabranch.messages import Delta, Message, Request, ToolCall, Usage
from anabranch.testing import ScriptedBackend, deltas, run_seeded

REQUEST = Request([Message(role="user", content="Hello?")])


async def read(backend: ScriptedBackend, request: Request = REQUEST) -> list[Delta]:
    async with aclosing(backend.stream(request)) as stream:
        return [delta async for delta in stream]


@given(st.text(), st.integers(1, 9), st.none() | st.integers(0, 99))
def test_a_string_is_cut_and_comes_whole(text: str, size: int, seed: int | None) -> None:
    """Whatever the pieces, together they are the text, and the reply ends as a model's does."""
    backend = ScriptedBackend(text, size=size, seed=seed)

    got = run_seeded(lambda: read(backend))

    assert "".join(delta.text for delta in got) == text
    assert all(len(delta.text) <= size for delta in got)
    assert [delta.finish_reason for delta in got if delta.finish_reason] == ["stop"]
    assert got[-1].done


async def test_a_message_comes_with_its_calls_and_usage() -> None:
    """Each part of a message has its deltas."""
    call = ToolCall(id="c1", name="add", arguments={"a": 1, "b": 2})
    usage = Usage(input_tokens=3, output_tokens=5)
    message = Message(
        role="assistant", content="So", reasoning="Hm", tool_calls=[call], usage=usage
    )

    got = await read(ScriptedBackend(message))

    pieces = [piece for delta in got for piece in delta.tool_calls]
    assert (pieces[0].id, pieces[0].name) == ("c1", "add")
    assert "".join(piece.arguments for piece in pieces) == '{"a": 1, "b": 2}'
    assert "".join(delta.reasoning for delta in got) == "Hm"
    assert got[-2].usage == usage
    assert got[-2].finish_reason == "tool_calls"


async def test_replies_come_in_the_order_of_the_requests() -> None:
    """Then `otherwise` answers, and the requests can be looked at."""
    backend = ScriptedBackend("one", lambda request: "two", otherwise="more", size=None)

    texts = [(await read(backend))[0].text for _ in range(4)]

    assert texts == ["one", "two", "more", "more"]
    assert backend.requests == [REQUEST] * 4


async def test_a_function_sees_its_request() -> None:
    """Plain or async, it returns any other reply."""

    async def echo(request: Request) -> str:
        return str(request.messages[-1].content)

    assert (await read(ScriptedBackend(otherwise=echo, size=None)))[0].text == "Hello?"


async def test_an_exception_is_raised_before_the_first_delta_or_in_midstream() -> None:
    """As a reply of its own, or as a step of one."""
    backend = ScriptedBackend(RateLimited("slow down"), ["par", StreamInterrupted("gone")])

    with pytest.raises(RateLimited):
        await read(backend)
    stream = backend.stream(REQUEST)
    assert (await anext(stream)).text == "par"
    with pytest.raises(StreamInterrupted):
        await anext(stream)
    assert (backend.opened, backend.closed) == (2, 2)


async def test_an_event_holds_the_stream_until_the_test_sets_it() -> None:
    """So tests need no sleeps."""
    gate = asyncio.Event()
    backend = ScriptedBackend(["before", gate, *deltas("after", size=None)], size=None)

    async with asyncio.timeout(5), aclosing(backend.stream(REQUEST)) as stream:
        assert (await anext(stream)).text == "before"
        held = asyncio.ensure_future(anext(stream))
        await settled()
        assert not held.done()
        gate.set()
        assert (await held).text == "after"


def test_a_delay_is_of_the_loop_s_clock() -> None:
    """Under a seeded loop it costs no real time."""

    async def main() -> float:
        await read(ScriptedBackend("a" * 10, size=1, delay=60))
        return asyncio.get_running_loop().time()

    assert run_seeded(main) == 12 * 60


async def test_streams_left_early_are_counted_as_closed() -> None:
    """By `aclose` and by cancellation."""
    backend = ScriptedBackend(otherwise=["a", asyncio.Event()])
    async with aclosing(backend.stream(REQUEST)) as stream:
        await anext(stream)
    task = asyncio.create_task(read(backend))
    await settled()
    assert (backend.opened, backend.closed) == (2, 1)

    task.cancel()
    await asyncio.wait((task,))

    assert backend.closed == 2


async def test_a_script_that_is_used_up_says_so() -> None:
    """The message counts."""
    backend = ScriptedBackend("only")
    await read(backend)

    with pytest.raises(LookupError, match="1 replies and this is request 2"):
        await read(backend)


def test_a_size_below_one_is_refused() -> None:
    """It would never come to an end."""
    with pytest.raises(ValueError, match="at least 1"):
        ScriptedBackend("text", size=0)
