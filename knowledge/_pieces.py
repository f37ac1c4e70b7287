"""Cut documents into pieces by headings, blocks, lines, sentences and words; count tokens."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from ..commander.errors import ConfigurationError, MissingExtra
from ..messages.tokens import estimate_tokens
from ._read_main import Block

__all__ = ["CountTokens", "DocumentPiece", "cut_pieces", "estimate_tokens", "token_counter"]

# Headings of a piece's name. Word documents have as many levels.
MAX_HEADINGS = 9
# Characters that count as one token at least: else a word of a megabyte would be one piece.
MAX_TOKEN_CHARS = 32
# Where a block that is too long may be cut, the best places first.
CUT_PLACES = [
    re.compile(pattern)
    for pattern in (r"\n\s*\n", r"\n", r"(?<=[.!?;\u3002\uff01\uff1f])\s*", r"\s+")
]
# Ends of lines and sentences.
LINE_OR_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])")


class DocumentPiece(NamedTuple):
    """A part of a document that a search can find."""

    heading: str
    """The headings above it, outermost first, joined by " > "."""
    text: str
    line: int
    """The first line, from 1; 0 if the document has no lines."""
    page: int
    """The page, from 1; 0 if the document has no pages."""


class BlockPart(NamedTuple):
    """A block or a part of one, without empty lines at its ends."""

    text: str
    line: int
    page: int


def cut_pieces(
    blocks: Iterable[Block], size: int, overlap: int, count: CountTokens = estimate_tokens
) -> list[DocumentPiece]:
    """Return the pieces of a document in its order, none of more than `size` tokens.

    All text of the blocks is in a piece, except headings: pieces below a heading have it in
    `heading`, and a heading with nothing below it is a piece. No piece crosses a heading. If a
    section is cut, the last complete lines or sentences of a piece, up to `overlap` tokens, also
    start the next one.
    """

    def tokens(text: str) -> int:
        least = len(text) // MAX_TOKEN_CHARS
        return least if least > size else max(least, count(text))

    pieces: list[DocumentPiece] = []
    # Each heading has a deeper level than the one before it.
    above: list[Block] = []
    section: list[Block] = []

    def end_section(level: int) -> None:
        """End the section below a heading, before a heading of this level."""
        if above and not section and level <= above[-1][2]:
            section.append(above[-1])
        heading = " > ".join(block[1] for block in above[-MAX_HEADINGS:])
        groups = _pack(_parts(section, size - overlap, tokens), size, overlap, tokens)
        pieces.extend(DocumentPiece(heading, _join(parts), *parts[0][1:]) for parts in groups)
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


def _join(parts: Iterable[BlockPart]) -> str:
    return "\n\n".join(part.text for part in parts)


def _pack(
    parts: Iterable[BlockPart], size: int, overlap: int, tokens: CountTokens
) -> Iterator[list[BlockPart]]:
    """Group parts up to `size` tokens, each group with an overlap to the one before."""
    group: list[BlockPart] = []
    total = 0
    for part in parts:
        more = tokens(part.text) + 1
        if group and total + more > size:
            yield from _fit(group, size, tokens)
            group = _overlap_of(group, overlap, tokens)
            if group and tokens(_join([*group, part])) > size:
                group = []
            total = sum(tokens(each.text) + 1 for each in group)
        group.append(part)
        total += more
    if group:
        yield from _fit(group, size, tokens)


def _fit(group: list[BlockPart], size: int, tokens: CountTokens) -> Iterator[list[BlockPart]]:
    """Yield a group; in halves if its text has more tokens than its parts together."""
    if len(group) == 1 or tokens(_join(group)) <= size:
        yield group
    else:
        middle = len(group) // 2
        yield from _fit(group[:middle], size, tokens)
        yield from _fit(group[middle:], size, tokens)


def _parts(section: list[Block], size: int, tokens: CountTokens) -> Iterator[BlockPart]:
    """Yield the blocks, those that are too long in parts."""
    for _, block, _, line, page in section:
        offset = 0
        for start, end in _cut_block(block, size, tokens):
            text = block[start:end].lstrip("\n")
            if line:
                line += block.count("\n", offset, offset := end - len(text))
            yield BlockPart(text.rstrip("\n"), line, page)


def _cut_block(block: str, size: int, tokens: CountTokens) -> Iterator[tuple[int, int]]:
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
        at = start + _find_cut(text)
        waiting += [(at, end), (start, at)]


def _find_cut(text: str) -> int:
    """Return the best place to cut a text, in its middle half."""
    middle, limit = len(text) // 2, len(text) // 4
    for pattern in CUT_PLACES:
        reach = min(64, limit)
        # Widen the range step by step: most texts have a place near the middle.
        while True:
            match = pattern.finditer(text, middle - reach, middle + reach)
            if ends := [each.end() for each in match]:
                return min(ends, key=lambda end: abs(end - middle))
            if reach == limit:
                break
            reach = min(2 * reach, limit)
    return middle


def _overlap_of(group: list[BlockPart], limit: int, tokens: CountTokens) -> list[BlockPart]:
    """Return the last parts of a group, or the last lines of the last part, up to a limit."""
    overlap_parts: list[BlockPart] = []
    for part in group[:0:-1]:
        if tokens(_join([part, *overlap_parts])) > limit:
            break
        overlap_parts.insert(0, part)
    text = group[-1].text
    starts = [match.end() for match in LINE_OR_SENTENCE_END.finditer(text)]
    first = bisect_left(starts, -limit, key=lambda start: -tokens(text[start:]))
    if overlap_parts or first == len(starts):
        return overlap_parts
    end = text[starts[first] :].lstrip("\n")
    line = group[-1].line and group[-1].line + text.count("\n", 0, len(text) - len(end))
    fits = end and tokens(end) <= limit
    return [BlockPart(end, line, group[-1].page)] if fits else []


CountTokens: TypeAlias = Callable[[str], int]
"""Returns the number of tokens of a text."""


def token_counter(name: str | os.PathLike[str]) -> CountTokens:
    """Return a function that counts tokens as a model does.

        notes = Index("notes.db", count_tokens=token_counter("Qwen/Qwen3-0.6B"))

    `name` is the path of a `tokenizer.json`, a model of the Hugging Face hub such as
    `"Qwen/Qwen3-0.6B"`, or a model of OpenAI such as `"text-embedding-3-small"`, with or without
    `"openai:"`. A tokenizer that is not on this machine is downloaded.

    Raises `MissingExtra` without the extra `tokens`, and `ConfigurationError` if there is no
    tokenizer for `name`.
    """
    name = os.fspath(name)
    if os.path.isfile(name) or name.endswith(".json"):
        counter = _huggingface_counter(name, "from_file")
    elif "/" in name:
        counter = _huggingface_counter(name, "from_pretrained")
    else:
        counter = _openai_counter(name.removeprefix("openai:"))
    # Indexes identify the counter by this name.
    counter.__qualname__ = f"token_counter({name!r})"
    return counter


def _huggingface_counter(name: str, how: str) -> Callable[[str], int]:
    tokenizer: Any = getattr(_import_tokenizer("tokenizers", name).Tokenizer, how)
    try:
        tokenizer = tokenizer(name)
    except Exception as error:  # the library raises nothing narrower
        raise _tokenizer_error(name, error) from error
    tokenizer.no_truncation()  # some files truncate at the limit of their model
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def _openai_counter(name: str) -> Callable[[str], int]:
    library = _import_tokenizer("tiktoken", name)
    try:
        encoding = library.encoding_for_model(name)
    except Exception as error:  # its HTTP client may raise anything
        raise _tokenizer_error(name, error) from error

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count


def _import_tokenizer(library: str, name: str) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        raise MissingExtra(f"counting tokens as {name!r} does", "tokens") from error


def _tokenizer_error(name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"cannot count tokens as {name!r} does ({type(error).__name__}: {error}): give the path of"
        " its tokenizer.json, or omit count_tokens= for an estimate"
    )
