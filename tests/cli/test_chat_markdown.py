"""Streaming Markdown: later text never changes a finished block."""

from __future__ import annotations

import itertools
import re
from html import escape
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from support.seeds import example_count

from anabranch.cli.chat import _markdown
from anabranch.cli.chat._export import _prose
from anabranch.cli.chat._markdown import PARSER, PIECE_LINES, Block, MarkdownStream
from anabranch.cli.chat._markdown_view import MarkdownStyle, render, tail
from anabranch.handlers.legible import legible

# --- texts

LINES = [
    "", "", "", "word", "two words", "# head", "# a | b", "## ", "#no", "---", "===", "***",
    "- item", "-", "- - nested", "- a | b", "* star", "+ plus", "1. one", "2) two", "7. seven",
    "  under", "    deep", "   - three", "  - two", " 1. x", "\tTab", "     five",
    "> quote", ">", "> - quoted item", ">> twice", "> ```", "> a | b",
    "```", "````", "~~~", "```python", "  ```", "~~~ | x", "``` a | b", "- ```", "   ~~~",
    "| a | b |", "|---|---|", "--- | ---", "a | b", "|-", ":-:", "| 1 | 2 |",
    "<div>", "</div>", "<!-- open", "-->", "<script>", "</script>", "<b>x</b>", "<?php",
    "[label]: http://a.example", "[label]", "[text][label]", "[a]: <", "\"title\"",
    "*em* `code` **strong**", "a\\", "hard  ", "&#27;[31m &lt;", "http://a.example",
    "\u001b]8;;x\u0007",
    "> " * 24 + "deep", "- " * 24 + "deep",
    "é漢字👩\u200d👩e\u0301",
    "$$", "$$ a | b $$", "  $$", "> $$", "- $$", "\\[", "\\]", "\\[ x", "y $$", "$$ a $$ *b*",
    "$a*b*c$ *d*", "\\(a_b_c\\)", "$5 *and* $6",
]  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> str:
    lines = draw(st.lists(st.sampled_from(LINES), max_size=14))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))


def cut(text: str, *at: int) -> list[str]:
    return [text[start:end] for start, end in itertools.pairwise([0, *at, len(text)])]


def blocks(pieces: list[str]) -> list[Block]:
    stream = MarkdownStream()
    found = [block for piece in pieces for block in stream.feed(piece)]
    return found + stream.end()


def tree(text: str) -> list[tuple[Any, ...]]:
    """Return the Markdown tokens, without the invisible difference of tight and loose lists."""
    tokens = PARSER.parse(text)
    return [(t.type, t.level, t.markup, t.content, t.info, t.attrs.get("start")) for t in tokens]


def trees(found: list[Block]) -> list[tuple[Any, ...]]:
    """Return the tokens of the blocks, with the pieces joined."""
    whole: list[tuple[Any, ...]] = []
    for block in found:
        tokens = tree(block.lead + block.source)
        if block.lead and tokens[0][0] == "fence":
            before = tree(block.lead)[0][3]
            assert tokens[0][3].startswith(before)
            opened = whole.pop()
            whole.append((*opened[:3], opened[3] + tokens[0][3].removeprefix(before), *opened[4:]))
            tokens = tokens[1:]
        elif block.lead:
            closed = next(i for i, token in enumerate(tokens) if token[0] == "list_item_close")
            assert whole.pop()[0] == tokens[0][0].replace("open", "close")
            tokens = tokens[closed + 1 :]
        whole += tokens
    return whole


# --- the blocks


@given(texts())
@settings(max_examples=example_count(25, 600), deadline=None)
@example("- x\n- a | b\n--- | ---\n")
@example("   - x\n  - a\n\n\n- c\n")
@example("# a | b\n--- | ---\n| 1 | 2 |\n")
@example("a\nb | c\n--- | ---\n")
@example("    deep\n\n    deep\n")
@example("- a\n\n\n  b\n\n- c\n> q\n\n> r\n")
@example("0. a\n1. b\n2. c\n")
@example("999999998. a\n1. b\n2. c\n3. d\n")
def test_no_later_text_changes_a_finished_block(text: str) -> None:
    """Cut at every index, the blocks are those of the complete text, and so are their sources."""
    wanted = tree(legible(text))

    for at in range(len(text) + 1):
        stream = MarkdownStream()
        found = stream.feed(text[:at])
        assert "".join(block.source for block in found) + stream.open == legible(text[:at])
        found += stream.feed(text[at:])
        assert "".join(block.source for block in found) + stream.open == legible(text)
        found += stream.end()
        assert stream.open == ""
        assert "".join(block.source for block in found) == legible(text)
        assert trees(found) == wanted


@given(texts(), st.integers(1, 5))
@settings(max_examples=example_count(80, 4000), deadline=None)
def test_small_deltas_give_the_same_document(text: str, size: int) -> None:
    """Text in deltas of a few characters gives the same document."""
    found = blocks(cut(text, *range(size, len(text), size)))

    assert "".join(block.source for block in found) == legible(text)
    assert trees(found) == tree(legible(text))


def test_a_long_fence_is_given_out_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long program appears in pieces, and each line once."""
    code = "".join(f"value_{n} = {n}\n" for n in range(10 * PIECE_LINES + 7))
    text = f"before\n\n```python\n{code}```\n\nafter\n"
    stream = MarkdownStream()

    found: list[Block] = []
    for line in text.splitlines(keepends=True):
        found += stream.feed(line)
        assert stream.open.count("\n") <= PIECE_LINES
    found += stream.end()

    assert len(found) > 10
    assert trees(found) == tree(text)
    shown = [drawn(found, MarkdownStyle(60, theme)) for theme in ("dark", "none")]
    whole = [drawn(blocks([text]), MarkdownStyle(60, theme)) for theme in ("dark", "none")]
    assert shown == whole


@given(texts(), st.integers(1, 3))
@settings(max_examples=example_count(30, 1000), deadline=None)
def test_pieces_of_any_fence_are_its_lines(text: str, size: int) -> None:
    """However small the pieces and whatever the code, the code is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_markdown, "PIECE_LINES", size)
        patch.setattr(_markdown, "CONTEXT_LINES", size)
        stream = MarkdownStream()
        found = [block for character in text for block in stream.feed(character)]
        found += stream.end()

    assert "".join(block.source for block in found) == legible(text)
    assert code_of(found) == [t[3] for t in tree(legible(text)) if t[0] == "fence"]


def code_of(found: list[Block]) -> list[str]:
    """Return the contents of all fences, with the pieces joined."""
    contents: list[str] = []
    for block in found:
        fences = [token[3] for token in tree(block.lead + block.source) if token[0] == "fence"]
        if "```" in block.lead or "~~~" in block.lead:
            contents[-1] += fences.pop(0).removeprefix(tree(block.lead)[0][3])
        contents += fences
    return contents


# --- math

SIGNS = st.sampled_from(
    ["a*b*c", "_x_", r"\frac{1}{2}", "**k**", "~~", "[a](b)", "<br>", "&lt;", "^{2}", r"\\", "7"]
)
MATH = st.lists(SIGNS, min_size=1, max_size=5).map("".join)
WAYS = [("$", "$"), ("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]")]


@given(MATH, st.sampled_from(WAYS), st.sampled_from(["{}", "so {}, *yes*", "- {}", "> {}", "# {}"]))
@settings(max_examples=example_count(100, 2000), deadline=None)
def test_math_in_a_line_stays_as_it_is_written(math: str, way: tuple[str, str], line: str) -> None:
    """Inline math is unchanged in each place, also in an exported page."""
    written = f"{way[0]}{math}{way[1]}"
    (block,) = blocks([line.format(written) + "\n"])
    assert written in render(block, MarkdownStyle(300, "none"))
    assert escape(written) in _prose(line.format(written))


@given(st.lists(MATH | st.sampled_from(["- a", "# b", "> c", "1. d", "| e |", "---", "    f"])))
@settings(max_examples=example_count(50, 1000), deadline=None)
def test_math_of_several_lines_stays_as_it_is_written(lines: list[str]) -> None:
    """Display math is unchanged, whatever its lines contain."""
    written = "\n".join(["$$", *lines, "$$"])
    shown = "".join(
        render(each, MarkdownStyle(300, "none")) for each in blocks([f"It *is*\n{written}\n"])
    )
    assert written in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("it costs $5 or *less* than $10", "it costs $5 or less than $10"),
        ("from $5*a* to $6", "from $5a to $6"),
        ("`$` and `a*b$`", "`$` and `a*b$`"),
        (r"\$5*a*b\$", "$5ab$"),
        ("$$ and *no* end", "$$ and no end"),
        ("$x", "$x"),
    ],
)
def test_prices_and_signs_are_no_math(text: str, shown: str) -> None:
    """A mark that does not delimit math stays text."""
    (block,) = blocks([f"A {text}\n"])
    assert render(block, MarkdownStyle(80, "none")).strip() == f"A {shown}"


# --- drawing


def drawn(found: list[Block], look: MarkdownStyle) -> str:
    """Return all blocks as drawn in the scrollback, without rich's random link ids."""
    parts = [("" if block.joined else "\n") + render(block, look) for block in found]
    return re.sub(r"\x1b\]8;id=\d+;", "\x1b]8;;", "".join(parts))


LOOKS = [
    MarkdownStyle(40, "dark"),
    MarkdownStyle(23, "none"),
    MarkdownStyle(200, "light", links=False),
]
SEQUENCES = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^;\x1b]*;[^\x1b\x07]*\x1b\\")


@given(texts(), st.integers(1, 5), st.sampled_from(LOOKS))
@settings(max_examples=example_count(25, 1000), deadline=None)
def test_a_stream_is_drawn_as_the_whole_would_be(text: str, size: int, look: MarkdownStyle) -> None:
    """The finished blocks together look like the complete document drawn at once."""
    assert drawn(blocks(cut(text, *range(size, len(text), size))), look) == drawn(
        blocks([text]), look
    )


@given(texts() | st.text(max_size=200), st.sampled_from(LOOKS), st.integers(0, 9))
@settings(max_examples=example_count(30, 1000), deadline=None)
def test_nothing_steers_the_terminal(text: str, look: MarkdownStyle, lines: int) -> None:
    """Only control sequences of colours and links remain, and no line is too wide."""
    stream = MarkdownStream()
    found = stream.feed(text)
    open_lines = tail(stream.block, look, lines)
    assert legible(SEQUENCES.sub("", open_lines)) == SEQUENCES.sub("", open_lines)
    assert "\x1b]" not in open_lines
    assert len(open_lines.splitlines()) <= lines
    assert all(cell_len(line) <= look.width for line in SEQUENCES.sub("", open_lines).splitlines())
    for block in found + stream.end():
        shown = SEQUENCES.sub("", render(block, look))
        assert legible(shown) == shown
        assert shown == "" or shown.endswith("\n")
        assert all(line == line.rstrip() for line in shown.splitlines()) or "  " in text


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "http://a\x1b]8;;http://evil\x1b\\", "file:///etc/passwd", "data:x,y",
     "http://a/&#27;]0;x&#7;", "http://a/\u202egpj", "HTTP://A/%1b]8"],
)  # fmt: skip
def test_addresses_cannot_leave_their_sequence(url: str) -> None:
    """Only http and mail addresses become links, and none can end its control sequence."""
    for text in (f"[x](<{url}>)", f"[x]({url})", f"![x](<{url}>)", f"<{url}>"):
        (block,) = blocks([text])
        shown = render(block, MarkdownStyle())
        for found in re.findall(r"\x1b\]8;[^;]*;([^\x1b]*)\x1b\\", shown):
            assert found == "" or re.fullmatch(r"(?i)https?://[!-~\x80-\uffff]*", found)
        rest = SEQUENCES.sub("", shown)
        assert legible(rest) == rest


def test_the_address_is_seen_where_it_may_deceive() -> None:
    """The address follows the text if the terminal has no links or if the text misleads."""
    said = {
        "[text](http://a.example)": ("text", "text (http://a.example)"),
        "[http://good.example](http://evil.example)": ("http://good.example (http://evil.example)",)
        * 2,
        "<http://a.example>": ("http://a.example", "http://a.example"),
        "[x](file:///etc)": ("x (file:///etc)", "x (file:///etc)"),
    }  # fmt: skip
    for text, wanted in said.items():
        (block,) = blocks([text])
        for look, line in zip((MarkdownStyle(), MarkdownStyle(links=False)), wanted, strict=True):
            shown = SEQUENCES.sub("", render(block, look))
            assert shown == line + "\n" or text.startswith("[x](file")


def test_what_is_drawn() -> None:
    """Headings are left-aligned, code is between two marks, and without colours the marks stay."""
    text = "# Title\n\n- one `x`\n- two\n\n3. three\n\n> said\n\n"
    text += "```py\nif x:\n\n    y\n```\n\n<b>&amp;\n"
    wanted = """
# Title

 • one `x`
 • two

  3 three

▌ said

╭─ py
if x:

    y
╰─

<b>&
"""
    assert drawn(blocks([text]), MarkdownStyle(40, "none")) == wanted
    dark = drawn(blocks([text]), MarkdownStyle(40, "dark"))
    assert "\x1b[1;4mTitle\x1b[0m" in dark
    assert "\x1b[94mif\x1b[0m" in dark
    assert dark != drawn(blocks([text]), MarkdownStyle(40, "light"))


@pytest.mark.parametrize(
    "text",
    ["> " * 500 + "deep", "- " * 500 + "deep", "[" * 30_000, "x" * 1_000_000,
     "|a" * 500 + "|\n" + "|-" * 500 + "|\n", "e" + "\u0301" * 50_000,
     "```python\n" + "(" * 300_000 + "\n```\n", "".join("  " * n + "- a\n" for n in range(60))],
    ids=["quotes", "lists", "brackets", "line", "columns", "combining", "code", "nested"],
)  # fmt: skip
def test_what_is_too_much_is_shown_as_it_is_written(text: str) -> None:
    """Blocks that are too large, deep or wide for a layout are shown completely, without layout."""
    for look in LOOKS:
        shown = SEQUENCES.sub("", "".join(render(block, look) for block in blocks([text])))
        code = text.removeprefix("```python\n").removesuffix("```\n")
        assert code.strip().replace("\n", "") in shown.replace("\n", "").replace("│", "")
        assert len(tail(Block(text), look, 5).splitlines()) <= 5


def test_drawing_again_is_asked_for_by_what_changes_alone() -> None:
    """The growing block requests a drawing only after a change."""
    stream = MarkdownStream()
    assert not stream.dirty
    stream.feed("")
    assert not stream.dirty
    stream.feed("a")
    assert stream.dirty
    stream.dirty = False
    stream.feed("\n\n")
    assert stream.dirty
    assert stream.open == ""
    stream.dirty = False
    assert stream.end() == []
    assert not stream.dirty
