"""Server-sent events from bytes, cut anywhere: the payloads of `data`, in order."""

from __future__ import annotations

import json

__all__ = ["BOM", "EventReader"]

BOM = b"\xef\xbb\xbf"
# Stands among the data lines of an event that is called an error, and alone for one without data.
_ERROR = b'{"error": "the server sent an error without a message"}'


class EventReader:
    """Collects the data of each event; comments and other fields are passed over.

    Lines may end in LF, CRLF or CR; a byte order mark may come first; several data lines of one
    event are joined by LF. However the bytes are cut, the events are the same, and the cost grows
    with their number only.

    Some servers write errors in other ways: as an event of the type `error`, in a field `error`, or
    as JSON without any field. These become events, too: the first two have a key `error`.
    """

    __slots__ = ("_bare", "_data", "_first", "_parts", "_skip_newline")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # the pieces of the line that has not ended yet
        self._data: list[bytes] = []  # the data lines of the event that has not ended yet
        self._bare: bytes | None = None  # the first of them if they are lines without a field
        self._first = True  # no line has ended yet: a byte order mark may be before it
        self._skip_newline = False  # the last piece ended in CR: an LF next belongs to it

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; return the data of the events that ended in them."""
        if self._skip_newline:
            self._skip_newline = not piece
            piece = piece.removeprefix(b"\n")
        if b"\n" not in piece and b"\r" not in piece:
            self._parts.append(piece)
            return []
        return self._take(self._lines(piece))

    def close(self) -> list[bytes]:
        """Return the data of events that the end of the stream cut off."""
        events = self._take(self._lines(b"\n")) if any(self._parts) else []
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

    def _take(self, lines: list[bytes]) -> list[bytes]:
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
            elif line[0] != 58:  # a comment
                self._take_other(line, events)
        return events

    def _take_other(self, line: bytes, events: list[bytes]) -> None:
        """Take a line that is neither data nor a comment."""
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
                data.append(_ERROR)
        elif line.startswith((b"{", b"[{")) or line.rstrip() == b"[":
            if line.rstrip().endswith((b"}", b"}]")):
                events.append(line)
            elif not data:
                self._bare = line
                data.append(line)
        elif line.strip() == b"[DONE]":
            events.append(b"[DONE]")


def _join(data: list[bytes]) -> bytes:
    if _ERROR not in data:
        return b"\n".join(data)
    rest = [line for line in data if line != _ERROR]
    return _as_error(b"\n".join(rest)) if rest else _ERROR


def _as_error(said: bytes) -> bytes:
    """Return the event of an error, whatever a server said of it."""
    text = said.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, dict) and "error" in value:
        return said
    return json.dumps({"error": value or "the server sent an error without a message"}).encode()
