"""The reader of server-sent events."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.backends._sse import EventReader


def _events(*pieces: bytes) -> list[bytes]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    rest = reader.close()
    return [*events, *([] if rest is None else [rest])]


def test_comments_fields_and_blank_lines_are_passed_over() -> None:
    """Only `data` counts."""
    raw = b": keep-alive\n\n\nevent: x\nid: 1\nretry: 3\ndata: a\n\ndata:b\n\n:\n\ndatax: c\n\n"

    assert _events(raw) == [b"a", b"b"]


def test_lines_may_end_in_lf_crlf_or_cr_after_a_byte_order_mark() -> None:
    """All three, mixed."""
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


_LINES = st.sampled_from(
    [b"data: x", b"data:y", b"data", b"data: ", b": c", b"", b"", b"event: e", b"\xc3\xa9", b"data"]
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
