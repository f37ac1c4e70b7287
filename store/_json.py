"""Values as JSON: canonical texts for identities and comparisons, and JSON that is decoded again.

Both write JSON types as themselves, and other types as an object with one key that begins with `$`,
the tag. `TYPE_FORMS` has both forms of each type. Journals store both forms, so neither may change.

- `canonical` returns a text that is the same in every process and every run. It never raises.
- `pack` and `unpack` also preserve bytes, tuples, sets, keys that are not strings, numbers that are
  not finite, and times with their zones.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b64decode, b64encode
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from json.encoder import encode_basestring
from json.encoder import encode_basestring_ascii as quote
from math import isfinite
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel
from pydantic_core import TzInfo, to_jsonable_python

from ..commander import Node
from ..commander.remote import inputs_of
from ..commander.stored_names import find_loaded, stored_name
from ..messages import Part
from ..messages.options import StrictSchema
from ._checksums import check_size

__all__ = [
    "EXACT_TAG",
    "JSON_WRITERS",
    "SCALAR_TEXTS",
    "ExactIntegers",
    "canonical",
    "canonical_inputs",
    "digest",
    "digest_put",
    "dump",
    "pack",
    "unpack",
]

# Levels of containers: a fixed number, since Python's recursion limit depends on the caller.
MAX_NESTING = 100
MAX_INT_BITS = 10_000  # Python converts no more than some thousand digits
EXACT_TAG = "$exact"  # of a value with integers instead of annotated floats


# --- the text of a value


def canonical(value: object, *, numbers: bool = False) -> tuple[str, bool]:
    """Return the text of `value`, and whether it is complete.

    Two values have the same text if they have the same structure of equal data of the same types:
    `1`, `True`, `1.0` and `"1"` differ, and so do a list and a tuple, or one instant in two time
    zones. The order of a dict does not count. A dataclass or pydantic model is written as the name
    of its class and all its fields, also fields that are not compared. A class or function is
    written as its name, if its module has it under that name. Anything else is live: a backend, a
    node, a lock, a lambda. It is written as the name of its type, and the text is not complete. The
    same applies to a value that contains itself or has more than 100 levels. With `numbers` an
    integer is written as the float that equals it, if there is one.
    """
    walk = _Walk(_FLOAT_TEXTS if numbers else SCALAR_TEXTS)
    try:
        return _text(value, walk), walk.complete
    except Exception:  # noqa: BLE001 - a metaclass; no stack left; a change by another thread
        return '{"$live":"any"}', False


def canonical_inputs(node: Node[Any]) -> tuple[str, bool]:
    """Return as `canonical` the text of a node's inputs and of attributes that its code has set."""
    given: dict[str, object] = vars(node)
    order = _order(tuple(given))
    if order is None:
        return canonical(inputs_of(node))
    texts: list[str] = []
    for name, begin in order:
        value = given[name]
        if (scalar := SCALAR_TEXTS.get(type(value))) is None:
            return canonical(inputs_of(node))
        texts.append(begin + scalar(value))
    return f"{{{','.join(texts)}}}", True


@lru_cache
def _order(names: tuple[str, ...]) -> list[tuple[str, str]] | None:
    """Return each attribute in order, with the text before its value; None for unusual names."""
    own = sorted(name for name in names if not name.startswith("_node_"))
    if not all(name.isidentifier() and name.isascii() for name in own):
        return None
    return [(name, f"{quote(name)}:") for name in own]


def digest(*parts: str | bytes | int) -> bytes:
    """Return 16 bytes that differ if the parts, their types or their order do."""
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
    """Return the identity of a node that is put, in half the time of `digest`."""
    begin = b"n" + putter + (b"%x:" % number if number else b"0:")
    return blake2b(begin + what.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _Walk:
    """The state of one call of `canonical`."""

    __slots__ = ("complete", "inside", "scalars")

    def __init__(self, scalars: dict[type, Callable[[Any], str]]) -> None:
        self.scalars = scalars
        self.inside: list[int] = []  # the ids of the containers around the current value
        self.complete = True


def _text(value: object, walk: _Walk) -> str:
    kind = type(value)
    if (scalar := walk.scalars.get(kind)) is not None:
        return scalar(value)
    inside = walk.inside
    if id(value) in inside or len(inside) >= MAX_NESTING:
        return _live(kind, walk)
    inside.append(id(value))
    text = _TEXTS.get(kind, _object)(value, walk)
    inside.pop()
    return text


def _live(kind: type, walk: _Walk) -> str:
    walk.complete = False
    return f'{{"$live":{quote(stored_name(kind))}}}'


def _string(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # two escaped lone surrogates would be one character
            return f'{{"$str":"{value.encode("utf-8", "surrogatepass").hex()}"}}'
    return quote(value)


def _integer(value: int) -> str:
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


# By base class: how to read the content of a subclass without calling its methods.
_CONTENT: dict[type, Callable[[Any], object]] = {
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
    """Write an object of another class: the name of its class and its declared fields."""
    kind = type(cast("object", value))
    try:
        own: Any = getattr(value, "__dict__", {})
        if "__qualname__" in own or issubclass(kind, (type, FunctionType, BuiltinFunctionType)):
            # A class, a function, or a wrapper of a function, such as a tool. Pickling a handler
            # renames its function to `_function` (`handlers/_handler.py`).
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
    """Return the contents of an object; None if they are unknown."""
    if issubclass(kind, BaseModel):
        fields = {name: own[name] for name in kind.model_fields if name in own}
        if hasattr(kind, "__stored_fields__"):  # fields that earlier releases named differently
            fields = value.__stored_fields__()
        return [fields, value.__pydantic_extra__, value.__pydantic_private__]
    if issubclass(kind, ZoneInfo):
        return [value.key] if value.key else None
    content = [plain(value) for base, plain in _CONTENT.items() if issubclass(kind, base)][:1]
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
        if hasattr(value, field.name):  # a slot may be empty
            attributes[field.name] = getattr(value, field.name)
    return [attributes, *content]


# --- JSON that is decoded again


def pack(value: Any, other: Callable[[Any], Any] | None = None, *, exact: bool = True) -> Any:
    """Return `value` as plain JSON data; without `exact`, other types are not tagged.

    `other` packs an object of any other class.
    """

    def again(value: Any) -> Any:
        kind = type(cast("object", value))
        if kind in (str, bool, NoneType):
            return value
        if kind is int:
            return value if value.bit_length() < MAX_INT_BITS else {"$int": f"{value:x}"}
        if kind is float:
            return value if isfinite(value) else {"$float": f"{value}"}
        if kind is list:
            return [again(each) for each in value]
        if kind is dict:
            if all(type(key) is str and key[:1] != "$" for key in value):
                return {key: again(each) for key, each in value.items()}
            return {"$dict": [[again(key), again(each)] for key, each in value.items()]}
        if exact and (write := _PACKERS.get(kind)) is not None:
            return {f"${kind.__name__}": write(value, again)}
        if other is not None:  # before the rest, which loses the class
            return other(value)
        if issubclass(kind, Enum):
            return again(value._value_)
        for base, plain in _CONTENT.items():
            if kind is not base and issubclass(kind, base):
                return again(plain(value))
        return to_jsonable_python(value)

    return again(value)


def unpack(data: bytes, others: dict[str, Callable[[Any], Any]] | None = None) -> Any:
    """Return the packed value from its JSON text.

    `others` has readers by tag for objects that the `other` of `pack` has packed.
    """
    readers = {**_TAG_READERS, **others} if others else _TAG_READERS

    def read(pairs: list[tuple[str, Any]]) -> Any:
        if len(pairs) == 1 and (reader := readers.get(pairs[0][0])) is not None:
            return reader(pairs[0][1])
        return dict(pairs)

    return json.loads(data, object_pairs_hook=read)


def dump(value: Any) -> bytes:
    """Return the JSON text of packed data. Raises `NotStorable` if it is too large."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        data = text.encode()
    except UnicodeEncodeError:  # lone surrogates
        data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    check_size(data)
    return data


def _write_str(value: str) -> bytes:
    try:
        return encode_basestring(value).encode()
    except UnicodeEncodeError:
        return dump(value)


# --- the forms of each type


_Text: TypeAlias = Callable[[Any, _Walk], str]
_Pack: TypeAlias = Callable[[Any, Callable[[Any], Any]], Any]
_Unpack: TypeAlias = Callable[[Any], Any]


def _tagged(tag: str, write: _Text) -> _Text:
    return lambda value, walk: f'{{"${tag}":{write(value, walk)}}}'


def _of(tag: str, *parts: Callable[[Any], object]) -> _Text:
    """Return a function that writes a tagged list of the parts that these functions return."""
    return _tagged(tag, lambda value, walk: _list([part(value) for part in parts], walk))


def _sorted(values: Any, again: Callable[[Any], Any]) -> list[Any]:
    return sorted(map(again, values), key=json.dumps)


def _write_clock(value: Any, _: Any) -> list[Any]:
    zone: Any = value.tzinfo
    if zone is not None:
        zone = zone.key if type(zone) is ZoneInfo else value.utcoffset().total_seconds()
    return [value.replace(tzinfo=None).isoformat(), zone, value.fold]


def _read_clock(kind: Any) -> Callable[[Any], Any]:
    def read(parts: Any) -> Any:
        text, zone, fold = parts
        if isinstance(zone, str):
            zone = ZoneInfo(zone)
        elif zone is not None:
            zone = timezone(timedelta(seconds=zone))
        return kind.fromisoformat(text).replace(tzinfo=zone, fold=fold)

    return read


_Parts: TypeAlias = tuple[Callable[[Any], object], ...]
# `fold` distinguishes the two hours at the end of summer time.
_CLOCK: _Parts = (
    lambda v: v.replace(tzinfo=None).isoformat(), lambda v: v.tzinfo, lambda v: v.fold
)  # fmt: skip
_SPAN: _Parts = (lambda v: v.days, lambda v: v.seconds, lambda v: v.microseconds)
_COMPLEX: _Parts = (lambda v: v.real, lambda v: v.imag)

# By exact type: its canonical text, which is always complete.
SCALAR_TEXTS: dict[type, Callable[[Any], str]] = {
    str: _string,
    int: _integer,
    bool: lambda value: "true" if value else "false",
    NoneType: lambda value: "null",
    float: lambda value: f"{value!r}" if isfinite(value) else f'{{"$float":"{value}"}}',
    bytes: lambda value: f'{{"$bytes":"{value.hex()}"}}',
}

_FLOAT_TEXTS: dict[type, Callable[[Any], str]] = {
    **SCALAR_TEXTS,
    int: lambda value: _integer(value) if abs(value) > 2**53 else f"{float(value)!r}",
}

# By exact type: its JSON, equal to that of `dump(pack(value))`.
JSON_WRITERS: dict[type, Callable[[Any], bytes]] = {
    str: _write_str,
    int: lambda v: b"%d" % v if v.bit_length() < MAX_INT_BITS else dump(pack(v)),
    float: lambda v: float.__repr__(v).encode() if isfinite(v) else dump(pack(v)),
    bool: lambda value: b"true" if value else b"false",
    NoneType: lambda _: b"null",
}

# By type: its canonical text, and how it is packed and unpacked, or None.
TYPE_FORMS: dict[type, tuple[_Text, _Pack | None, _Unpack | None]] = {
    bytes: (
        lambda value, _: SCALAR_TEXTS[bytes](value),
        lambda v, _: b64encode(v).decode(),
        b64decode,
    ),
    tuple: (_tagged("tuple", _list), lambda value, again: [again(v) for v in value], tuple),
    set: (_tagged("set", _set), _sorted, set),
    frozenset: (_tagged("frozenset", _set), _sorted, frozenset),
    datetime: (_of("datetime", *_CLOCK), _write_clock, _read_clock(datetime)),
    time: (_of("time", *_CLOCK), _write_clock, _read_clock(time)),
    date: (_of("date", date.isoformat), lambda v, _: v.isoformat(), date.fromisoformat),
    timedelta: (
        _of("timedelta", *_SPAN),
        lambda v, _: [part(v) for part in _SPAN],
        lambda v: timedelta(*v),
    ),
    Decimal: (_of("Decimal", lambda v: list(v.as_tuple())), lambda v, _: str(v), Decimal),
    UUID: (_of("UUID", lambda value: value.hex), lambda value, _: value.hex, UUID),
    complex: (
        _of("complex", *_COMPLEX),
        lambda v, again: [again(part(v)) for part in _COMPLEX],
        lambda parts: complex(*parts),
    ),
    list: (_list, None, None),
    dict: (_dict, None, None),
    StrictSchema: (lambda value, walk: _dict(value.known_as, walk), None, None),
    deque: (_of("deque", list, lambda value: value.maxlen), None, None),
    OrderedDict: (_of("OrderedDict", lambda value: list(value.items())), None, None),
    defaultdict: (_of("defaultdict", lambda value: value.default_factory, dict), None, None),
    bytearray: (_of("bytearray", bytes), None, None),
    range: (_of("range", lambda v: v.start, lambda v: v.stop, lambda v: v.step), None, None),
    Fraction: (_of("Fraction", lambda v: v.numerator, lambda v: v.denominator), None, None),
    timezone: (_of("timezone", lambda value: value.utcoffset(None)), None, None),
    TzInfo: (_of("timezone", lambda v: v.utcoffset(None)), None, None),  # pydantic's timezone
    Part: (_of("Part", lambda value: value.digest, lambda value: value.name), None, None),
    **{
        kind: (_of(kind.__name__, str), None, None)
        for kind in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)
    },
}
_TEXTS = {kind: text for kind, (text, _, _) in TYPE_FORMS.items()}
_PACKERS = {kind: pack for kind, (_, pack, _) in TYPE_FORMS.items() if pack is not None}


class ExactIntegers(NamedTuple):
    """A value with the tag `EXACT_TAG`: its integers stay integers."""

    value: Any


_TAG_READERS: dict[str, Callable[[Any], Any]] = {
    **{f"${kind.__name__}": read for kind, (_, _, read) in TYPE_FORMS.items() if read is not None},
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$dict": dict,
    EXACT_TAG: ExactIntegers,
}
