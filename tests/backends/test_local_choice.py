"""The small model's choice of a tool or none, on the forty questions in the test data."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from typing import Any

import pytest
from support.local_model import Tool, make_request
from support.paths import DATA

from anabranch.backends._local import LocalBackend
from anabranch.backends._local_choice import _headings, choose
from anabranch.backends._local_reply import _argument_prompt, _bound_strings
from anabranch.messages import Usage

QUESTIONS = json.loads((DATA / "tool_choice.json").read_text("utf-8"))
# Another processor adds up in another order: a question or two may fall on the other side.
SLACK = 3


async def picks_right(backend: LocalBackend, question: dict[str, Any], tools: list[Tool]) -> bool:
    async with aclosing(backend.stream(make_request(question["question"], *tools))) as deltas:
        first = await anext(deltas)
    return question["tool"] == (first.tool_calls[0].name if first.tool_calls else None)


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
async def test_the_figure_that_users_are_shown_is_reached() -> None:
    """On all forty questions. Half need no tool, and half were not used for tuning."""
    tools = [Tool(**tool) for tool in QUESTIONS["tools"]]
    questions = QUESTIONS["tune"] + QUESTIONS["held_out"]
    assert sum(question["tool"] is None for question in questions) == len(questions) // 2 == 20

    async with asyncio.timeout(600), LocalBackend() as backend:
        right = sum([await picks_right(backend, question, tools) for question in questions])
        claimed = re.search(r"(\d+) of 40", backend.tool_choice_accuracy)

    assert claimed is not None
    assert right >= int(claimed[1]) - SLACK


WEATHER = Tool("get_current_weather", "Get the current weather in a given location.", {})
TIME = Tool("get_time", "Get the current local time in a place.", {})


@pytest.mark.usefixtures("small_model")
async def test_a_tool_that_is_offered_alone_is_called_where_it_is_needed() -> None:
    """As in most first programs."""
    parameters = {"type": "object", "properties": {"location": {"type": "string"}}}
    alone = [Tool(WEATHER.name, WEATHER.description, {**parameters, "required": ["location"]})]
    async with asyncio.timeout(600), LocalBackend() as backend:
        for question, tool in [
            ("What is the weather in Paris?", WEATHER.name),
            ("What is the capital of France?", None),
        ]:
            assert await picks_right(backend, {"question": question, "tool": tool}, alone)


class Sorts:
    """A model that finds the weather likelier than its baseline by a given amount."""

    def __init__(self, gain: float) -> None:
        self.gain = gain
        self.memory: dict[Any, Any] = {}

    def read(self, chat: list[dict[str, str]]) -> tuple[None, ...]:
        return ()

    def first_tokens(self, chat: list[dict[str, str]]) -> tuple[dict[str, float], Usage]:
        gain = self.gain if chat[-1]["content"] == "?" else 0.0
        return {"weather": gain - 9, "time": -9.0, "other": -9.0}, Usage()


@pytest.mark.parametrize(
    ("tools", "gain", "picked"),
    [
        ([WEATHER], 2.69, WEATHER),
        ([WEATHER], 2.38, None),
        ([WEATHER, TIME], 3.5, None),
        ([WEATHER, TIME], 4.0, WEATHER),
    ],
)
def test_a_tool_alone_needs_to_gain_less(
    tools: list[Tool], gain: float, picked: Tool | None
) -> None:
    """By the amounts measured with the small model."""
    choosing = choose(Sorts(gain), "?", tools, must=False)
    with pytest.raises(StopIteration) as end:
        while True:
            next(choosing)
    assert end.value.value[0] is picked


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
    """The last word that no other tool has; otherwise numbers."""
    assert _headings(names) == headings


def test_a_parameter_that_takes_anything_is_offered_so() -> None:
    """`true` is a schema, which MCP servers use."""
    tool = Tool("f", "", {"type": "object", "properties": {"x": True, "y": {"type": "string"}}})

    assert '{"x": any, "y": string}' in _argument_prompt(tool, "?")[-1]["content"]
    assert _bound_strings(tool.parameters, 9)["properties"] == {
        "x": True,
        "y": {"maxLength": 9, "type": "string"},
    }
