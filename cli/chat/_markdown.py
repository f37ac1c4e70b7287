r"""Markdown in the chat: the grammar, what is safe to show of it, and a stream cut into blocks.

The grammar is CommonMark with tables, strikethrough and math. HTML is shown as it is written. Math,
`$a*b$`, `$$...$$`, `\(...\)` and `\[...\]`, stays as it is written too. As in pandoc, a single `$`
begins math if no blank follows it, and ends math if no blank precedes it and no digit follows it:
so prices are text.

`MarkdownStream` returns a block as soon as no later text can change it. Links by reference
(`[text][label]`) stay text there, since their address may come in the last line. Two kinds of
blocks would grow for minutes, so the stream cuts them into pieces: a list by items, and a code
fence after each `PIECE_LINES` lines. A later piece has a `lead`, which puts the parser into the
state at the end of the previous piece. It contains up to `CONTEXT_LINES` lines of code, so that the
piece is coloured correctly; in longer code the colours can differ from those of the complete block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from ...handlers.legible import legible

__all__ = [
    "LINK",
    "MATH_BLOCK",
    "PARSER",
    "PIECE_LINES",
    "Block",
    "MarkdownStream",
    "blocks_of",
    "is_closed",
    "is_too_complex",
    "make_safe",
    "new_parser",
]

LINK = re.compile(r"(?:https?://|mailto:)[^\s\x00-\x20\x7f]+", re.IGNORECASE)
"""Addresses that links may open."""

MATH_BLOCK = "math_block"
"""The type of a token whose `content` is the lines of display math.

`meta["closed"]` says whether the math has its end mark. Otherwise an empty line or the end of the
text ends it, so that later text does not change earlier lines.
"""
_MATH_INLINE = "math_inline"
_MATH_ENDS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)", "$": "$"}
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)

# A model can write text that takes seconds to parse or to draw. Such text is shown as written.
_MAX_PROSE_CHARACTERS = 20_000
_DEEPEST_LEVEL = 19  # the parser leaves out what is nested deeper


# --- the grammar


def new_parser() -> MarkdownIt:
    """Return a parser of the grammar."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    interrupted = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("fence", MATH_BLOCK, _parse_math_block, {"alt": interrupted})
    parser.inline.ruler.before("escape", "math", _parse_math)
    return parser


def _parse_math_block(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """Parse lines that begin with the mark of display math, up to its end."""
    if state.is_code_block(first):
        return False
    line = _line(state, first)
    if (end := _MATH_ENDS.get(line[:2])) is None or line.startswith(r"\("):
        return False
    inside, closed, behind = line[2:].partition(end)
    if closed and (behind.strip() or not inside.strip()):
        return False  # text follows, so it is inline math
    if silent:
        return True
    at = first + 1
    while (
        not closed and at < last and not state.isEmpty(at) and state.sCount[at] >= state.blkIndent
    ):
        closed = end if end in _line(state, at) else ""
        at += 1
    token = state.push(MATH_BLOCK, "", 0)
    token.content = state.getLines(first, at, state.sCount[first], True)
    token.map = [first, at]
    token.meta = {"closed": bool(closed)}
    state.line = at
    return True


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _parse_math(state: StateInline, silent: bool) -> bool:
    """Parse inline math, including its marks."""
    text, at = state.src, state.pos
    mark = text[at : at + 2]
    mark = mark if mark in _MATH_ENDS else text[at : at + 1]
    if (end := _MATH_ENDS.get(mark)) is None:
        return False
    begin = at + len(mark)
    close = _find_unescaped(text, end, begin, state.posMax)
    if close < 0 or not (inside := text[begin:close]).strip() or "`" in inside:
        return False
    after = close + len(end)
    if mark == "$" and (
        inside[0].isspace() or inside[-1].isspace() or text[after : after + 1].isdigit()
    ):
        return False
    if not silent:
        token = state.push(_MATH_INLINE, "", 0)
        token.content = text[at:after].replace("\n", " ")
    state.pos = after
    return True


def _find_unescaped(text: str, end: str, at: int, limit: int) -> int:
    """Return the first place of `end` that no backslash escapes, -1 if there is none."""
    while (at := text.find(end, at, limit)) >= 0:
        first = at
        while end[0] == "$" and text[first - 1] == "\\":
            first -= 1
        if (at - first) % 2 == 0:
            return at
        at += 1
    return -1


PARSER = new_parser().disable("reference")
"""The parser of text that streams."""


def blocks_of(text: str, parser: MarkdownIt = PARSER) -> list[Token]:
    """Return the blocks of a text; their inline content is not parsed, which is the slow part."""
    tokens: list[Token] = []
    parser.block.parse(text, parser, {}, tokens)
    return tokens


def is_too_complex(
    text: str, blocks: list[Token], max_characters: int, prose: Callable[[list[int]], int] = max
) -> bool:
    """Say whether a text is too large or nested too deeply to be parsed further.

    `prose` is `max` to limit each paragraph, and `sum` to limit all of them.
    """
    lengths = [0, *(len(token.content) for token in blocks if token.type == "inline")]
    too_long = len(text) > max_characters or prose(lengths) > _MAX_PROSE_CHARACTERS
    return too_long or any(token.level >= _DEEPEST_LEVEL for token in blocks)


def is_closed(fence: Token) -> bool:
    """Say whether a code fence has its last line."""
    first, end = _span(fence)
    return fence.content.count("\n") + 2 == end - first  # two lines are not content


def _span(token: Token) -> list[int]:
    assert token.map is not None  # true for each token that begins a block
    return token.map


# --- safe to show


def make_safe(tokens: list[Token], *, links: bool = True) -> None:
    """Let nothing in parsed text steer the terminal, load an image or hide an address.

    Images become links. A link becomes text with its address if `LINK` does not match that, inside
    of another link, and without `links`. The address also follows a text that looks like another
    address.
    """
    for token in tokens:
        token.content = legible(token.content)
        if token.children:
            token.children = [*_show_addresses(_without_images(token.children), links)]


def _without_images(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        token.content = legible(token.content)
        if token.type == "image":
            yield Token("link_open", "a", 1, attrs={"href": token.attrs.get("src", "")})
            yield _text(f"[image: {token.content}]" if token.content else "[image]")
            yield Token("link_close", "a", -1)
        elif token.type == "text" and "<" in token.content:
            first, *others = _BREAK.split(token.content)
            yield _text(first)
            for each in others:
                yield Token("hardbreak", "br", 0)
                yield _text(each)
        elif token.type == _MATH_INLINE:
            yield _text(token.content)
        else:
            yield token


def _show_addresses(tokens: Iterable[Token], links: bool) -> Iterator[Token]:
    opened: list[tuple[str, bool, list[str]]] = []  # links around the token
    for token in tokens:
        if token.type == "link_open":
            href = legible(str(token.attrs.get("href", "")))
            is_inside = any(link for _, link, _ in opened)
            is_link = links and not is_inside and LINK.fullmatch(href) is not None
            opened.append((href, is_link, []))
            if is_link:
                token.attrs = {"href": href, "rel": "noopener noreferrer"}
                yield token
        elif token.type == "link_close":
            href, is_link, words = opened.pop()
            if is_link:
                yield token
            text = "".join(words).strip()
            misleads = "://" in text or text.startswith("www.")
            if text not in (href, href.removeprefix("mailto:")) and (misleads or not is_link):
                yield _text(f" ({href})")
        else:
            for _, _, words in opened:
                words.append(token.content)
            yield token


def _text(text: str) -> Token:
    return Token("text", "", 0, content=text)


# --- the stream

PIECE_LINES = 40
CONTEXT_LINES = 100

# An open block of more than `_SMALL` characters is parsed again when it has grown by one part in
# `_GROWTH`, so that the total cost is linear.
_SMALL, _GROWTH = 4096, 4
_MAX_ITEM_NUMBER = 999_999_999  # in CommonMark

# The blocks that end with the first empty line.
_CLOSED_BY_BLANK = {"paragraph_open", "blockquote_open", "table_open", MATH_BLOCK}


@dataclass(frozen=True)
class Block:
    """The source of a block or of a piece of one: complete lines with the empty lines around it.

    The parser reads `lead` before the source. A block without a lead begins here.
    """

    source: str
    lead: str = ""

    @property
    def joined(self) -> bool:
        """Whether it continues the previous block or is empty, and so needs no empty line."""
        return bool(self.lead) or not self.source.strip()


class MarkdownStream:
    """Cuts text into blocks while it arrives in pieces of any size.

    The sources of all blocks and `open`, joined, are `legible` of the text so far. The total cost
    is linear in the text, however small its pieces are. `dirty` becomes true when `open` changes;
    whoever draws it sets it to false.
    """

    def __init__(self) -> None:
        self.dirty = False
        self._lead = ""
        # The complete lines of the open block, and the pieces of its last line.
        self._lines: list[str] = []
        self._last_line: list[str] = []
        # The number of characters of the complete lines, and how many of them were parsed.
        self._size = self._parsed = 0
        # Matches what may close the open code fence; None outside of one.
        self._fence_end: re.Pattern[str] | None = None

    @property
    def open(self) -> str:
        """The source of the block that still grows, "" if there is none."""
        return "".join(self._lines) + "".join(self._last_line)

    @property
    def block(self) -> Block:
        """The block that still grows."""
        return Block(self.open, self._lead)

    def feed(self, text: str) -> list[Block]:
        """Add text; return the blocks that it completes, in order."""
        text = legible(text)
        self.dirty = self.dirty or bool(text)
        head, newline, tail = text.rpartition("\n")
        if not newline:
            self._last_line.append(text)
            return []
        lines = "".join([*self._last_line, head, newline])
        self._last_line = [tail]
        self._lines.append(lines)
        self._size += len(lines)
        return self._cut(ended=False) if self._should_parse(lines) else []

    def end(self) -> list[Block]:
        """Return the rest as blocks; the next `feed` begins a new text."""
        self._lines, self._last_line = [self.open], []
        return self._cut(ended=True)

    def _should_parse(self, lines: str) -> bool:
        if self._fence_end is None:
            grown = self._size - self._parsed
            return self._size <= _SMALL or grown * _GROWTH >= self._size
        closes = self._fence_end.search(lines)
        return closes is not None or sum(part.count("\n") for part in self._lines) > PIECE_LINES

    def _cut(self, *, ended: bool) -> list[Block]:
        """Remove and return the finished blocks of the complete lines."""
        text = self._lead + "".join(self._lines)
        tokens = blocks_of(text)
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
        self._fence_end = None
        if not ended and tops and tops[-1].type == "fence" and not is_closed(tops[-1]):
            self._fence_end = re.compile(rf"^[ \t]*{tops[-1].markup}", re.MULTILINE)
        return blocks


def _end_of_last(last: Token, tokens: list[Token], text: str, starts: list[int]) -> tuple[int, str]:
    """Return the end of the finished part of the last block, and the lead of what follows.

    The end is 0, or one that was returned before, if nothing is finished.
    """
    first, end = _span(last)
    lines = len(starts) - 1
    if last.type == "fence" and not is_closed(last):
        if last.content.count("\n") < PIECE_LINES:
            return 0, ""
        return len(text), _lead_of_code(last, text[starts[first] : starts[first + 1]])
    if last.type in ("bullet_list_open", "ordered_list_open"):
        inside = tokens[tokens.index(last) :]
        items = [each for each in inside if each.type == "list_item_open" and each.level == 1]
        if len(items) < 2:
            return 0, ""
        return starts[_span(items[-1])[0]], _lead_of_list(last, len(items))
    # A line with a bar may be the head of a table; the next line decides that.
    decided = end - first > 1 or lines > end or "|" not in text[starts[first] :]
    closed = last.type in ("heading_open", "hr", "fence") and decided
    closed = closed or (last.type == MATH_BLOCK and last.meta["closed"])
    if closed or (last.type in _CLOSED_BY_BLANK and lines > end):
        return len(text), ""
    return 0, ""


def _lead_of_code(fence: Token, opening: str) -> str:
    """Return the opening line of the fence and its last lines."""
    indent = opening[: len(opening) - len(opening.lstrip(" "))]
    info = "" if "|" in fence.info else fence.info.strip()  # could be the head of a table
    lines = fence.content.splitlines(keepends=True)[-CONTEXT_LINES:]
    return "".join([f"{indent}{fence.markup} {info}\n", *(indent + line for line in lines)])


def _lead_of_list(opening: Token, items: int) -> str:
    """Return an item of the same list, indented so that no other item becomes a part of it."""
    marker = opening.markup
    if opening.type == "ordered_list_open":
        number = int(opening.attrs.get("start", 1)) + items - 2
        marker = f"{min(number, _MAX_ITEM_NUMBER)}{marker}"
    return f"   {marker} x\n\n"
