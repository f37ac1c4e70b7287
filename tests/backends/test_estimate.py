"""Estimated tokens: counted from texts, corrected by the usage of replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time
from support.paths import DATA

from anabranch import BudgetExceeded, ConfigurationError, tool
from anabranch.backends import Limits, ModelBackend, connect
from anabranch.backends._estimate import Estimator
from anabranch.messages import Delta, Message, Part, Request, ToolCall, Usage
from anabranch.messages.tokens import RunningEstimate, estimate_tokens, most_tokens
from anabranch.testing import SeededLoop

COUNTED = json.loads((DATA / "token_counts.json").read_text())
BUDGET = 2_000


def asking(text: str) -> Request:
    return Request([Message(role="user", content=text)])


# --- texts


@pytest.mark.parametrize("kind", COUNTED)
def test_a_text_is_estimated_as_tokenizers_count_it(kind: str) -> None:
    """Any text is within a third of the mean of seven tokenizers."""
    sample = COUNTED[kind]
    mean = sum(sample["tokens"].values()) / len(sample["tokens"])
    assert 0.67 * mean < estimate_tokens(sample["text"]) < 1.5 * mean
    assert max(sample["tokens"].values()) <= most_tokens(sample["text"])


@given(st.text(), st.text())
def test_an_estimate_is_between_nothing_and_the_most(text: str, more: str) -> None:
    """A longer text never has fewer tokens; half a surrogate counts as a character."""
    assert (estimate_tokens(text) > 0) == bool(text)
    assert estimate_tokens(text) <= 2 * most_tokens(text)
    assert estimate_tokens(text) <= estimate_tokens(text + more)
    assert estimate_tokens(text + "\ud800") > 0


@given(st.lists(st.sampled_from(["word", " ", "a", "  ", "你", ", ", "7", "\n"]), max_size=3000))
def test_a_text_in_pieces_is_estimated_as_in_one(pieces: list[str]) -> None:
    """Even if words are cut."""
    running = RunningEstimate()
    for piece in pieces:
        running.add(piece)
    text = "".join(pieces)
    whole = estimate_tokens(text)
    assert whole <= running.tokens <= whole + 2 * (1 + len(text) // 500)


@tool
def look(where: str) -> str:
    """Look there."""
    return where


def test_all_that_a_model_reads_is_counted() -> None:
    """Texts, calls, results, tools and parts, each with the overhead of a chat template."""

    def tokens(*messages: Message, tools: Any = ()) -> int:
        return Estimator().estimate(Request([*messages], tools), {}).tokens

    user = Message(role="user", content="Look at the river.")
    calls = [ToolCall(id="1", name="look", arguments={"where": "under the old bridge"})]
    call = Message(role="assistant", tool_calls=calls)
    result = Message(role="tool", tool_call_id="1", content="Three boats lie there.")
    picture = Message(role="user", content="", parts=[Part.from_bytes(b"one two three", name="a")])
    counts = [
        tokens(user),
        tokens(user, call),
        tokens(user, call, result),
        tokens(user, call, result, picture),
        tokens(user, call, result, picture, tools=[look]),
    ]
    gains = [later - earlier for earlier, later in pairwise(counts)]
    assert min(gains) >= 8


@pytest.mark.parametrize(
    ("default", "own", "most"),
    [
        ({}, {}, None),
        ({"max_tokens": 5}, {}, 5),
        ({"max_tokens": 5}, {"max_tokens": 7}, 7),
        ({}, {"max_completion_tokens": 9}, 9),
        ({"max_tokens": 5}, {"extra": {"max_tokens": 11}}, 11),
        ({"extra": {"max_completion_tokens": 5}}, {}, 5),
        ({"max_tokens": -1}, {}, None),
    ],
)
def test_the_longest_reply_is_known_however_it_is_named(
    default: dict[str, Any], own: dict[str, Any], most: int | None
) -> None:
    """By the final body of the request."""
    request = Request(asking("Hello?").messages, options=own)
    estimate = Estimator().estimate(request, default)
    assert most == (None if estimate.most is None else estimate.most.output_tokens)
    assert estimate.tokens == Estimator().estimate(asking("Hello?"), {}).tokens + (most or 0)


# --- what replies report


class Provider(ModelBackend):
    """Counts prompts with its rule, takes a second and all of `max_tokens`, reports that."""

    def __init__(self, counts: Callable[[str], int], **settings: Any) -> None:
        super().__init__("m", **settings)
        self.counts = counts
        self.reports = True

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        await sleep_virtual(1)
        prompt = self.counts(request.messages[0].content or "")
        reply = self.default_options["max_tokens"]
        usage = Usage(input_tokens=prompt, output_tokens=reply)
        yield Delta("x", usage=usage if self.reports else None, finish_reason="stop")

    def expected(self, text: str) -> int:
        """Return the tokens it will count for a prompt."""
        return self._estimator.estimate(asking(text), {}).tokens


WORDS = ["some", "words", "in", "a", "line", "of", "English", "text", "long", "enough"]
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=60).map(" ".join)


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=8),
    factor=st.floats(0.2, 8),
    offset=st.integers(0, 500),
)
def test_an_estimate_becomes_what_the_provider_reports(
    texts: list[str], factor: float, offset: int
) -> None:
    """Each report makes the estimate of the same prompt exact, and never makes it worse."""
    estimator = Estimator()
    for text in texts:
        plain = Estimator().estimate(asking(text), {}).tokens
        counted = round(plain * factor) + offset
        before = estimator.estimate(asking(text), {})
        reply = [Delta(usage=Usage(input_tokens=counted, output_tokens=1), done=True)]
        assert estimator.usage_of(asking(text), reply, before).input_tokens == counted
        after = estimator.estimate(asking(text), {}).tokens
        assert abs(after - max(counted, 1)) <= 1


@virtual_time
async def test_a_short_prompt_tells_of_a_hidden_one_and_a_long_one_of_the_tokenizer() -> None:
    """A prompt that the server adds does not make estimates of long prompts larger."""
    hidden = Provider(
        lambda text: estimate_tokens(text) + 500, limits=Limits(budget=1e9), max_tokens=1
    )
    double = Provider(
        lambda text: 2 * estimate_tokens(text), limits=Limits(budget=1e9), max_tokens=1
    )
    short, long = "Hello?", "some words " * 5_000
    await hidden.complete(asking(short))
    await double.complete(asking(long))
    assert hidden.expected(long) == pytest.approx(hidden.counts(long), rel=0.1)
    assert double.expected(2 * long) == pytest.approx(double.counts(2 * long), rel=0.1)
    hidden.reports = False  # unreported usage is charged by the corrected estimate
    before = hidden.limits.spent
    await hidden.complete(asking(short))
    assert hidden.limits.spent - before == pytest.approx(hidden.counts(short), rel=0.1)


async def test_a_tokenizer_that_is_known_counts() -> None:
    """In the estimate and the upper bound; anything but a function is refused."""
    backend = connect("http://127.0.0.1/v1", model="m", count_tokens=len, max_tokens=5)
    assert isinstance(backend, ModelBackend)
    estimate = backend._estimator.estimate(asking("x" * 1000), {"max_tokens": 5})
    assert 1005 < estimate.tokens < 1020
    assert estimate.most is not None
    assert 1000 < estimate.most.input_tokens < 1100
    with pytest.raises(ConfigurationError, match="count_tokens='cl100k': it must be a function"):
        connect("http://127.0.0.1/v1", model="m", count_tokens="cl100k")
    for wrong in None, "5", -5, float("nan"), [5]:
        made: Any = wrong
        with pytest.raises(
            ConfigurationError, match=r"count_tokens= must return a number of tokens"
        ):
            Estimator(lambda _, made=made: made).estimate(asking("x"), {})


COUNTERS: dict[str, Callable[[str], int]] = {
    "bytes": lambda text: len(text.encode()) + 20,
    "characters": lambda text: len(text) + 3,
    "words": lambda text: 2 * len(text.split()) + 10,
    "as estimated": estimate_tokens,
    "a system message": lambda text: estimate_tokens(text) + 50,
    "half": lambda text: estimate_tokens(text) // 2,
}


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=40),
    counter=st.sampled_from([*COUNTERS]),
    reply=st.integers(0, 100),
    budget=st.integers(1, BUDGET),
    concurrency=st.none() | st.integers(1, 5),
    seed=st.integers(0, 9),
)
@example(  # many short prompts at once, and a provider that counts several times as many tokens
    texts=["hi"] * 40, counter="a system message", reply=5, budget=1000, concurrency=None, seed=0
)
@settings(deadline=None)
def test_a_reserved_budget_is_exceeded_by_one_prompt_at_most(
    texts: list[str],
    counter: str,
    reply: int,
    budget: int,
    concurrency: int | None,
    seed: int,
) -> None:
    """For any tokenizer that makes no more tokens than there are bytes.

    The excess is the count of that prompt beyond its estimate. No request is refused that would
    have fitted by its estimate.
    """
    limits = Limits(budget=budget, reserve=True, concurrency=concurrency)
    backend = Provider(COUNTERS[counter], limits=limits, max_tokens=reply)
    excess = 0

    async def ask(text: str) -> None:
        nonlocal excess
        expected = backend.expected(text)
        try:
            await backend.complete(asking(text))
        except BudgetExceeded:
            assert limits.spent + expected + reply > budget or limits.spent >= budget
        else:
            excess = max(excess, backend.counts(text) - expected)

    async def play() -> None:
        await asyncio.gather(*map(ask, texts))
        assert limits.spent <= budget + excess
        assert (limits._reserved, limits._running, limits.queues) == ({}, {}, {})

    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed, turns=20_000)) as runner:
        runner.run(play())
