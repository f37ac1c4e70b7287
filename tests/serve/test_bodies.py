"""Bodies that would hold the loop: they are read in slices, or refused."""

import asyncio
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.messages.text import encodable
from anabranch.serve import _body
from anabranch.serve._http import Refusal

PIECES = ["\\ud83d", "\\ude00", "\\uD800", "\\udFFF", "\\\\", '\\"', "\\n", "ud800", "\\u0041", "a"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def parse(text):
    return asyncio.run(_body._parse(text.encode()))


@given(TEXTS, TEXTS, st.sampled_from([1, 2, 1000]))
@example("\\\\\\ud800", "\\\\ud800", 1)
def test_a_half_of_a_character_becomes_a_sign_for_it_and_nothing_else_changes(name, value, slice_):
    """As if all had been decoded, cleaned and read again, wherever the text is cut in slices."""
    body = f'{{"{name}": ["{value}", 1.5, {{"x": "{value}{name}"}}]}}'
    expected = json.loads(encodable(json.dumps(json.loads(body), ensure_ascii=False)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_body, "SLICE", slice_)
        assert parse(body) == expected


def test_other_tasks_run_while_halves_are_replaced():
    """Each slice of them is followed by a turn of the loop."""
    turns = 0

    async def main():
        nonlocal turns

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await _body._parse(b'{"a": "' + b"\\ud800" * 20 * _body.SLICE + b'"}')
        counting.cancel()

    asyncio.run(main())
    assert turns >= 20


@pytest.mark.parametrize("number", ["9" * 1001, "-" + "1" * 4000, "0." + "3" * 1001, "1" * 9000])
def test_a_number_of_too_many_digits_is_refused(number):
    """The time to read one grows with the square of its length."""
    with pytest.raises(Refusal, match="a number has at most 1000 digits in a row") as refused:
        parse(f'{{"a": {number}}}')
    assert refused.value.status == 400


@pytest.mark.parametrize("text", ["9" * 5000, '\\"' + "9" * 5000, "\\\\" + "9" * 5000])
def test_digits_in_a_text_are_no_number(text):
    """However many; nor are 1,000 digits of a number too many."""
    found = parse(f'{{"a": "{text}", "b": {"9" * 1000}}}')
    assert found == json.loads(f'{{"a": "{text}", "b": {"9" * 1000}}}')


@pytest.mark.parametrize("body", ['{"a": "\\ud800"', '{"a": "\\ud8"}', '{"a": \\ud800}', "{]"])
def test_what_is_no_json_is_refused_with_halves_or_without(body):
    """With 400."""
    with pytest.raises(Refusal, match="the body is no JSON"):
        parse(body)


def test_values_are_still_counted_outside_of_strings():
    """The bound of numbers uses the same search."""
    for body, more in (('["' + "," * 200_000 + '"]', False), ("[" + "1," * 200_000 + "1]", True)):
        assert asyncio.run(_body._has_more_values(body.encode(), 100_010)) == more
