"""Recorded replies: what a model said, delta by delta, played again without it."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff
from itertools import islice
from pathlib import Path
from typing import Any

from ..commander import _errors as errors
from ..commander._errors import BackendError, ConfigurationError, RateLimited, StreamInterrupted
from ..dispatch import Delta, Request, ToolCallDelta, Usage, request_body
from ._assemble import partial_message
from ._backend import Backend

__all__ = ["CassetteBackend"]

_SHOWN = 40  # lines of a difference


@dataclass(slots=True)
class _Track:
    """One recorded reply: each delta with its time after the request, in seconds."""

    request: str
    deltas: list[tuple[float, Delta]] = field(default_factory=list[tuple[float, Delta]])
    failure: dict[str, Any] | None = None
    left: bool = False  # the reader did not wait for the end


class CassetteBackend(Backend):
    """Plays what was recorded in `file`; with `record`, records that backend's replies there.

    A line of the file is one reply. A request is found by its messages, tools and options; the
    recording backend's model and defaults do not matter. Requests that are alike get their replies
    in the order of the recording, then the last one again. Played at once, or with
    `realtime=True` at the recorded pace. A failure is played as the same error.

    Recording starts the file anew with the first reply and writes each line when the reply has
    ended. No key of the recording backend is written.
    """

    provider = "cassette"

    def __init__(
        self, file: str | Path, *, record: Backend | None = None, realtime: bool = False
    ) -> None:
        super().__init__(record.model if record else Path(file).stem)
        self.file = Path(file)
        self.record = record
        self.realtime = realtime
        self._started = False  # the file has been begun anew
        self._tracks: dict[str, list[_Track]] | None = None
        self._played: dict[str, int] = defaultdict(int)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Play the reply to `request`, or record it."""
        if self.record is not None:
            return self._recorded(self.record, request)
        return self._play(request)

    def redact(self, text: str) -> str:
        """Return `text` without the key of the recorded backend."""
        return self.record.redact(text) if self.record else text

    async def aclose(self) -> None:
        """Close the backend that is recorded; what was read of the file is forgotten."""
        self._tracks = None
        self._played.clear()
        if self.record is not None:
            await self.record.aclose()

    async def _leave_loop(self) -> None:
        if self.record is not None:
            await self.record._leave_loop()

    async def _recorded(self, source: Backend, request: Request) -> AsyncGenerator[Delta, None]:
        clock = asyncio.get_running_loop().time
        start = clock()
        track = _Track(_key(request), left=True)
        try:
            async with aclosing(source.stream(request)) as deltas:
                async for delta in deltas:
                    track.deltas.append((clock() - start, delta))
                    yield delta
            track.left = False
        except BackendError as error:
            track.left, track.failure = False, _failure_to_json(error)
            raise
        finally:
            self._write(track)

    def _write(self, track: _Track) -> None:
        line = {"request": json.loads(track.request), "model": self.model}
        line["deltas"] = [{"at": round(at, 4), **_delta_to_json(d)} for at, d in track.deltas]
        self._clean(line["deltas"])
        line |= {"failure": track.failure} if track.failure else {}
        line |= {"left": True} if track.left else {}
        with self.file.open("a" if self._started else "w", encoding="utf-8") as file:
            file.write(self.redact(json.dumps(line)) + "\n")
        self._started = True

    def _clean(self, deltas: list[dict[str, Any]]) -> None:
        """Take out keys that are cut into pieces: the text then stands where it began."""
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
        calls = [[p for p in pieces if p["index"] == i] for i in {p["index"] for p in pieces}]
        fields = [(deltas, name) for name in ("text", "reasoning", "refusal")]
        for parts, name in (*fields, *((call, "arguments") for call in calls)):
            holders = [part for part in parts if name in part]
            whole = "".join(part[name] for part in holders)
            if (clean := self.redact(whole)) != whole:
                for part in holders:
                    del part[name]
                holders[0][name] = clean

    async def _play(self, request: Request) -> AsyncGenerator[Delta, None]:
        track = self._find(_key(request))
        clock = asyncio.get_running_loop().time
        start = clock()
        for at, delta in track.deltas:
            if self.realtime:
                await asyncio.sleep(start + at - clock())
            yield delta
        if track.left or track.failure:
            raise _failure_from_json(track, self.file)

    def _find(self, key: str) -> _Track:
        if self._tracks is None:
            self._tracks = _load(self.file)
        tracks = self._tracks.get(key)
        if not tracks:
            raise BackendError(_not_there(key, self._tracks, self.file))
        number = self._played[key]
        self._played[key] += 1
        return tracks[min(number, len(tracks) - 1)]


def _key(request: Request) -> str:
    body = request_body("", request, stream=False)
    del body["model"]
    return json.dumps(body, sort_keys=True)


def _load(file: Path) -> dict[str, list[_Track]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"no cassette {str(file)!r}: {error.strerror}") from None
    tracks: dict[str, list[_Track]] = {}
    for number, line in enumerate(lines, 1):
        try:
            track = _track_from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{file}, line {number}: not a recording: {error}") from None
        tracks.setdefault(track.request, []).append(track)
    return tracks


def _track_from_json(line: dict[str, Any]) -> _Track:
    return _Track(
        json.dumps(line["request"], sort_keys=True),
        [(delta.pop("at"), _delta_from_json(delta)) for delta in line["deltas"]],
        line.get("failure"),
        line.get("left", False),
    )


def _delta_to_json(delta: Delta) -> dict[str, Any]:
    fields = {
        "text": delta.text,
        "reasoning": delta.reasoning,
        "refusal": delta.refusal,
        "tool_calls": [_piece_to_json(piece) for piece in delta.tool_calls],
        "usage": delta.usage and delta.usage.model_dump(exclude_defaults=True),
        "finish_reason": delta.finish_reason,
        "done": delta.done,
    }
    return {k: v for k, v in fields.items() if v or (k == "usage" and v is not None)}


def _piece_to_json(piece: ToolCallDelta) -> dict[str, Any]:
    fields = {"id": piece.id, "name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index} | {k: v for k, v in fields.items() if v}


def _delta_from_json(fields: dict[str, Any]) -> Delta:
    if "tool_calls" in fields:
        fields["tool_calls"] = [ToolCallDelta(**piece) for piece in fields["tool_calls"]]
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    return Delta(**fields)


def _failure_to_json(error: BackendError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "status": error.status,
        "retry_after": getattr(error, "retry_after", None),
    }


def _failure_from_json(track: _Track, file: Path) -> BackendError:
    failure = track.failure or {
        "kind": "StreamInterrupted",
        "message": f"{file}: the recorded reader left here",
    }
    kind: Any = getattr(errors, failure["kind"], BackendError)
    if kind is StreamInterrupted:
        partial = partial_message(delta for _, delta in track.deltas)
        return StreamInterrupted(failure["message"], partial=partial)
    if kind is RateLimited:
        return RateLimited(failure["message"], retry_after=failure.get("retry_after"))
    return kind(failure["message"], status=failure.get("status"))


def _not_there(key: str, known: Collection[str], file: Path) -> str:
    """Say that a request was not recorded, which one is nearest, and how they differ."""
    if not known:
        return f"{file} is empty"
    nearest = max(known, key=lambda other: _likeness(key, other))
    lines = unified_diff(_pretty(nearest), _pretty(key), "recorded", "asked", n=1, lineterm="")
    shown = list(islice(lines, _SHOWN + 1))
    if len(shown) > _SHOWN:
        shown[-1] = "..."
    return "\n".join((f"{file} has no reply to this request; the nearest one differs so:", *shown))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, _pretty(one), _pretty(other), autojunk=False).ratio()


def _pretty(key: str) -> list[str]:
    return json.dumps(json.loads(key), indent=1, sort_keys=True).splitlines()
