"""What a field or a result is annotated with decides how its value is written, and read again.

A value is written as JSON by pydantic's own account of its type. What JSON has not is an object
with one key that begins with `$`, its tag: bytes, tuples and sets (in the order of their text, not
of their hashes), keys that are no strings, numbers that are not finite, times with their zones. So
what was written reads the same for the program that wrote it and for any other.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring as quote
from math import isfinite
from types import SimpleNamespace, UnionType
from typing import (
    Any,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python

from ._canonical import CONTENT, SCALARS, canonical
from ._lost_fields import find_lost, older_readers
from ._seal import check_size
from .errors import JournalMismatch, NotStorable

__all__ = ["Codec", "dump", "pack", "unpack"]


class Codec:
    """Writes and reads the values of one annotation; `where` says whose they are.

    Raises `NotStorable` if no value of that type can be kept: callables, open files, locks, secrets
    and whatever pydantic does not know. Names that cannot be resolved yet are looked for again when
    the first value comes; `owner` is the class or function in whose module a string is read.

    A codec keeps what it takes: the value that comes back is of the same types all the way down,
    with all its fields, or `encode` refuses it. A model's subclass is therefore refused where the
    model is annotated, `"3"` and `True` where an `int` is. Without an annotation, or under `Any`,
    only what is JSON is taken: a tuple, a set, a date or a model would come back as something else.

    pydantic reads an integer as a float where a `float` is annotated. A value with such integers is
    therefore written as `{"$exact": ...}`, and its integers are put back when it is read. Without
    that tag, as earlier versions wrote it, it has floats there.
    """

    def __init__(
        self, annotation: Any, where: str, owner: type | Callable[..., Any] | None = None
    ) -> None:
        self.annotation = annotation
        self.where = where
        self._owner = owner
        self._exact = True  # False where nothing is annotated
        # The types of which any value is taken, and comes back as it is: JSON has them. pydantic,
        # which says so of all others, takes a hundred times as long.
        self.plain: frozenset[type] = frozenset()
        # And how they stand in the text of a node's inputs.
        self.scalars: dict[type, Callable[[Any], str]] = {}
        self._adapter: TypeAdapter[Any] | None = None
        # Whether it holds models or other classes with fields, which may lose one; and those of
        # them that may read older forms.
        self._has_fields = False
        self._older: set[type | None] = set()
        self._resolve(last=False)

    @property
    def shown(self) -> str:
        """The annotation, as a message names it."""
        return _shown(self.annotation)

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON. Raises `NotStorable` if it would not come back as it is."""
        if type(value) in self.plain:
            data = _WRITERS[type(value)](value)
            check_size(data)
            return data
        adapter = self._adapter or self._resolve(last=True)
        try:
            plain = adapter.dump_python(value, by_alias=False, round_trip=True, warnings="error")
            packed = pack(plain, exact=self._exact)
            data = dump(packed)
            back = self._read(adapter, data)
            same = _same(value, back)
            if not same and _same(value, back, numbers=True):
                data = dump({EXACT: packed})
                back = self._read(adapter, data)
                same = _same(value, back)
        except Exception as error:  # noqa: BLE001 - a user's serializers, validators and `__eq__`
            self._refuse(value, _why(error), error)
        if not same:
            self._refuse(value, f"it would come back as another, of the type {_shown(type(back))}")
        return data

    def decode(self, data: bytes, *, foreign: bool = False) -> Any:
        """Return what was encoded; raise `JournalMismatch` if the annotation does not allow it.

        A class that has lost a field since then is refused, as it would drop the field's value.
        `foreign` data was written by somebody else, and may have more fields.
        """
        if self.plain:
            try:
                value, end = _scan(text := data.decode(), 0)
                if type(value) in self.plain and end == len(text):
                    return value
            except (ValueError, StopIteration):  # of which more is said below
                pass
        adapter = self._adapter or self._resolve(last=True)
        try:
            value = self._read(adapter, data)
            lost = (
                None if foreign or not self._has_fields else self._lost_field(adapter, data, value)
            )
        except Exception as error:
            raise JournalMismatch(
                f"{self.where}: what the journal has of it does not fit {_shown(self.annotation)}"
                f" any more: {_why(error)}"
            ) from error
        if lost is not None:
            raise JournalMismatch(
                f"{self.where}: the journal has a field {lost!r} of it, which"
                f" {_shown(self.annotation)} has no more: give the class that field again, or a"
                " validator (mode='before') that reads the value without it"
            )
        return value

    def misfit(self, data: bytes) -> str | None:
        """Say why `decode` refuses this, in words that tell nothing of the value; None if not."""
        try:
            self.decode(data, foreign=True)
        except JournalMismatch as error:
            cause = error.__cause__
            if not isinstance(cause, ValidationError):
                return type(cause).__name__
            kind = cause.errors(include_url=False, include_input=False)[0]["type"]
            return kind if kind in _TELLING else _why(cause)
        return None

    def _read(self, adapter: TypeAdapter[Any], data: bytes) -> Any:
        plain = unpack(data)
        if exact := plain.__class__ is _Exact:
            plain = plain.value
        value = adapter.validate_python(plain, by_alias=False, by_name=True)
        return _put_integers_back(value, plain) if exact else value

    def _lost_field(self, adapter: TypeAdapter[Any], data: bytes, value: Any) -> str | None:
        """Return the name of a field that the journal has of a value and its class has not."""
        stored = json.loads(data)
        if stored.__class__ is dict and EXACT in stored:
            stored = stored[EXACT]
        plain = adapter.dump_python(value, by_alias=False, round_trip=True)
        return find_lost(stored, pack(plain, exact=self._exact), value, self._older)

    def _refuse(self, value: object, why: str, error: Exception | None = None) -> NoReturn:
        raise NotStorable(
            f"{self.where}: a value of the type {_shown(type(value))} cannot be kept where"
            f" {_shown(self.annotation)} is annotated: {why}"
        ) from error

    def _resolve(self, *, last: bool) -> Any:
        """Make the adapter; unless this is the `last` time, a name that is unknown may yet come."""
        names: dict[str, Any] = {}
        if self._owner is not None:
            module = sys.modules.get(self._owner.__module__ or "")
            names = {**vars(module or SimpleNamespace()), **getattr(self._owner, "__dict__", {})}
        holder = SimpleNamespace(__annotations__={"value": self.annotation})
        try:
            hint = get_type_hints(holder, names, include_extras=True)["value"]
            adapter = TypeAdapter[Any](hint)
            schema = json.dumps(adapter.json_schema(schema_generator=_Schema))
        except PydanticUserError as error:
            if error.code != "class-not-fully-defined" or last:
                raise self._unfit(_why(error)) from error
            return None
        except NameError as error:
            if last:
                raise self._unfit(f"{error}, now that a value of it has come") from error
            return None
        except Exception as error:  # code in a user's annotations
            raise self._unfit(_why(error)) from error
        if '"writeOnly": true' in schema:
            raise self._unfit("it is a secret, or holds one")
        self._exact = hint not in (Any, object) and not isinstance(hint, TypeVar)
        self._older = older_readers(adapter.core_schema)
        self._has_fields = '"properties"' in schema and None not in self._older
        kinds = tuple(_WRITERS)
        plain: tuple[Any, ...] = kinds if hint in (Any, object) else (hint,)
        if get_origin(hint) in (Union, UnionType):
            plain = get_args(hint)
        self.plain = frozenset(plain if all(each in kinds for each in plain) else ())
        self.scalars = {kind: SCALARS[kind] for kind in self.plain}
        self._adapter = adapter
        self._owner = None  # whose codec this may be, by a weak reference
        return adapter

    def _unfit(self, why: str) -> NotStorable:
        return NotStorable(
            f"{self.where}: {_shown(self.annotation)} cannot be kept in a journal: {why}."
            " What cannot be written is annotated Live[...] and given when the run is taken up"
        )


class _Schema(GenerateJsonSchema):
    """Refuses what pydantic would let pass: the schema is only made to see whether there is one."""

    def generator_schema(self, schema: Any) -> Any:
        return self.handle_invalid_for_json_schema(schema, "an iterator, which can be read once")

    def is_subclass_schema(self, schema: Any) -> Any:
        return self.handle_invalid_for_json_schema(schema, "a class")

    def callable_schema(self, schema: Any) -> Any:
        return self.handle_invalid_for_json_schema(schema, "a callable")

    def enum_schema(self, schema: Any) -> Any:
        return {}  # its values, as a literal's and a default, may be what JSON has not

    def literal_schema(self, schema: Any) -> Any:
        return {}

    def default_schema(self, schema: Any) -> Any:
        return self.generate_inner(schema["schema"])

    def emit_warning(self, kind: Any, detail: str) -> None:
        if kind == "skipped-choice":  # of a union, all have to be good
            raise PydanticUserError(detail, code=None)


# --- JSON and what it has not


def pack(value: Any, other: Callable[[Any], Any] | None = None, *, exact: bool = True) -> Any:
    """Return what `json` writes of data; only `exact` keeps what JSON has not.

    `other` gives what is written of an object of any other class.
    """

    def again(value: Any) -> Any:
        kind = type(cast("object", value))
        if kind in _PLAIN:
            return value
        if kind is int:  # beyond some thousand digits Python converts none
            return value if value.bit_length() < MOST_BITS else {"$int": f"{value:x}"}
        if kind is float:
            return value if isfinite(value) else {"$float": f"{value}"}
        if kind is list:
            return [again(each) for each in value]
        if kind is dict:
            if all(type(key) is str and key[:1] != "$" for key in value):
                return {key: again(each) for key, each in value.items()}
            return {"$dict": [[again(key), again(each)] for key, each in value.items()]}
        if exact and kind in _TAGS:
            return {f"${kind.__name__}": _TAGS[kind][0](value, again)}
        if other is not None:
            return other(value)
        if issubclass(kind, Enum):
            return again(value._value_)
        for base, plain in CONTENT.items():
            if kind is not base and issubclass(kind, base):
                return again(plain(value))
        return to_jsonable_python(value)

    return again(value)


def unpack(data: bytes, others: dict[str, Callable[[Any], Any]] | None = None) -> Any:
    """Return what `pack` was given, of the JSON text of what it gave.

    `others` read what its `other` wrote, by their tags.
    """
    readers = {**_READERS, **others} if others else _READERS

    def read(pairs: list[tuple[str, Any]]) -> Any:
        if len(pairs) == 1 and (reader := readers.get(pairs[0][0])) is not None:
            return reader(pairs[0][1])
        return dict(pairs)

    return json.loads(data, object_pairs_hook=read)


def dump(value: Any) -> bytes:
    """Return the JSON text of what `pack` gave. Raises `NotStorable` if it is too large."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        data = text.encode()
    except UnicodeEncodeError:  # lone surrogates
        data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    check_size(data)
    return data


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


_PLAIN = frozenset({str, bool, type(None)})

_scan: Callable[[str, int], tuple[Any, int]] = cast("Any", json.JSONDecoder()).scan_once


def _write_str(value: str) -> bytes:
    try:
        return quote(value).encode()
    except UnicodeEncodeError:
        return dump(value)


# What `encode` gives for a value of just this type.
_WRITERS: dict[type, Callable[[Any], bytes]] = {
    str: _write_str,
    int: lambda value: b"%d" % value if value.bit_length() < MOST_BITS else dump(pack(value)),
    float: lambda value: float.__repr__(value).encode() if isfinite(value) else dump(pack(value)),
    bool: lambda value: b"true" if value else b"false",
    type(None): lambda _: b"null",
}

MOST_BITS = 10_000
LONGEST = 300  # characters of what is said of an error
WARNS = "Pydantic serializer warnings:\n  PydanticSerializationUnexpectedValue("

# What pydantic says with these may have a part of the value in it.
_TELLING = frozenset({"value_error", "assertion_error", "union_tag_invalid"})

EXACT = "$exact"  # the tag of a value whose integers may stand where a float is annotated

# How each is written, and read again.
_TAGS: dict[type, tuple[Callable[[Any, Callable[[Any], Any]], Any], Callable[[Any], Any]]] = {
    bytes: (lambda value, again: b64encode(value).decode(), b64decode),
    tuple: (lambda value, again: [again(each) for each in value], tuple),
    set: (_sorted, set),
    frozenset: (_sorted, frozenset),
    datetime: (_write_clock, _read_clock(datetime)),
    time: (_write_clock, _read_clock(time)),
    date: (lambda value, again: value.isoformat(), date.fromisoformat),
    timedelta: (
        lambda value, again: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
    Decimal: (lambda value, again: str(value), Decimal),
    UUID: (lambda value, again: value.hex, UUID),
    complex: (
        lambda value, again: [again(value.real), again(value.imag)],
        lambda parts: complex(*parts),
    ),
}


class _Exact(NamedTuple):
    """A value whose integers stay integers; a dict that has the tag as a key of its own is none."""

    value: Any


_READERS: dict[str, Callable[[Any], Any]] = {
    **{f"${kind.__name__}": read for kind, (_, read) in _TAGS.items()},
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$dict": dict,
    EXACT: _Exact,
}


# --- what is said of values


def _same(value: Any, back: Any, *, numbers: bool = False) -> bool:
    if type(value) in (str, int) and type(back) is type(value):
        return back == value
    text, whole = canonical(value, numbers=numbers)
    again, _ = canonical(back, numbers=numbers)
    return text == again and (whole or bool(value == back))


def _put_integers_back(value: Any, plain: Any) -> Any:
    """Return `value`, which was read of `plain`, with an integer for each that `plain` has."""
    kind: Any = type(cast("object", value))
    again: Any = _put_integers_back
    if kind is float:
        return plain if type(plain) is int else value
    if issubclass(kind, tuple):
        make = cast("Any", tuple).__new__
        return make(kind, map(again, value, plain))  # also of a `NamedTuple`
    if value.__class__ in (set, frozenset):
        return kind(plain) if value == plain else value
    if issubclass(kind, list | deque):
        for index, each in enumerate(plain):
            value[index] = again(value[index], each)
    elif issubclass(kind, dict):
        keys = {each: each for each in plain}
        items = [(again(key, keys[key]), again(each, plain[key])) for key, each in value.items()]
        value.clear()
        value.update(items)
    elif isinstance(plain, dict):
        for name, each in cast("dict[str, Any]", plain).items():
            before = getattr(value, name)
            if (after := again(before, each)) is not before:
                object.__setattr__(value, name, after)  # also of a frozen class
    return value


def _shown(annotation: Any) -> str:
    """Return the name of a class, the text of any other annotation."""
    if issubclass(type(annotation), type):
        return annotation.__qualname__
    return f"{annotation}".removeprefix("typing.")


def _why(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(each) for each in first["loc"])
        return f"{place}: {first['msg']}" if place else first["msg"]
    if isinstance(error, PydanticUserError):
        return error.message.partition(". ")[0]
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    # What pydantic warns of ends with the value.
    text = f"{error}".removeprefix(WARNS).partition(" [input_value=")[0]
    return " ".join(text.split())[:LONGEST] or type(error).__name__
