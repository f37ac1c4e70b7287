"""Draw a block of Markdown: `render` for the scrollback, `tail` while the block still grows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
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
from ._markdown import MATH_BLOCK, PARSER, Block, blocks_of, is_closed, is_too_complex, make_safe

__all__ = ["ColorTheme", "MarkdownStyle", "render", "tail"]

ColorTheme = Literal["dark", "light", "none"]

_MAX_BLOCK_CHARS = 200_000  # a larger block is shown without layout
_MAX_COLOURED_LINE_CHARS = 2_000
_MAX_LANGUAGE = 24
_MAX_OPEN_CHARACTERS = 8_000  # of a larger growing block, the last lines are shown without layout

_INDENT_COLUMNS = 4  # the most that a quote or an item adds
_MIN_TEXT_COLUMNS = 16
_MIN_CELL_COLUMNS = 3


@dataclass(frozen=True)
class MarkdownStyle:
    """The layout of Markdown: columns, colours, and whether the terminal supports links.

    The theme "none" has no colours, styles or links, but shows the marks of headings and code.
    """

    width: int = 80
    theme: ColorTheme = "dark"
    links: bool = True
    colors: bool = True  # False: styles such as bold only


def render(block: Block, look: MarkdownStyle) -> str:
    """Return a block as lines for a terminal, none longer than the width.

    The lines cannot steer the terminal. A block that is too large or nested too deeply is returned
    without layout, and the terminal wraps it.
    """
    tokens = _parse(block, look)
    if tokens is None:
        return legible(block.source).strip("\n") + "\n"
    console = _console(look)
    lines = [
        _stripped(line) for line in console.render_lines(_Document(tokens, block, look), pad=False)
    ]
    while lines and not lines[-1]:
        lines.pop()
    begin = next((at for at, line in enumerate(lines) if line), 0)
    with console.capture() as capture:
        for line in lines[0 if tokens and tokens[0].type == "fence" else begin :]:
            console.print(Segments([*line, Segment.line()]), end="", crop=False)
    return capture.get()


def tail(block: Block, look: MarkdownStyle, lines: int) -> str:
    """Return the last lines of a growing block, without the last line end.

    The cost is bounded, however large the block is.
    """
    if lines <= 0 or look.width <= 0:
        return ""
    if len(block.source) <= _MAX_OPEN_CHARACTERS:
        shown = _LINK_SEQUENCE.sub("", render(block, look)).splitlines()
        widths = [cell_len(_STYLE_SEQUENCE.sub("", line)) for line in shown]
        if max(widths, default=0) <= look.width:
            return "\n".join(shown[-lines:])
    source = legible(block.source[-look.width * lines :]).expandtabs(4)
    console = _console(look)
    wrapped = [
        line.plain.rstrip()
        for each in source.splitlines()
        for line in Text(each).wrap(console, look.width, overflow="fold") or [Text()]
    ]
    return "\n".join(wrapped[-lines:])


_LINK_SEQUENCE = re.compile(r"\x1b\]8;[^\x1b]*\x1b\\")
_STYLE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


def _parse(block: Block, look: MarkdownStyle) -> list[Token] | None:
    """Return the tokens of a block, without the list item that is its lead.

    Returns None for a block that is too complex for a layout.
    """
    text = block.lead + block.source
    blocks = blocks_of(text)
    if is_too_complex(block.source, blocks, _MAX_BLOCK_CHARS, sum):
        return None
    depth = deepest = columns = 0
    for token in blocks:
        if token.type.startswith(("blockquote", "list_item")):
            depth += token.nesting
            deepest = max(deepest, depth)
        columns = 0 if token.type == "tr_open" else columns + (token.type == "th_open")
        if columns * _MIN_CELL_COLUMNS > look.width:
            return None
    if deepest * _INDENT_COLUMNS > look.width - _MIN_TEXT_COLUMNS:
        return None
    tokens = PARSER.parse(text)
    if block.lead and tokens[0].type != "fence":
        tokens[0].attrs["start"] = int(tokens[0].attrs.get("start", 1)) + 1
        closed = next(at for at, token in enumerate(tokens) if token.type == "list_item_close")
        tokens = [tokens[0], *tokens[closed + 1 :]]
    make_safe(tokens, links=look.links and look.theme != "none")
    if look.theme == "none":
        for code in (each for token in tokens for each in token.children or ()):
            if code.type == "code_inline":
                code.content = f"`{code.content}`"
    return tokens


# --- drawing


class _Document(Markdown):
    """rich's Markdown for tokens that are already parsed, with the elements below."""

    def __init__(self, tokens: list[Token], block: Block, look: MarkdownStyle) -> None:
        super().__init__("", code_theme=f"ansi_{look.theme}")
        self.parsed = tokens
        # For a piece of a code fence, the number of code lines in its lead.
        self.skipped = block.lead.count("\n") - 1 if block.lead else None


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[Any] = {}

    def on_enter(self, context: Any) -> None:
        super().on_enter(context)
        if context.console.color_system is None:
            self.text.append("#" * int(self.tag[1:]) + " ")


class _Code(CodeBlock):
    """Code between two short marks, so that a copied selection contains only code.

    `skipped` is the number of lines that are visible already, None at the start of a fence.
    """

    source: str
    skipped: int | None
    ended: bool

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Code:
        assert isinstance(markdown, _Document)
        language = legible((token.info.split() or [""])[0])[:_MAX_LANGUAGE]
        code = cls(language, markdown.code_theme)
        code.source = token.content
        code.skipped = markdown.skipped if token.level == 0 else None
        code.ended = token.type != "fence" or token.level > 0 or is_closed(token)
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
            tame = max(map(len, lines)) <= _MAX_COLOURED_LINE_CHARS and console.color_system
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
    """Display math, without layout."""

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
    """A list whose pieces align their numbers equally."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.list_type == "bullet_list_open":
            yield from super().__rich_console__(console, options)
            return
        for number, item in enumerate(self.items, self.list_start or 0):
            yield from item.render_number(console, options, number, max(number, 10))


_Document.elements = Markdown.elements | {
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
_COMMON_STYLES = {
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
def _console(look: MarkdownStyle) -> Console:
    return Console(
        file=io.StringIO(),
        width=look.width,
        height=25,
        color_system=None if look.theme == "none" else "standard",
        no_color=not look.colors,
        force_terminal=True,
        legacy_windows=False,
        theme=Theme({**_COMMON_STYLES, **_STYLES[look.theme]}),
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )


def _stripped(line: list[Segment]) -> list[Segment]:
    """Remove blanks at the end of a line, which would wrap in a narrower window."""
    line = list(line)
    while line:
        segment = line.pop()
        if text := segment.text.rstrip():
            return [*line, Segment(text, segment.style)]
    return []
