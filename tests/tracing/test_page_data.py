"""The data in the page of a recording."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.recording_page import HOSTILE_TEXTS, event_line, node_lines, trace_of, wide_trace

pytestmark = pytest.mark.contract("S3")

MEGABYTE = 1_000_000


def data_of(page: str) -> dict[str, Any]:
    """Return the data in the text of a page, up to the end of its element for a browser."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script', page, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


@pytest.mark.parametrize("size", [0, 10, 500, 10_000])
def test_page_of_bare_nodes_is_small(size: int, tmp_path: Path) -> None:
    """With 10,000 bare nodes it has at most a megabyte."""
    wide_trace(size).html(tmp_path / "page.html")

    assert (tmp_path / "page.html").stat().st_size < MEGABYTE


trees = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.text() | st.sampled_from(HOSTILE_TEXTS),
        st.floats(0, 1e5),
        st.sampled_from(["pending", "running", "completed", "failed", "retried"]),
    ),
    max_size=12,
)


def lines_of(tree: list[tuple[int, str, float, str]]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for number, (parent, name, at, end) in enumerate(tree, 1):
        lines.append(event_line("put", at, number, p=parent % number, name=name))
        if end != "pending":
            lines.append(event_line("started", at + 0.5, number))
        if end in ("completed", "failed", "retried"):
            lines.append(event_line(end, at + 1.25, number))
    return lines


@given(tree=trees)
def test_the_columns_contain_each_node(
    tree: list[tuple[int, str, float, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Names, parents, states and times can be read from the page's columns."""
    trace = trace_of(*lines_of(tree), live=True)
    file = tmp_path_factory.mktemp("page") / "page.html"
    trace.html(file)

    data = data_of(file.read_text(encoding="utf-8"))
    columns = data["nodes"]
    number = put = 0
    for place, node in enumerate([trace.root, *trace]):
        number += columns["number"][place]
        put += columns["put"][place]
        start, ended = columns["start"][place], columns["ended"][place]
        above = [trace.root, *trace][place - columns["up"][place]]
        assert number == node.number
        assert data["names"][columns["name"][place]] == node.name
        assert data["states"][int(columns["state"][place])] == node.state
        assert above is (node.parent or trace.root)
        assert put == round(node.put * 1e6)
        if start is not None:
            put_to_start = round(node.intervals[0].start * 1e6) - put
            assert start == put_to_start
        if node.ended is not None:
            assert put + (start or 0) + ended == round(node.ended * 1e6)


def test_numbers_that_json_lacks_are_written_as_text(tmp_path: Path) -> None:
    """Infinite or huge numbers in a recording leave a readable page."""
    odd = {"a": float("inf"), "b": float("nan"), "c": 10**400}
    charged = event_line("charged", 0.1, 1, usage={"dollars": float("inf")})
    trace = trace_of(
        *node_lines(1, parent=0)[:2],
        event_line("called", 0.1, 1, tool="t", call="c", size=3, arguments=odd),
        charged,
    )
    trace.html(tmp_path / "page.html")

    data = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "Infinity" in json.dumps(data["more"])
