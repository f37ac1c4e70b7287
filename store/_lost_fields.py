"""Finds the fields that a stored value has and the class that reads it has lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import zip_longest
from typing import Any, cast

__all__ = ["find_lost", "older_readers"]

# The types of pydantic's schemas that have fields, or may stand for one that has.
_FIELDS = (
    "model", "model-fields", "dataclass", "dataclass-args", "typed-dict", "definition-ref",
)  # fmt: skip


def find_lost(stored: Any, now: Any, value: Any, older: Set[type | None]) -> str | None:
    """Return a key that an object in one JSON value has and the same object in another has not.

    `now` was written of `value`; objects of the classes `older` may have read other keys.
    """
    if stored == now or type(value) in older:
        return None
    inner: Iterable[tuple[Any, Any, Any]] = ()
    if stored.__class__ is now.__class__ is dict:
        if lost := next((each for each in stored if each not in now and each[:1] != "$"), None):
            return lost
        names = [name for name in stored if name in now]
        inner = [(stored[name], now[name], _inside(value, name)) for name in names]
    elif stored.__class__ is now.__class__ is list:
        values = [*cast("Iterable[Any]", value)] if isinstance(value, Iterable) else []
        inner = zip_longest(stored, now, values[: len(stored)])
    return next((lost for each in inner if (lost := find_lost(*each, older)) is not None), None)


def _inside(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return list(pairs.items()) if name == "$dict" else pairs.get(name)
    return value if name[:1] == "$" else getattr(value, name, None)


def older_readers(schema: Any, around: type | None = None) -> set[type | None]:
    """Return the classes with fields in a schema of pydantic that may read older forms.

    They have a validator that gets the value before its fields are read. None stands for one that
    cannot be told by its class, as a `TypedDict`.
    """
    found: set[type | None] = set()
    if schema.__class__ is dict:
        kind = schema.get("type")
        around = schema["cls"] if kind in ("model", "dataclass") else around
        if kind in ("function-before", "function-wrap"):
            inner = schema.get("schema")  # a serializer may have none
            if inner.__class__ is dict and (inner_kind := inner.get("type")) in _FIELDS:
                inside = inner_kind in ("model-fields", "dataclass-args")
                found.add(around if inside else inner.get("cls"))
        schema = schema.values()
    elif schema.__class__ not in (list, tuple):
        return found
    return found.union(*(older_readers(each, around) for each in schema))
