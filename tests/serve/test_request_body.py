"""Bodies that would block the event loop are read in steps, or refused."""

import asyncio
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.messages.text import encodable
from anabranch.serve import _request_body
from anabranch.serve._http import Refusal

PIECES = ["\\ud83d", "\\ude00", "\\uD800", "\\udFFF", "\\\\", '\\"', "\\n", "ud800", "\\u0041", "a"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def parse(text):
    return asyncio.run(_request_body._parse(text.encode()))


@given(TEXTS, TEXTS, st.sampled_from([1, 2, 1000]))
@example("\\\\\\ud800", "\\\\ud800", 1)
def test_only_single_surrogates_are_replaced(name, value, slice_):
    """The result equals decoding everything at once, for any size of the steps."""
    body = f'{{"{name}": ["{value}", 1.5, {{"x": "{value}{name}"}}]}}'
    expected = json.loads(encodable(json.dumps(json.loads(body), ensure_ascii=False)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_request_body, "VALUES_PER_STEP", slice_)
        assert parse(body) == expected


def test_other_tasks_run_while_surrogates_are_replaced():
    """After each step."""
    turns = 0

    async def main():
        nonlocal turns

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await _request_body._parse(
            b'{"a": "' + b"\\ud800" * 20 * _request_body.VALUES_PER_STEP + b'"}'
        )
        counting.cancel()

    asyncio.run(main())
    assert turns >= 20


@pytest.mark.parametrize("number", ["9" * 1001, "-" + "1" * 4000, "0." + "3" * 1001, "1" * 9000])
def test_a_number_of_too_many_digits_is_refused(number):
    """The time to read a number grows with the square of its length."""
    with pytest.raises(Refusal, match="a number must have at most 1000 digits in a row") as refused:
        parse(f'{{"a": {number}}}')
    assert refused.value.status == 400


@pytest.mark.parametrize("text", ["9" * 5000, '\\"' + "9" * 5000, "\\\\" + "9" * 5000])
def test_digits_in_a_text_do_not_count(text):
    """Any number of them; and a number may have 1,000 digits."""
    found = parse(f'{{"a": "{text}", "b": {"9" * 1000}}}')
    assert found == json.loads(f'{{"a": "{text}", "b": {"9" * 1000}}}')


@pytest.mark.parametrize("body", ['{"a": "\\ud800"', '{"a": "\\ud8"}', '{"a": \\ud800}', "{]"])
def test_invalid_json_is_refused_with_surrogates_or_without(body):
    """With 400."""
    with pytest.raises(Refusal, match="the body must be valid JSON"):
        parse(body)


def test_values_are_still_counted_outside_of_strings():
    """The limit of digits uses the same search."""
    for body, more in (('["' + "," * 200_000 + '"]', False), ("[" + "1," * 200_000 + "1]", True)):
        assert asyncio.run(_request_body._has_more_values(body.encode(), 100_010)) == more
