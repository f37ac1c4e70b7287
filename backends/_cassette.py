"""Recorded replies: what a model said, delta by delta, played again without it."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager
from difflib import SequenceMatcher, unified_diff
from itertools import count, islice
from pathlib import Path
from typing import Any

from ..commander.errors import BackendError, ConfigurationError
from ..dispatch import Format
from ..messages import Delta, Request, require_request
from ._backend import Backend
from ._embedding import list_of_texts
from ._recorded import key_of
from ._tape import Tape, Track, line_of
from .limits import Limits

__all__ = ["CassetteBackend"]

_SHOWN = 40  # lines of a difference


class CassetteBackend(Backend):
    """Plays what was recorded in `file`; with `record`, records that backend's replies there.

    A line of the file is one reply. A request is found by its messages, tools and options, one for
    embeddings by its texts; the recording backend's model and defaults do not matter. Requests that
    are alike get their replies in the order in which they were asked, then the last one again.
    Played at once, or with `realtime=True` at the recorded pace. A failure is played as the same
    error. A file that is damaged, or no recording, is a `ConfigurationError` that names it and the
    line.

    Recording starts the file anew with the first request and writes each line when the reply has
    ended. No key of the recording backend is written, but for one that is a mere word or number.
    """

    provider = "cassette"

    def __init__(
        self,
        file: str | Path,
        *,
        record: Backend | None = None,
        realtime: bool = False,
        formats: Sequence[Format] = (),
        **unknown: Any,
    ) -> None:
        if unknown:
            raise ConfigurationError(
                f"a cassette has no option {', '.join(sorted(unknown))}; it has record,"
                " realtime and formats; all others belong to the backend that is recorded"
            )
        if not (record is None or isinstance(record, Backend)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise ConfigurationError(f"record={record!r}: it is a backend, as connect() makes it")
        super().__init__(
            record.model if record else Path(file).stem,
            formats=formats or (record.formats if record else ()),
        )
        self.file = Path(file)
        self.record = record
        self.realtime = realtime
        self._started = False  # the file has been begun anew
        self._numbers = count(1)
        self._tape: Tape | None = None
        self._played: dict[str, int] = defaultdict(int)

    @property
    def asks_others(self) -> bool:
        """Whether it records."""
        return self.record is not None

    @property
    def takes(self) -> frozenset[str] | None:
        """What the recorded backend takes."""
        return self.record.takes if self.record else None

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Play the reply to `request`, or record it."""
        require_request(request)
        if self.record is not None:
            return self._record(self.record, request)
        return self._play(request)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        texts = list_of_texts(texts)
        if not texts:
            return []
        key = json.dumps({"input": texts})
        if self.record is not None:
            with self._recording(key) as track:
                track.vectors = await self.record.embed(texts)
            return track.vectors
        track = self._next_track(key)
        if (failure := track.ending(self.file)) is not None:
            raise failure
        return [[*vector] for vector in track.vectors or ()]

    async def warm(self, request: Request) -> None:
        """Warm the backend that is recorded."""
        if self.record is not None:
            await self.record.warm(request)

    def limits_of_model(self, model: str) -> Sequence[Limits]:
        return self.record.limits_of_model(model) if self.record else ()

    def redact(self, text: str) -> str:
        """Return `text` without the key of the recorded backend."""
        return self.record.redact(text) if self.record else text

    async def aclose(self) -> None:
        """Close the backend that is recorded; what was read of the file is forgotten."""
        self._tape = None
        self._played.clear()
        if self.record is not None:
            await self.record.aclose()

    async def leave_loop(self) -> None:
        if self.record is not None:
            await self.record.leave_loop()

    async def _record(self, source: Backend, request: Request) -> AsyncGenerator[Delta, None]:
        clock = asyncio.get_running_loop().time
        start = clock()
        with self._recording(key_of(request)) as track:
            async with aclosing(source.stream(request)) as deltas:
                async for delta in deltas:
                    track.deltas.append((clock() - start, delta))
                    yield delta

    @contextmanager
    def _recording(self, key: str) -> Generator[Track]:
        """Write what comes of a request when it has ended, however that is."""
        track = Track(key, next(self._numbers), left=True)
        if not self._started:
            self._write("")
            self._started = True
        unwritten: ConfigurationError | None = None
        try:
            yield track
            track.left = False
        except BackendError as error:
            track.left = False
            track.fail(error)
            raise
        finally:
            try:
                self._write(line_of(track, self.model, self.redact))
            except ConfigurationError as error:
                unwritten = error  # raised below, unless the reply ended by something else
        if unwritten is not None:
            raise unwritten

    def _write(self, line: str) -> None:
        try:
            with self.file.open("a" if self._started else "w", encoding="utf-8") as file:
                file.write(line)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot record to {str(self.file)!r}: {error}") from None

    async def _play(self, request: Request) -> AsyncGenerator[Delta, None]:
        track = self._next_track(key_of(request))
        clock = asyncio.get_running_loop().time
        start = clock()
        for at, delta in track.deltas:
            if self.realtime:
                await asyncio.sleep(start + at - clock())
            yield delta
        if (failure := track.ending(self.file)) is not None:
            raise failure

    def _next_track(self, key: str) -> Track:
        if self._tape is None:
            self._tape = Tape(self.file)
        tracks = self._tape.find(key)
        if not tracks:
            difference = _difference(key, self._tape.requests())
            raise BackendError(
                f"{self.file} has no reply to this request; the nearest one differs so:{difference}"
            )
        track = tracks[min(self._played[key], len(tracks) - 1)]
        self._played[key] += 1
        return track


def _difference(key: str, known: Sequence[str]) -> str:
    """Say how a request differs from the nearest one that was recorded."""

    def pretty(key: str) -> list[str]:
        return json.dumps(json.loads(key), indent=1, sort_keys=True).splitlines()

    asked = pretty(key)
    nearest = max(
        map(pretty, known),
        key=lambda other: SequenceMatcher(None, asked, other, autojunk=False).ratio(),
    )
    lines = unified_diff(nearest, asked, "recorded", "asked", n=1, lineterm="")
    shown = list(islice(lines, _SHOWN + 1))
    if len(shown) > _SHOWN:
        shown[-1] = "..."
    return "".join(f"\n{line}" for line in shown)
