"""Cutting documents into pieces: by headings, blocks, lines, sentences, words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ._read_main import Block
from ._tokens import CountTokens, estimate_tokens

__all__ = ["Piece", "cut"]

DEEPEST = 9  # headings above a piece that it is called after: Word has as many levels
LONGEST = 32  # characters are one token at least, or a word of a megabyte would be one piece
# Where a block that is too long may be cut, the best places first.
CUTS = [
    re.compile(pattern)
    for pattern in (r"\n\s*\n", r"\n", r"(?<=[.!?;\u3002\uff01\uff1f])\s*", r"\s+")
]
ENDS = re.compile(r"\n|(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])")  # of lines and sentences


class Piece(NamedTuple):
    """A part of a document that is found by itself."""

    heading: str
    """The headings above it, the outermost first, joined by " > "."""
    text: str
    line: int
    """Where it begins, from 1; 0 if the document has no lines."""
    page: int
    """Likewise."""


class Part(NamedTuple):
    """A block or a part of one, as it stands in the document; without empty lines at its ends."""

    text: str
    line: int
    page: int


def cut(
    blocks: Iterable[Block], size: int, overlap: int, count: CountTokens = estimate_tokens
) -> list[Piece]:
    """Return the pieces of a document, none of more than `size` tokens, in its order.

    Each sign of the blocks is in a piece, but for headings: they are in the heading of those below
    them. One with nothing below it is a piece by itself. No piece reaches over a heading. Where a
    section is cut, the end of a piece, of at most `overlap` tokens and from whole lines or
    sentences, begins the next one too.
    """

    def tokens(text: str) -> int:
        least = len(text) // LONGEST
        return least if least > size else max(least, count(text))

    pieces: list[Piece] = []
    above: list[Block] = []  # headings, each of a deeper level than the one before
    section: list[Block] = []

    def end_section(level: int) -> None:
        """End what is below a heading, before one of this level."""
        if above and not section and level <= above[-1][2]:
            section.append(above[-1])
        heading = " > ".join(block[1] for block in above[-DEEPEST:])
        groups = _pack(_parts(section, size - overlap, tokens), size, overlap, tokens)
        pieces.extend(Piece(heading, _join(parts), *parts[0][1:]) for parts in groups)
        section.clear()

    for block in blocks:
        if not block[1].strip():
            continue
        if block[0] != "heading":
            section.append(block)
            continue
        end_section(block[2])
        while above and above[-1][2] >= block[2]:
            above.pop()
        above.append(block)
    end_section(0)
    return pieces


def _join(parts: Iterable[Part]) -> str:
    return "\n\n".join(part.text for part in parts)


def _pack(
    parts: Iterable[Part], size: int, overlap: int, tokens: CountTokens
) -> Iterator[list[Part]]:
    """Put parts together as long as they have at most `size` tokens, each group with an overlap."""
    group: list[Part] = []
    total = 0
    for part in parts:
        more = tokens(part.text) + 1
        if group and total + more > size:
            yield from _fit(group, size, tokens)
            group = _end(group, overlap, tokens)
            if group and tokens(_join([*group, part])) > size:
                group = []
            total = sum(tokens(each.text) + 1 for each in group)
        group.append(part)
        total += more
    if group:
        yield from _fit(group, size, tokens)


def _fit(group: list[Part], size: int, tokens: CountTokens) -> Iterator[list[Part]]:
    """Give a group, in halves where a counter finds more in it than in all of its parts."""
    if len(group) == 1 or tokens(_join(group)) <= size:
        yield group
    else:
        middle = len(group) // 2
        yield from _fit(group[:middle], size, tokens)
        yield from _fit(group[middle:], size, tokens)


def _parts(section: list[Block], size: int, tokens: CountTokens) -> Iterator[Part]:
    """Give the blocks, those that are too long in parts."""
    for _, block, _, line, page in section:
        before = 0
        for start, end in _halve(block, size, tokens):
            text = block[start:end].lstrip("\n")
            if line:
                line += block.count("\n", before, before := end - len(text))
            yield Part(text.rstrip("\n"), line, page)


def _halve(block: str, size: int, tokens: CountTokens) -> Iterator[tuple[int, int]]:
    """Cut a text near its middle, at the best place, until each part is small enough."""
    waiting = [(0, len(block))]
    while waiting:
        start, end = waiting.pop()
        text = block[start:end]
        if not text.strip():
            continue
        if len(text) < 2 or tokens(text.strip("\n")) <= size:
            yield start, end
            continue
        at = start + _middle(text)
        waiting += [(at, end), (start, at)]


def _middle(text: str) -> int:
    """Return the best place to cut a text, in the middle half of it."""
    middle, most = len(text) // 2, len(text) // 4
    for pattern in CUTS:
        reach = min(64, most)
        while True:  # a little at a time: most texts have a place near the middle
            found = pattern.finditer(text, middle - reach, middle + reach)
            if ends := [each.end() for each in found]:
                return min(ends, key=lambda end: abs(end - middle))
            if reach == most:
                break
            reach = min(2 * reach, most)
    return middle


def _end(group: list[Part], most: int, tokens: CountTokens) -> list[Part]:
    """Return the last parts of a group of at most so many tokens, or the last lines of the last."""
    kept: list[Part] = []
    for part in group[:0:-1]:
        if tokens(_join([part, *kept])) > most:
            break
        kept.insert(0, part)
    text = group[-1].text
    starts = [found.end() for found in ENDS.finditer(text)]
    first = bisect_left(starts, -most, key=lambda start: -tokens(text[start:]))
    if kept or first == len(starts):
        return kept
    end = text[starts[first] :].lstrip("\n")
    line = group[-1].line and group[-1].line + text.count("\n", 0, len(text) - len(end))
    fits = end and tokens(end) <= most
    return [Part(end, line, group[-1].page)] if fits else []
