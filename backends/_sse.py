"""Read server-sent events from bytes: yield the `data` payloads, in order."""

from __future__ import annotations

import json

__all__ = ["BOM", "EventReader"]

BOM = b"\xef\xbb\xbf"
# Added to the data lines of an event with the type `error`, which may come without data.
_UNNAMED_ERROR = b'{"error": "the server sent an error without a message"}'


class EventReader:
    """Collects the data of each event, without comments and other fields.

    Lines may end in LF, CRLF or CR, a byte order mark may come first, and several data lines of one
    event are joined by LF. The events do not depend on how the bytes are split, and the cost is
    linear.

    Some servers write errors in other ways: as an event of the type `error`, in a field `error`, or
    as JSON without a field. These become events too; the first two get a key `error`.
    """

    __slots__ = ("_bare", "_data", "_first", "_parts", "_skip_newline")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # pieces of an unfinished line
        self._data: list[bytes] = []  # data lines of an unfinished event
        self._bare: bytes | None = None  # the first of them, if they are JSON without a field
        self._first = True  # a byte order mark may still come
        self._skip_newline = False  # the last piece ended in CR, so an LF belongs to it

    def feed(self, piece: bytes) -> list[bytes]:
        """Add bytes; return the data of the events that are complete now."""
        if self._skip_newline:
            self._skip_newline = not piece
            piece = piece.removeprefix(b"\n")
        if b"\n" not in piece and b"\r" not in piece:
            self._parts.append(piece)
            return []
        return self._read_lines(self._lines(piece))

    def close(self) -> list[bytes]:
        """Return the data of the events that the end of the stream cut off."""
        events = self._read_lines(self._lines(b"\n")) if any(self._parts) else []
        if self._data:
            events.append(_join(self._data))
        return events

    def _lines(self, piece: bytes) -> list[bytes]:
        if self._parts:
            piece = b"".join((*self._parts, piece))
            self._parts.clear()
        lines = piece.splitlines()
        last = piece[-1]
        if last == 13:
            self._skip_newline = True
        elif last != 10:
            self._parts.append(lines.pop())
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(BOM)
        return lines

    def _read_lines(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                if data:
                    events.append(data[0] if len(data) == 1 else _join(data))
                    data.clear()
            elif line == b"data":
                data.append(b"")
            elif line[0] != 58:  # ":" starts a comment
                self._read_other(line, events)
        return events

    def _read_other(self, line: bytes, events: list[bytes]) -> None:
        """Read a line that is neither data nor a comment."""
        data = self._data
        if data and data[0] is self._bare:
            data.append(line)
            if line == (b"]" if data[0].startswith(b"[") else b"}"):
                events.append(_join(data))
                data.clear()
        elif line.startswith(b"error:"):
            events.append(_as_error(line[6:].strip()))
        elif line.startswith(b"event:"):
            if line[6:].strip() == b"error":
                data.append(_UNNAMED_ERROR)
        elif line.startswith((b"{", b"[{")) or line.rstrip() == b"[":
            if line.rstrip().endswith((b"}", b"}]")):
                events.append(line)
            elif not data:
                self._bare = line
                data.append(line)
        elif line.strip() == b"[DONE]":
            events.append(b"[DONE]")


def _join(data: list[bytes]) -> bytes:
    if _UNNAMED_ERROR not in data:
        return b"\n".join(data)
    rest = [line for line in data if line != _UNNAMED_ERROR]
    return _as_error(b"\n".join(rest)) if rest else _UNNAMED_ERROR


def _as_error(payload: bytes) -> bytes:
    """Return an event with a key `error`, whatever form the server used."""
    text = payload.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, dict) and "error" in value:
        return payload
    return json.dumps({"error": value or "the server sent an error without a message"}).encode()
