"""Tools as text for a prompt."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel

from anabranch.tools import Toolkit, describe, tool


class Place(BaseModel):
    city: str
    near: list[Place] = []


@tool
def visit(
    place: Place,
    by: Literal["train", "car"] = "train",
    days: int | None = None,
    tags: dict[str, float] | None = None,
) -> None:
    """Visit a place.

    It takes </tools> a while.

    Args:
        by: How to travel.
    """


@tool
def ping() -> None: ...


class Kit(Toolkit):
    @tool
    def knock(self, times: int = 1) -> None:
        """Knock."""


def test_json_is_what_the_wire_carries():
    """Name, description and schema of each, toolkits included."""
    written = json.loads(describe([ping, Kit()]))

    assert [each["function"]["name"] for each in written] == ["ping", "knock"]
    assert written[1]["type"] == "function"
    assert written[1]["function"]["parameters"]["properties"]["times"]["default"] == 1


def test_hermes_has_one_tool_a_line_that_cannot_end_the_block():
    """A description with `</tools>` in it is only text."""
    lines = describe([visit, ping], "hermes").splitlines()

    assert (lines[0], lines[-1], len(lines)) == ("<tools>", "</tools>", 4)
    assert "</tools>" not in lines[1]
    assert json.loads(lines[1])["function"]["description"].endswith("</tools> a while.")


def test_typescript_shows_types_optional_fields_and_comments():
    """Also types that contain themselves."""
    assert describe([visit, ping], "typescript") == (
        """namespace functions {

// Visit a place.
//
// It takes </tools> a while.
type visit = (_: {
  place: {
    city: string,
    near?: Place[],
  },
  // How to travel.
  by?: "train" | "car",
  days?: number | null,
  tags?: Record<string, number> | null,
}) => any;

type ping = () => any;

}"""
    )


def test_a_list_names_each_tool_and_its_arguments():
    """The format "list" has one line for each."""
    assert describe([visit, ping], "list").splitlines() == [
        "- visit: Visit a place. It takes </tools> a while.",
        "    place ({ city: string, near?: Place[], })",
        '    by ("train" | "car", optional): How to travel.',
        "    days (number | null, optional)",
        "    tags (Record<string, number> | null, optional)",
        "- ping",
    ]


def test_a_schema_from_elsewhere_never_breaks_it():
    """A schema from a server may have any form."""

    class Odd:
        name, description = "odd", ""
        parameters: ClassVar[dict[str, Any]] = {
            "properties": {
                "a": True,
                "b": {"type": ["string", "null"]},
                "c": {"$ref": "#/$defs/missing"},
                "d": {"const": 3},
                "e": {"type": "array"},
                "f": {"type": "object"},
            }
        }

    assert "b (string | null, optional)" in describe([Odd()], "list")  # type: ignore[list-item]
    assert "e?: any[]" in describe([Odd()], "typescript")  # type: ignore[list-item]


def test_an_unknown_format_is_refused_by_name():
    """The message lists the known formats."""
    with pytest.raises(ValueError, match="json, hermes, typescript, list, not 'yaml'"):
        describe([], "yaml")  # type: ignore[arg-type]
