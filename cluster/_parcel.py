"""What travels: a job's declared fields on the way out, results and failures on the way home.

Keys do not. What cannot be sent is named before anything starts.
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import re
import traceback
from functools import cache, lru_cache
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from ..commander import Node
from ..commander.errors import ConfigurationError, MissingExtra
from ..commander.remote import inputs

__all__ = [
    "Parcel",
    "dump",
    "dump_error",
    "guarded",
    "load_error",
    "pack",
    "refuse_secrets",
    "unpack",
]


class Parcel(NamedTuple):
    """A job as it is sent: its class, and the values of its fields."""

    kind: bytes
    fields: bytes


def pack(job: Node[Any]) -> Parcel:
    """Return `job` as bytes: its class and its declared fields, and nothing that is private.

    Raises `ConfigurationError` where a secret would travel and `TypeError` for what cannot be
    sent; both name the field.
    """
    fields = _fields(job)
    try:
        return Parcel(_kind(type(job)), _packed(fields))
    except Exception:  # whatever pickling raises; now field by field, for its name
        for name, value in fields.items():
            _try_field(job, name, value)
        raise


def unpack(parcel: Parcel) -> Node[Any]:
    """Return the job, which has not started; raises `ImportError` for a class not known here."""
    kind = _load_kind(parcel.kind)
    job: Node[Any] = object.__new__(kind)
    vars(job).update(pickle.loads(parcel.fields))  # noqa: S301 - the home of the job wrote it
    vars(job)["on"] = None  # it has arrived
    return job


def _fields(job: Node[Any]) -> dict[str, Any]:
    declared = {field.name for field in dataclasses.fields(cast("Any", job))}
    own = inputs(job)
    for name in own.keys() - declared:
        raise TypeError(
            f"{type(job).__name__}.{name} is no declared field, so it cannot be sent with the job: "
            f"declare it ('{name}: ...'), or make it in task()"
        )
    return own


def _packed(fields: dict[str, Any]) -> bytes:
    if all(type(value) in _PLAIN for value in fields.values()):
        return refuse_secrets(pickle.dumps(fields))
    return guarded(fields)


def _try_field(job: Node[Any], name: str, value: Any) -> None:
    field = f"{type(job).__name__}.{name}"
    try:
        guarded(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{field} cannot be sent: {error}") from None
    except Exception as error:  # whatever pickling raises
        raise TypeError(
            f"{field} cannot be sent to another machine: {error}; send what it is made from, and "
            "make it in task()"
        ) from error


# --- classes, which are the same for many jobs

_kinds: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()


def _kind(kind: type) -> bytes:
    packed = _kinds.get(kind)
    if packed is None:
        packed = _kinds[kind] = dump(kind)
    return packed


@lru_cache(256)
def _load_kind(packed: bytes) -> Any:
    return pickle.loads(packed)  # noqa: S301 - as above


# --- bytes

# What any pickler writes alike; cloudpickle takes ten times as long to begin.
_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))


def dump(value: object) -> bytes:
    """Pickle `value`; classes and functions of a script go by value, those of modules by name."""
    if type(value) in _PLAIN:
        return pickle.dumps(value)
    buffer = io.BytesIO()
    _pickler()(buffer).dump(value)
    return buffer.getvalue()


@cache
def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError:
        raise MissingExtra("running on a Ray cluster", "ray") from None


def guarded(value: object) -> bytes:
    """Pickle `value`, or raise `ConfigurationError` if it holds a secret."""
    buffer = io.BytesIO()
    _guard()(buffer).dump(value)
    return refuse_secrets(buffer.getvalue())


@cache
def _pickler() -> Any:
    base: Any = _cloudpickle().Pickler

    class Pickler(base):
        """Takes exceptions apart whose classes take other arguments than they keep."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, BaseException) and _has_own_init(type(obj)):
                return _remade, (type(obj), obj.args, obj.__dict__)
            return base.reducer_override(self, obj)

    return Pickler


def _has_own_init(kind: type[BaseException]) -> bool:
    return isinstance(kind.__init__, FunctionType) and kind.__reduce__ is BaseException.__reduce__


def _remade(
    kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


@cache
def _guard() -> Any:
    from pydantic import SecretBytes, SecretStr

    base = _pickler()

    class Guard(base):
        """Refuses what is marked as a secret."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, (SecretStr, SecretBytes)):
                raise ConfigurationError(
                    "it holds a secret; send the name of an environment variable and read that in "
                    "task()"
                )
            return base.reducer_override(self, obj)

    return Guard


_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 8  # a shorter value may stand anywhere by chance


def refuse_secrets(packed: bytes) -> bytes:
    """Return `packed`; a `ConfigurationError` if it holds the value of a variable named like a key.

    These are the variables of the environment with KEY, TOKEN, SECRET or PASSWORD in their names.
    """
    for name, value in _secrets():
        if value in packed:
            raise ConfigurationError(
                f"it holds the value of {name}, and keys travel by name: set {name} on the other "
                "machines and read it in task(), or send a backend that connect() made without "
                "api_key="
            )
    return packed


_seen: tuple[dict[Any, Any], list[tuple[str, bytes]]] = ({}, [])


def _secrets() -> list[tuple[str, bytes]]:
    global _seen
    environment, found = _seen
    if environment != (now := _environment()):
        found = [
            (name, os.fsencode(value))
            for name, value in os.environ.items()
            if len(value) >= _SHORTEST and _SECRET_NAME.search(name)
        ]
        _seen = (dict(now), found)
    return found


def _environment() -> dict[Any, Any]:
    # What lies behind it: to read it by its own methods decodes every variable, for every job.
    return getattr(os.environ, "_data", None) or dict(os.environ)


# --- failures


class Failure(NamedTuple):
    """A failure on its way home: pickled, and told for whoever cannot read that."""

    packed: bytes
    told: str
    notes: list[str]


def dump_error(error: BaseException, where: str) -> Failure:
    """Pickle a failure with its traceback in a note; one that cannot be is only told."""
    told = traceback.TracebackException.from_exception(error)
    told.__notes__ = None  # they travel as what they are
    trace = "".join(told.format())
    error.add_note(f"{where}:\n{trace.rstrip()}")
    told, notes = f"{type(error).__name__}: {error}", list(error.__notes__)
    try:
        packed = dump(_causes(error))
    except Exception as why:  # noqa: BLE001 - whatever its own pickling raises
        return Failure(b"", told, [*notes, f"it could not be sent as it was: {why}"])
    return Failure(packed, told, notes)


def load_error(failure: Failure) -> BaseException:
    """Return the failure, with the causes that it had; else a `RuntimeError` that tells of it."""
    notes = failure.notes
    if failure.packed:
        try:
            return _rejoined(pickle.loads(failure.packed))  # noqa: S301 - a worker of ours wrote it
        except Exception as why:  # noqa: BLE001 - it cannot be imported here, or not be read again
            notes = [*notes, f"it could not be read as it was: {why}"]
    stand_in = RuntimeError(failure.told)
    for note in notes:
        stand_in.add_note(note)
    return stand_in


def load_report(packed: bytes) -> Any:
    """Return a report, in which others stand for what cannot be made here."""
    try:
        return pickle.loads(packed)  # noqa: S301 - as above
    except Exception:  # noqa: BLE001 - whatever importing a module raises
        return _Lenient(io.BytesIO(packed)).load()


class _Lenient(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return super().find_class(module_name, global_name)
        except Exception:  # noqa: BLE001 - as above
            return type(global_name, (_StandIn,), {"__module__": module_name})


class _StandIn:
    """Data of an event whose class is not known here."""

    def __new__(cls, *args: object, **kwargs: object) -> _StandIn:
        return object.__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__}, which is not known here>"


def _causes(error: BaseException) -> list[tuple[BaseException, bool]]:
    """Return an exception and what led to it, which pickle leaves out; they may form a ring."""
    causes: list[tuple[BaseException, bool]] = []
    cause: BaseException | None = error
    while cause is not None and all(cause is not known for known, _ in causes):
        causes.append((cause, cause.__suppress_context__))
        cause = cause.__cause__
    return causes


def _rejoined(causes: list[tuple[BaseException, bool]]) -> BaseException:
    cause: BaseException | None = None
    for error, suppressed in reversed(causes):
        error.__cause__ = cause
        error.__suppress_context__ = suppressed  # the line before has changed it
        cause = error
    return causes[0][0]
