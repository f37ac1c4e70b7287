"""A block of Markdown on a terminal: `render` for the scrollback, `tail` while it still grows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, ListElement, Markdown
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from ...handlers.legible import legible
from ._markdown import PARSER, Block
from ._math import MATH_BLOCK, MATH_INLINE

__all__ = ["ColorTheme", "Look", "render", "tail"]

ColorTheme = Literal["dark", "light", "none"]

# Larger blocks are shown as they are written: what a model can write takes seconds to parse.
MOST_PROSE = 20_000  # characters, of anything but code
MOST_CODE = 200_000
LONGEST_CODE_LINE = 2_000
_LONGEST_LANGUAGE = 24
# Of an open block that is larger, the last lines are shown as they are written.
MOST_OPEN = 8_000

# As deep as the parser follows: what lies deeper it would leave out.
_DEEPEST = 19
_INDENT = 4  # columns that a quote or an item takes at most
_LEAST_WIDTH = 16  # columns that text needs
_COLUMN = 3  # columns of the terminal that one of a table needs

_LINKED = re.compile(r"(https?|mailto):[^\x00-\x20\x7f]+", re.I)
_BREAK = re.compile(r"<br\s*/?>", re.I)


@dataclass(frozen=True)
class Look:
    """How Markdown is shown: the columns, the colours, and whether the terminal knows links.

    The theme "none" has neither colours nor other styles nor links, and keeps the signs of
    headings and code.
    """

    width: int = 80
    theme: ColorTheme = "dark"
    links: bool = True
    colors: bool = True  # else styles alone


def render(block: Block, look: Look) -> str:
    """Return a block as lines for a terminal, each with its end, none longer than the width.

    Nothing in it can steer the terminal. A block that is too large or too deep is returned as it
    is written, and left to the terminal to wrap.
    """
    tokens = _parse(block)
    if tokens is None or _unfit(tokens, look):
        return legible(block.source).strip("\n") + "\n"
    console = _console(look)
    shown = _Shown(list(_prepared(tokens, look)), block, look)
    lines = [_stripped(line) for line in console.render_lines(shown, pad=False)]
    while lines and not lines[-1]:
        lines.pop()
    begin = next((at for at, line in enumerate(lines) if line), 0)
    with console.capture() as capture:
        for line in lines[0 if _in_code(tokens) else begin :]:
            console.print(Segments([*line, Segment.line()]), end="", crop=False)
    return capture.get()


def tail(block: Block, look: Look, lines: int) -> str:
    """Return the last lines of a block that still grows, at most so many, without the last end.

    The cost has a bound, however large the block has become.
    """
    if lines <= 0 or look.width <= 0:
        return ""
    if len(block.source) <= MOST_OPEN:
        shown = _LINK.sub("", render(block, look)).splitlines()
        if max((cell_len(_STYLE.sub("", line)) for line in shown), default=0) <= look.width:
            return "\n".join(shown[-lines:])
    source = legible(block.source[-look.width * lines :]).expandtabs(4)
    console = _console(look)
    wrapped = [
        line.plain.rstrip()
        for whole in source.splitlines()
        for line in Text(whole).wrap(console, look.width, overflow="fold") or [Text()]
    ]
    return "\n".join(wrapped[-lines:])


_LINK = re.compile(r"\x1b\]8;[^\x1b]*\x1b\\")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def _parse(block: Block) -> list[Token] | None:
    """Return the tokens of a block, without the item that is the lead of a list's piece.

    None for a block that is too large.
    """
    if len(block.source) > MOST_CODE:
        return None
    text = block.lead + block.source
    tokens: list[Token] = []
    PARSER.block.parse(text, PARSER, {}, tokens)
    if sum(len(token.content) for token in tokens if token.type == "inline") > MOST_PROSE:
        return None
    tokens = PARSER.parse(text)
    if not block.lead or tokens[0].type == "fence":
        return tokens
    tokens[0].attrs["start"] = int(tokens[0].attrs.get("start", 1)) + 1
    closed = next(at for at, token in enumerate(tokens) if token.type == "list_item_close")
    return [tokens[0], *tokens[closed + 1 :]]


def _unfit(tokens: list[Token], look: Look) -> bool:
    """Whether a block can only be shown as it is written: too deep, or of too many columns."""
    depth = deepest = columns = 0
    for token in tokens:
        if token.type.startswith(("blockquote", "list_item")):
            depth += token.nesting
            deepest = max(deepest, depth)
        columns = 0 if token.type == "tr_open" else columns + (token.type == "th_open")
        if token.level >= _DEEPEST or columns * _COLUMN > look.width:
            return True
    return deepest * _INDENT > look.width - _LEAST_WIDTH


def _in_code(tokens: list[Token]) -> bool:
    return bool(tokens) and tokens[0].type == "fence"


# --- what stands in the text


def _prepared(tokens: Iterable[Token], look: Look) -> Iterator[Token]:
    """Make what stands in a text fit to be shown: what is decoded, links, images, signs."""
    for token in tokens:
        if token.type == "inline":
            token.children = list(_links(_prepared(token.children or (), look), look))
        elif token.type == "image":
            yield from _image(token)
            continue
        else:
            token.content = legible(token.content)
            if token.type == "text":
                token.content = _BREAK.sub("\n", token.content)
            elif token.type == MATH_INLINE:
                token.type = "text"
            elif token.type == "code_inline" and look.theme == "none":
                token.content = f"`{token.content}`"
        yield token


def _image(token: Token) -> Iterator[Token]:
    """Make an image a link to it, since only figures of tools are shown."""
    text = f"[image: {legible(token.content)}]" if token.content else "[image]"
    yield Token("link_open", "a", 1, attrs={"href": token.attrs.get("src", "")})
    yield Token("text", "", 0, content=text)
    yield Token("link_close", "a", -1)


def _links(tokens: Iterable[Token], look: Look) -> Iterator[Token]:
    """Leave those links that the terminal may open, and write the address of others.

    An address is also written where the text looks like another one.
    """
    opened: list[tuple[str, bool]] = []
    text: list[str] = []
    for token in tokens:
        if token.type == "link_open":
            href = legible(str(token.attrs.get("href", "")))
            known = look.links and look.theme != "none" and bool(_LINKED.fullmatch(href))
            opened.append((href, known))
            text = []
            if known:
                token.attrs["href"] = href
                yield token
        elif token.type == "link_close":
            href, known = opened.pop()
            if known:
                yield token
            said = "".join(text).strip()
            same = said in (href, href.removeprefix("mailto:"))
            if not same and (not known or "://" in said or said.startswith("www.")):
                yield Token("text", "", 0, content=f" ({href})")
        else:
            text.append(token.content)
            yield token


# --- how it is drawn


class _Shown(Markdown):
    """rich's Markdown over tokens that are parsed, with elements of our own."""

    def __init__(self, tokens: list[Token], block: Block, look: Look) -> None:
        super().__init__("", code_theme=f"ansi_{look.theme}")
        self.parsed = tokens
        self.look = look
        # Of a piece of a code fence: how many lines of it were shown before.
        self.skipped = block.lead.count("\n") - 1 if block.lead else None


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[Any] = {}

    def on_enter(self, context: Any) -> None:
        super().on_enter(context)
        if context.console.color_system is None:
            self.text.append("#" * int(self.tag[1:]) + " ")


class _Code(CodeBlock):
    """Code between two short marks, so that what is copied is the code alone.

    `skipped` counts the lines that were shown before, None where the fence begins; `ended` says
    whether it has ended.
    """

    source: str
    skipped: int | None
    ended: bool

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Code:
        assert isinstance(markdown, _Shown)
        language = legible((token.info.split() or [""])[0])[:_LONGEST_LANGUAGE]
        code = cls(language, markdown.code_theme)
        code.source = token.content
        code.skipped = markdown.skipped if token.level == 0 else None
        first, end = token.map or (0, 0)
        fenced = token.type == "fence"
        code.ended = not fenced or token.level > 0 or token.content.count("\n") + 2 == end - first
        return code

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.skipped is None:
            yield Text(
                f"╭─ {self.lexer_name}".rstrip(),
                style="markdown.fence",
                no_wrap=True,
                overflow="ellipsis",
            )
        lines = self.source.split("\n")
        if not lines[-1]:
            lines.pop()
        if (skipped := self.skipped or 0) < len(lines):
            tame = max(map(len, lines)) <= LONGEST_CODE_LINE and console.color_system
            lexer = self.lexer_name if tame else "text"
            yield from self._colored("\n".join(lines), lexer, skipped, console, options)
        if self.ended:
            yield Text("╰─", style="markdown.fence")

    def _colored(
        self, code: str, lexer: str, skipped: int, console: Console, options: ConsoleOptions
    ) -> Iterator[Text]:
        theme = self.theme if console.color_system else "ansi_dark"
        text = Syntax(code, lexer, theme=theme).highlight(code)
        text.expand_tabs(4)
        for line in text.split("\n", allow_blank=True)[skipped : code.count("\n") + 1]:
            yield from line.wrap(console, options.max_width, overflow="fold") or [Text()]


class _Math(CodeBlock):
    """Lines of math, as they are written."""

    source: str

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Math:
        math = cls("text", "default")
        math.source = token.content
        return math

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.source.expandtabs(4).splitlines():
            yield from Text(line).wrap(console, options.max_width, overflow="fold")


class _Rule(HorizontalRule):
    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("─" * min(24, options.max_width), style="markdown.hr")


class _List(ListElement):
    """A list whose numbers stand as they would in each piece of it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.list_type == "bullet_list_open":
            yield from super().__rich_console__(console, options)
            return
        for number, item in enumerate(self.items, self.list_start or 0):
            yield from item.render_number(console, options, number, max(number, 10))


_Shown.elements = Markdown.elements | {
    "heading_open": _Heading,
    "fence": _Code,
    "code_block": _Code,
    MATH_BLOCK: _Math,
    "hr": _Rule,
    "bullet_list_open": _List,
    "ordered_list_open": _List,
}  # pyright: ignore[reportAttributeAccessIssue]

_STYLES: Mapping[str, Mapping[str, str]] = {
    "dark": {"markdown.code": "cyan", "markdown.link_url": "underline bright_blue"},
    "light": {"markdown.code": "magenta", "markdown.link_url": "underline blue"},
    "none": {},
}
_COMMON = {
    **{f"markdown.h{level}": "bold" for level in range(1, 7)},
    "markdown.h1": "bold underline",
    "markdown.fence": "dim",
    "markdown.hr": "dim",
    "markdown.block_quote": "none",
    "markdown.item.bullet": "bold",
    "markdown.item.number": "bold",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
}


@lru_cache(8)
def _console(look: Look) -> Console:
    return Console(
        file=io.StringIO(),
        width=look.width,
        height=25,
        color_system=None if look.theme == "none" else "standard",
        no_color=not look.colors,
        force_terminal=True,
        legacy_windows=False,
        theme=Theme({**_COMMON, **_STYLES[look.theme]}),
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )


def _stripped(line: list[Segment]) -> list[Segment]:
    """Take away the blanks at the end of a line, which would wrap when the window narrows."""
    line = list(line)
    while line:
        segment = line.pop()
        if text := segment.text.rstrip():
            return [*line, Segment(text, segment.style)]
    return []
