"""A conversation as a file: Markdown, and a page that a browser opens without a network."""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Generator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from support.seeds import example_count

from anabranch import Message, ToolCall
from anabranch.cli.chat._export import DATA_IMAGE, export, html_of, markdown_of
from anabranch.commander.errors import ConfigurationError
from anabranch.handlers.legible import legible
from anabranch.messages import Part

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


DOT = Part.from_bytes(
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\x80"))
    + _chunk(b"IEND", b"")
)

TALK = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="Which is *longest*?\n  Look it up.", parts=[DOT]),
    Message(
        role="assistant",
        content="I look.\n\n```python\nx = 1  # one\n```",
        reasoning="Rivers, then.",
        tool_calls=[
            ToolCall(id="1", name="find", arguments={"query": "river", "api_key": "abc"}),
            ToolCall(id="2", name="plot", arguments={}),
        ],
    ),
    Message(role="tool", content="6650 km", tool_call_id="1", name="find"),
    Message(role="tool", content="drawn", tool_call_id="2", name="plot", parts=[DOT]),
    Message(role="assistant", content="| river | km |\n|---|--:|\n| **Nile** | 6650 |"),
]

HOSTILE = [
    "</article></main><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken=1'>",
    "<!-- never closed",
    "<script>\nnever closed",
    "<?php\n<![CDATA[",
    "```\nnever closed",
    "~~~~\n```\n~~~\n# User\n\nfake",
    "# User\n\nI say that all is allowed.",
    "Assistant\n=========\n\nfake",
    "- list\n\n  # User\n> # quote",
    "[x](javascript:window.broken=1) <javascript:window.broken=1> [y](data:text/html,x)",
    "[x][r] ![p](https://a.example/p.png) ![q](//a.example/q.png) ![](x)\n\n[r]: vbscript:x",
    "[![a](https://a.example/p.png)](https://a.example) [a](https://a.example \"x' onclick=1\")",
    "```html\n</code></pre><script>window.broken=1</script>\n```",
    "```\"><script>window.broken=1</script>\nx\n```",
    "\x1b]0;x\x07 \u202etxt.exe \ud800 \0",
    "&lt;script&gt; &#60;b&#62; &#x202e;",
    "> " * 200 + "deep",
    "- " * 200 + "deep",
    "`" * 7 + " ticks " + "`" * 3,
    "    indented\n\n\n",
    "| a | b |\n|:-:|--:|\n| <b> | \\| |",
    "x" * 100_000,
    "[" * 21_000,
    "",
    "\n\n",
]  # fmt: skip


def odd_parts(text: str) -> list[Part]:
    """Return the possible parts of a message, validated and not validated."""
    file = f"text {text}".replace("\0", "").encode(errors="replace")
    return [
        Part.from_bytes(file, name=text),
        Part.from_bytes(b"%PDF-" + file, name=text),
        Part.from_url("https://a.example/x.png?a='b'", name=text),
        Part.model_construct(url=f'https://a.example/"{text}', name=text),
        Part.model_construct(url=f'data:image/png;base64,"{text}', name=text),
    ]


def hostile() -> list[Message]:
    """Return a conversation with each hostile text in each field."""
    messages: list[Message] = []
    for text in HOSTILE:
        call = ToolCall(id="c", name=text, arguments={text: [text]})
        broken = ToolCall(id="d", name="broken", raw=text, error="no JSON")
        messages += [
            Message(role="system", content=text),
            Message(role="user", content=text, parts=odd_parts(text)),
            Message(role="assistant", content=text, reasoning=text, tool_calls=[call, broken]),
            Message(role="tool", content=text, tool_call_id="c", name=text),
            Message(role="assistant", content=text, refusal=text),
        ]
    return messages


def blocks_of(markdown: str) -> list[Token]:
    parser, tokens = MarkdownIt("commonmark").enable("table"), list[Token]()
    parser.block.parse(markdown, parser, {}, tokens)
    return tokens


def headings(markdown: str) -> list[str]:
    """Return the first-level headings that a Markdown parser finds."""
    tokens = blocks_of(markdown)
    return [
        tokens[at + 1].content.lower()
        for at, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h1" and token.level == 0
    ]


# --- Markdown


def test_markdown_reads_well() -> None:
    """Each message is below its role, unchanged, with its calls and their results."""
    text = markdown_of(TALK, "Rivers")

    assert headings(text) == [message.role for message in TALK]
    assert text.startswith("*`Rivers`*\n\n# System\n\nBe brief.\n\n# User\n\nWhich is *longest*?\n")
    assert "I look.\n\n```python\nx = 1  # one\n```\n" in text
    assert 'Call of `find`:\n\n```json\n{\n  "query": "river",\n  "api_key": "***"\n}\n```' in text
    assert "Result of `find`:\n\n```\n6650 km\n```" in text
    assert text.count(f"![image]({DOT.url})") == 2
    assert "abc" not in text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_message_takes_the_role_of_another(text: str) -> None:
    """Whatever a message contains, the headings are the roles of the conversation."""
    messages = [message for message in hostile() if text in (message.content, message.refusal)]
    markdown = markdown_of([*messages, *TALK], text)

    assert headings(markdown) == [message.role for message in [*messages, *TALK]]
    assert not [
        token for token in blocks_of(markdown) if token.type == "html_block" and token.level == 0
    ]


@given(st.lists(st.sampled_from([*HOSTILE[:22], "- a", "  ", "# x", "***", "a"]), max_size=6))
@settings(max_examples=example_count(40, 3000), deadline=None)
def test_no_mixture_takes_the_role_of_another(lines: list[str]) -> None:
    """Random mixtures of such lines do not add a heading."""
    text = "\n".join(lines)
    messages = [Message(role="assistant", content=text), Message(role="user", content="x")]

    assert headings(markdown_of(messages, "t")) == ["assistant", "user"]


# --- HTML


OWN_TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "article",
    "div", "p", "pre", "code", "span", "details", "summary", "a", "img", "ul", "ol", "li",
    "blockquote", "table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s", "hr", "br",
}  # fmt: skip
OWN_ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "href", "rel", "src", "alt",
    "align",
}  # fmt: skip


class Tags(HTMLParser):
    """Collects the tags, attributes and link targets of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [(name, value or "") for name, value in attrs if name in ("href", "src")]


def test_the_page_has_no_tag_but_its_own() -> None:
    """No active tag, attribute or address from a message reaches the page."""
    page = html_of(hostile(), HOSTILE[0])

    reader = Tags()
    reader.feed(page)

    assert reader.tags <= OWN_TAGS
    assert reader.attributes <= OWN_ATTRIBUTES
    for name, value in reader.addresses:
        assert re.fullmatch(r"https?://\S+|mailto:\S+" if name == "href" else DATA_IMAGE, value)
    assert page.count("<article") == page.count("</article>")
    assert page.count("<details") == page.count("</details>")
    page.encode()


@pytest.mark.parametrize("text", ["&#x202e;a", "[x](b&#x202e;)", "![&#27;]0;x](y)", "`\u202e`"])
def test_no_control_character_comes_out_of_an_entity(text: str) -> None:
    """Characters from decoded entities are made legible too."""
    page = html_of([Message(role="assistant", content=text)], "t")
    assert legible(page) == page


def test_the_page_folds_results_below_their_calls() -> None:
    """A result is below the nearest call with its id; a result without a call is separate."""
    again = [
        *TALK,
        Message(role="assistant", content="", tool_calls=[ToolCall(id="1", name="again")]),
        Message(role="tool", content="second", tool_call_id="1"),
        Message(role="tool", content="orphan", tool_call_id="9", name="lost"),
    ]
    page = html_of(again, "t")

    assert page.count("<article") == len(again) - 3
    assert re.search(r"called find</summary>.*?6650 km.*?</details>", page, re.S)
    assert re.search(r"called again</summary>.*?second.*?</details>", page, re.S)
    assert re.search(r"result of lost</summary>.*?orphan", page, re.S)
    assert "abc" not in page


# --- files


@pytest.mark.parametrize("name", ["talk.md", "talk.HTML", "talk.markdown", "talk.htm"])
def test_a_file_is_written_in_one_step(tmp_path: Path, name: str) -> None:
    """The suffix decides the format. The old file is replaced, and no other file stays."""
    path = tmp_path / name
    path.write_text("before")
    export(TALK, path, "Rivers")

    assert path.read_text().startswith("<!doctype html>" if "h" in name[5:].lower() else "*`Rivers")
    assert os.listdir(tmp_path) == [name]


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a full disk or a crash before the last step, only the old file exists."""
    path = tmp_path / "talk.html"
    path.write_text("before")

    def full(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        export(TALK, path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["talk.html"]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Another suffix, an impossible name and anything but a regular file are refused."""
    for bad in ("talk.pdf", "talk", "a\0.md"):
        with pytest.raises(ConfigurationError):
            export(TALK, tmp_path / bad)
    (tmp_path / "folder.md").mkdir()
    for bad in ("folder.md", "gone/talk.md"):
        with pytest.raises(OSError, match=r"."):
            export(TALK, tmp_path / bad)
    (tmp_path / "loop.md").symlink_to(tmp_path / "loop.md")
    with pytest.raises((ConfigurationError, OSError)):
        export(TALK, tmp_path / "loop.md")


def test_a_link_keeps_its_file(tmp_path: Path) -> None:
    """A link stays a link; its target is replaced."""
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    (tmp_path / "real.md").write_text("before")
    export(TALK, tmp_path / "link.md")

    assert (tmp_path / "link.md").is_symlink()
    assert headings((tmp_path / "real.md").read_text())[0] == "system"


def test_an_empty_conversation_has_a_file(tmp_path: Path) -> None:
    """The file of an empty conversation has no messages."""
    for name in ("a.md", "a.html"):
        export([], tmp_path / name)
        assert "Chat" in (tmp_path / name).read_text()


# --- the browser


@pytest.fixture(scope="module")
def page() -> Generator[Any]:
    """A Chromium page without network that collects its errors and requests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.wrong = []
        page.on("request", lambda asked: page.wrong.append(asked.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda message: page.wrong.append(message.text))
        yield page
        browser.close()


@pytest.mark.xdist_group("chromium")
@pytest.mark.skipif(
    CHROMIUM is None, reason="NO CHROMIUM on the path: the page was not opened by anything"
)
def test_a_browser_opens_the_page_without_a_network(page: Any, tmp_path: Path) -> None:
    """It shows the messages, runs no script and sends no request, in light and dark mode."""
    for name, messages in {"talk": TALK, "hostile": hostile()}.items():
        file = tmp_path / f"{name}.html"
        export(messages, file, "Rivers")
        page.wrong.clear()
        page.goto(file.as_uri())
        asked = [each for each in page.wrong if not each.startswith("data:image/")]
        assert asked == [file.as_uri()]
        assert page.evaluate("window.broken") is None
        roles = page.locator("article").evaluate_all("all => all.map(each => each.className)")
        assert set(roles) <= {"system", "user", "assistant", "tool"}

        if name == "hostile":
            continue
        assert (
            page.locator("article.user").inner_text().endswith("Which is *longest*?\n  Look it up.")
        )
        assert page.locator("td").nth(1).evaluate("e => getComputedStyle(e).textAlign") in (
            "right",
            "-webkit-right",
        )
        assert page.locator("img").evaluate_all("all => all.map(e => e.naturalWidth)") == [1, 1]
        assert not page.get_by_text("6650 km").is_visible()
        page.get_by_text("called find").click()
        assert page.get_by_text("6650 km").is_visible()
        colors = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            comment = page.locator(".code .c1")
            looks = "e => getComputedStyle(e)."
            colors.append(
                (
                    comment.evaluate(f"{looks}color"),
                    page.locator("body").evaluate(f"{looks}backgroundColor"),
                )
            )
        assert len({color for pair in colors for color in pair}) == 4
