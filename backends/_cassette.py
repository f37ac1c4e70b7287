"""A backend that replays recorded replies from a file, or records them."""

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
from ..messages import Delta, OutputMode, Request, require_request
from ._backend import Backend
from ._cassette_file import CassetteFile, RecordedReply, write_line
from ._embedding import list_of_texts
from ._recorded import key_of
from .limits import Limits

__all__ = ["CassetteBackend"]

_MAX_DIFFERENCE_LINES = 40  # lines of a difference


class CassetteBackend(Backend):
    """Replays the replies in `file`; with `record`, records that backend's replies there.

        backend = connect("cassette:replies.jsonl", record=connect("openai:gpt-5"))

    Each line of the file is one reply. Requests are matched by messages, tools and options,
    embeddings by their texts; the recording backend's model and defaults do not matter. Equal
    requests get their replies in the order in which they were sent, then the last one again. Replay
    is immediate, or with `realtime=True` at the recorded pace. A failure is replayed as the same
    error. A damaged file raises `ConfigurationError` with its name and line.

    Recording overwrites the file at the first request. Each line is written when its reply has
    ended. Keys of the recording backend are not written, unless a key is only a word or a number.
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
                " realtime and formats. Pass others to the backend that is recorded."
            )
        if not (record is None or isinstance(record, Backend)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise ConfigurationError(f"record={record!r}: it must be a backend, from connect()")
        super().__init__(
            record.model if record else Path(file).stem,
            formats=formats or (record.formats if record else ()),
        )
        self.file = Path(file)
        self.record = record
        self.realtime = realtime
        self._started = False  # this object has overwritten the file
        self._numbers = count(1)
        self._recording_file: CassetteFile | None = None
        self._play_counts: dict[str, int] = defaultdict(int)

    @property
    def asks_others(self) -> bool:
        """Whether it records."""
        return self.record is not None

    @property
    def takes(self) -> frozenset[str] | None:
        """The inputs that the recorded backend takes."""
        return self.record.takes if self.record else None

    @property
    def output_modes(self) -> Sequence[OutputMode]:
        """Those of the recorded backend; without it, those of the recorded requests come first."""
        return self.record.output_modes if self.record else self._recorded().output_modes()

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Replay the reply to `request`, or record it."""
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
        track = self._next_reply(key)
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
        """Close the backend that is recorded, and forget the file's content."""
        self._recording_file = None
        self._play_counts.clear()
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
    def _recording(self, key: str) -> Generator[RecordedReply]:
        """Write the reply's line when the block ends, for any reason."""
        track = RecordedReply(key, next(self._numbers), left=True)
        if not self._started:
            self._write("")  # before the request: a file that cannot be written costs nothing
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
                self._write(write_line(track, self.model, self.redact))
            except ConfigurationError as error:
                unwritten = error  # raised below, unless the reply itself has failed
        if unwritten is not None:
            raise unwritten

    def _write(self, line: str) -> None:
        try:
            with self.file.open("a" if self._started else "w", encoding="utf-8") as file:
                file.write(line)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot record to {str(self.file)!r}: {error}") from None

    async def _play(self, request: Request) -> AsyncGenerator[Delta, None]:
        track = self._next_reply(key_of(request))
        clock = asyncio.get_running_loop().time
        start = clock()
        for at, delta in track.deltas:
            if self.realtime:
                await asyncio.sleep(start + at - clock())
            yield delta
        if (failure := track.ending(self.file)) is not None:
            raise failure

    def _recorded(self) -> CassetteFile:
        if self._recording_file is None:
            self._recording_file = CassetteFile(self.file)
        return self._recording_file

    def _next_reply(self, key: str) -> RecordedReply:
        recorded = self._recorded()
        tracks = recorded.find(key)
        if not tracks:
            difference = _describe_difference(key, recorded.requests())
            raise BackendError(
                f"{self.file} has no reply to this request. The nearest one differs:{difference}"
            )
        track = tracks[min(self._play_counts[key], len(tracks) - 1)]
        self._play_counts[key] += 1
        return track


def _describe_difference(key: str, known: Sequence[str]) -> str:
    """Return a diff of a request and the most similar recorded one."""

    def pretty(key: str) -> list[str]:
        return json.dumps(json.loads(key), indent=1, sort_keys=True).splitlines()

    asked = pretty(key)
    nearest = max(
        map(pretty, known),
        key=lambda other: SequenceMatcher(None, asked, other, autojunk=False).ratio(),
    )
    lines = unified_diff(nearest, asked, "recorded", "asked", n=1, lineterm="")
    shown = list(islice(lines, _MAX_DIFFERENCE_LINES + 1))
    if len(shown) > _MAX_DIFFERENCE_LINES:
        shown[-1] = "..."
    return "".join(f"\n{line}" for line in shown)
