"""What is known of a durable class: how its inputs and its result are written, and what is live."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args, get_origin, get_type_hints

from ._codec import Codec
from .errors import NotStorable

__all__ = ["MISSING", "Live", "Shape", "live", "shape_of"]

T = TypeVar("T")


class _NotWritten:
    """Marks a field that is given whenever the run is taken up."""


Live = Annotated[T, _NotWritten]
"""A field that is never written, as a backend: `backend: Live[Backend] = live()`."""


class _Missing:
    def __repr__(self) -> str:
        return "live()"


MISSING = _Missing()


def live() -> Any:
    """Leave a `Live` field out where the job is made: the run brings it, by its name."""
    return MISSING


@dataclasses.dataclass(slots=True)
class Shape:
    """What is known of a class: how its inputs and its result are written, and what is live."""

    result: Codec
    fields: dict[str, Codec]
    live: tuple[str, ...]
    # The fields by name, and what begins each in the text of the inputs.
    written: list[tuple[str, str, Codec]]


def shape_of(cls: type[Any], base: type[Any]) -> Shape:
    """Look at the annotations of a class; what stands in `base[...]` is the type of its result.

    Raises `NameError` for a type that is not there yet.
    """
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:
        raise
    except Exception as error:  # whatever stands in a user's annotations
        why = f"the annotations of {cls.__name__} cannot be read: {type(error).__name__}: {error}"
        raise NotStorable(why) from error
    fields: dict[str, Codec] = {}
    alive: list[str] = []
    declared: dict[str, dataclasses.Field[Any]] = cast("Any", cls).__dataclass_fields__
    for name, field in declared.items():
        hint, where = hints[name], f"the field {cls.__name__}.{name}"
        if name == "durable":
            raise NotStorable(f"{where} would hide self.durable: give it another name")
        if get_origin(hint) is ClassVar or hint is ClassVar:
            continue
        if not field.init or isinstance(hint, dataclasses.InitVar) or hint is dataclasses.InitVar:
            raise NotStorable(
                f"{where} is no plain field (init=False, or InitVar), and the job could not be made"
                " again of its inputs: make it one, or an attribute that __post_init__ sets"
            )
        if get_origin(hint) is Annotated and _NotWritten in get_args(hint):
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
    return any(each is _NotWritten or _holds_live(each) for each in get_args(hint))


def _result_of(cls: type[Any], base: type[Any]) -> tuple[Any, type[Any]]:
    """Return what a class says of its result, and the class in whose module that is written."""
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
