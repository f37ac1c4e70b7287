"""Choosing a tool or none with the small model, on the forty questions kept with the tests."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from _local import Tool, ask

from anabranch.backends._local import LocalBackend
from anabranch.backends._local_choice import _headings
from anabranch.backends._local_reply import _bounded, _fill_in

QUESTIONS = json.loads((Path(__file__).parent / "data" / "tool_choice.json").read_text("utf-8"))
# Another processor adds up in another order: a question or two may fall on the other side.
SLACK = 3


async def picks_right(backend: LocalBackend, question: dict[str, Any], tools: list[Tool]) -> bool:
    async with aclosing(backend.stream(ask(question["question"], *tools))) as deltas:
        first = await anext(deltas)
    return question["tool"] == (first.tool_calls[0].name if first.tool_calls else None)


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
async def test_the_figure_that_users_are_shown_is_reached() -> None:
    """On all forty questions, of which half need no tool and half were not tuned on."""
    tools = [Tool(**tool) for tool in QUESTIONS["tools"]]
    questions = QUESTIONS["tune"] + QUESTIONS["held_out"]
    assert sum(question["tool"] is None for question in questions) == len(questions) // 2 == 20

    async with asyncio.timeout(600), LocalBackend() as backend:
        right = sum([await picks_right(backend, question, tools) for question in questions])
        claimed = re.search(r"(\d+) of 40", backend.tool_choice_accuracy)

    assert claimed is not None
    assert right >= int(claimed[1]) - SLACK


@pytest.mark.parametrize(
    ("names", "headings"),
    [
        (["get_time", "calculate", "get_current_weather"], ["time", "calculate", "weather"]),
        (["searchFlights", "HTTPGet", "say-hello"], ["flights", "get", "hello"]),
        (
            ["get_user", "get_user_list", "list_user"],
            ["1 get user", "2 get user list", "3 list user"],
        ),
        (["other", "time"], ["1 other", "2 time"]),
        (["solo"], ["solo"]),
    ],
)
def test_every_tool_gets_a_heading_of_its_own(names: list[str], headings: list[str]) -> None:
    """The last word that no other has; numbers if there is none."""
    assert _headings(names) == headings


def test_a_parameter_that_takes_anything_is_offered_so() -> None:
    """`true` is a schema, as servers of tools write it."""
    tool = Tool("f", "", {"type": "object", "properties": {"x": True, "y": {"type": "string"}}})

    assert '{"x": any, "y": string}' in _fill_in(tool, "?")[-1]["content"]
    assert _bounded(tool.parameters, 9)["properties"] == {
        "x": True,
        "y": {"maxLength": 9, "type": "string"},
    }
