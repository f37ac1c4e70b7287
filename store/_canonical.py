"""Inputs as a text that is the same in every process and every run, and digests of such texts.

The text is JSON. Strings, integers, floats, lists, and dicts whose keys are strings are written as
themselves, all else as an object with one key that begins with `$`, its tag; a dict that looks like
one is written as `$dict`. So different data never meet in one text, and nothing depends on
identities, on hashes or on the order in which a set or a dict happens to be.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as quote
from math import isfinite
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel
from pydantic_core import TzInfo

from ..commander import Node
from ..commander.remote import inputs
from ..commander.stored_names import find_loaded, stored_name
from ..messages import Part
from ..messages.options import StrictSchema

__all__ = [
    "CONTENT",
    "canonical",
    "canonical_inputs",
    "digest",
    "digest_put",
]

# Containers inside each other: a fixed number, since Python's own limit depends on the caller.
DEEPEST = 100


def canonical(value: object, *, numbers: bool = False) -> tuple[str, bool]:
    """Return the text of `value`, and whether it says everything.

    Two values have one text if they are built alike of equal data of the same types: `1`, `True`,
    `1.0` and `"1"` differ, so do a list and a tuple, or one instant in two time zones; the order of
    a dict does not count. Dataclasses and pydantic models are the name of their class and all their
    fields, also those that are not compared; classes and functions their name, if they are found
    under it in their module. Anything else is live: a backend, a node, a lock, a lambda. Only the
    name of its type is written, and the text does not say everything. So with what contains itself
    or is nested deeper than 100 levels. Raises nothing, whatever the value is. With `numbers` an
    integer is written as the float that equals it, if there is one.
    """
    walk = _Walk(_NUMBERS if numbers else SCALARS)
    try:
        return _text(value, walk), walk.whole
    except Exception:  # noqa: BLE001 - odd metaclasses; no stack left; changed in another thread
        return '{"$live":"any"}', False


def canonical_inputs(node: Node[Any]) -> tuple[str, bool]:
    """Return the same of what `node` was made with and what its own code has set."""
    given: dict[str, object] = vars(node)
    order = _order(tuple(given))
    if order is None:
        return canonical(inputs(node))
    texts: list[str] = []
    for name, begin in order:
        value = given[name]
        if (scalar := SCALARS.get(type(value))) is None:
            return canonical(inputs(node))
        texts.append(begin + scalar(value))
    return f"{{{','.join(texts)}}}", True


@lru_cache
def _order(names: tuple[str, ...]) -> list[tuple[str, str]] | None:
    """Return what begins each attribute in a text that is written in order; None for odd names."""
    own = sorted(name for name in names if not name.startswith("_node_"))
    if not all(name.isidentifier() and name.isascii() for name in own):
        return None
    return [(name, f"{quote(name)}:") for name in own]


def digest(*parts: str | bytes | int) -> bytes:
    """Return 16 bytes that tell these parts, their types and their order from all others."""
    state = blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, str):
            data = part.encode("utf-8", "surrogatepass")
            state.update(b"s%d:" % len(data) + data)
        elif isinstance(part, bytes):
            state.update(b"b%d:" % len(part) + part)
        else:
            state.update(b"i%x:" % part)
    return state.digest()


def digest_put(putter: bytes, what: str, number: int) -> bytes:
    """Return likewise who it is that is put: in half the time, as every node is asked for."""
    begin = b"n" + putter + (b"%x:" % number if number else b"0:")
    return blake2b(begin + what.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Walk:
    """One value that is being written: what it is inside of, and whether all was said so far."""

    __slots__ = ("inside", "scalars", "whole")

    def __init__(self, scalars: dict[type, Callable[[Any], str]]) -> None:
        self.scalars = scalars
        self.inside: list[int] = []  # the identities of the containers around; none is written
        self.whole = True


def _text(value: object, walk: _Walk) -> str:
    kind = type(value)
    if (scalar := walk.scalars.get(kind)) is not None:
        return scalar(value)
    inside = walk.inside
    if id(value) in inside or len(inside) >= DEEPEST:
        return _live(kind, walk)
    inside.append(id(value))
    text = _CONTAINERS.get(kind, _object)(value, walk)
    inside.pop()
    return text


def _live(kind: type, walk: _Walk) -> str:
    walk.whole = False
    return f'{{"$live":{quote(stored_name(kind))}}}'


def _string(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # escaped, two lone surrogates would be one character
            return f'{{"$str":"{value.encode("utf-8", "surrogatepass").hex()}"}}'
    return quote(value)


def _integer(value: int) -> str:
    # Python converts no more than some thousand digits to decimals.
    return f"{value}" if -(10**18) < value < 10**18 else f'{{"$int":"{value:x}"}}'


def _list(value: Any, walk: _Walk) -> str:
    return f"[{','.join([_text(each, walk) for each in value])}]"


def _set(value: Any, walk: _Walk) -> str:
    return f"[{','.join(sorted([_text(each, walk) for each in value]))}]"


def _dict(value: Any, walk: _Walk) -> str:
    for key in value:
        if type(key) is not str or not key.isascii() or (key[:1] == "$" and len(value) == 1):
            pairs = [f"[{_text(key, walk)},{_text(each, walk)}]" for key, each in value.items()]
            return f'{{"$dict":[{",".join(sorted(pairs))}]}}'
    text = ",".join([f"{quote(key)}:{_text(value[key], walk)}" for key in sorted(value)])
    return f"{{{text}}}"


def _tagged(tag: str, write: Callable[[Any, _Walk], str]) -> Callable[[Any, _Walk], str]:
    return lambda value, walk: f'{{"${tag}":{write(value, walk)}}}'


def _of(tag: str, *parts: Callable[[Any], object]) -> Callable[[Any, _Walk], str]:
    """Write what these give of a value, one after the other."""
    return _tagged(tag, lambda value, walk: _list([part(value) for part in parts], walk))


# Of these types, whatever the value is.
SCALARS: dict[type, Callable[[Any], str]] = {
    str: _string,
    int: _integer,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
    float: lambda value: f"{value!r}" if isfinite(value) else f'{{"$float":"{value}"}}',
    bytes: lambda value: f'{{"$bytes":"{value.hex()}"}}',
}

_NUMBERS: dict[type, Callable[[Any], str]] = {
    **SCALARS,
    int: lambda value: _integer(value) if abs(value) > 2**53 else f"{float(value)!r}",
}

_CONTAINERS: dict[type, Callable[[Any, _Walk], str]] = {
    list: _list,
    dict: _dict,
    StrictSchema: lambda value, walk: _dict(value.known_as, walk),
    tuple: _tagged("tuple", _list),
    set: _tagged("set", _set),
    frozenset: _tagged("frozenset", _set),
    deque: _of("deque", list, lambda value: value.maxlen),
    OrderedDict: _of("OrderedDict", lambda value: list(value.items())),
    defaultdict: _of("defaultdict", lambda value: value.default_factory, dict),
    bytearray: _of("bytearray", bytes),
    complex: _of("complex", lambda value: value.real, lambda value: value.imag),
    range: _of("range", lambda v: v.start, lambda v: v.stop, lambda v: v.step),
    Fraction: _of("Fraction", lambda value: value.numerator, lambda value: value.denominator),
    Decimal: _of("Decimal", lambda value: list(value.as_tuple())),
    UUID: _of("UUID", lambda value: value.hex),
    date: _of("date", date.isoformat),
    # `fold` says which of the two hours before winter it is.
    time: _of(
        "time", lambda v: v.replace(tzinfo=None).isoformat(), lambda v: v.tzinfo, lambda v: v.fold
    ),
    datetime: _of(
        "datetime",
        lambda v: v.replace(tzinfo=None).isoformat(),
        lambda v: v.tzinfo,
        lambda v: v.fold,
    ),
    timedelta: _of("timedelta", lambda v: v.days, lambda v: v.seconds, lambda v: v.microseconds),
    timezone: _of("timezone", lambda value: value.utcoffset(None)),
    TzInfo: _of("timezone", lambda value: value.utcoffset(None)),  # what pydantic reads
    Part: _of("Part", lambda value: value.digest, lambda value: value.name),
    **{kind: _of(kind.__name__, str) for kind in (PosixPath, WindowsPath)},
    **{kind: _of(kind.__name__, str) for kind in (PurePosixPath, PureWindowsPath)},
}

# What a subclass of these holds, without its own methods having a say.
CONTENT: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
    list: list[Any].copy,
    tuple: lambda value: tuple[Any].__getitem__(value, slice(None)),
    set: lambda value: set[Any]().union(value),
    frozenset: lambda value: frozenset[Any]().union(value),
    OrderedDict: lambda value: list(OrderedDict[Any, Any].items(value)),
    defaultdict: lambda value: [value.default_factory, dict[Any, Any].copy(value)],
    dict: dict[Any, Any].copy,
}


def _object(value: Any, walk: _Walk) -> str:
    """Write what has a class of its own: the class by its name, and what its author declared."""
    kind = type(cast("object", value))
    try:
        own: Any = getattr(value, "__dict__", {})
        if "__qualname__" in own or issubclass(kind, (type, FunctionType, BuiltinFunctionType)):
            # A class, a function, or what wraps a function as a tool does.
            # Pickling a handler renames its function to this (`handlers/_handler.py`).
            renamed = value.__qualname__.endswith("._function")
            if not renamed and find_loaded(name := stored_name(value)) is value:
                return f'{{"$name":{quote(name)}}}'
            state = None
        elif issubclass(kind, Enum):  # a member of a `Flag` may have no name
            state = [value._value_ if issubclass(kind, Flag) else value._name_]
        else:
            state = None if issubclass(kind, cast("type", Node)) else _state(value, kind, own)
    except Exception:  # noqa: BLE001 - code of a user's class
        state = None
    if state is None:
        return _live(kind, walk)
    return f'{{"$object":{_list([stored_name(kind), *state], walk)}}}'


def _state(value: Any, kind: Any, own: dict[str, Any]) -> list[object] | None:
    """Return what an object is made of; None if that cannot be known."""
    if issubclass(kind, BaseModel):
        fields = {name: own[name] for name in kind.model_fields if name in own}
        return [fields, value.__pydantic_extra__, value.__pydantic_private__]
    if issubclass(kind, ZoneInfo):
        return [value.key] if value.key else None
    content = [plain(value) for base, plain in CONTENT.items() if issubclass(kind, base)][:1]
    slots = any(each.__dict__.get("__slots__") for each in type.mro(kind))
    declared = dataclasses.is_dataclass(value)
    if not declared and (not content or slots):
        return None
    attributes = {
        name: each
        for name, each in own.items()
        if name != "__orig_class__" and not isinstance(getattr(kind, name, None), cached_property)
    }
    for field in dataclasses.fields(value) if declared else ():
        if hasattr(value, field.name):  # one with a slot may be empty
            attributes[field.name] = getattr(value, field.name)
    return [attributes, *content]
