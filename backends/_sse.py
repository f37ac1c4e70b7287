"""Server-sent events from bytes, cut anywhere: the payloads of `data`, in order."""

from __future__ import annotations

__all__ = ["EventReader"]

_BOM = b"\xef\xbb\xbf"


class EventReader:
    """Collects the data of each event; comments and every other field are passed over.

    Lines may end in LF, CRLF or CR; a byte order mark may come first; several data lines of one
    event are joined by LF. However the bytes are cut, the events are the same, and the cost grows
    with their number only.
    """

    __slots__ = ("_data", "_first", "_parts", "_skip_newline")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # the pieces of the line that has not ended yet
        self._data: list[bytes] = []  # the data lines of the event that has not ended yet
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

    def close(self) -> bytes | None:
        """Return the data of an event that the end of the stream cut off, or None."""
        if any(self._parts):
            self._take(self._lines(b"\n"))
        return b"\n".join(self._data) if self._data else None

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
            lines[0] = lines[0].removeprefix(_BOM)
        return lines

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line == b"data":
                data.append(b"")
        return events
