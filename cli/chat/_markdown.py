r"""Markdown in the chat: the grammar, safe output, and the division of a stream into blocks.

The grammar is CommonMark with tables, strikethrough and math. HTML and math (`$a*b$`, `$$...$$`,
`\(...\)`, `\[...\]`) are shown unchanged. As in pandoc, a single `$` opens math if no blank follows
it, and closes math if no blank precedes it and no digit follows it. So prices are text.

`MarkdownStream` returns a block as soon as later text cannot change it. Reference links
(`[text][label]`) stay text, since their address may come in the last line. A long list or code
fence could grow for minutes, so the stream cuts them into pieces: a list by items, a fence after
each `PIECE_LINES` lines. The `lead` of a later piece puts the parser into the state at the end of
the previous piece. It has up to `CONTEXT_LINES` lines of code for correct colours; in longer code
the colours can differ from those of the complete block.
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
"""The addresses that links may open."""

MATH_BLOCK = "math_block"
"""The type of a token whose `content` is display math.

`meta["closed"]` is true if the math has its end mark. Otherwise an empty line or the end of the
text ended it, so that later text cannot change earlier lines.
"""
_MATH_INLINE = "math_inline"
_MATH_ENDS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)", "$": "$"}
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)

# Some text takes seconds to parse or to draw. It is shown without layout.
_MAX_PROSE_CHARACTERS = 20_000
_DEEPEST_LEVEL = 19  # the parser drops text that is nested deeper


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
        return False  # text follows, so this is inline math
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
    """Return the index of the first unescaped `end`, -1 if there is none."""
    while (at := text.find(end, at, limit)) >= 0:
        first = at
        while end[0] == "$" and text[first - 1] == "\\":
            first -= 1
        if (at - first) % 2 == 0:
            return at
        at += 1
    return -1


PARSER = new_parser().disable("reference")
"""The parser of streaming text."""


def blocks_of(text: str, parser: MarkdownIt = PARSER) -> list[Token]:
    """Return the block tokens of a text, without parsing inline content, which is slow."""
    tokens: list[Token] = []
    parser.block.parse(text, parser, {}, tokens)
    return tokens


def is_too_complex(
    text: str, blocks: list[Token], max_characters: int, prose: Callable[[list[int]], int] = max
) -> bool:
    """Return whether a text is too large or nested too deeply to be parsed further.

    `prose` is `max` to limit each paragraph, or `sum` to limit all paragraphs together.
    """
    lengths = [0, *(len(token.content) for token in blocks if token.type == "inline")]
    too_long = len(text) > max_characters or prose(lengths) > _MAX_PROSE_CHARACTERS
    return too_long or any(token.level >= _DEEPEST_LEVEL for token in blocks)


def is_closed(fence: Token) -> bool:
    """Return whether a code fence has its closing line."""
    first, end = _span(fence)
    # The opening and closing lines are not part of the content.
    return fence.content.count("\n") + 2 == end - first


def _span(token: Token) -> list[int]:
    assert token.map is not None  # each token that opens a block has one
    return token.map


# --- safe output


def make_safe(tokens: list[Token], *, links: bool = True) -> None:
    """Change tokens so that they cannot steer the terminal, load an image or hide an address.

    Images become links. A link becomes text with its address if `LINK` does not match the address,
    if it is inside another link, or without `links`. The address also follows a link text that
    looks like an address but is another one.
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
    opened: list[tuple[str, bool, list[str]]] = []  # the links around the current token
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

# A longer open block is parsed again only after it has grown by one part in `_GROWTH_PARTS`. So the
# total cost of parsing is linear in the length of the text.
_SMALL_BLOCK_CHARS, _GROWTH_PARTS = 4096, 4
_MAX_ITEM_NUMBER = 999_999_999  # in CommonMark

# Blocks that end at the first empty line.
_CLOSED_BY_BLANK = {"paragraph_open", "blockquote_open", "table_open", MATH_BLOCK}


@dataclass(frozen=True)
class Block:
    """The source of a block, or of a piece of a block: complete lines with adjacent empty lines.

    The parser reads `lead` before the source. Only a later piece of a block has a lead.
    """

    source: str
    lead: str = ""

    @property
    def joined(self) -> bool:
        """Whether no empty line is needed before it: it continues a block, or is empty."""
        return bool(self.lead) or not self.source.strip()


class MarkdownStream:
    """Cuts streaming text into blocks.

    The sources of all blocks plus `open` are always equal to `legible` of the text so far. The
    total cost is linear in the text, however small its deltas are. `dirty` becomes true when `open`
    changes; the code that draws `open` sets it to false.
    """

    def __init__(self) -> None:
        self.dirty = False
        self._lead = ""
        # The complete lines of the open block, and the pieces of its last line.
        self._lines: list[str] = []
        self._last_line: list[str] = []
        # Characters of the complete lines, and how many of them were parsed.
        self._size = self._parsed = 0
        # Matches a line that may close the open code fence; None outside a fence.
        self._fence_end: re.Pattern[str] | None = None

    @property
    def open(self) -> str:
        """The source of the growing block, "" if there is none."""
        return "".join(self._lines) + "".join(self._last_line)

    @property
    def block(self) -> Block:
        """The growing block."""
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
        """Return the rest as blocks; the next `feed` starts a new text."""
        self._lines, self._last_line = [self.open], []
        return self._cut(ended=True)

    def _should_parse(self, lines: str) -> bool:
        if self._fence_end is None:
            grown = self._size - self._parsed
            return self._size <= _SMALL_BLOCK_CHARS or grown * _GROWTH_PARTS >= self._size
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
    """Return the end of the finished part of the last block, and the lead of the next piece.

    If nothing is finished, the end is 0 or one that was returned before.
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
    """Return the opening line of a fence and its last lines."""
    indent = opening[: len(opening) - len(opening.lstrip(" "))]
    info = "" if "|" in fence.info else fence.info.strip()  # a bar could make it a table head
    lines = fence.content.splitlines(keepends=True)[-CONTEXT_LINES:]
    return "".join([f"{indent}{fence.markup} {info}\n", *(indent + line for line in lines)])


def _lead_of_list(opening: Token, items: int) -> str:
    """Return an item of the same list, indented so that no later item is nested in it."""
    marker = opening.markup
    if opening.type == "ordered_list_open":
        number = int(opening.attrs.get("start", 1)) + items - 2
        marker = f"{min(number, _MAX_ITEM_NUMBER)}{marker}"
    return f"   {marker} x\n\n"
