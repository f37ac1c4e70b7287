"""The format of a cassette: one line of JSON for each recorded reply.

Embeddings are stored as a reply without deltas that has `vectors`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from reprlib import repr as short
from types import NoneType
from typing import Any, cast

from ..commander.errors import (
    BackendError,
    BadResponse,
    ConfigurationError,
    RateLimited,
    StreamInterrupted,
)
from ..commander.stored_names import find_stored, stored_name
from ..dispatch.assembly import assemble_partial
from ..messages import Delta, OutputMode, ProviderItem, ToolCallDelta, Usage
from ._embedding import as_vectors
from ._secret import Redact, redact_value
from .typed_output import mode_of

__all__ = ["CassetteFile", "RecordedReply", "delta_from_json", "delta_to_json", "write_line"]

_NUMBERS = (int, float)
_LINE_FIELDS = {
    "request": dict,
    "sha256": str,
    "model": str,
    "number": int,
    "deltas": list,
    "vectors": list,
    "failure": dict,
    "left": bool,
}
_DELTA_FIELDS = {
    "at": _NUMBERS,
    "text": str,
    "reasoning": str,
    "refusal": str,
    "tool_calls": list,
    "usage": dict,
    "finish_reason": str,
    "done": bool,
    "items": list,
}
_CALL_FIELDS = {"index": int, "id": str, "name": str, "arguments": str, "item": dict}
_FAILURE_FIELDS = {
    "kind": str,
    "message": str,
    "status": (int, NoneType),
    "retry_after": (*_NUMBERS, NoneType),
}
# The errors' module. A line has only the name of a class in it.
_ERRORS_MODULE = stored_name(BackendError).partition(":")[0]
_FieldTypes = Mapping[str, type | tuple[type, ...]]


@dataclass(slots=True)
class RecordedReply:
    """One recorded reply: each delta with its time after the request, in seconds."""

    request: str  # from `key_of`
    number: int  # the order in which requests began; equal ones are replayed in it
    deltas: list[tuple[float, Delta]] = field(default_factory=list[tuple[float, Delta]])
    failure: dict[str, Any] | None = None
    left: bool = False  # the reader closed the stream early
    vectors: list[list[float]] | None = None

    def fail(self, error: BackendError) -> None:
        """Store this error as the reply's end."""
        self.failure = {
            "kind": stored_name(type(error)).rpartition(":")[2].rpartition(".")[2],
            "message": str(error),
            "status": error.status,
            "retry_after": getattr(error, "retry_after", None),
        }

    def ending(self, file: Path) -> BackendError | None:
        """Return the error that the reply ended with, None if it was complete."""
        if self.failure is None and not self.left:
            return None
        failure = self.failure or {"message": f"{file}: the recorded stream was closed here"}
        message: str = failure["message"]
        kind: Any = None
        with suppress(ImportError, AttributeError, ValueError):
            kind = find_stored(f"{_ERRORS_MODULE}:{failure.get('kind', 'StreamInterrupted')}")
        if not (isinstance(kind, type) and issubclass(kind, BackendError)):
            kind = BackendError  # a class of the program that recorded
        arguments: dict[str, Any] = {}
        if kind in (StreamInterrupted, BadResponse):
            arguments["partial"] = assemble_partial(delta for _, delta in self.deltas)
        if kind is not StreamInterrupted:
            arguments["status"] = failure.get("status")
        if kind is RateLimited:
            arguments["retry_after"] = failure.get("retry_after")
        return kind(message, **arguments)


class CassetteFile:
    """The replies of a file, by request."""

    def __init__(self, file: Path) -> None:
        """Read the file. Raises `ConfigurationError` with its name and the wrong line."""
        try:
            lines = file.read_bytes().split(b"\n")
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"cannot read cassette {str(file)!r}: {_reason_of(error)}"
            ) from None
        self._file = file
        self._replies: dict[str, list[RecordedReply]] = defaultdict(list)
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    fields = _fields(
                        "the line", json.loads(line), _LINE_FIELDS, ("request", "deltas")
                    )
                    failure = fields.get("failure")
                    if failure is not None:
                        _fields("failure", failure, _FAILURE_FIELDS, ("kind", "message"))
                    request = json.dumps(fields["request"], sort_keys=True)
                    deltas = [delta_from_json(delta) for delta in fields["deltas"]]
                    vectors = _vectors(fields)
                except (ValueError, RecursionError, BadResponse) as error:
                    why = f"{file}, line {number}: not a recording: {_reason_of(error)}"
                    raise ConfigurationError(why) from None
                number, left = fields.get("number", number), fields.get("left", False)
                key = fields.get("sha256", request)
                track = RecordedReply(request, number, deltas, failure, left, vectors)
                self._replies[key].append(track)
        if not self._replies:
            raise ConfigurationError(f"the cassette {str(file)!r} is empty: nothing was recorded")
        for tracks in self._replies.values():
            tracks.sort(key=lambda track: track.number)

    def find(self, key: str) -> list[RecordedReply]:
        """Return the replies to a request, in the order in which the requests began."""
        return self._replies.get(key) or self._replies.get(_digest(key)) or []

    def requests(self) -> list[str]:
        """Return all recorded requests."""
        return [tracks[0].request for tracks in self._replies.values()]

    def output_modes(self) -> list[OutputMode]:
        """Return the modes of typed output, those of the recorded requests first."""
        found = {mode_of(json.loads(request)) for request in self.requests()}
        order: list[OutputMode] = ["schema", "grammar", "text", "tool"]
        return sorted(order, key=lambda mode: mode not in found)


def write_line(track: RecordedReply, model: str, cut: Redact) -> str:
    """Return a line of the file, with `cut` applied to all text in it.

    If `cut` changed the request, the line also has a digest of the original, to find it by.
    """
    asked = json.loads(track.request)
    request = redact_value(asked, cut)
    found_by = {} if request == asked else {"sha256": _digest(track.request)}
    deltas: list[dict[str, Any]] = [
        {"at": round(at, 4), **delta_to_json(delta)} for at, delta in track.deltas
    ]
    # A key may be spread over several deltas. Then the first of them gets the complete redacted
    # text.
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    calls = [[p for p in pieces if p["index"] == i] for i in {p["index"] for p in pieces}]
    fields = [(deltas, name) for name in ("text", "reasoning", "refusal")]
    for parts, name in (*fields, *((call, "arguments") for call in calls)):
        holders = [part for part in parts if name in part]
        text = "".join(part[name] for part in holders)
        if (redacted := cut(text)) != text:
            for part in holders:
                del part[name]
            holders[0][name] = redacted
    line = {"request": request, **found_by, "model": model, "number": track.number}
    line["deltas"] = [redact_value(delta, cut) for delta in deltas]
    line |= {"vectors": track.vectors} if track.vectors is not None else {}
    line |= {"failure": redact_value(track.failure, cut)} if track.failure else {}
    line |= {"left": True} if track.left else {}
    return json.dumps(line) + "\n"


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _reason_of(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())


def _fields(what: str, value: object, kinds: _FieldTypes, needed: Iterable[str]) -> dict[str, Any]:
    """Return `value` if it is an object with fields of these types; raise `ValueError` if not."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object: {short(value)}")
    fields = cast("dict[str, Any]", value)
    if missing := [name for name in needed if name not in fields]:
        raise ValueError(f"{what} has no {', '.join(missing)}")
    for name, each in fields.items():
        if name not in kinds:
            raise ValueError(f"{what} has {name!r}, which this version does not know")
        if not isinstance(each, kinds[name]) or isinstance(each, bool) != (kinds[name] is bool):
            raise ValueError(f"{what} has a wrong {name}: {short(each)}")
    return fields


def _vectors(fields: Mapping[str, Any]) -> list[list[float]] | None:
    """Return the vectors of a line; raise `ValueError` or `BadResponse` for wrong ones.

    None for a chat reply, and for embeddings that failed or were left.
    """
    texts = fields["request"].get("input")
    if texts is None or "failure" in fields or fields.get("left"):
        return None
    vectors = as_vectors(fields.get("vectors"))
    if not isinstance(texts, list) or len(vectors) != len(cast("list[Any]", texts)):
        raise ValueError(f"{len(vectors)} vectors for the texts {short(cast('object', texts))}")
    return vectors


def delta_to_json(delta: Delta) -> dict[str, Any]:
    """Return a delta as JSON, without empty fields."""
    pieces: list[dict[str, Any]] = []
    for piece in delta.tool_calls:
        texts: dict[str, Any] = {"id": piece.id, "name": piece.name, "arguments": piece.arguments}
        texts["item"] = piece.item and piece.item.model_dump(exclude_defaults=True)
        pieces.append({"index": piece.index, **{k: v for k, v in texts.items() if v}})
    fields = {
        "text": delta.text,
        "reasoning": delta.reasoning,
        "refusal": delta.refusal,
        "tool_calls": pieces,
        "usage": delta.usage and delta.usage.model_dump(exclude_defaults=True),
        "finish_reason": delta.finish_reason,
        "done": delta.done,
        "items": [item.model_dump(exclude_defaults=True) for item in delta.items],
    }
    return {k: v for k, v in fields.items() if v or (k == "usage" and v is not None)}


def delta_from_json(value: object) -> tuple[float, Delta]:
    """Return the time and the delta; raise `ValueError` for anything else."""
    fields = dict(_fields("a delta", value, _DELTA_FIELDS, ("at",)))
    at = fields.pop("at")
    if not 0 <= at < float("inf"):
        raise ValueError(f"a delta has a wrong at: {at!r}")
    if "tool_calls" in fields:
        pieces = [_fields("a call", p, _CALL_FIELDS, ("index",)) for p in fields["tool_calls"]]
        for piece in pieces:
            if "item" in piece:
                piece["item"] = ProviderItem.model_validate(piece["item"])
        fields["tool_calls"] = [ToolCallDelta(**piece) for piece in pieces]
    if "items" in fields:
        fields["items"] = [ProviderItem.model_validate(each) for each in fields["items"]]
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    return at, Delta(**fields)
