"""Three tools that work offline, to try a first chat: `EXAMPLE_TOOLS`.

No other module imports this one: `from anabranch.tools.examples import get_time`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from ..commander.errors import ToolError
from ._tool import tool

__all__ = ["EXAMPLE_TOOLS", "calculate", "evaluate", "get_current_weather", "get_time"]

# Invented weather in degrees Celsius, so that answers repeat.
WEATHER_BY_CITY = {
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
# Cities that have the time zone of another city.
ZONE_BY_CITY = {
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
    zone = zones.get(city) or ZONE_BY_CITY.get(city) or cities.get(city)
    if zone is None:
        raise ToolError(f"unknown time zone for {place!r}; give a large city or Area/City")
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
    known = WEATHER_BY_CITY.get(_city(location))
    if known is None:
        raise ToolError(
            f"no weather for {location!r}; the example knows {', '.join(WEATHER_BY_CITY)}"
        )
    degrees, sky = known
    if unit == "fahrenheit":
        degrees = round(degrees * 9 / 5 + 32)
    return f"{degrees} degrees {unit} and {sky} in {location}"


EXAMPLE_TOOLS = (get_time, calculate, get_current_weather)


def _city(place: str) -> str:
    return place.split(",")[0].strip().lower()


MAX_EXPRESSION_CHARS = 500
MAX_RESULT_BITS = 4096

Number = int | float

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}
UNARY_OPERATORS: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "max": max,
    "min": min,
    "round": round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}
OPERATOR_SPELLINGS = str.maketrans({"×": "*", "÷": "/", "−": "-", "^": "**"})  # noqa: RUF001 - what models write


def evaluate(expression: str) -> Number:
    """Return the value of an arithmetic expression; raise `ToolError` if it cannot be computed.

    Accepts numbers, arithmetic operators and a few functions, and never uses `eval`. Sizes are
    limited, so that no expression can block the program.
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression is longer than {MAX_EXPRESSION_CHARS} characters")
    try:
        tree = ast.parse(expression.strip().translate(OPERATOR_SPELLINGS), mode="eval")
        return _check_size(_evaluate_node(tree.body))
    except (SyntaxError, MemoryError, RecursionError):
        raise ToolError(f"not an arithmetic expression: {expression!r}") from None
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ToolError(f"cannot compute {expression!r}: {error}") from None


def _evaluate_node(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.BinOp(op=ast.Pow()):
            base, exponent = _evaluate_node(node.left), _evaluate_node(node.right)
            if isinstance(base, int) and isinstance(exponent, int):
                _check_bits(base.bit_length() * abs(exponent))  # before the computation
            if isinstance(result := base**exponent, complex):
                raise ToolError("the result is not a real number")
            return result
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            return _check_size(
                OPERATORS[type(op)](_evaluate_node(node.left), _evaluate_node(node.right))
            )
        case ast.UnaryOp(op=op) if type(op) in UNARY_OPERATORS:
            return UNARY_OPERATORS[type(op)](_evaluate_node(node.operand))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _check_size(FUNCTIONS[name](*map(_evaluate_node, args)))
        case _:
            raise ToolError(f"only arithmetic is understood, not {ast.unparse(node)!r}")


def _check_size(value: Any) -> Any:
    if isinstance(value, int):
        _check_bits(value.bit_length())
    return value


def _check_bits(bits: int) -> None:
    if bits > MAX_RESULT_BITS:
        raise ToolError("the result is too large")
