"""The reader of server-sent events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.backends._sse import EventReader

pytestmark = pytest.mark.contract("B1")


def _events(*pieces: bytes) -> list[bytes]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.close()


def test_comments_fields_and_blank_lines_are_passed_over() -> None:
    """Only `data` counts."""
    raw = b": keep-alive\n\n\nevent: x\nid: 1\nretry: 3\ndata: a\n\ndata:b\n\n:\n\ndatax: c\n\n"

    assert _events(raw) == [b"a", b"b"]


def test_lines_may_end_in_lf_crlf_or_cr_after_a_byte_order_mark() -> None:
    """Also mixed."""
    raw = b"\xef\xbb\xbfdata: a\r\n\r\ndata: b\r\rdata: c\n\n"

    assert _events(raw) == [b"a", b"b", b"c"]


def test_several_data_lines_are_joined() -> None:
    """By a newline, as the specification says."""
    assert _events(b"data: a\ndata\ndata:  b\n\n") == [b"a\n\n b"]


def test_an_event_that_the_end_cut_off_is_given_by_close() -> None:
    """With and without the end of its line."""
    assert _events(b"data: a\n\ndata: [DONE]") == [b"a", b"[DONE]"]
    assert _events(b"data: [DONE]\r") == [b"[DONE]"]
    assert _events(b"") == []


ERRORS: dict[bytes, list[bytes]] = {
    b'event: error\ndata: {"message": "no"}\n\n': [b'{"error": {"message": "no"}}'],
    b'data: {"message": "no"}\nevent: error\n\n': [b'{"error": {"message": "no"}}'],
    b'event: error\ndata: {"error": "no"}\n\n': [b'{"error": "no"}'],
    b"event: error\ndata: no\n\ndata: x\n\n": [b'{"error": "no"}', b"x"],
    b"event: error\n\n": [b'{"error": "the server sent an error without a message"}'],
    b'error: {"code": 400}\n\ndata: [DONE]\n\n': [b'{"error": {"code": 400}}', b"[DONE]"],
    b"error: no\n": [b'{"error": "no"}'],
    b'data: x\n\n{"error": "no"}\n\n': [b"x", b'{"error": "no"}'],
    b'{"a": 1}\n{"b": 2}': [b'{"a": 1}', b'{"b": 2}'],
    b'{\n  "a": {\n  }\n}\ndata: x\n\n': [b'{\n  "a": {\n  }\n}', b"x"],
    b'{\n  "a"': [b'{\n  "a"'],
    b"[DONE]\n": [b"[DONE]"],
    b"event: message\ndata: x\n\n": [b"x"],
}


@pytest.mark.parametrize("raw", ERRORS)
def test_errors_that_are_no_data_are_events(raw: bytes) -> None:
    """By the event's type, in a field `error`, or without a field."""
    assert _events(raw) == ERRORS[raw]


_OTHERS = [b"event: error", b"error: x", b'{"a": 1}', b"{", b"}", b' "a": 1', b"[DONE]", b"data: {"]
_LINES = st.sampled_from(
    [
        *_OTHERS,
        b"data: x",
        b"data:y",
        b"data",
        b"data: ",
        b": c",
        b"",
        b"",
        b"event: e",
        b"\xc3\xa9",
        b"data",
    ]
)
_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    lines=st.lists(st.tuples(_LINES, _ENDS)),
    bom=st.booleans(),
    tail=_LINES,
    cuts=st.lists(st.integers(0, 200)),
)
def test_the_events_do_not_depend_on_the_cuts(
    lines: list[tuple[bytes, bytes]], bom: bool, tail: bytes, cuts: list[int]
) -> None:
    """Whole, byte by byte, at every single byte, and at random places."""
    raw = (b"\xef\xbb\xbf" if bom else b"") + b"".join(a + b for a, b in lines) + tail
    whole = _events(raw)
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})

    assert _events(*(raw[i : i + 1] for i in range(len(raw)))) == whole
    assert all(_events(raw[:at], raw[at:]) == whole for at in range(len(raw) + 1))
    assert _events(*(raw[a:b] for a, b in pairwise(edges))) == whole
