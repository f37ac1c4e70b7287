"""The scripted backend sends its script, and counts every stream."""

import asyncio
from contextlib import aclosing
from math import hypot, sqrt
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import settle_loop

from anabranch import Commander
from anabranch.backends import Limits
from anabranch.backends._estimate import Estimator
from anabranch.commander import BudgetExceeded, RateLimited, StreamInterrupted
from anabranch.messages import Delta, Message, Request, ToolCall, Usage
from anabranch.testing import ScriptedBackend, deltas, run_seeded

REQUEST = Request([Message(role="user", content="Hello?")])


async def read(backend: ScriptedBackend, request: Request = REQUEST) -> list[Delta]:
    async with aclosing(backend.stream(request)) as stream:
        return [delta async for delta in stream]


@given(st.text(), st.integers(1, 9), st.none() | st.integers(0, 99))
def test_a_string_is_cut_and_comes_whole(text: str, size: int, seed: int | None) -> None:
    """The pieces join to the text, and the reply ends as a model's does."""
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
    """After the replies, `otherwise` answers. A test can inspect the requests."""
    backend = ScriptedBackend("one", lambda request: "two", otherwise="more", size=None)

    texts = [(await read(backend))[0].text for _ in range(4)]

    assert texts == ["one", "two", "more", "more"]
    assert backend.requests == [REQUEST] * 4


async def test_a_function_sees_its_request() -> None:
    """Plain or async, it returns any other kind of reply."""

    async def echo(request: Request) -> str:
        return str(request.messages[-1].content)

    assert (await read(ScriptedBackend(otherwise=echo, size=None)))[0].text == "Hello?"


async def test_an_exception_is_raised_before_the_first_delta_or_in_midstream() -> None:
    """As a whole reply, or as a step of one."""
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
        await settle_loop()
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
    await settle_loop()
    assert (backend.opened, backend.closed) == (2, 1)

    task.cancel()
    await asyncio.wait((task,))

    assert backend.closed == 2


async def test_a_script_that_is_used_up_says_so() -> None:
    """The error has the number of replies."""
    backend = ScriptedBackend("only")
    await read(backend)

    with pytest.raises(LookupError, match="1 replies and this is request 2"):
        await read(backend)


def test_a_size_below_one_is_refused() -> None:
    """The reply would never end."""
    with pytest.raises(ValueError, match="at least 1"):
        ScriptedBackend("text", size=0)


# --- embeddings

WORDS = st.lists(st.sampled_from([f"word{n}" for n in range(60)]), min_size=1, unique=True)


def cosine(one: list[float], other: list[float]) -> float:
    return sum(map(mul, one, other))


@given(WORDS, WORDS, st.integers(0, 9), st.randoms())
async def test_texts_that_share_words_are_near(one, other, seed, random) -> None:
    """The cosine depends on the number of shared words, and on the number of words."""
    backend = ScriptedBackend(seed=seed, dimensions=1024)
    mixed = random.sample(one, len(one))

    first, second, again = await backend.embed(
        [" ".join(one), ", ".join(other), " ".join(mixed).upper()]
    )

    assert abs(hypot(*first) - 1) < 1e-9
    assert again == first
    near = len({*one} & {*other}) / sqrt(len(one) * len(other))
    assert abs(cosine(first, second) - near) < 0.25  # eight times the random error


@given(st.text(), st.integers(1, 20), st.integers(0, 9))
async def test_any_text_has_a_vector_of_its_own(text: str, dimensions: int, seed: int) -> None:
    """Of length 1, also without words or with few dimensions. All backends give the same vector."""
    backends = [ScriptedBackend(dimensions=dimensions, seed=seed) for _ in range(2)]

    first, second = [await backend.embed([text]) for backend in backends]

    assert first == second
    assert len(first[0]) == dimensions
    assert abs(hypot(*first[0]) - 1) < 1e-9


async def test_other_seeds_and_dimensions_are_other_models() -> None:
    """The words have other directions."""
    vectors = [
        (await ScriptedBackend(**settings).embed(["a word"]))[0]
        for settings in ({}, {"seed": 1}, {"dimensions": 8})
    ]

    assert [len(vector) for vector in vectors] == [256, 256, 8]
    assert vectors[0] != vectors[1]
    with pytest.raises(ValueError, match="at least 1"):
        ScriptedBackend(dimensions=0)


async def test_what_was_embedded_is_known_and_charged() -> None:
    """The backend lists the texts of each call, and charges an estimate of their tokens."""
    texts = ["one or two words", "and three more of them"]
    prompt = Message(role="user", content="\n".join(texts))
    tokens = Estimator().estimate(Request([prompt]), {}).tokens
    backend = ScriptedBackend("Hello", limits=Limits(budget=tokens))
    async with Commander() as commander:
        await backend.embed(texts)
        await backend.embed([])
        assert commander.usage() == {"scripted": Usage(input_tokens=tokens)}
        with pytest.raises(BudgetExceeded):
            await backend.embed(["z"])

    assert backend.embedded == [texts]
    assert backend.requests == []
