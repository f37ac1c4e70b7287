"""The estimate of a long text, which is made from slices of it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.messages.tokens import _ALL_UP_TO, _SLICE, _SLICES, _weigh, estimate_tokens

ALPHABETS = [
    "abcdefghij klm nop",
    "ABCD EF",
    "😀🎉",
    "漢字",
    "0123456789",
    '{}":, ',
    "\n\t",
    "é à",
    " ",
]
NEAR = 0.03


def is_near(text):
    return abs(estimate_tokens(text) - _weigh(text)) <= NEAR * _weigh(text)


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from(ALPHABETS), min_size=1, max_size=4),
    st.sampled_from([1, 10, 100, _SLICE, 1000, 10_000, 100_000, 300_000]) | st.integers(1, 5000),
    st.integers(_ALL_UP_TO + 1, 3 * _ALL_UP_TO),
    st.booleans(),
    st.integers(0, 2**32).map(random.Random),
)
def test_a_long_text_is_estimated_within_three_hundredths(alphabets, size, length, repeats, draw):
    """Of whatever parts it is made, in turn or at random, and the same each time."""
    parts, made = [], 0
    while made < length:
        alphabet = alphabets[len(parts) % len(alphabets)] if repeats else draw.choice(alphabets)
        many = size if repeats else draw.randint(1, 2 * size)
        parts.append(("".join(draw.choices(alphabet, k=min(many, 500))) * (many // 500 + 1))[:many])
        made += many
    text = "".join(parts)
    assert is_near(text)
    assert estimate_tokens(text) == estimate_tokens(text)


@pytest.mark.parametrize("slices", [1, 2, 3, 7])
def test_a_text_that_repeats_itself_as_often_as_slices_are_taken_is_estimated_as_well(slices):
    """Slices at equal distances would all show the same part of it."""
    draw = random.Random(slices)
    for _ in range(5):
        period = draw.randint(300, 1500) * slices
        part = "a" * (period // 2) + "漢" * (period - period // 2)
        assert is_near(part * (_SLICES // slices))


def test_a_short_text_is_estimated_as_it_is():
    """Up to half a million characters, so that nothing changes for it."""
    text = "ab 12, " * (_ALL_UP_TO // 7)
    assert 0 <= estimate_tokens(text) - _weigh(text) < 1
