r"""Math in Markdown: `$a*b$`, `$$...$$`, `\(...\)` and `\[...\]` stay as they are written.

As in pandoc, a single `$` begins math where no blank follows it, and ends it where no blank comes
before it and no digit behind it: prices are text.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

__all__ = ["MATH_BLOCK", "MATH_INLINE", "enable_math"]

MATH_INLINE = "math_inline"
"""The type of a token whose `content` is math in a line, as it is written."""

MATH_BLOCK = "math_block"
"""The type of a token whose `content` are the lines of math, as they are written.

Its `meta["closed"]` says whether they have their end; else an empty line or the text's end ends
them, so that nothing that comes later changes what stands before.
"""

_ENDS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)", "$": "$"}


def enable_math(parser: MarkdownIt) -> MarkdownIt:
    """Let a parser keep math as it is written; return it."""
    interrupted = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("fence", MATH_BLOCK, _block, {"alt": interrupted})
    parser.inline.ruler.before("escape", "math", _inline)
    return parser


def _block(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """Take lines that begin with the mark of display math, up to its end."""
    if state.is_code_block(first):
        return False
    line = _line(state, first)
    if (end := _ENDS.get(line[:2])) is None or line.startswith(r"\("):
        return False
    inside, closed, behind = line[2:].partition(end)
    if closed and (behind.strip() or not inside.strip()):
        return False  # text goes on behind it: it is math in a line
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


def _inline(state: StateInline, silent: bool) -> bool:
    """Take math in a line, with its marks."""
    text, at = state.src, state.pos
    mark = text[at : at + 2]
    mark = mark if mark in _ENDS else text[at : at + 1]
    if (end := _ENDS.get(mark)) is None:
        return False
    begin = at + len(mark)
    close = _find_end(text, end, begin, state.posMax)
    if close < 0 or not (inside := text[begin:close]).strip() or "`" in inside:
        return False
    after = close + len(end)
    if mark == "$" and (
        inside[0].isspace() or inside[-1].isspace() or text[after : after + 1].isdigit()
    ):
        return False
    if not silent:
        token = state.push(MATH_INLINE, "", 0)
        token.content = text[at:after].replace("\n", " ")
    state.pos = after
    return True


def _find_end(text: str, end: str, at: int, most: int) -> int:
    """Return where the mark stands first that no backslash makes a sign of the text."""
    while (at := text.find(end, at, most)) >= 0:
        first = at
        while end[0] == "$" and text[first - 1] == "\\":
            first -= 1
        if (at - first) % 2 == 0:
            return at
        at += 1
    return -1
