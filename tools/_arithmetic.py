"""Work out an arithmetic expression that came from a model, and nothing else.

Only numbers, the operators of arithmetic and a few functions are understood; nothing is ever
passed to `eval`. Sizes are limited so that no expression can hold up the program.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from ..commander.errors import ToolError

__all__ = ["evaluate"]

MAX_LENGTH = 500
MAX_BITS = 4096

Number = int | float

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: operator.mod,
}
SIGNS: dict[type[ast.AST], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
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
SPELLINGS = str.maketrans({"×": "*", "÷": "/", "−": "-", "^": "**"})  # noqa: RUF001 - what models write


def evaluate(expression: str) -> Number:
    """Return the value of `expression`; raise `ToolError` saying what cannot be worked out."""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"the expression is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(expression.strip().translate(SPELLINGS), mode="eval")
        return _check_size(_value(tree.body))
    except (SyntaxError, MemoryError, RecursionError):
        raise ToolError(f"not an arithmetic expression: {expression!r}") from None
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ToolError(f"cannot work out {expression!r}: {error}") from None


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.BinOp(op=ast.Pow()):
            base, exponent = _value(node.left), _value(node.right)
            if isinstance(base, int) and isinstance(exponent, int):
                _refuse(base.bit_length() * abs(exponent))  # before the work
            if isinstance(result := base**exponent, complex):
                raise ToolError("the result is not a real number")
            return result
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            return _check_size(OPERATORS[type(op)](_value(node.left), _value(node.right)))
        case ast.UnaryOp(op=op) if type(op) in SIGNS:
            return SIGNS[type(op)](_value(node.operand))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _check_size(FUNCTIONS[name](*map(_value, args)))
        case _:
            raise ToolError(f"only arithmetic is understood, not {ast.unparse(node)!r}")


def _check_size(value: Any) -> Any:
    if isinstance(value, int):
        _refuse(value.bit_length())
    return value


def _refuse(bits: int) -> None:
    if bits > MAX_BITS:
        raise ToolError("the result is too large")
