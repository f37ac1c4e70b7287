"""A conversation as one page of HTML, which holds all it needs and asks nobody."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import formatters, highlight, lexers
from pygments.util import ClassNotFound

from ...messages import Message, Part, ToolCall
from ._export_parts import DATA_IMAGE, arguments_of, file_of, said, too_hard
from ._math import MATH_BLOCK, MATH_INLINE, enable_math

__all__ = ["html_of"]

_ROLES = {"user": "You", "assistant": "Assistant", "tool": "Tool"}
_LINKED = re.compile(r"(?:https?://|mailto:)\S+", re.IGNORECASE)
# Pygments says of some of its types only that they are generic.
_lexers: Any = lexers
_formatters: Any = formatters

_MOST_CODE = 200_000  # characters that are coloured, and of one line:
_LONGEST_CODE_LINE = 2_000

_STYLE = """
:root {
  color-scheme: light dark;
  --bg: light-dark(#f6f6f4, #121316); --panel: light-dark(#ffffff, #1a1c20);
  --sunk: light-dark(#f2f2ef, #15171a); --line: light-dark(#dfdfda, #30333a);
  --text: light-dark(#1d1f23, #e7e8eb); --dim: light-dark(#5d626b, #a0a6b1);
  --accent: light-dark(#2459c4, #82aaf7);
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 50rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
header h1 { font-size: 1.3rem; }
article { margin: 1rem 0; padding: .6rem 1rem; border: 1px solid var(--line);
  border-radius: .5rem; background: var(--panel); }
article.user { border-left: .25rem solid var(--accent); }
article > h2 { margin: 0 0 .4rem; font-size: .8rem; font-weight: 600; color: var(--dim); }
.plain { white-space: pre-wrap; }
pre, code { font: .875em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
code { background: var(--sunk); padding: .1em .25em; border-radius: .25em; }
pre { overflow: auto; max-height: 40rem; padding: .6rem .8rem; border: 1px solid var(--line);
  border-radius: .35rem; background: var(--sunk); }
pre code { padding: 0; background: none; font-size: 1em; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--dim); }
blockquote { margin: .5rem 0; padding-left: 1rem; border-left: .2rem solid var(--line); }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .6rem; border: 1px solid var(--line); }
img { max-width: 100%; } a { color: var(--accent); } .refusal { color: var(--dim); }
"""


def html_of(messages: Sequence[Message], title: str) -> str:
    """Return a conversation as a page; results of tools are folded below the calls they answer.

    Nothing of what was said runs, is asked for, or leaves its place: the page's policy allows
    images that it holds itself and its own style, and nothing else.
    """
    style = _STYLE + _colors()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"
    name = escape(said(title))
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{name}</h1></header>\n"
    )
    return head + "\n".join(_articles(messages)) + "\n</main>\n</body>\n</html>\n"


def _articles(messages: Sequence[Message]) -> Iterator[str]:
    folded: set[int] = set()  # the places of results that stand below their call
    for at, message in enumerate(messages):
        if at in folded:
            continue
        results: dict[str, int] = {}
        for place in range(at + 1, len(messages) if message.tool_calls else 0):
            if messages[place].role != "tool":
                break
            results.setdefault(messages[place].tool_call_id or "", place)
        inside = list(_said(message))
        for call in message.tool_calls:
            if (place := results.pop(call.id, None)) is not None:
                folded.add(place)
            inside.append(_call(call, None if place is None else messages[place]))
        role = message.role
        heading = _ROLES.get(role, "System")
        yield f'<article class="{role}">\n<h2>{heading}</h2>\n' + "\n".join(inside) + "\n</article>"


def _said(message: Message) -> Iterator[str]:
    """Yield what a message says beside its calls."""
    text = said(message.content)
    if message.reasoning:
        yield _folded("reasoning", f'<div class="plain">{escape(said(message.reasoning))}</div>')
    if message.role == "assistant":
        yield _prose(text)
    elif message.role == "user":
        yield _plain(text)
    else:
        name = f" of {message.name}" if message.name else ""
        what = "instructions" if message.role != "tool" else f"the result{name}"
        yield _folded(what, f"<pre>{escape(text)}</pre>")
    if message.refusal:
        yield f'<p class="refusal plain">{escape(said(message.refusal))}</p>'
    yield from map(_part, message.parts)


def _call(call: ToolCall, result: Message | None) -> str:
    inside = [f"<pre>{escape(arguments_of(call))}</pre>"]
    if result is None:
        inside.append("<p>It has no result.</p>")
    else:
        inside.append(f"<pre>{escape(said(result.content))}</pre>")
    images = [*map(_part, result.parts)] if result else []
    return "\n".join([_folded(f"called {call.name}", "\n".join(inside)), *images])


def _folded(summary: str, inside: str) -> str:
    summary = escape(said(summary))
    return f"<details>\n<summary>{summary}</summary>\n{inside}\n</details>"


def _plain(text: str) -> str:
    return f'<div class="plain">{escape(text)}</div>'


def _part(part: Part) -> str:
    """Show an image that the message holds, fold a file of text, and name anything else."""
    if DATA_IMAGE.fullmatch(part.url):
        return f'<p><img src="{part.url}" alt="{escape(said(part.about))}"></p>'
    if part.kind == "text":
        return _folded(part.about, f"<pre>{escape(file_of(part))}</pre>")
    begin = _link(part.url)
    where = f": {escape(said(part.url))}" if begin else ""
    return f"<p>{begin}{escape(said(part.about))}{'</a>' if begin else ''}{where}</p>"


# --- Markdown


def _prose(text: str) -> str:
    """Return Markdown as HTML; what is too large or too deep for it stands as it was written."""
    tokens: list[Token] = []
    _parser().block.parse(text, _parser(), {}, tokens)
    return _plain(text) if too_hard(text, tokens) else f"<div>{_parser().render(text)}</div>"


@lru_cache(1)
def _parser() -> Any:
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    for name, rule in {
        "image": _render_image,
        "link_open": _render_link,
        "link_close": _render_link_end,
        "fence": _render_code,
        "code_block": _render_code,
        "th_open": _render_cell,
        "td_open": _render_cell,
        MATH_BLOCK: _render_math,
        MATH_INLINE: _render_math_inline,
    }.items():
        markdown.add_render_rule(name, rule)
    return enable_math(markdown)


def _link(url: str) -> str:
    """Begin a link to where a person may want to go, "" for any other address."""
    url = said(url)
    if not _LINKED.fullmatch(url):
        return ""
    return f'<a href="{escape(url)}" rel="noopener noreferrer">'


def _render_link(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    begin = _link(str(tokens[at].attrs.get("href", "")))
    env.setdefault("ends", []).append("</a>" if begin else "")
    return begin


def _render_link_end(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    return env["ends"].pop()


def _render_image(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    """Name an image that the model points to, which is not asked for."""
    source = str(tokens[at].attrs.get("src", ""))
    begin = "" if env.get("ends") else _link(source)  # it may stand in a link
    return f"{begin}[image: {escape(said(tokens[at].content))}]{'</a>' if begin else ''}"


def _render_cell(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    """Begin a cell; the page's policy takes no style from an attribute."""
    side = str(tokens[at].attrs.get("style", "")).removeprefix("text-align:")
    return f'<{tokens[at].tag} align="{side}">' if side else f"<{tokens[at].tag}>"


def _render_math(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    lines = escape(tokens[at].content.strip("\n")).split("\n")
    return f"<p>{'<br>'.join(lines)}</p>\n"


def _render_math_inline(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    return escape(tokens[at].content)


def _render_code(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    code, name = tokens[at].content, (tokens[at].info.split() or ["text"])[0]
    longest = max(map(len, code.split("\n")))
    try:
        tame = len(code) <= _MOST_CODE and longest <= _LONGEST_CODE_LINE
        lexer = _lexers.get_lexer_by_name(name if tame else "text", stripnl=False)
    except ClassNotFound:
        lexer = _lexers.get_lexer_by_name("text", stripnl=False)
    colored = highlight(code, lexer, _formatters.HtmlFormatter(nowrap=True))
    return f'<pre><code class="code">{colored}</code></pre>\n'


@lru_cache(1)
def _colors() -> str:
    """Return the style of code: Pygments' own, for a light page and for a dark one."""
    light = _formatters.HtmlFormatter(style="default").get_style_defs(".code")
    dark = _formatters.HtmlFormatter(style="github-dark").get_style_defs(".code")
    plain = ".code { background: none; }"
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{plain}\n"
