"""A tool call as a person reads it before it runs, so that nothing in it deceives."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..tools import AnyTool

__all__ = ["Question", "draft", "exact", "lay_out", "replace_unfit", "width"]

INDENT = "  "
# Before each line of a text of several lines, and before the rest of a wrapped line.
LINE_MARK, REST_MARK = "| ", ": "
# Rows of the screen that a shortened question leaves free; rows and columns that it always takes.
FREE_ROWS, MIN_ROWS, MIN_COLUMNS = 4, 12, 24
# Rows that long fields of the tool get even if the arguments are long; rows that each argument
# gets, or else all together.
TOOL_ROWS, ARGUMENT_ROWS = 4, 3
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Question:
    """A call as a person reads it before it runs: the tool, its origin, its arguments.

    Different calls have different rows. Each row starts with the program's indent, has printable
    characters only, and is never wider than the screen. No value can look like another field, the
    question or the program's own text: a text of several lines is below its name, each after `| `.
    """

    tool: AnyTool
    arguments: Mapping[str, Any]
    encoding: str = "utf-8"

    def rows(self, columns: int, lines: int | None = None) -> list[str]:
        """Return the rows for a screen of this size.

        Only with `lines` are rows left out: the middle of the longest fields, which a row reports.
        """
        columns = max(columns, MIN_COLUMNS)
        says = self.tool.description
        fields = {"tool": self.tool.name, "from": self.tool.bare.origin, "says": says}
        tool = [
            _lay_out(name, _exact_lines(text, self.encoding), INDENT, columns)
            for name, text in fields.items()
            if text
        ]
        tool.append([f"{INDENT}with:" if self.arguments else f"{INDENT}with no arguments"])
        arguments = lay_out(self.arguments, columns, self.encoding)
        if lines is None:
            return _join(tool + arguments)
        room = max(lines - FREE_ROWS, MIN_ROWS)
        least = sum(min(len(rows), TOOL_ROWS) for rows in tool)
        if ARGUMENT_ROWS * len(arguments) > room - least:
            arguments = [_join(arguments)]
        given = _cap(arguments, max(room - least, ARGUMENT_ROWS), columns)
        said = _cap(tool, max(room - sum(map(len, given)), least), columns)
        return _join(said + given)


def lay_out(arguments: Mapping[str, Any], columns: int, encoding: str) -> list[list[str]]:
    """Return the rows of each argument: different values have different rows."""
    return [
        _lay_out(*_argument(name, value, columns, encoding), INDENT * 2, columns)
        for name, value in arguments.items()
    ]


def draft(arguments: Mapping[str, Any], encoding: str = "utf-8") -> str:
    """Return arguments as JSON to edit; characters that a terminal would not show are escaped."""

    def spell(character: str) -> str:
        return character if character == "\\" else json.dumps(character)[1:-1]

    # DEL is the one control character that JSON does not escape.
    text = json.dumps(arguments, ensure_ascii=False).replace("\x7f", "\\u007f")
    return replace_unfit(text, spell, encoding)


def _lay_out(name: str, lines: list[str], indent: str, columns: int) -> list[str]:
    """Return a field as one row if it fits, else as rows below its name."""
    if len(lines) == 1 and width(row := f"{indent}{name}: {lines[0]}") < columns:
        return [row]
    below = indent + INDENT
    head = _wrap(f"{name}:", indent, below + REST_MARK, columns)
    return head + [
        row for line in lines for row in _wrap(line, below + LINE_MARK, below + REST_MARK, columns)
    ]


def _exact_lines(text: str, encoding: str) -> list[str]:
    """Return the lines of a text, each shown exactly."""
    return [exact(line, encoding) for line in text.split("\n")]


def _argument(name: str, value: Any, columns: int, encoding: str) -> tuple[str, list[str]]:
    """Return the name and the lines of an argument; different values have different lines.

    A string is shown as it is, or quoted if it could be mistaken for another value.
    """
    name = (
        name
        if PLAIN_NAME.fullmatch(name)
        else exact(json.dumps(name, ensure_ascii=False), encoding)
    )
    if isinstance(value, str):
        bare = "\n" in value or (value.strip() == value != "" and not _is_json(value))
        return name, _exact_lines(value if bare else _json(value), encoding)
    line = exact(_json(value), encoding)
    if not isinstance(value, (dict, list)) or len(name) + width(line) < columns - len(INDENT) * 3:
        return name, [line]
    return f"{name} (JSON)", _exact_lines(_json(value, indent=2), encoding)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, default=repr)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:
        pass
    return True


def _wrap(line: str, first: str, rest: str, columns: int) -> list[str]:
    """Wrap a line; combining marks, which take no cell, stay with their letters."""
    rows, prefix = list[str](), first
    start, used = 0, 0
    room = columns - 1 - len(prefix)
    for place, character in enumerate(line):
        cells = width(character)
        if used + cells > room:
            rows.append(prefix + line[start:place])
            start, used, prefix = place, 0, rest
            room = columns - 1 - len(prefix)
        used += cells
    return [*rows, prefix + line[start:]]


def _join(fields: list[list[str]]) -> list[str]:
    return [row for rows in fields for row in rows]


def _cap(fields: list[list[str]], room: int, columns: int) -> list[list[str]]:
    """Divide `room` rows among fields; short fields leave the rest of their shares to others.

    A field with more rows loses its middle, and reports how much that is.
    """
    capped = list(fields)
    for done, place in enumerate(sorted(range(len(fields)), key=lambda n: len(fields[n]))):
        rows, limit = fields[place], room // (len(fields) - done)
        if len(rows) > limit:
            head, tail = limit // 2, len(rows) - (limit - 1 - limit // 2)
            hidden = rows[head:tail]
            size = sum(len(row.lstrip()) for row in hidden)
            note = f"{len(hidden):,} lines, {size:,} characters not shown; s shows all ..."
            note = f"{INDENT}... {note}"[: columns - 1]
            capped[place] = [*rows[:head], note, *rows[tail:]]
        room -= len(capped[place])
    return capped


# --- text shown exactly

# Letters, marks and symbols that are invisible (Default_Ignorable_Code_Point and a few blanks), or
# much wider than their cells: long dashes, phrases in one character, some of the cuneiform.
_UNFIT = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc"
    "\U0001d159\U000e0000-\U000e0fff"
    "\u2e3a\u2e3b\ufdfa-\ufdfd\U00012000-\U0001254f]"
)
# On one letter: Vietnamese and the scripts of India need two.
_MAX_MARKS = 2


def exact(text: str, encoding: str = "utf-8") -> str:
    r"""Return a text in one line of printable characters; different texts look different.

    Each character that does not fill one or two cells of its own is written as `\u{1b}`. So are
    characters that `encoding` lacks, a space at the end, and the backslash of such an escape.
    """
    return replace_unfit(text, lambda character: f"\\u{{{ord(character):x}}}", encoding)


def replace_unfit(text: str, spell: Callable[[str], str], encoding: str = "utf-8") -> str:
    """Replace each character that `exact` would not show as it is with `spell` of it."""
    if text.isascii() and text.isprintable() and "\\u{" not in text and not text.endswith(" "):
        return text
    shown: list[str] = []
    marks = _MAX_MARKS  # on the character before; no more fit on a character that is no letter
    for place, character in enumerate(text):
        category = unicodedata.category(character)
        if category[0] == "M":
            marks += 1
            plain = marks <= _MAX_MARKS
        elif character == " ":
            plain, marks = place + 1 < len(text), _MAX_MARKS
        else:
            plain = category[0] in "LNPS" and not text.startswith("\\u{", place)
            marks = 0 if plain and category[0] == "L" else _MAX_MARKS
        fit = plain and not _UNFIT.match(character) and _has(encoding, character)
        shown.append(character if fit else spell(character))
        if not fit:
            marks = _MAX_MARKS
    return "".join(shown)


def width(text: str) -> int:
    """Return how many cells a line of `exact` takes at most on any terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


@lru_cache(4096)
def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WFA" else 1


def _has(encoding: str, character: str) -> bool:
    try:
        return character.isascii() or bool(character.encode(encoding))
    except (UnicodeEncodeError, LookupError):
        return False
