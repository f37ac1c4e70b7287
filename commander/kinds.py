"""Arguments of the wrong kind: refused where they are given, and the message says what to give."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from types import UnionType
from typing import Any

__all__ = ["FUNCTION", "NUMBER", "require"]

FUNCTION: Any = Callable
NUMBER = Real


def require(given: object, kind: type | UnionType, wanted: str, *, like: str = "") -> None:
    """Raise a `TypeError` unless `given` is of `kind`, or an object with the method `like`.

    `wanted` says which argument it is and what it must be: "view must be a View or None". A class
    of the kind itself is told to make one of it.
    """
    made: Any = given
    if isinstance(given, kind) or (
        like and not isinstance(made, type) and callable(getattr(made, like, None))
    ):
        return
    try:
        is_class = isinstance(made, type) and issubclass(made, kind)
    except TypeError:  # a protocol with attributes, from Python 3.12 on
        is_class = False
    remedy = f": make one, {made.__name__}(...)" if is_class else ""
    raise TypeError(f"{wanted}, not {given!r:.200}{remedy}")
