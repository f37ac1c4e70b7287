"""The token estimate of a long text samples slices of it."""

import random

import pytest
from support.seeds import example_count, seeds

from anabranch.messages.tokens import (
    _MAX_COMPLETE_CHARS,
    _SLICE_CHARS,
    _SLICES,
    _weigh,
    estimate_tokens,
)

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
NEAR = 0.05


def is_near(text):
    return abs(estimate_tokens(text) - _weigh(text)) <= NEAR * _weigh(text)


@pytest.mark.parametrize("seed", seeds(example_count(15, 1000)))
def test_a_long_text_is_estimated_within_a_few_hundredths(seed):
    """For any mix of parts, in turn or at random, and the same each time."""
    draw = random.Random(seed)
    alphabets = draw.choices(ALPHABETS, k=draw.randint(1, 4))
    size = draw.choice([1, 10, 100, _SLICE_CHARS, 1000, 10_000, 300_000, draw.randint(1, 5000)])
    length, repeats = (
        draw.randint(_MAX_COMPLETE_CHARS + 1, 2 * _MAX_COMPLETE_CHARS),
        draw.random() < 0.5,
    )
    parts, made = [], 0
    while made < length:
        alphabet = alphabets[len(parts) % len(alphabets)] if repeats else draw.choice(alphabets)
        count = size if repeats else draw.randint(1, 2 * size)
        parts.append(
            ("".join(draw.choices(alphabet, k=min(count, 500))) * (count // 500 + 1))[:count]
        )
        made += count
    text = "".join(parts)
    assert is_near(text)
    assert estimate_tokens(text) == estimate_tokens(text)


@pytest.mark.parametrize("slices", [1, 2, 3, 7])
def test_a_text_that_repeats_itself_as_often_as_slices_are_taken_is_estimated_as_well(slices):
    """Slices at equal distances would all sample the same part of it."""
    draw = random.Random(slices)
    for _ in range(5):
        period = draw.randint(300, 1500) * slices
        part = "a" * (period // 2) + "漢" * (period - period // 2)
        assert is_near(part * (_SLICES // slices))


def test_a_short_text_is_estimated_as_it_is():
    """Up to half a million characters, the estimate uses the complete text."""
    text = "ab 12, " * (_MAX_COMPLETE_CHARS // 7)
    assert 0 <= estimate_tokens(text) - _weigh(text) < 1
