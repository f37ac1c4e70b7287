"""What travels, as bytes: requests, a job's declared fields, results and failures.

Keys do not. What cannot be sent is named before anything starts.
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
    "Failure",
    "JobPayload",
    "LargeInput",
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

# What any pickler writes alike; cloudpickle takes ten times as long to begin.
PLAIN = frozenset((str, int, float, bool, bytes, type(None)))


# --- values


def dump(value: object, *, guarded: bool = False, references: list[Any] | None = None) -> bytes:
    """Pickle `value`; classes and functions of a script go by value, those of modules by name.

    If `guarded`, raise `ConfigurationError` for a secret. What Ray alone can send is added to
    `references`; without that it is a `TypeError`.
    """
    parts: list[Any] = [value]
    if type(value) is dict:
        fields = cast("dict[Any, Any]", value)
        parts = [*fields, *fields.values()]
    if all(type(part) in PLAIN for part in parts):
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
    return pickle.loads(packed)  # noqa: S301 - a process of this program wrote it


REMEDY = "; send what it is made from, and make it in task()"


def pack(
    value: object, what: str, remedy: str = "", *, references: list[Any] | None = None
) -> bytes:
    """Pickle a value that leaves this process.

    Raises `TypeError` for what cannot be sent, `ConfigurationError` for a secret; both name `what`.
    """
    try:
        return dump(value, guarded=True, references=references)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what} cannot be sent: {error}") from None
    except Exception as error:  # whatever pickling raises
        raise TypeError(
            f"{what} cannot be sent to another machine: {describe_error(error)}{remedy}"
        ) from error


def unpack(packed: bytes) -> Any:
    """Undo `pack`; raise `ConfigurationError` if it needs a module that is not here."""
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
    own = ray.ObjectRef, ray.actor.ActorHandle
    secrets: tuple[type, ...] = ()
    if guarded:
        from pydantic import SecretBytes, SecretStr

        secrets = SecretStr, SecretBytes

    class Pickler(base):
        """Takes exceptions apart that are frozen or whose classes take what they do not keep."""

        references: list[Any] | None

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, own):
                if self.references is None:
                    raise TypeError(
                        f"{type(obj).__name__} of Ray's can be sent only as a field of a job"
                    )
                self.references.append(obj)
                return _reference, (len(self.references) - 1,)
            if isinstance(obj, secrets):
                raise ConfigurationError(
                    "it holds a secret; send the name of an environment variable and read that in "
                    "task()"
                )
            if isinstance(obj, BaseException):
                kind = type(obj)
                plain = kind.__reduce__ is BaseException.__reduce__
                frozen = kind.__setattr__ is not BaseException.__setattr__
                if plain and (frozen or isinstance(kind.__init__, FunctionType)):
                    return remake, (kind, obj.args, obj.__dict__)
            return base.reducer_override(self, obj)

    return Pickler


# What Ray has sent of what is loaded now.
_references: ContextVar[Sequence[Any]] = ContextVar("anabranch.cluster.references")


def _reference(number: int) -> Any:
    return _references.get()[number]


# --- secrets

# A word ends so: KEYCLOAK_URL and TOKENIZERS_PARALLELISM hold none.
SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(?![A-Z])", re.IGNORECASE
)
SHORTEST = 8  # a shorter value may stand anywhere by chance
# What a variable named like a key may be set to all the same: a switch, a number, another variable.
HARMLESS = re.compile(r"|true|false|yes|no|on|off|[\d.]+|\$\{\w+\}", re.IGNORECASE)
# The address of a private index or repository, with what gives access to it.
URL_SECRET = re.compile(rb"https?://(?:(?![/@$])[!-~])+@")

# The environment when it was last searched, and the secrets in it.
_secrets: tuple[dict[Any, Any], list[tuple[str, bytes]]] = ({}, [])


def refuse_secrets(packed: bytes) -> bytes:
    """Return `packed`; a `ConfigurationError` if it holds the value of a variable named like a key.

    These are the variables of the environment with a word in their names that ends in KEY, TOKEN,
    SECRET or PASSWORD.
    """
    global _secrets
    # What lies behind it: to read it by its own methods decodes every variable, for every job.
    environment = getattr(os.environ, "_data", None) or dict(os.environ)
    if environment != _secrets[0]:
        found = [
            (name, os.fsencode(value))
            for name, value in os.environ.items()
            if len(value) >= SHORTEST and SECRET_NAME.search(name)
        ]
        _secrets = dict(environment), found
    for name, value in _secrets[1]:
        if value in packed:
            raise ConfigurationError(
                f"it holds the value of {name}, and keys travel by name: set {name} on the other "
                "machines and read it in task(), or send a backend that connect() made without "
                "api_key="
            )
    return packed


def check_runtime_env(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `runtime_env` for Ray, which writes it to logs that all can read.

    Raises `ConfigurationError` for a secret: one that this process knows, whatever is set under the
    name of one, and an http address with a password or token.
    """
    packed = pack(dict(runtime_env), "the runtime_env")
    variables: dict[Any, Any] = dict(runtime_env.get("env_vars") or {})
    literal = [
        str(name)
        for name, value in variables.items()
        if SECRET_NAME.search(str(name)) and not HARMLESS.fullmatch(str(value))
    ]
    if literal or URL_SECRET.search(packed):
        what = f"it sets {', '.join(literal)}" if literal else "it has an address with a password"
        raise ConfigurationError(
            f"the runtime_env cannot be sent: {what}, and Ray writes it to its logs: set the "
            "variable on the other machines, and name it as '${NAME}' where Ray or pip wants it"
        )
    return dict(runtime_env)


# --- jobs


class JobPayload(NamedTuple):
    """A job as it is sent: its class and the values of its fields."""

    kind: bytes
    fields: bytes
    large: tuple[str, ...]  # the names of those fields that are not among `fields`


class LargeInput:
    """A large value of a field, pickled; jobs that are put with equal ones have one in common."""

    def __init__(self, packed: bytes, value: bytes | str | None) -> None:
        self.packed = packed
        self.value = value  # what it was made from, if that cannot change
        self._lock = Lock()
        # The cluster to which it was last sent, and its reference there.
        self._sent: tuple[object, Any] = (None, None)

    def send(self, cluster: object, put: Callable[[Any], Any]) -> Any:
        """Return its reference in the cluster, to which it is sent once; it may block."""
        with self._lock:
            if self._sent[0] is not cluster:
                self._sent = cluster, put(pickle.PickleBuffer(self.packed))
            return self._sent[1]


# What is larger travels by itself, in bytes.
LARGE = 1_000_000
# By the hash of what is packed, and by the identity of what it was made from.
_large: WeakValueDictionary[int, LargeInput] = WeakValueDictionary()
_large_values: WeakValueDictionary[int, LargeInput] = WeakValueDictionary()


def _pack_large(value: object, what: str, references: list[Any]) -> LargeInput:
    fixed = value if isinstance(value, bytes | str) else None
    if fixed is not None:
        known = _large_values.get(id(fixed))
        if known is not None and known.value is fixed:
            refuse_secrets(known.packed)
            return known
    packed = pack(value, what, REMEDY, references=references)
    known = _large.get(hash(packed))
    if known is None or known.packed != packed:
        known = _large[hash(packed)] = LargeInput(packed, fixed)
        if fixed is not None:
            _large_values[id(fixed)] = known
    return known


# Of classes, which are the same for many jobs.
_kinds: WeakKeyDictionary[type, bytes] = WeakKeyDictionary()


def pack_job(job: Node[Any]) -> tuple[JobPayload, list[LargeInput], list[Any]]:
    """Return `job` as bytes: its class and its declared fields, and nothing that is private.

    With it come its large fields and what in it Ray itself has to send. Raises `ConfigurationError`
    where a secret would travel and `TypeError` for what cannot be sent; both name the field.
    """
    kind, fields = type(job), inputs_of(job)
    declared = {field.name for field in dataclasses.fields(cast("Any", job))}
    for name in fields.keys() - declared:
        raise TypeError(
            f"{kind.__name__}.{name} is no declared field, so it cannot be sent with the job: "
            f"declare it ('{name}: ...'), or make it in task()"
        )
    references: list[Any] = []
    large: dict[str, LargeInput] = {}
    try:
        if kind not in _kinds:
            _kinds[kind] = pack(kind, f"the class {type_name(job)}")
        # As far as that is seen without packing.
        sizes = [
            len(value) if isinstance(value, bytes | str) else getattr(value, "nbytes", 0)
            for value in fields.values()
        ]
        if not any(isinstance(size, int) and size > LARGE for size in sizes):
            packed = dump(fields, guarded=True, references=references)
            if len(packed) <= LARGE:
                return JobPayload(_kinds[kind], packed, ()), [], references
            references.clear()
    except Exception:  # whatever pickling raises; now field by field, for its name
        for name, value in fields.items():
            pack(value, f"{kind.__name__}.{name}", REMEDY, references=[])
        raise
    for name, value in fields.items():
        part = _pack_large(value, f"{kind.__name__}.{name}", references)
        if len(part.packed) > LARGE:
            large[name] = part
    small = {name: value for name, value in fields.items() if name not in large}
    packed = dump(small, references=references)
    return JobPayload(_kinds[kind], packed, (*large,)), [*large.values()], references


def unpack_job(payload: JobPayload, large: Sequence[Any], references: Sequence[Any]) -> Node[Any]:
    """Return the job, which has not started; raises `ImportError` for a class not known here."""
    job: Node[Any] = object.__new__(_load_kind(payload.kind))
    token = _references.set(references)
    try:
        vars(job).update(load(payload.fields), on=None)  # it has arrived
        for name, packed in zip(payload.large, large, strict=True):
            vars(job)[name] = load(packed)
    finally:
        _references.reset(token)
    return job


_load_kind = lru_cache(256)(load)


# --- results and failures


class Failure(NamedTuple):
    """A failure on its way home: pickled, and as text for whoever cannot read that."""

    packed: bytes
    text: str
    notes: list[str]


def describe_error(error: BaseException) -> str:
    """Return the class of an exception and what it says, if it can say it."""
    try:
        return f"{type_name(error)}: {error}"
    except BaseException:  # noqa: BLE001 - whatever its own __str__ raises
        return f"{type_name(error)}, which cannot be shown"


def dump_error(error: BaseException, where: str) -> Failure:
    """Pickle a failure with its traceback in a note; one that cannot be is sent as text alone.

    It raises nothing, and what it returns can be pickled, whatever the failure's own code does.
    """
    text = describe_error(error)
    try:
        trace = traceback.TracebackException.from_exception(error)
        trace.__notes__ = None  # they travel as what they are
        note(error, f"{where}:\n{''.join(trace.format()).rstrip()}")
    except BaseException:  # noqa: BLE001 - its attributes, and its class's, may be code
        note(error, f"{where}: {text}")
    notes = notes_of(error)
    try:
        # What led to it, which pickle leaves out; the causes may form a ring.
        causes: list[tuple[BaseException, bool]] = []
        cause: BaseException | None = error
        while cause is not None and all(cause is not known for known, _ in causes):
            causes.append((cause, cause.__suppress_context__))
            cause = cause.__cause__
        return Failure(dump(causes), text, notes)
    except BaseException as why:  # noqa: BLE001 - whatever its own pickling raises
        return Failure(
            b"", text, [*notes, f"it could not be sent as it was: {describe_error(why)}"]
        )


def load_error(failure: Failure) -> BaseException:
    """Return the failure, with the causes that it had; else a `RuntimeError` with its text.

    So also for `SystemExit`, `KeyboardInterrupt` and `CancelledError`.
    """
    notes = failure.notes
    if failure.packed:
        try:
            cause: BaseException | None = None
            for error, suppressed in reversed(load(failure.packed)):
                # As object has it: the exception may be frozen. The first changes the second.
                object.__setattr__(error, "__cause__", cause)
                object.__setattr__(error, "__suppress_context__", suppressed)
                cause = error
            # These would end what is here, and it was something elsewhere that was to end.
            ends = SystemExit, KeyboardInterrupt, CancelledError
            if cause is not None and not is_a(cause, *ends):
                return cause
        except BaseException as why:  # noqa: BLE001 - it is not known here, or cannot be read again
            notes = [*notes, f"it could not be read as it was: {describe_error(why)}"]
    stand_in = RuntimeError(failure.text)
    for each in notes:
        stand_in.add_note(each)
    return stand_in


@dataclass(frozen=True, slots=True)
class Result:
    """A value, or the failure that came after it or in its place."""

    value: Any = None
    failure: BaseException | None = None

    def dump(self) -> bytes:
        """Pickle it; a value that cannot be sent is a failure."""
        where = f"in another process, on {this_host()}"
        failure = None if self.failure is None else dump_error(self.failure, where)
        try:
            return dump((self.value, failure))
        except Exception as error:  # noqa: BLE001 - whatever pickling raises
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
        """Hand it to those who wait for `future`."""
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
    """Undo `dump`; stand-ins take the place of objects whose classes are not known here."""
    try:
        return load(packed)
    except Exception:  # noqa: BLE001 - whatever importing a module raises
        return _LenientUnpickler(io.BytesIO(packed)).load()


class _LenientUnpickler(pickle.Unpickler):
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
