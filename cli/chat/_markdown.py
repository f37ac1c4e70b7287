"""Markdown that streams: blocks that no later text can change, and the one that still grows.

The grammar is CommonMark's with tables, strikethrough and math, and two things left out, so that
what has been printed stays true: HTML is shown as it is written, and links by reference
(`[text][label]`) stay text, since their address may come with the last line.

A block goes out as soon as it cannot change. Two kinds are given out in pieces, or they would grow
for minutes: a list item by item, and a code fence of more than `PIECE` lines by that many. A later
piece has a `lead`, which brings the parser to where the piece before has left it. It brings up to
`CONTEXT` lines of code along, by which the piece is coloured; only in longer programs may its
colours differ from those of the whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ...handlers.legible import legible
from ._math import MATH_BLOCK, enable_math

__all__ = ["CONTEXT", "PARSER", "PIECE", "Block", "MarkdownStream"]

PIECE = 40
CONTEXT = 100

# An open block of more than `_SMALL` characters is parsed again when it has grown by one part in
# `_GROWTH`: the cost stays linear.
_SMALL, _GROWTH = 4096, 4
_LARGEST_NUMBER = 999_999_999  # of an item, in CommonMark

PARSER = MarkdownIt("commonmark", {"html": False})
"""The parser of the chat's grammar."""
enable_math(PARSER.enable(["table", "strikethrough"]).disable("reference"))

# The kinds of blocks that end with the first empty line.
_CLOSED_BY_BLANK = {"paragraph_open", "blockquote_open", "table_open", MATH_BLOCK}


@dataclass(frozen=True)
class Block:
    """The `source` of a block or a piece of one, whole lines with the empty ones around it.

    `lead` is not of the text: it stands before the source where that is parsed. Without one the
    block begins here.
    """

    source: str
    lead: str = ""

    @property
    def joined(self) -> bool:
        """Whether no empty line belongs before it: it goes on with the last block, or is empty."""
        return bool(self.lead) or not self.source.strip()


class MarkdownStream:
    """Cuts text that arrives in pieces of any size into blocks.

    The sources of all blocks, then `open`, are the text fed so far, as `legible` has it. The cost
    is linear in the text, however small its pieces are. `dirty` becomes true when `open` changes;
    who draws it sets it back.
    """

    def __init__(self) -> None:
        self.dirty = False
        self._lead = ""
        # Of the open block: its whole lines, and the begin of its last line.
        self._lines: list[str] = []
        self._begun: list[str] = []
        # How many characters the whole lines have, and how many of them were parsed.
        self._size = self._parsed = 0
        # What may end the code fence that is open, None outside of one.
        self._fence_end: re.Pattern[str] | None = None

    @property
    def open(self) -> str:
        """The source of the block that still grows, "" if there is none."""
        return "".join(self._lines) + "".join(self._begun)

    @property
    def block(self) -> Block:
        """The block that still grows, as it is to be drawn now."""
        return Block(self.open, self._lead)

    def feed(self, text: str) -> list[Block]:
        """Take more text; return the blocks that are finished by it, in order."""
        text = legible(text)
        self.dirty = self.dirty or bool(text)
        head, newline, tail = text.rpartition("\n")
        if not newline:
            self._begun.append(text)
            return []
        lines = "".join([*self._begun, head, newline])
        self._begun = [tail]
        self._lines.append(lines)
        self._size += len(lines)
        return self._cut(ended=False) if self._due(lines) else []

    def end(self) -> list[Block]:
        """Return what is left as finished; what is fed now begins a new text."""
        self._lines, self._begun = [self.open], []
        return self._cut(ended=True)

    def _due(self, lines: str) -> bool:
        if self._fence_end is None:
            grown = self._size - self._parsed
            return self._size <= _SMALL or grown * _GROWTH >= self._size
        closes = self._fence_end.search(lines)
        return closes is not None or sum(part.count("\n") for part in self._lines) > PIECE

    def _cut(self, *, ended: bool) -> list[Block]:
        """Parse the whole lines, take what is finished away, and return it."""
        source = "".join(self._lines)
        text = self._lead + source
        tokens: list[Token] = []
        PARSER.block.parse(text, PARSER, {}, tokens)
        starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
        tops = [token for token in tokens if token.level == 0 and token.map]
        ends = [starts[_span(token)[0]] for token in tops[1:]]
        lead = ""
        if ended:
            ends += [len(text)]
        elif tops:
            end, lead = _end_of_last(tops[-1], tokens, text, starts)
            ends += [end]
        at, leads, blocks = len(self._lead), self._lead, list[Block]()
        for end in ends:
            if end > at:
                blocks.append(Block(text[at:end], leads))
                at, leads = end, ""
        self._lead = "" if ended else lead or leads
        self._lines = [text[at:]] if at < len(text) else []
        self._size = self._parsed = len(text) - at
        self.dirty = self.dirty or bool(blocks)
        last = tops[-1] if tops else None
        grows = not ended and last is not None and last.type == "fence" and not _closed(last)
        self._fence_end = re.compile(rf"^[ \t]*{last.markup}", re.M) if grows and last else None
        return blocks


def _end_of_last(last: Token, tokens: list[Token], text: str, starts: list[int]) -> tuple[int, str]:
    """Return up to where nothing can change in the last block, and the lead of what follows.

    Where nothing is finished, that is 0, or at most what was given out before.
    """
    first, end = _span(last)
    lines = len(starts) - 1
    if last.type == "fence" and not _closed(last):
        if last.content.count("\n") < PIECE:
            return 0, ""
        return len(text), _lead_of_code(last, text[starts[first] : starts[first + 1]])
    if last.type in ("bullet_list_open", "ordered_list_open"):
        at = tokens.index(last)
        items = [token for token in tokens[at:] if token.type == "list_item_open"]
        items = [token for token in items if token.level == 1]
        return (
            (starts[_span(items[-1])[0]], _lead_of_list(last, len(items))) if items[1:] else (0, "")
        )
    # A line with a bar may be the head of a table, which the next line tells.
    decided = end - first > 1 or lines > end or "|" not in text[starts[first] :]
    closed = last.type in ("heading_open", "hr", "fence") and decided
    closed = closed or (last.type == MATH_BLOCK and last.meta["closed"])
    if closed or (last.type in _CLOSED_BY_BLANK and lines > end):
        return len(text), ""
    return 0, ""


def _span(token: Token) -> list[int]:
    assert token.map is not None  # so it is for all that opens a block
    return token.map


def _closed(fence: Token) -> bool:
    """Whether a fence has its last line: those of its content lie between two."""
    first, end = _span(fence)
    return fence.content.count("\n") + 2 == end - first


def _lead_of_code(fence: Token, opening: str) -> str:
    """Open the same fence again, with the last lines before it."""
    indent = opening[: len(opening) - len(opening.lstrip(" "))]
    info = "" if "|" in fence.info else fence.info.strip()  # or it might be the head of a table
    lines = fence.content.splitlines(keepends=True)[-CONTEXT:]
    return "".join([f"{indent}{fence.markup} {info}\n", *(indent + line for line in lines)])


def _lead_of_list(opening: Token, items: int) -> str:
    """Begin the same list with an item, indented so far that no other becomes a part of it."""
    marker = opening.markup
    if opening.type == "ordered_list_open":
        number = int(opening.attrs.get("start", 1)) + items - 2
        marker = f"{min(number, _LARGEST_NUMBER)}{marker}"
    return f"   {marker} x\n\n"
