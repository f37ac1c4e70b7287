"""The file of a cassette: a line of JSON for each recorded reply, and what is refused as none.

Embeddings are a reply without deltas that has `vectors`.
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
from ..messages import Delta, ProviderItem, ToolCallDelta, Usage
from ._embedding import as_vectors
from ._secret import Cut, clean

__all__ = ["Tape", "Track", "delta_from_json", "delta_to_json", "line_of"]

_NUMBER = (int, float)
_LINE = {
    "request": dict,
    "sha256": str,
    "model": str,
    "number": int,
    "deltas": list,
    "vectors": list,
    "failure": dict,
    "left": bool,
}
_DELTA = {
    "at": _NUMBER,
    "text": str,
    "reasoning": str,
    "refusal": str,
    "tool_calls": list,
    "usage": dict,
    "finish_reason": str,
    "done": bool,
    "items": list,
}
_PIECE = {"index": int, "id": str, "name": str, "arguments": str, "item": dict}
_FAILURE = {
    "kind": str,
    "message": str,
    "status": (int, NoneType),
    "retry_after": (*_NUMBER, NoneType),
}
# The stored name of the module of the errors, which a cassette does not repeat.
_ERRORS = stored_name(BackendError).partition(":")[0]
_Kinds = Mapping[str, type | tuple[type, ...]]


@dataclass(slots=True)
class Track:
    """One recorded reply: each delta with its time after the request, in seconds."""

    request: str  # as `key_of` writes it
    number: int  # requests that are alike are answered in this order, that of their beginning
    deltas: list[tuple[float, Delta]] = field(default_factory=list[tuple[float, Delta]])
    failure: dict[str, Any] | None = None
    left: bool = False  # the reader did not wait for the end
    vectors: list[list[float]] | None = None

    def fail(self, error: BackendError) -> None:
        """End with this error."""
        self.failure = {
            "kind": stored_name(type(error)).rpartition(":")[2].rpartition(".")[2],
            "message": str(error),
            "status": error.status,
            "retry_after": getattr(error, "retry_after", None),
        }

    def ending(self, file: Path) -> BackendError | None:
        """Return the error that the reply ended with, None if it was whole."""
        if self.failure is None and not self.left:
            return None
        failure = self.failure or {"message": f"{file}: the recorded reader left here"}
        message: str = failure["message"]
        kind: Any = None
        with suppress(ImportError, AttributeError, ValueError):
            kind = find_stored(f"{_ERRORS}:{failure.get('kind', 'StreamInterrupted')}")
        if not (isinstance(kind, type) and issubclass(kind, BackendError)):
            kind = BackendError  # one of the recording program's own
        more: dict[str, Any] = {}
        if kind in (StreamInterrupted, BadResponse):
            more["partial"] = assemble_partial(delta for _, delta in self.deltas)
        if kind is not StreamInterrupted:
            more["status"] = failure.get("status")
        if kind is RateLimited:
            more["retry_after"] = failure.get("retry_after")
        return kind(message, **more)


class Tape:
    """What a file holds, by request."""

    def __init__(self, file: Path) -> None:
        """Read the file. Raises `ConfigurationError` that names it, and the line that is wrong."""
        try:
            lines = file.read_bytes().split(b"\n")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"no cassette {str(file)!r}: {_reason(error)}") from None
        self._file = file
        self._tracks: dict[str, list[Track]] = defaultdict(list)
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    fields = _fields("the line", json.loads(line), _LINE, ("request", "deltas"))
                    failure = fields.get("failure")
                    if failure is not None:
                        _fields("failure", failure, _FAILURE, ("kind", "message"))
                    request = json.dumps(fields["request"], sort_keys=True)
                    deltas = [delta_from_json(delta) for delta in fields["deltas"]]
                    vectors = _vectors(fields)
                except (ValueError, RecursionError, BadResponse) as error:
                    why = f"{file}, line {number}: not a recording: {_reason(error)}"
                    raise ConfigurationError(why) from None
                number, left = fields.get("number", number), fields.get("left", False)
                key = fields.get("sha256", request)
                track = Track(request, number, deltas, failure, left, vectors)
                self._tracks[key].append(track)
        if not self._tracks:
            raise ConfigurationError(f"the cassette {str(file)!r} is empty: nothing was recorded")
        for tracks in self._tracks.values():
            tracks.sort(key=lambda track: track.number)

    def find(self, key: str) -> list[Track]:
        """Return the replies to a request in the order of their beginning."""
        return self._tracks.get(key) or self._tracks.get(_digest(key)) or []

    def requests(self) -> list[str]:
        """Return all requests that were recorded."""
        return [tracks[0].request for tracks in self._tracks.values()]


def line_of(track: Track, model: str, cut: Cut) -> str:
    """Write a line of the file, with `cut` done to all text in it.

    A request from which something was cut is found by a digest of what it was.
    """
    asked = json.loads(track.request)
    request = clean(asked, cut)
    found_by = {} if request == asked else {"sha256": _digest(track.request)}
    deltas: list[dict[str, Any]] = [
        {"at": round(at, 4), **delta_to_json(delta)} for at, delta in track.deltas
    ]
    # A key that was cut into pieces is taken out of the whole, which then stands where it began.
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    calls = [[p for p in pieces if p["index"] == i] for i in {p["index"] for p in pieces}]
    fields = [(deltas, name) for name in ("text", "reasoning", "refusal")]
    for parts, name in (*fields, *((call, "arguments") for call in calls)):
        holders = [part for part in parts if name in part]
        whole = "".join(part[name] for part in holders)
        if (clean_whole := cut(whole)) != whole:
            for part in holders:
                del part[name]
            holders[0][name] = clean_whole
    line = {"request": request, **found_by, "model": model, "number": track.number}
    line["deltas"] = [clean(delta, cut) for delta in deltas]
    line |= {"vectors": track.vectors} if track.vectors is not None else {}
    line |= {"failure": clean(track.failure, cut)} if track.failure else {}
    line |= {"left": True} if track.left else {}
    return json.dumps(line) + "\n"


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())


def _fields(what: str, value: object, kinds: _Kinds, needed: Iterable[str]) -> dict[str, Any]:
    """Return `value` if it is an object with fields of these kinds; raise `ValueError` if not."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object: {short(value)}")
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
    """Read the vectors of a line; raise `ValueError` or `BadResponse` if they are not its texts'.

    There are none in a line about a reply, nor in one that ended by a failure or was left.
    """
    texts = fields["request"].get("input")
    if texts is None or "failure" in fields or fields.get("left"):
        return None
    vectors = as_vectors(fields.get("vectors"))
    if not isinstance(texts, list) or len(vectors) != len(cast("list[Any]", texts)):
        raise ValueError(f"{len(vectors)} vectors for the texts {short(cast('object', texts))}")
    return vectors


def delta_to_json(delta: Delta) -> dict[str, Any]:
    """Write a delta; what says nothing is left out."""
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
    """Read a delta and its time; raise `ValueError` for what is none."""
    fields = dict(_fields("a delta", value, _DELTA, ("at",)))
    at = fields.pop("at")
    if not 0 <= at < float("inf"):
        raise ValueError(f"a delta has a wrong at: {at!r}")
    if "tool_calls" in fields:
        pieces = [_fields("a call", p, _PIECE, ("index",)) for p in fields["tool_calls"]]
        for piece in pieces:
            if "item" in piece:
                piece["item"] = ProviderItem.model_validate(piece["item"])
        fields["tool_calls"] = [ToolCallDelta(**piece) for piece in pieces]
    if "items" in fields:
        fields["items"] = [ProviderItem.model_validate(each) for each in fields["items"]]
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    return at, Delta(**fields)
