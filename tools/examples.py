"""Three tools that work offline, so that a first chat has something to call.

Nothing imports this module unasked: `from anabranch.tools.examples import get_time`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from ..commander.errors import ToolError
from ._arithmetic import evaluate
from ._tool import tool

__all__ = ["EXAMPLE_TOOLS", "calculate", "get_current_weather", "get_time"]

# An example, not a forecast: made-up weather in degrees Celsius, so that answers repeat.
WEATHER = {
    "beijing": (22, "sunny"),
    "berlin": (17, "cloudy"),
    "cairo": (33, "sunny"),
    "london": (15, "rainy"),
    "new york": (20, "partly cloudy"),
    "oslo": (9, "cloudy"),
    "paris": (18, "sunny"),
    "san francisco": (16, "foggy"),
    "sydney": (21, "windy"),
    "tokyo": (19, "rainy"),
}
# Cities whose time zone is called after another.
ZONES = {
    "beijing": "Asia/Shanghai",
    "boston": "America/New_York",
    "delhi": "Asia/Kolkata",
    "mumbai": "Asia/Kolkata",
    "san francisco": "America/Los_Angeles",
    "seattle": "America/Los_Angeles",
    "washington": "America/New_York",
}


@tool(read_only=True, timeout=20)
def get_time(place: str) -> str:
    """Get the current date and time in a place.

    Args:
        place: A city, such as Tokyo, or a time zone, such as Europe/Paris.
    """
    city = _city(place)
    zones = {name.lower(): name for name in sorted(available_timezones())}
    cities = {name.rpartition("/")[2].replace("_", " "): zones[name] for name in zones}
    zone = zones.get(city) or ZONES.get(city) or cities.get(city)
    if zone is None:
        raise ToolError(f"no time zone is known for {place!r}; give a large city or Area/City")
    return f"{datetime.now(ZoneInfo(zone)):%H:%M on %A, %d %B %Y} in {place}"


@tool(read_only=True, timeout=20)
def calculate(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % **, brackets, and functions such as sqrt or round.
    """
    return f"{expression} = {evaluate(expression)}"


@tool(read_only=True, timeout=20)
def get_current_weather(location: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Get the current weather in a given location (an example: the answers are made up).

    Args:
        location: A city, such as Paris.
        unit: The scale of the temperature.
    """
    known = WEATHER.get(_city(location))
    if known is None:
        raise ToolError(f"no weather for {location!r}; the example knows {', '.join(WEATHER)}")
    degrees, sky = known
    if unit == "fahrenheit":
        degrees = round(degrees * 9 / 5 + 32)
    return f"{degrees} degrees {unit} and {sky} in {location}"


EXAMPLE_TOOLS = (get_time, calculate, get_current_weather)


def _city(place: str) -> str:
    return place.split(",")[0].strip().lower()
