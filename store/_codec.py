"""Encode and decode values by the annotation of their field, parameter or result.

`Codec` handles one annotation: pydantic converts the values of the type to plain data, and `_json`
adds tags for types that JSON does not have. `Shape` has the codecs of a durable class.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import zip_longest
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from ._checksums import check_size
from ._json import (
    EXACT_TAG,
    JSON_WRITERS,
    SCALAR_TEXTS,
    ExactIntegers,
    canonical,
    dump,
    pack,
    unpack,
)
from .errors import JournalMismatch, NotStorable

__all__ = ["MISSING", "Codec", "Live", "Shape", "live", "shape_of"]

T = TypeVar("T")

MAX_REASON_CHARS = 300
_WARNING_PREFIX = "Pydantic serializer warnings:\n  PydanticSerializationUnexpectedValue("
# Kinds of pydantic's errors whose messages may contain a part of the value.
_REVEALING_ERRORS = frozenset({"value_error", "assertion_error", "union_tag_invalid"})
_scan: Callable[[str, int], tuple[Any, int]] = cast("Any", json.JSONDecoder()).scan_once


class Codec:
    """Encodes and decodes the values of one annotation; `where` names its place in errors.

    Raises `NotStorable` for a type whose values cannot be stored: callables, open files, locks,
    secrets, and types that pydantic does not support. A name that cannot be resolved yet is looked
    up again for the first value, in the module of `owner`, a class or function.

    A decoded value has the same types at every level and all its fields. Otherwise `encode` refuses
    the value. So a subclass of an annotated model is refused, and `"3"` or `True` for an
    `int`. Without an annotation, or with `Any`, only JSON types are accepted: a tuple, a set, a
    date or a model would be decoded as another type.

    pydantic reads an integer as a float if `float` is annotated. A value with such integers is
    written as `{"$exact": ...}`, and decoding restores them. Earlier versions wrote no tag, and
    read floats.
    """

    def __init__(
        self, annotation: Any, where: str, owner: type | Callable[..., Any] | None = None
    ) -> None:
        self.annotation = annotation
        self.where = where
        self._owner = owner
        self._exact = True  # False without an annotation
        # The JSON types of the annotation, if it allows only these: pydantic would take a hundred
        # times as long.
        self._plain: frozenset[type] = frozenset()
        # By these types: the function that `canonical` uses.
        self.scalars: dict[type, Callable[[Any], str]] = {}
        self._adapter: TypeAdapter[Any] | None = None
        # Whether the type has classes with fields, and its classes that may accept values of an
        # earlier form (see `_lenient_classes`).
        self._has_fields = False
        self._lenient: set[type | None] = set()
        self._resolve(last=False)

    @property
    def type_name(self) -> str:
        """The annotation, as a message shows it."""
        return _name_of(self.annotation)

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON. Raises `NotStorable` if decoding would not equal it."""
        if type(value) in self._plain:
            data = JSON_WRITERS[type(value)](value)
            check_size(data)
            return data
        adapter = self._adapter or self._resolve(last=True)
        try:
            plain = adapter.dump_python(value, by_alias=False, round_trip=True, warnings="error")
            packed = pack(plain, exact=self._exact)
            data = dump(packed)
            back = self._read(adapter, data)
            same = _is_same(value, back)
            if not same and _is_same(value, back, numbers=True):
                data = dump({EXACT_TAG: packed})
                back = self._read(adapter, data)
                same = _is_same(value, back)
        except Exception as error:  # noqa: BLE001 - a user's serializers, validators and `__eq__`
            self._raise_not_storable(value, _reason(error), error)
        if not same:
            self._raise_not_storable(
                value, f"it would be read back differently, as {_name_of(type(back))}"
            )
        return data

    def decode(self, data: bytes, *, foreign: bool = False) -> Any:
        """Return the value; raise `JournalMismatch` if the annotation does not allow it.

        A class without a stored field is refused, as the field's value would be lost. `foreign`
        data is from another program, and may have more fields.
        """
        if self._plain:
            try:
                value, end = _scan(text := data.decode(), 0)
                if type(value) in self._plain and end == len(text):
                    return value
            except (ValueError, StopIteration):  # pydantic describes the error below
                pass
        adapter = self._adapter or self._resolve(last=True)
        try:
            value = self._read(adapter, data)
            lost = (
                None if foreign or not self._has_fields else self._lost_field(adapter, data, value)
            )
        except Exception as error:
            raise JournalMismatch(
                f"{self.where}: the recorded value is not a valid {_name_of(self.annotation)} any"
                f" more: {_reason(error)}"
            ) from error
        if lost is not None:
            raise JournalMismatch(
                f"{self.where}: {_name_of(self.annotation)} no longer has the recorded field"
                f" {lost!r}: add the field again, or a validator (mode='before') that accepts the"
                " earlier form"
            )
        return value

    def refusal(self, data: bytes) -> str | None:
        """Return why `decode` refuses foreign data, or None. It contains no part of the value."""
        try:
            self.decode(data, foreign=True)
        except JournalMismatch as error:
            cause = error.__cause__
            if not isinstance(cause, ValidationError):
                return type(cause).__name__
            kind = cause.errors(include_url=False, include_input=False)[0]["type"]
            return kind if kind in _REVEALING_ERRORS else _reason(cause)
        return None

    def _read(self, adapter: TypeAdapter[Any], data: bytes) -> Any:
        plain = unpack(data)
        if exact := plain.__class__ is ExactIntegers:
            plain = plain.value
        value = adapter.validate_python(plain, by_alias=False, by_name=True)
        return _restore_integers(value, plain) if exact else value

    def _lost_field(self, adapter: TypeAdapter[Any], data: bytes, value: Any) -> str | None:
        """Return the name of a stored field that the class of the value no longer has."""
        stored = json.loads(data)
        if stored.__class__ is dict and EXACT_TAG in stored:
            stored = stored[EXACT_TAG]
        plain = adapter.dump_python(value, by_alias=False, round_trip=True)
        return _find_lost(stored, pack(plain, exact=self._exact), value, self._lenient)

    def _raise_not_storable(
        self, value: object, why: str, error: Exception | None = None
    ) -> NoReturn:
        raise NotStorable(
            f"{self.where}: a value of the type {_name_of(type(value))} cannot be stored as"
            f" {_name_of(self.annotation)}: {why}"
        ) from error

    def _resolve(self, *, last: bool) -> Any:
        """Create the adapter; an unknown name is an error only at the `last` attempt."""
        names: dict[str, Any] = {}
        if self._owner is not None:
            module = sys.modules.get(self._owner.__module__ or "")
            names = {**vars(module or SimpleNamespace()), **getattr(self._owner, "__dict__", {})}
        holder = SimpleNamespace(__annotations__={"value": self.annotation})
        try:
            hint = get_type_hints(holder, names, include_extras=True)["value"]
            adapter = TypeAdapter[Any](hint)
            schema = json.dumps(adapter.json_schema(schema_generator=_StorableSchema))
        except PydanticUserError as error:
            if error.code != "class-not-fully-defined" or last:
                raise self._unsupported(_reason(error)) from error
            return None
        except NameError as error:
            if last:
                raise self._unsupported(f"{error}, and a value must be stored now") from error
            return None
        except Exception as error:  # code in a user's annotations
            raise self._unsupported(_reason(error)) from error
        if '"writeOnly": true' in schema:
            raise self._unsupported("it is or contains a secret")
        self._exact = hint not in (Any, object) and not isinstance(hint, TypeVar)
        self._lenient = _lenient_classes(adapter.core_schema)
        self._has_fields = '"properties"' in schema and None not in self._lenient
        kinds = tuple(JSON_WRITERS)
        plain: tuple[Any, ...] = kinds if hint in (Any, object) else (hint,)
        if get_origin(hint) in (Union, UnionType):
            plain = get_args(hint)
        self._plain = frozenset(plain if all(each in kinds for each in plain) else ())
        self.scalars = {kind: SCALAR_TEXTS[kind] for kind in self._plain}
        self._adapter = adapter
        self._owner = None  # or the codec would keep alive its weak key in `_durable`
        return adapter

    def _unsupported(self, why: str) -> NotStorable:
        return NotStorable(
            f"{self.where}: {_name_of(self.annotation)} cannot be stored in a journal: {why}."
            " Annotate such a field Live[...], and pass its value in live= to resume the run"
        )


class _StorableSchema(GenerateJsonSchema):
    """Refuses types that pydantic validates but cannot serialize without loss."""

    def generator_schema(self, schema: Any) -> Any:
        return self.handle_invalid_for_json_schema(
            schema, "an iterator, which can be read only once"
        )

    def is_subclass_schema(self, schema: Any) -> Any:
        return self.handle_invalid_for_json_schema(schema, "a class")

    def callable_schema(self, schema: Any) -> Any:
        return self.handle_invalid_for_json_schema(schema, "a callable")

    def enum_schema(self, schema: Any) -> Any:
        return {}  # values, as of a literal or a default, need not be JSON

    def literal_schema(self, schema: Any) -> Any:
        return {}

    def default_schema(self, schema: Any) -> Any:
        return self.generate_inner(schema["schema"])

    def emit_warning(self, kind: Any, detail: str) -> None:
        if kind == "skipped-choice":  # a member of a union is not supported
            raise PydanticUserError(detail, code=None)


# --- comparisons and messages


def _is_same(value: Any, back: Any, *, numbers: bool = False) -> bool:
    if type(value) in (str, int) and type(back) is type(value):
        return back == value
    text, complete = canonical(value, numbers=numbers)
    again, _ = canonical(back, numbers=numbers)
    return text == again and (complete or bool(value == back))


def _restore_integers(value: Any, plain: Any) -> Any:
    """Return `value`, which pydantic made of `plain`, with the integers of `plain`."""
    kind: Any = type(cast("object", value))
    again: Any = _restore_integers
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


def _name_of(annotation: Any) -> str:
    """Return the name of a class, the text of any other annotation."""
    if issubclass(type(annotation), type):
        return annotation.__qualname__
    return f"{annotation}".removeprefix("typing.")


def _reason(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(each) for each in first["loc"])
        return f"{place}: {first['msg']}" if place else first["msg"]
    if isinstance(error, PydanticUserError):
        return error.message.partition(". ")[0]
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    # pydantic's warning ends with the value, which may be secret.
    text = f"{error}".removeprefix(_WARNING_PREFIX).partition(" [input_value=")[0]
    return " ".join(text.split())[:MAX_REASON_CHARS] or type(error).__name__


# --- fields that a class no longer has


# The types of pydantic's schemas that have fields, or may refer to one that has.
_FIELD_SCHEMAS = (
    "model", "model-fields", "dataclass", "dataclass-args", "typed-dict", "definition-ref",
)  # fmt: skip


def _find_lost(stored: Any, now: Any, value: Any, lenient: Set[type | None]) -> str | None:
    """Return a key of an object in `stored` that it does not have in `now`, or None.

    `now` is the JSON of `value`. Objects of the `lenient` classes may have accepted other keys.
    """
    if stored == now or type(value) in lenient:
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
    return next((lost for each in inner if (lost := _find_lost(*each, lenient)) is not None), None)


def _inside(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return list(pairs.items()) if name == "$dict" else pairs.get(name)
    return value if name[:1] == "$" else getattr(value, name, None)


def _lenient_classes(schema: Any, around: type | None = None) -> set[type | None]:
    """Return the classes of a pydantic schema that may accept values of an earlier form.

    They have a validator that runs before their fields are validated. None stands for a type
    without a class at runtime, such as a `TypedDict`.
    """
    found: set[type | None] = set()
    if schema.__class__ is dict:
        kind = schema.get("type")
        around = schema["cls"] if kind in ("model", "dataclass") else around
        if kind in ("function-before", "function-wrap"):
            inner = schema.get("schema")  # a serializer may have none
            if inner.__class__ is dict and (inner_kind := inner.get("type")) in _FIELD_SCHEMAS:
                inside = inner_kind in ("model-fields", "dataclass-args")
                found.add(around if inside else inner.get("cls"))
        schema = schema.values()
    elif schema.__class__ not in (list, tuple):
        return found
    return found.union(*(_lenient_classes(each, around) for each in schema))


# --- durable classes


class _LiveMarker:
    """Marks a field that is never stored and must be passed to each execution."""


Live = Annotated[T, _LiveMarker]
"""A field that is never stored, such as a backend: `backend: Live[Backend] = live()`."""


class _Missing:
    def __repr__(self) -> str:
        return "live()"


MISSING = _Missing()


def live() -> Any:
    """Return the default of a `Live` field: the run fills the field in from `live=`."""
    return MISSING


@dataclasses.dataclass(slots=True)
class Shape:
    """The codecs of a durable class, and the names of its live fields."""

    result: Codec
    fields: dict[str, Codec]
    live: tuple[str, ...]
    # The fields in order, each with the text before its value in the canonical inputs.
    written: list[tuple[str, str, Codec]]


def shape_of(cls: type[Any], base: type[Any]) -> Shape:
    """Read the annotations of a class; the argument of `base[...]` is the type of its result.

    Raises `NameError` for a type that is not defined yet, `NotStorable` for one that cannot be
    stored.
    """
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:
        raise
    except Exception as error:  # code in a user's annotations
        why = f"the annotations of {cls.__name__} cannot be read: {type(error).__name__}: {error}"
        raise NotStorable(why) from error
    fields: dict[str, Codec] = {}
    alive: list[str] = []
    declared: dict[str, dataclasses.Field[Any]] = cast("Any", cls).__dataclass_fields__
    for name, field in declared.items():
        hint, where = hints[name], f"the field {cls.__name__}.{name}"
        if name == "durable":
            raise NotStorable(f"{where} would hide self.durable: rename it")
        if get_origin(hint) is ClassVar or hint is ClassVar:
            continue
        if not field.init or isinstance(hint, dataclasses.InitVar) or hint is dataclasses.InitVar:
            raise NotStorable(
                f"{where} has init=False or InitVar, so the job cannot be created again from its"
                " inputs: make it a plain field, or an attribute that __post_init__ sets"
            )
        if get_origin(hint) is Annotated and _LiveMarker in get_args(hint):
            alive.append(name)
        elif _holds_live(hint):
            raise NotStorable(f"{where} is only partly Live: write Live[...] around the whole type")
        else:
            fields[name] = Codec(hint, where)
    written = [(name, f'"{name}":', fields[name]) for name in sorted(fields)]
    result, owner = _result_of(cls, base)
    if isinstance(result, TypeVar):
        result = Any
    codec = Codec(result, f"the result of {cls.__name__}", owner)
    return Shape(codec, fields, tuple(alive), written)


def _holds_live(hint: Any) -> bool:
    return any(each is _LiveMarker or _holds_live(each) for each in get_args(hint))


def _result_of(cls: type[Any], base: type[Any]) -> tuple[Any, type[Any]]:
    """Return the annotation of the result, and the class whose module has it."""
    for each in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin: Any = get_origin(each) or each
        if origin is base and get_args(each):
            return get_args(each)[0], cls
        if isinstance(origin, type) and origin is not base and issubclass(origin, base):
            found, owner = _result_of(cast("type[Any]", origin), base)
            named: tuple[Any, ...] = getattr(cast("Any", origin), "__parameters__", ())
            given: dict[Any, Any] = dict(zip(named, get_args(each), strict=False))
            if isinstance(found, TypeVar):
                return given.get(found, found), cls
            if left := getattr(found, "__parameters__", ()):
                found = found[tuple(given.get(name, name) for name in left)]
            return found, owner
    return Any, cls
