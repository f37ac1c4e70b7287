"""Methods that users write as `async def`: a plain one in their place is named by class and method.

Python itself says only that some object cannot be used in an 'await' expression.
"""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ._record import NodeBase

__all__ = ["name_plain_body", "require_awaitable"]

T = TypeVar("T")


def require_awaitable(value: Awaitable[T], owner: object, method: str) -> Awaitable[T]:
    """Return what a method of `owner` gave; raise a `TypeError` if that cannot be awaited."""
    if not isawaitable(value):
        raise TypeError(_text(owner, method))
    return value


def name_plain_body(node: NodeBase, error: TypeError) -> TypeError:
    """Return the error to raise for `error`, which came of the call of a node's body itself."""
    task: Any = getattr(type(node), "task", None)
    if iscoroutinefunction(task):
        return error
    named = TypeError(_text(node, "task"))
    named.__cause__ = error
    return named


def _text(owner: object, method: str) -> str:
    return f"{type(owner).__name__}.{method} is not async: write 'async def {method}'"
