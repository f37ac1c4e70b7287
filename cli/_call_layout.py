"""Lay out a tool call for the person who must approve it, so that no value can deceive them."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..tools import AnyTool

__all__ = [
    "CallLayout",
    "count_cells",
    "escape_unclear",
    "lay_out_arguments",
    "replace_unfit",
    "write_draft",
]

INDENT = "  "
# Before each line of a text of several lines, and before the rest of a wrapped line.
LINE_MARK, REST_MARK = "| ", ": "
# Rows of the screen that a shortened layout leaves free, and the smallest size that it assumes.
FREE_ROWS, MIN_ROWS, MIN_COLUMNS = 4, 12, 24
# Rows that a long field of the tool gets even if the arguments are long, and rows that each
# argument gets. Too many arguments share the rows that remain.
TOOL_ROWS, ARGUMENT_ROWS = 4, 3
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class CallLayout:
    """The layout of a tool call for its approval: the tool, its origin and its arguments.

    Calls that differ have different rows. Each row starts with an indent, contains printable
    characters only, and fits the width of the screen. A text of several lines appears below its
    name with `| ` before each line, so no value can imitate another field, the question or the
    program's own text.
    """

    tool: AnyTool
    arguments: Mapping[str, Any]
    encoding: str = "utf-8"

    def rows(self, columns: int, lines: int | None = None) -> list[str]:
        """Return the rows for a screen of this size.

        Without `lines`, all rows are returned. With `lines`, the longest fields lose their middle,
        and one row reports how much is hidden.
        """
        columns = max(columns, MIN_COLUMNS)
        description = self.tool.description
        fields = {"tool": self.tool.name, "from": self.tool.bare.origin, "says": description}
        tool = [
            _lay_out(name, _exact_lines(text, self.encoding), INDENT, columns)
            for name, text in fields.items()
            if text
        ]
        tool.append([f"{INDENT}with:" if self.arguments else f"{INDENT}with no arguments"])
        arguments = lay_out_arguments(self.arguments, columns, self.encoding)
        if lines is None:
            return _join(tool + arguments)
        room = max(lines - FREE_ROWS, MIN_ROWS)
        least = sum(min(len(rows), TOOL_ROWS) for rows in tool)
        if ARGUMENT_ROWS * len(arguments) > room - least:
            arguments = [_join(arguments)]
        argument_rows = _cap(arguments, max(room - least, ARGUMENT_ROWS), columns)
        tool_rows = _cap(tool, max(room - sum(map(len, argument_rows)), least), columns)
        return _join(tool_rows + argument_rows)


def lay_out_arguments(arguments: Mapping[str, Any], columns: int, encoding: str) -> list[list[str]]:
    """Return the rows of each argument. Values that differ have different rows."""
    return [
        _lay_out(*_argument(name, value, columns, encoding), INDENT * 2, columns)
        for name, value in arguments.items()
    ]


def write_draft(arguments: Mapping[str, Any], encoding: str = "utf-8") -> str:
    """Return arguments as JSON for an editor, with escapes for characters that may be invisible."""

    def spell(character: str) -> str:
        return character if character == "\\" else json.dumps(character)[1:-1]

    # DEL is the one control character that JSON does not escape.
    text = json.dumps(arguments, ensure_ascii=False).replace("\x7f", "\\u007f")
    return replace_unfit(text, spell, encoding)


def _lay_out(name: str, lines: list[str], indent: str, columns: int) -> list[str]:
    """Return a field as one row if it fits, else as rows below its name."""
    if len(lines) == 1 and count_cells(row := f"{indent}{name}: {lines[0]}") < columns:
        return [row]
    below = indent + INDENT
    head = _wrap(f"{name}:", indent, below + REST_MARK, columns)
    return head + [
        row for line in lines for row in _wrap(line, below + LINE_MARK, below + REST_MARK, columns)
    ]


def _exact_lines(text: str, encoding: str) -> list[str]:
    """Return the lines of a text, each as `escape_unclear` shows it."""
    return [escape_unclear(line, encoding) for line in text.split("\n")]


def _argument(name: str, value: Any, columns: int, encoding: str) -> tuple[str, list[str]]:
    """Return the name and the lines of an argument. Values that differ have different lines.

    A string is quoted only if it could be mistaken for another value, such as `"true"` or `" a"`.
    """
    if not PLAIN_NAME.fullmatch(name):
        name = escape_unclear(_json(name), encoding)
    if isinstance(value, str):
        bare = "\n" in value or (value.strip() == value != "" and not _is_json(value))
        return name, _exact_lines(value if bare else _json(value), encoding)
    line = escape_unclear(_json(value), encoding)
    fits = len(name) + count_cells(line) < columns - len(INDENT) * 3
    if fits or not isinstance(value, (dict, list)):
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
    """Wrap a line. Combining marks take no cell, so they stay with their letters."""
    rows, prefix = list[str](), first
    start, used = 0, 0
    room = columns - 1 - len(prefix)
    for place, character in enumerate(line):
        cells = count_cells(character)
        if used + cells > room:
            rows.append(prefix + line[start:place])
            start, used, prefix = place, 0, rest
            room = columns - 1 - len(prefix)
        used += cells
    return [*rows, prefix + line[start:]]


def _join(fields: list[list[str]]) -> list[str]:
    return [row for rows in fields for row in rows]


def _cap(fields: list[list[str]], room: int, columns: int) -> list[list[str]]:
    """Divide `room` rows among fields. Short fields leave the rest of their share to longer ones.

    A field with too many rows loses its middle, and one row reports how much.
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


# --- exact text

# Letters, marks and symbols that are invisible (Default_Ignorable_Code_Point and some blanks) or
# much wider than their cells: long dashes, phrases in one character, some cuneiform signs.
_UNFIT = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc"
    "\U0001d159\U000e0000-\U000e0fff"
    "\u2e3a\u2e3b\ufdfa-\ufdfd\U00012000-\U0001254f]"
)
# On one letter. Vietnamese and Indic scripts need two; more could cover the neighbouring rows.
_MAX_MARKS = 2


def escape_unclear(text: str, encoding: str = "utf-8") -> str:
    r"""Return a text in printable characters, so that texts that differ look different.

    A character that does not fill one or two cells is written as an escape such as `\u{1b}`. So are
    characters that `encoding` lacks, a space at the end, and the backslash of a literal `\u{`.
    """
    return replace_unfit(text, lambda character: f"\\u{{{ord(character):x}}}", encoding)


def replace_unfit(text: str, spell: Callable[[str], str], encoding: str = "utf-8") -> str:
    """Replace each character that `escape_unclear` would escape with `spell(character)`."""
    if text.isascii() and text.isprintable() and "\\u{" not in text and not text.endswith(" "):
        return text
    characters: list[str] = []
    marks = _MAX_MARKS  # on the previous character; only letters may carry marks
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
        characters.append(character if fit else spell(character))
        if not fit:
            marks = _MAX_MARKS
    return "".join(characters)


def count_cells(text: str) -> int:
    """Return the most cells that a line of `escape_unclear` takes on any terminal."""
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
