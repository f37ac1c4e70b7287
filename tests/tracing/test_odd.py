"""An event with data of any wrong type never ends a recording, nor hides other events."""

from __future__ import annotations

import json
import math
import threading
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.commander import Event, EventKind
from anabranch.commander.remote import EventSource, Origin
from anabranch.messages import ReplyEvent, RequestEvent, ToolCall
from anabranch.tools import ToolResult
from anabranch.tracing import Trace
from anabranch.tracing.records import Records, to_line

pytestmark = pytest.mark.contract("S1")


class Hostile:
    """Fails at each operation."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)

    def __repr__(self) -> str:
        raise LookupError("repr")

    __str__ = __bool__ = __len__ = __iter__ = __eq__ = __float__ = __repr__  # type: ignore[assignment]
    __hash__ = object.__hash__


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(max_size=4),
    st.sampled_from(
        [Hostile(), Hostile, object(), threading.Lock(), KeyError("x"), {1}, {"m": {}}]
    ),
    st.lists(st.text(), max_size=2),
    st.dictionaries(st.text(), st.one_of(st.none(), st.floats(), st.text()), max_size=2),
)
said = st.one_of(
    odd,
    st.builds(RequestEvent, odd, odd, odd, odd, odd, odd, odd, odd),
    st.builds(ReplyEvent, odd, odd, odd, odd, odd, odd, odd, odd),
    st.builds(ToolCall.model_construct, id=odd, name=odd, arguments=odd, error=odd),
    st.builds(ToolResult.model_construct, status=odd, content=odd),
)
kinds = [kind for kind in get_args(EventKind) if kind not in ("put", "started", "completed")]


@example([("charged", {"x": math.inf})], False)
@example([("placed", None), ("text", object())], True)
@example([("first_chunk", {})], False)
@given(st.lists(st.tuples(st.sampled_from(kinds), said), max_size=4), st.booleans())
def test_malformed_data_changes_nothing_else(
    odds: list[tuple[EventKind, Any]], content: bool
) -> None:
    """The nodes and their ends stay, and each line is valid JSON."""
    source = EventSource(7, 0, "work", Origin(0.0, "far"), "Commander/work#7")
    whole = ("put", "started", *odds, "completed")
    events = [
        Event(each, source, 1.0) if isinstance(each, str) else Event(each[0], source, 1.0, each[1])
        for each in whole
    ]
    records = Records(0.0, 0.0, content=content)
    trace = Trace()
    for each in [records.first(), *records.of(events), *records.end(2.0, {})]:
        trace.feed(json.loads(to_line(each), parse_constant=no_number))
    [node] = trace
    assert node.state == "completed"
    assert isinstance(node.host, str)


def no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")
