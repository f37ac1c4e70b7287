"""The example tools, and arithmetic that a model can use safely."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.commander.errors import ToolError
from anabranch.tools.examples import (
    EXAMPLE_TOOLS,
    calculate,
    evaluate,
    get_current_weather,
    get_time,
)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("17 * 23", 391),
        ("2^10", 1024),
        ("(1 + 2) × 3 ÷ 2", 4.5),  # noqa: RUF001 - what models write
        ("-7 // 2", -4),
        ("7 % 4", 3),
        ("sqrt(16) + max(1, 2)", 6.0),
        ("round(2.5678, 2)", 2.57),
        ("2 * pi", math.tau),
        ("10 ** -2", 0.01),
        (" 1_000 ", 1000),
    ],
)
def test_arithmetic_is_worked_out(expression: str, value: float):
    """Operators, brackets, a few functions and constants."""
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2 +",
        "__import__('os')",
        "().__class__",
        "x",
        "'a' * 9",
        "True",
        "1 if 1 else 2",
        "[1, 2]",
        "pi()",
        "sqrt(x=4)",
        "9 ** 9 ** 9",
        "(2 ** 4000) * (2 ** 4000)",
        "1" * 501,
        "1 / 0",
        "sqrt(-1)",
        "(-8) ** 0.5",
        "1e308 ** 2",
        "1" * 400 + ".0 * 1e300 ** 2",
        "(" * 240 + "1" + ")" * 240,
        "round(1, 'x')",
        "max()",
        "ceil(1e400)",
        "1j",
        "\0",
    ],
)
def test_anything_else_is_refused_in_words(expression: str):
    """Names, attributes, strings, huge results and impossible ones raise `ToolError`."""
    with pytest.raises(ToolError):
        evaluate(expression)


@given(st.text(alphabet="0123456789+-*/%^(). episqrt,x_[]'", max_size=40))
def test_no_expression_does_harm(expression: str):
    """Whatever a model writes is a number or a `ToolError`."""
    with contextlib.suppress(ToolError):
        assert isinstance(evaluate(expression), int | float)


async def test_calculate_shows_what_it_worked_out():
    """The result repeats the expression, so that a small model need not remember it."""
    assert await calculate.run({"expression": "17 * 23"}) == "17 * 23 = 391"


@pytest.mark.parametrize("place", ["Tokyo", "tokyo, Japan", "Asia/Tokyo", "New York", "utc"])
async def test_the_time_is_known_in_cities_and_zones(place: str):
    """A city of the time-zone table, or a zone by its name."""
    assert (await get_time.run({"place": place})).endswith(f" in {place}")


async def test_an_unknown_place_is_said_to_be_unknown():
    """Neither tool invents an answer."""
    with pytest.raises(ToolError, match="unknown time zone for 'Atlantis'"):
        await get_time.run({"place": "Atlantis"})
    with pytest.raises(ToolError, match=r"the example knows .*paris"):
        await get_current_weather.run({"location": "Atlantis"})


async def test_the_weather_comes_in_both_units():
    """The table is in Celsius."""
    weather = get_current_weather
    assert await weather.run({"location": "Paris"}) == "18 degrees celsius and sunny in Paris"
    hot = await weather.run({"location": "Cairo, Egypt", "unit": "fahrenheit"})
    assert hot == "91 degrees fahrenheit and sunny in Cairo, Egypt"


def test_the_example_tools_change_nothing():
    """So they may start while the reply still streams."""
    assert all(tool.read_only and tool.timeout for tool in EXAMPLE_TOOLS)
    assert "example" in get_current_weather.description
