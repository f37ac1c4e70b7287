"""Values as bytes for other processes: requests, fields of a job, results and failures.

Keys are refused. A value that cannot be sent is named in an error before anything starts.
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import re
import traceback
from asyncio import CancelledError, Future
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from threading import Lock
from types import FunctionType
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..commander import Node
from ..commander.errors import ConfigurationError, MissingExtra, remake
from ..commander.remote import inputs_of, is_a, note, notes_of, type_name
from ._ray import import_ray, this_host

__all__ = [
    "JobPayload",
    "LargeInput",
    "PackedFailure",
    "Result",
    "check_runtime_env",
    "describe_error",
    "dump",
    "dump_error",
    "load",
    "load_error",
    "load_lenient",
    "pack",
    "pack_job",
    "refuse_secrets",
    "unpack",
    "unpack_job",
]

# `pickle` and cloudpickle write these types identically, and cloudpickle takes ten times as long to
# start.
PLAIN_TYPES = frozenset((str, int, float, bool, bytes, type(None)))


# --- values


def dump(value: object, *, guarded: bool = False, references: list[Any] | None = None) -> bytes:
    """Pickle `value`; classes and functions of a script by value, those of modules by name.

    If `guarded`, raises `ConfigurationError` for a secret. Objects that only Ray can send are added
    to `references`; without that list they raise `TypeError`.
    """
    parts: list[Any] = [value]
    if type(value) is dict:
        fields = cast("dict[Any, Any]", value)
        parts = [*fields, *fields.values()]
    if all(type(part) in PLAIN_TYPES for part in parts):
        packed = pickle.dumps(value)
    else:
        buffer = io.BytesIO()
        pickler = _pickler(guarded=guarded)(buffer)
        pickler.references = references
        pickler.dump(value)
        packed = buffer.getvalue()
    return refuse_secrets(packed) if guarded else packed


def load(packed: bytes | memoryview) -> Any:
    """Undo `dump`."""
    return pickle.loads(packed)  # noqa: S301 - written by a process of this program


UNSENDABLE_REMEDY = "; send the data for it, and create it in task()"


def pack(
    value: object, what: str, remedy: str = "", *, references: list[Any] | None = None
) -> bytes:
    """Pickle a value that leaves this process.

    Raises `TypeError` for a value that cannot be sent, `ConfigurationError` for a secret; both name
    `what`.
    """
    try:
        return dump(value, guarded=True, references=references)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what} cannot be sent: {error}") from None
    except Exception as error:  # pickling may raise anything
        raise TypeError(
            f"{what} cannot be sent to another machine: {describe_error(error)}{remedy}"
        ) from error


def unpack(packed: bytes) -> Any:
    """Undo `pack`; raise `ConfigurationError` if a module is missing here."""
    try:
        return load(packed)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{this_host()} cannot import what it was sent ({error}): install it on all machines,"
            " or send it with Ray(runtime_env={'working_dir': ...})"
        ) from error


@cache
def _pickler(*, guarded: bool) -> Any:
    try:
        base: Any = import_module("cloudpickle").Pickler
    except ImportError:
        raise MissingExtra("running on a Ray cluster", "ray") from None
    ray = import_ray()
    ray_types = ray.ObjectRef, ray.actor.ActorHandle
    secrets: tuple[type, ...] = ()
    if guarded:
        from pydantic import SecretBytes, SecretStr

        secrets = SecretStr, SecretBytes

    class Pickler(base):
        """Also pickles exceptions that are frozen, or whose `__init__` takes its own arguments."""

        references: list[Any] | None

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, ray_types):
                if self.references is None:
                    raise TypeError(
                        f"{type(obj).__name__} of Ray's can be sent only as a job's field"
                    )
                self.references.append(obj)
                return _reference, (len(self.references) - 1,)
            if isinstance(obj, secrets):
                raise ConfigurationError(
                    "it contains a secret; send the name of an environment variable and read "
                    "that in task()"
                )
            if isinstance(obj, BaseException):
                kind = type(obj)
                plain = kind.__reduce__ is BaseException.__reduce__
                frozen = kind.__setattr__ is not BaseException.__setattr__
                if plain and (frozen or isinstance(kind.__init__, FunctionType)):
                    return remake, (kind, obj.args, obj.__dict__)
            return base.reducer_override(self, obj)

    return Pickler


# Ray's objects for the job that is being unpickled, by the numbers in its pickle.
_references: ContextVar[Sequence[Any]] = ContextVar("anabranch.cluster.references")


def _reference(number: int) -> Any:
    return _references.get()[number]


# --- secrets

# No letter may follow the word: KEYCLOAK_URL and TOKENIZERS_PARALLELISM are not secrets.
SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(?![A-Z])", re.IGNORECASE
)
MIN_SECRET_CHARS = 8  # a shorter value may occur by chance
# Harmless values of a variable that is named like a key: a switch, a number, another variable.
HARMLESS_VALUE = re.compile(r"|true|false|yes|no|on|off|[\d.]+|\$\{\w+\}", re.IGNORECASE)
# The address of a private index or repository, with a password or token.
URL_SECRET = re.compile(rb"https?://(?:(?![/@$])[!-~])+@")

# The environment at the last search, and its secrets.
_secrets: tuple[dict[Any, Any], list[tuple[str, bytes]]] = ({}, [])


def refuse_secrets(packed: bytes) -> bytes:
    """Return `packed`; raise `ConfigurationError` if it contains the value of a secret variable.

    These are the variables of the environment whose name has a word that ends in KEY, TOKEN,
    SECRET, PASSWORD or similar.
    """
    global _secrets
    # The raw mapping: the methods of `os.environ` decode every variable, for every job.
    environment = getattr(os.environ, "_data", None) or dict(os.environ)
    if environment != _secrets[0]:
        found = [
            (name, os.fsencode(value))
            for name, value in os.environ.items()
            if len(value) >= MIN_SECRET_CHARS and SECRET_NAME.search(name)
        ]
        _secrets = dict(environment), found
    for name, value in _secrets[1]:
        if value in packed:
            raise ConfigurationError(
                f"it contains the value of {name}, and keys are not sent. Set {name} in the "
                "environment of the other machines and read it in task(), or send a backend that "
                "connect() made without api_key="
            )
    return packed


def check_runtime_env(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `runtime_env` for Ray, which writes it to logs that all users can read.

    Raises `ConfigurationError` for a secret of this process, for a literal value of a variable
    named like a key, and for a URL with a password or token.
    """
    packed = pack(dict(runtime_env), "the runtime_env")
    variables: dict[Any, Any] = dict(runtime_env.get("env_vars") or {})
    literal = [
        str(name)
        for name, value in variables.items()
        if SECRET_NAME.search(str(name)) and not HARMLESS_VALUE.fullmatch(str(value))
    ]
    if literal or URL_SECRET.search(packed):
        what = f"it sets {', '.join(literal)}" if literal else "it has an address with a password"
        raise ConfigurationError(
            f"the runtime_env cannot be sent: {what}, and Ray writes it to its logs. Set the "
            "variable on the other machines, and refer to it as '${NAME}'"
        )
    return dict(runtime_env)


# --- jobs


class JobPayload(NamedTuple):
    """A job as bytes: its class and its fields."""

    kind: bytes
    fields: bytes
    large: tuple[str, ...]  # names of the fields that are sent separately


class LargeInput:
    """A large value of a field, pickled once; jobs with equal values share it."""

    def __init__(self, packed: bytes, value: bytes | str | None) -> None:
        self.packed = packed
        self.value = value  # the value if it is immutable
        self._lock = Lock()
        # The cluster to which it was last sent, and its reference there.
        self._sent: tuple[object, Any] = (None, None)

    def send(self, cluster: object, put: Callable[[Any], Any]) -> Any:
        """Send it to the cluster if necessary, and return its reference there. May block."""
        with self._lock:
            if self._sent[0] is not cluster:
                self._sent = cluster, put(pickle.PickleBuffer(self.packed))
            return self._sent[1]


# Larger values are sent separately.
LARGE_BYTES = 1_000_000
# By the hash of the pickle, and by the id of the value.
_large: WeakValueDictionary[int, LargeInput] = WeakValueDictionary()
_large_values: WeakValueDictionary[int, LargeInput] = WeakValueDictionary()


def _pack_large(value: object, what: str, references: list[Any]) -> LargeInput:
    immutable = value if isinstance(value, bytes | str) else None
    if immutable is not None:
        known = _large_values.get(id(immutable))
        if known is not None and known.value is immutable:
            refuse_secrets(known.packed)
            return known
    packed = pack(value, what, UNSENDABLE_REMEDY, references=references)
    known = _large.get(hash(packed))
    if known is None or known.packed != packed:
        known = _large[hash(packed)] = LargeInput(packed, immutable)
        if immutable is not None:
            _large_values[id(immutable)] = known
    return known


# Pickles of classes, which many jobs share.
_kinds: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()


def pack_job(job: Node[Any]) -> tuple[JobPayload, list[LargeInput], list[Any]]:
    """Return a job as bytes: its class and its declared fields, without private attributes.

    Also returns its large fields and the objects that only Ray can send. Raises
    `ConfigurationError` for a secret and `TypeError` for a value that cannot be sent; both name the
    field.
    """
    kind, fields = type(job), inputs_of(job)
    declared = {field.name for field in dataclasses.fields(cast("Any", job))}
    for name in fields.keys() - declared:
        raise TypeError(
            f"{kind.__name__}.{name} is not a declared field, so it cannot be sent with the job. "
            f"Declare it ('{name}: ...'), or create it in task()"
        )
    references: list[Any] = []
    large: dict[str, LargeInput] = {}
    try:
        if kind not in _kinds:
            _kinds[kind] = pack(kind, f"the class {type_name(job)}")
        # Known without pickling for texts, bytes and arrays.
        sizes = [
            len(value) if isinstance(value, bytes | str) else getattr(value, "nbytes", 0)
            for value in fields.values()
        ]
        if not any(isinstance(size, int) and size > LARGE_BYTES for size in sizes):
            packed = dump(fields, guarded=True, references=references)
            if len(packed) <= LARGE_BYTES:
                return JobPayload(_kinds[kind], packed, ()), [], references
            references.clear()
    except Exception:  # pickling may raise anything; pack each field to name it
        for name, value in fields.items():
            pack(value, f"{kind.__name__}.{name}", UNSENDABLE_REMEDY, references=[])
        raise
    for name, value in fields.items():
        part = _pack_large(value, f"{kind.__name__}.{name}", references)
        if len(part.packed) > LARGE_BYTES:
            large[name] = part
    small = {name: value for name, value in fields.items() if name not in large}
    packed = dump(small, references=references)
    return JobPayload(_kinds[kind], packed, (*large,)), [*large.values()], references


def unpack_job(payload: JobPayload, large: Sequence[Any], references: Sequence[Any]) -> Node[Any]:
    """Return the job, not started; raise `ImportError` for a class unknown here."""
    job: Node[Any] = object.__new__(_load_kind(payload.kind))
    token = _references.set(references)
    try:
        vars(job).update(load(payload.fields), on=None)  # it runs in this process
        for name, packed in zip(payload.large, large, strict=True):
            vars(job)[name] = load(packed)
    finally:
        _references.reset(token)
    return job


_load_kind = lru_cache(256)(load)


# --- results and failures


class PackedFailure(NamedTuple):
    """A failure as bytes, and as text in case they cannot be read."""

    packed: bytes
    text: str
    notes: list[str]


def describe_error(error: BaseException) -> str:
    """Return the class and the text of an exception, if it has one."""
    try:
        return f"{type_name(error)}: {error}"
    except BaseException:  # noqa: BLE001 - `__str__` may raise anything
        return f"{type_name(error)}, which cannot be shown"


def dump_error(error: BaseException, where: str) -> PackedFailure:
    """Pickle a failure with its traceback in a note; as text only if it cannot be pickled.

    Never raises, and always returns something that can be pickled, whatever the failure's code
    does.
    """
    text = describe_error(error)
    try:
        trace = traceback.TracebackException.from_exception(error)
        trace.__notes__ = None  # notes are sent separately
        note(error, f"{where}:\n{''.join(trace.format()).rstrip()}")
    except BaseException:  # noqa: BLE001 - attributes of the class may run code
        note(error, f"{where}: {text}")
    notes = notes_of(error)
    try:
        # The causes, which pickle omits. They may form a cycle.
        causes: list[tuple[BaseException, bool]] = []
        cause: BaseException | None = error
        while cause is not None and all(cause is not known for known, _ in causes):
            causes.append((cause, cause.__suppress_context__))
            cause = cause.__cause__
        return PackedFailure(dump(causes), text, notes)
    except BaseException as why:  # noqa: BLE001 - pickling may raise anything
        return PackedFailure(
            b"", text, [*notes, f"the original exception could not be sent: {describe_error(why)}"]
        )


def load_error(failure: PackedFailure) -> BaseException:
    """Return the failure with its causes, else a `RuntimeError` with its text.

    `SystemExit`, `KeyboardInterrupt` and `CancelledError` also become `RuntimeError`.
    """
    notes = failure.notes
    if failure.packed:
        try:
            cause: BaseException | None = None
            for error, suppressed in reversed(load(failure.packed)):
                # `object.__setattr__` works for frozen exceptions too. The second line comes last,
                # because setting `__cause__` also sets `__suppress_context__`.
                object.__setattr__(error, "__cause__", cause)
                object.__setattr__(error, "__suppress_context__", suppressed)
                cause = error
            # Raised here, these would end this process or task instead of the remote one.
            ends = SystemExit, KeyboardInterrupt, CancelledError
            if cause is not None and not is_a(cause, *ends):
                return cause
        except BaseException as why:  # noqa: BLE001 - unpickling may raise anything
            notes = [*notes, f"the original exception could not be read: {describe_error(why)}"]
    stand_in = RuntimeError(failure.text)
    for each in notes:
        stand_in.add_note(each)
    return stand_in


@dataclass(frozen=True, slots=True)
class Result:
    """A value, or the failure that followed or replaced it."""

    value: Any = None
    failure: BaseException | None = None

    def dump(self) -> bytes:
        """Pickle it; a value that cannot be sent becomes a failure."""
        where = f"in another process, on {this_host()}"
        failure = None if self.failure is None else dump_error(self.failure, where)
        try:
            return dump((self.value, failure))
        except Exception as error:  # noqa: BLE001 - pickling may raise anything
            unsent = TypeError(
                f"{type(self.value).__name__} cannot be sent back: {describe_error(error)}"
            )
            return dump((None, dump_error(unsent, where)))

    @staticmethod
    def load(packed: bytes) -> Result:
        """Undo `dump`."""
        value, failure = load(packed)
        return Result(value, None if failure is None else load_error(failure))

    def settle(self, future: Future[Any]) -> None:
        """Set the outcome of `future`."""
        if self.failure is None:
            future.set_result(self.value)
        else:
            future.set_exception(self.failure)

    def get(self) -> Any:
        """Return the value or raise the failure."""
        if self.failure is not None:
            raise self.failure
        return self.value


def load_lenient(packed: bytes) -> Any:
    """Undo `dump`; replace objects whose classes are unknown here."""
    try:
        return load(packed)
    except Exception:  # noqa: BLE001 - importing may raise anything
        return _LenientUnpickler(io.BytesIO(packed)).load()


class _LenientUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return super().find_class(module_name, global_name)
        except Exception:  # noqa: BLE001 - as above
            return type(global_name, (_UnknownObject,), {"__module__": module_name})


class _UnknownObject:
    """Data of an event whose class is unknown here."""

    def __new__(cls, *args: object, **kwargs: object) -> _UnknownObject:
        return object.__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__}, an unknown class>"
