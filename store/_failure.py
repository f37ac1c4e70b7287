"""Encode exceptions as JSON, and decode them as equal exceptions of the same class.

The JSON has the name of the class, `args`, attributes, notes, the members of a group, and one line
for each cause. Nothing is pickled, and no constructor of a user's class is called: the built-in
base class of the exception creates it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any, cast

from ..commander.errors import message_of
from ..commander.stored_names import find_loaded, find_stored, stored_name
from ._codec import Codec
from ._json import dump, pack, unpack
from .errors import JournalMismatch, NotStorable

__all__ = ["attach_idents", "decode_failure", "encode_failure", "failure_idents", "was_awaited"]

IDENTS_ATTRIBUTE = (
    "__anabranch_kept__"  # the attribute with the identities of the rows that have the exception
)
MAX_IDENTS = 100  # of one exception
MAX_CAUSES = 10  # in the notes, the nearest first
MAX_CAUSE_CHARS = 200

# Python's own descriptors: a subclass or its metaclass may override these attributes with code.
_attributes: Any = BaseException.__dict__["__dict__"].__get__
_cause: Any = BaseException.__dict__["__cause__"].__get__
_context: Any = BaseException.__dict__["__context__"].__get__
_suppress_context: Any = BaseException.__dict__["__suppress_context__"].__get__
_members: Any = BaseExceptionGroup.__dict__["exceptions"].__get__
_base: Any = type.__dict__["__base__"].__get__
_own: Any = type.__dict__["__dict__"].__get__
_qualname: Any = type.__dict__["__qualname__"].__get__


def encode_failure(error: BaseException, *, awaited: bool = False) -> bytes:
    """Return `error` as JSON, which `decode_failure` decodes as an equal exception.

    Equal means the same type, arguments, attributes, text and notes, also of the members of a
    group. All of these must be data. The traceback is not stored, and of a cause only a note.
    `awaited` says that another node awaited the failed one: see `was_awaited`.

    Raises only `NotStorable`, with the reason: the class is not in its module, or the exception
    contains something that is not data.
    """
    try:
        written = _write(error)
        data = dump(written)
        if _write(_read(unpack(data, _ERROR_READERS))) != written:
            raise NotStorable("its arguments and attributes do not reproduce it")
        if awaited:
            data = dump({**written, "awaited": True})
    except Exception as fault:
        why = (
            fault if type(fault) is NotStorable else f"reading it raised {stored_name(type(fault))}"
        )
        raise NotStorable(
            f"the failure {stored_name(type(error))} cannot be stored in a journal: {why}"
        ) from fault
    return data


def decode_failure(data: bytes) -> BaseException:
    """Return the stored failure; import the module of its class if necessary.

    If its class was removed or changed, return a `JournalMismatch` that describes the failure.
    """
    try:
        return _read(unpack(data, _ERROR_READERS))
    except (Exception, SystemExit) as fault:  # noqa: BLE001 - a module may raise anything at its import
        found = json.loads(data)
        mismatch = JournalMismatch(
            f"the recorded failure {':'.join(found['type'])} cannot be raised, as the code has"
            f" changed ({fault}): {found['message']}"
        )
        mismatch.__cause__ = fault
        return mismatch


def was_awaited(data: bytes) -> bool:
    """Return whether another node awaited the failed node; older journals do not record this."""
    return "awaited" in json.loads(data)


def attach_idents(error: BaseException, *idents: bytes) -> None:
    """Attach the identities of the rows that record `error` to it."""
    before: tuple[bytes, ...] = _attributes(error).get(IDENTS_ATTRIBUTE, ())
    # Bounded, as the same object may be raised many times.
    _attributes(error)[IDENTS_ATTRIBUTE] = tuple(dict.fromkeys((*before, *idents)))[-MAX_IDENTS:]


def failure_idents(*errors: BaseException) -> set[bytes]:
    """Return the identities of the rows that record errors, or else those of their sources.

    The sources are the cause, the context and the members of a group.
    """
    found: set[bytes] = set()
    left: list[BaseException | None] = [*errors]
    seen: set[int] = set()
    while left:
        if (each := left.pop()) is None or id(each) in seen:
            continue
        seen.add(id(each))
        if own := _attributes(each).get(IDENTS_ATTRIBUTE):
            found.update(own)
            continue
        left += [_cause(each), _context(each)]
        if isinstance(each, BaseExceptionGroup):
            left += _members(each)
    return found


def _write(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    name = stored_name(kind)
    module, _, qualname = name.partition(":")
    if find_loaded(name) is not kind:
        raise NotStorable(f"its class is not {qualname} in the module {module}")
    _, args, *state = _builtin(kind).__reduce__(error)
    if issubclass(kind, BaseExceptionGroup):
        args = (args[0], list(_members(error)))
    attributes: dict[str, Any] = {**(*state, {})[0], **_slots(error), **_attributes(error)}
    attributes.pop(IDENTS_ATTRIBUTE, None)
    noted: Any = attributes.pop("__notes__", None)
    notes = cast("list[Any]", noted) if type(noted) is list else []
    return {
        "type": [module, qualname],
        "message": message_of(error),
        "args": pack(list(args), _other),
        "attributes": pack(attributes, _other),
        "notes": [each for each in notes if type(each) is str] + _causes(error),
    }


def _read(found: dict[str, Any]) -> BaseException:
    module, qualname = found["type"]
    kind: Any = None
    with suppress(AttributeError):
        kind = find_stored(f"{module}:{qualname}")
    if not (issubclass(type(kind), type) and issubclass(kind, BaseException)):
        raise NotStorable(f"the module {module} has no exception {qualname}")
    base = _builtin(kind)
    error = base.__new__(kind, *found["args"])
    base.__init__(error, *found["args"])
    for name, value in found["attributes"].items():
        object.__setattr__(error, name, value)
    if found["notes"]:
        _attributes(error)["__notes__"] = found["notes"]
    return error


def _builtin(kind: type[BaseException]) -> Any:
    """Return the nearest built-in base class of `kind`."""
    found: Any = kind
    while not stored_name(found).startswith("builtins:"):
        found = _base(found)
    return found


def _other(value: Any) -> Any:
    """Return the JSON of another error or an object that an error contains."""
    kind = type(cast("object", value))
    if issubclass(kind, BaseException):
        return {"$error": _write(value)}
    name = stored_name(kind)
    module, _, qualname = name.partition(":")
    if find_loaded(name) is kind:
        with suppress(NotStorable):
            return {"$of": [module, qualname, Codec(kind, "").encode(value).decode()]}
    raise NotStorable(f"it contains a {qualname}, which is not data")


def _read_object(parts: list[str]) -> Any:
    module, qualname, text = parts
    return Codec(find_stored(f"{module}:{qualname}"), qualname).decode(text.encode())


_ERROR_READERS: dict[str, Any] = {"$error": _read, "$of": _read_object}


def _slots(error: BaseException) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind, end = type(error), _builtin(type(error))
    while kind is not end:
        for name, member in _own(kind).items():
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):  # an empty slot
                    found[name] = member.__get__(error)
        kind = _base(kind)
    return found


def _causes(error: BaseException) -> list[str]:
    """Return a line for each cause in the chain."""
    lines: list[str] = []
    seen = {id(error)}
    while len(lines) < MAX_CAUSES:
        cause = _cause(error)
        if cause is None and not _suppress_context(error):
            cause = _context(error)
        if cause is None or id(cause) in seen:
            break
        seen.add(id(error := cause))
        message = " ".join(message_of(error).split())[:MAX_CAUSE_CHARS]
        lines.append(f"caused by {_qualname(type(error))}" + (f": {message}" if message else ""))
    return lines
