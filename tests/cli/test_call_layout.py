"""The layout of a call for its approval shows exactly that call, whatever it contains."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cli._call_layout import CallLayout, count_cells, write_draft
from anabranch.tools import tool
from tests.handlers.test_legible import HOSTILE, TEXTS, read_back

# Texts that look like something else: like other fields, like JSON, like the program's own words.
FORGED = st.sampled_from(HOSTILE)
STRINGS = st.one_of(FORGED, TEXTS, st.lists(st.one_of(FORGED, TEXTS), max_size=5).map("\n".join))
VALUES = st.recursive(
    st.one_of(STRINGS, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["to", "body", "copies"]) | STRINGS.filter(lambda name: len(name) < 10),
    VALUES,
    max_size=5,
)


FEW = settings(max_examples=40)


def question(arguments: dict[str, Any], description: str = "Send something.") -> CallLayout:
    @tool(name="send", description=description, approve=True)
    def made(**arguments: Any) -> None: ...

    made.source = "<McpServer post>"
    return CallLayout(made, arguments)


def fields(rows: list[str], indent: str) -> list[tuple[str, list[str] | str]]:
    """Parse fields with this indent: a name with its value, or with the lines of its block."""
    found: list[tuple[str, list[str] | str]] = []
    for row in rows:
        assert row.startswith(indent)
        mark, rest = row[len(indent) : len(indent) + 4], row[len(indent) + 4 :]
        if mark == "  | ":
            assert isinstance(found[-1][1], list)
            found[-1][1].append(rest)
        elif mark == "  : ":
            assert isinstance(found[-1][1], list)
            if found[-1][1]:
                found[-1][1][-1] += rest
            else:
                found[-1] = found[-1][0] + rest, []
        elif split := re.fullmatch(r'([^":]+|".*?(?<!\\)(?:\\\\)*"): (.*)', row[len(indent) :]):
            found.append((split[1], split[2]))
        else:
            found.append((row[len(indent) :], []))
    return found


def arguments_of(rows: list[str]) -> dict[str, Any]:
    """Parse the arguments from the rows of a layout."""
    read: dict[str, Any] = {}
    for name, shown in fields(rows, "    "):
        name = name if isinstance(shown, str) else name.removesuffix(":")
        as_json = name.endswith(" (JSON)")
        name = name.removesuffix(" (JSON)")
        name = json.loads(read_back(name)) if name.startswith('"') else name
        lines = [shown] if isinstance(shown, str) else shown
        text = "\n".join(map(read_back, lines))
        if as_json or len(lines) == 1:
            try:
                read[name] = json.loads(text)
                continue
            except ValueError:
                assert not as_json
        read[name] = text
    return read


@FEW
@given(ARGUMENTS, st.integers(30, 200))
def test_the_question_says_exactly_what_will_run(arguments: dict[str, Any], columns: int) -> None:
    """The arguments can be parsed from the rows. So no two calls look the same."""
    rows = question(arguments).rows(columns)
    start = rows.index("  with:") if arguments else len(rows) - 1

    assert rows[:2] == ["  tool: send", "  from: <McpServer post>"]
    assert write_draft(arguments_of(rows[start + 1 :])) == write_draft(arguments)


@FEW
@given(ARGUMENTS, STRINGS, st.integers(1, 200), st.integers(1, 60))
def test_every_row_begins_with_the_programs_indent_and_fits(
    arguments: dict[str, Any], description: str, columns: int, lines: int
) -> None:
    """Rows fit any screen, shortened or not; shortened, they leave room for the prompt."""
    for rows in (
        question(arguments, description).rows(columns),
        capped := question(arguments, description).rows(columns, lines),
    ):
        for row in rows:
            assert row.startswith("  ")
            assert count_cells(row) <= max(columns, 24)
            assert "\n" not in row
    assert len(capped) <= max(lines, 16) - 4


@FEW
@given(ARGUMENTS, STRINGS, st.integers(70, 200), st.integers(1, 60))
def test_nothing_is_left_out_in_silence(
    arguments: dict[str, Any], description: str, columns: int, lines: int
) -> None:
    """Hidden rows are counted at their place."""
    asked = question(arguments, description)
    whole, capped = asked.rows(columns), asked.rows(columns, lines)
    notes = [re.fullmatch(r"  \.\.\. ([\d,]+) lines, .* s shows all \.\.\.", row) for row in capped]
    hidden = sum(int(note[1].replace(",", "")) for note in notes if note)

    assert len(whole) == len(capped) - sum(map(bool, notes)) + hidden


@pytest.mark.parametrize("flood", ["\n" * 30, "\n" * 3000, "\t" * 300, " " * 5000, "\u3164" * 900])
def test_a_flood_does_not_push_the_command_off_the_screen(flood: str) -> None:
    """The end of a long command and all other arguments stay visible."""
    rows = question({"to": "Ann", "body": f"hello{flood}rm -rf /", "cc": "Bob"}).rows(80, 24)

    assert len(rows) <= 20
    assert any("rm -rf /" in row for row in rows)
    assert {"    to: Ann", "    cc: Bob"} <= set(rows)


@FEW
@given(ARGUMENTS)
def test_arguments_to_be_edited_can_be_shown_and_mean_the_same(arguments: dict[str, Any]) -> None:
    """The draft is one line of JSON with printable characters."""
    text = write_draft(arguments)

    assert json.loads(text) == arguments
    assert read_back(text.replace("\\u{", "\\ u{")).isprintable()
