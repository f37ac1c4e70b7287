"""`Durable`: a job whose result is kept; and its fields that are never written."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from contextlib import suppress
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from ..commander import Callback, ConfigurationError
from ..jobs import Job
from ._canonical import SCALARS, canonical
from ._codec import Codec
from ._durable_calls import DurableCalls
from ._ledger import Ledger
from ._put import write_put
from .errors import JournalMismatch, NotStorable

__all__ = ["Durable", "Live", "live", "make_again"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
class _Shape:
    """What is known of a class: how its inputs and its result are written, and what is live."""

    result: Codec
    fields: dict[str, Codec]
    live: tuple[str, ...]
    # The fields by name, and what begins each in the text of the inputs.
    written: list[tuple[str, str, Codec]]


class Durable(Job[T_co], internal=True):
    """A job of a durable run: its result is kept, and it never runs again once it has one.

        class Order(Durable[str], version=2):
            order: str
            backend: Live[Backend] = live()

            async def task(self) -> str: ...

        run(Order("A-17"), journal="runs.db", run_id="order-A-17", live={"backend": backend})

    Inputs and result are written as JSON by their types: a field whose type cannot be written is
    refused when the class is made, with `NotStorable`, unless it is `Live`. Whoever awaits the job
    gets the value as it was read back, in the first life too. `version` says that what the class
    does has changed so much that a run of another version cannot go on: it is then parked. What
    may be called in `task` stands under `self.durable`.
    """

    _node_durable = True
    _node_version = 1
    _node_shape: ClassVar[_Shape | None] = None

    def __init_subclass__(cls, *, version: int = 1, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls._node_own_init:
            raise TypeError(f"{cls.__name__} is durable: declare its inputs as fields, no __init__")
        if type(version) is not int or not 0 <= version < 2**63:
            raise TypeError(f"version= of {cls.__name__} is a number from 0 on, not {version!r}")
        cls._node_version = version
        cls._node_shape = None
        with suppress(NameError):  # a type that is defined further down
            cls._node_shape = _shape_of(cls)

    @property
    def durable(self) -> DurableCalls:
        """What a durable job may call. Outside a durable run it is `NotDurable`."""
        return DurableCalls(self)

    # --- what the ledger asks

    @classmethod
    def _node_of(cls) -> _Shape:
        if cls._node_shape is None:
            try:
                cls._node_shape = _shape_of(cls)
            except NameError as error:
                raise NotStorable(
                    f"the fields of {cls.__name__} cannot be written: {error} where the class is"
                    " made: define that type in its module, not in a function"
                ) from error
        return cls._node_shape

    def _node_codec(self) -> Codec:
        return (self._node_shape or self._node_of()).result

    def _node_prepare(self, ledger: Ledger) -> tuple[str, bool]:
        shape = self._node_shape or self._node_of()
        for name in shape.live:
            if getattr(self, name, MISSING) is not MISSING:
                ledger.live.setdefault(name, getattr(self, name))
            elif name in ledger.live:
                setattr(self, name, ledger.live[name])
            else:
                raise ConfigurationError(
                    f"{type(self).__name__}.{name} is live, so the journal does not have it: give"
                    f" it when the run is taken up, live={{{name!r}: ...}}, or on the command line"
                    f" --live {name}=module:attribute"
                )
        texts: list[str] = []
        whole = not shape.live
        for name, begin, codec in shape.written:
            value = getattr(self, name)
            if type(value) in codec.plain:
                texts.append(begin + SCALARS[type(value)](value))
                continue
            codec.encode(value)
            text, says_all = canonical(value)
            texts.append(begin + text)
            whole = whole and says_all
        return f"{{{','.join(texts)}}}", whole

    def _node_inputs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._node_of().fields}

    def _node_live(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._node_of().live}

    def _node_write(self) -> dict[str, Any]:
        cls = type(self)
        fields = {
            name: json.loads(self._node_of().fields[name].encode(value))
            for name, value in self._node_inputs().items()
        }
        name = f"{cls.__module__}:{cls.__qualname__}"
        return {"class": name, "version": cls._node_version, "inputs": fields}

    def _node_write_put(self) -> dict[str, Any]:
        return write_put(self, make_again(self._node_write(), self._node_live()))

    # --- callbacks: those that the body adds would be lost where it is skipped

    def at_end(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_end(callback)

    def at_exception(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_exception(callback)

    def at_terminate(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_terminate(callback)

    def at_done(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_done(callback)


def _shape_of(cls: type[Durable[Any]]) -> _Shape:
    """Look at the annotations of a class. Raises `NameError` for a type that is not there yet."""
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
    result, owner = _result_of(cls)
    if isinstance(result, TypeVar):
        result = Any
    codec = Codec(result, f"the result of {cls.__name__}", owner)
    return _Shape(codec, fields, tuple(alive), written)


def _holds_live(hint: Any) -> bool:
    return any(each is _NotWritten or _holds_live(each) for each in get_args(hint))


def _refuse_in_body(job: Durable[Any]) -> None:
    if job.state == "running":
        raise ConfigurationError(
            f"{job!r} gets a final callback from its own body, which does not run again once its"
            " result is kept, and the callback would be lost: add it in __post_init__, or where"
            " the job is put"
        )


def make_again(
    written: dict[str, Any], live: dict[str, Any], kind: type[Durable[Any]] | None = None
) -> Durable[Any]:
    """Make a job of what `_node_write` gave; raise `JournalMismatch` for one that is unknown.

    Its class is looked up by its name, unless it is given: it may be one inside a function.
    """
    module, _, qualname = written["class"].partition(":")
    try:
        found: Any = kind or sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split(".") if kind is None else ():
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise JournalMismatch(f"the class {written['class']} is gone: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Durable)):
        raise JournalMismatch(f"{written['class']} is no durable job any more")
    if found._node_version != written["version"]:
        raise JournalMismatch(
            f"{written['class']} has version {found._node_version}, and the run began with version"
            f" {written['version']}: finish it with the code of that version, or cancel it"
        )
    shape = found._node_of()
    if unknown := set(written["inputs"]) - set(shape.fields):
        raise JournalMismatch(f"{written['class']} has no field {', '.join(sorted(unknown))} now")
    inputs = {
        name: shape.fields[name].decode(json.dumps(value).encode())
        for name, value in written["inputs"].items()
    }
    try:
        make = cast("type[Durable[Any]]", found)
        return make(**inputs, **{name: live.get(name, MISSING) for name in shape.live})
    except TypeError as error:
        raise JournalMismatch(f"{written['class']} cannot be made again: {error}") from error


def _result_of(cls: type[Any]) -> tuple[Any, type[Any]]:
    """Return what a class says of its result, and the class in whose module that is written."""
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin: Any = get_origin(base) or base
        if origin is Durable and get_args(base):
            return get_args(base)[0], cls
        if isinstance(origin, type) and origin is not Durable and issubclass(origin, Durable):
            found, owner = _result_of(cast("type[Any]", origin))
            named: tuple[Any, ...] = getattr(cast("Any", origin), "__parameters__", ())
            given: dict[Any, Any] = dict(zip(named, get_args(base), strict=False))
            if isinstance(found, TypeVar):
                return given.get(found, found), cls
            if left := getattr(found, "__parameters__", ()):
                found = found[tuple(given.get(each, each) for each in left)]
            return found, owner
    return Any, cls
