"""Write a conversation to a file, as Markdown or as an HTML page that loads nothing.

No message can break out of its section or imitate another role, and keys are masked. `_pieces`
selects the content of a message; both formats only lay it out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import formatters, highlight, lexers
from pygments.util import ClassNotFound

from ...commander.errors import ConfigurationError
from ...files.replacing import replace_private_file
from ...handlers.legible import legible
from ...messages import Message
from ...messages.mask import mask
from ._markdown import LINK, MATH_BLOCK, blocks_of, is_closed, is_too_complex, make_safe, new_parser

__all__ = ["DATA_IMAGE", "export", "html_of", "markdown_of"]

DATA_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
"""A data URL of an image. It has no character that could end an attribute or a link."""

_MAX_MESSAGE_CHARS = 2_000_000  # a longer message is not parsed as Markdown
_MAX_CODE_CHARACTERS = 200_000  # longer code, or code with a longer line, gets no colours
_MAX_COLOURED_LINE_CHARS = 2_000


def export(messages: Sequence[Message], path: str | os.PathLike[str], title: str = "Chat") -> None:
    """Write a conversation to a file: `.md` as Markdown, `.html` as a page.

    The file is replaced atomically: after a crash or on a full disk, the old file is unchanged.
    Only the user can read it. Raises `ConfigurationError` for another suffix or an invalid name,
    and `OSError` if the file cannot be written.
    """
    writers = {".md": markdown_of, ".markdown": markdown_of, ".html": html_of, ".htm": html_of}
    write = writers.get(Path(path).suffix.lower())
    if write is None:
        raise ConfigurationError(
            f"the name of the file {str(path)!r} must end in one of {', '.join(writers)}"
        )
    replace_private_file(path, write(messages, title))


# --- the parts of a message

_Kind: TypeAlias = Literal["text", "reasoning", "refusal", "call", "image", "file", "other"]


class _Piece(NamedTuple):
    """A part of a message without keys and control characters; `name` names a tool or a file."""

    kind: _Kind
    text: str
    name: str = ""


def _pieces(message: Message) -> Iterator[_Piece]:
    if message.reasoning:
        yield _Piece("reasoning", _clean(message.reasoning))
    if message.content or message.role == "tool":
        yield _Piece("text", _clean(message.content), _clean(message.name))
    if message.refusal:
        yield _Piece("refusal", _clean(message.refusal))
    for part in message.parts:
        if DATA_IMAGE.fullmatch(part.url):
            yield _Piece("image", part.url, _clean(part.about))
        elif part.kind == "text":
            content = (part.data or b"").decode(errors="replace")
            yield _Piece("file", _clean(content), _clean(part.about))
        else:
            url = part.url if part.size is None else ""
            yield _Piece("other", _clean(url), _clean(part.about))
    for call in message.tool_calls:
        arguments = json.dumps(mask(call.arguments), indent=2, ensure_ascii=False)
        text = arguments if call.error is None else call.raw
        yield _Piece("call", _clean(text), _clean(call.name))


def _clean(text: str | None) -> str:
    return legible(mask(text or ""))


# --- Markdown

_READER = MarkdownIt("commonmark").enable("table")  # the grammar of other readers of the file


def markdown_of(messages: Sequence[Message], title: str) -> str:
    """Return a conversation as Markdown: each message below a heading with its role.

    There are no other headings of the first level. A message's text is unchanged unless it could
    break out of its section, by such a heading, HTML or an open fence. Then it becomes a quotation.
    """
    parts = [f"*{_span(_clean(title))}*"]
    for message in messages:
        parts.append(f"# {message.role.capitalize()}")
        for kind, text, name in _pieces(message):
            match kind:
                case "text" if message.role == "tool":
                    parts += [f"Result of {_span(name)}:"] if name else []
                    parts.append(_fence(text))
                case "text":
                    parts.append(_contained(text))
                case "reasoning":
                    parts += ["Reasoning:", _fence(text)]
                case "refusal":
                    parts += ["Refusal:", _contained(text)]
                case "image":
                    parts.append(f"![image]({text})")
                case "file":
                    parts += [f"File {_span(name)}:", _fence(text)]
                case "other":
                    parts.append(f"Attached: {_span(text or name)}")
                case "call":
                    parts += [f"Call of {_span(name)}:", _fence(text, "json")]
    return "\n\n".join(parts) + "\n"


def _contained(text: str) -> str:
    """Return Markdown that cannot merge with later text."""
    text = text.strip("\n")
    blocks = blocks_of(f"{text}\n", _READER)
    if is_too_complex(text, blocks, _MAX_MESSAGE_CHARS) or any(map(_breaks_out, blocks)):
        return "\n".join(f"> {line}" for line in text.split("\n"))
    return text


def _breaks_out(token: Token) -> bool:
    is_heading = token.type == "heading_open" and token.tag == "h1"
    return (
        is_heading or token.type == "html_block" or (token.type == "fence" and not is_closed(token))
    )


def _fence(text: str, language: str = "") -> str:
    """Return text as a code block whose fence does not occur in the text."""
    marks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{marks}{language}\n{text}\n{marks}"


def _span(text: str) -> str:
    """Return text as inline code."""
    text = " ".join(text.split()) or " "
    marks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks} {text} {marks}" if "`" in text else f"`{text}`"


# --- HTML

_ROLES = {"user": "You", "assistant": "Assistant", "tool": "Tool"}
# The types of pygments are incomplete.
_lexers: Any = lexers
_formatters: Any = formatters

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
    """Return a conversation as a page, with results of tools folded below their calls.

    The page's content security policy allows only images in the page and its own style.
    """
    style = _STYLE + _colors()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'"
    name = escape(_clean(title))
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{name}</h1></header>\n"
    )
    return head + "\n".join(_articles(messages)) + "\n</main>\n</body>\n</html>\n"


def _articles(messages: Sequence[Message]) -> Iterator[str]:
    folded: set[int] = set()  # indices of the results shown below their calls
    for at, message in enumerate(messages):
        if at in folded:
            continue
        results: dict[str, int] = {}
        for place in range(at + 1, len(messages) if message.tool_calls else 0):
            if messages[place].role != "tool":
                break
            results.setdefault(messages[place].tool_call_id or "", place)
        places = [results.pop(call.id, None) for call in message.tool_calls]
        folded.update(place for place in places if place is not None)
        answers = iter([None if place is None else messages[place] for place in places])
        inside: list[str] = []
        for piece in _pieces(message):
            result = next(answers) if piece.kind == "call" else None
            inside.append(_html_of_piece(piece, message.role, result))
        heading = _ROLES.get(message.role, "System")
        yield (
            f'<article class="{message.role}">\n<h2>{heading}</h2>\n'
            + "\n".join(inside)
            + "\n</article>"
        )


def _html_of_piece(piece: _Piece, role: str, result: Message | None) -> str:
    kind, text, name = piece
    match kind:
        case "text" if role == "assistant":
            return _prose(text)
        case "text" if role == "user":
            return _plain(text)
        case "text" if role == "tool":
            return _folded(f"the result of {name}" if name else "the result", _pre(text))
        case "text":
            return _folded("instructions", _pre(text))
        case "reasoning":
            return _folded("reasoning", _plain(text))
        case "refusal":
            return f'<p class="refusal plain">{escape(text)}</p>'
        case "image":
            return f'<p><img src="{text}" alt="{escape(name)}"></p>'
        case "file":
            return _folded(name, _pre(text))
        case "other" if LINK.fullmatch(text):
            link = f'<a href="{escape(text)}" rel="noopener noreferrer">{escape(name)}</a>'
            return f"<p>{link}: {escape(text)}</p>"
        case "other":
            return f"<p>{escape(name)}</p>"
        case "call":
            answer = "<p>No result.</p>"
            parts: list[str] = []
            if result is not None:
                answer = _pre(_clean(result.content))
                pieces = (each for each in _pieces(result) if each.kind != "text")
                parts = [_html_of_piece(each, "tool", None) for each in pieces]
            return "\n".join([_folded(f"called {name}", f"{_pre(text)}\n{answer}"), *parts])


def _folded(summary: str, inside: str) -> str:
    return f"<details>\n<summary>{escape(summary)}</summary>\n{inside}\n</details>"


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _plain(text: str) -> str:
    return f'<div class="plain">{escape(text)}</div>'


def _prose(text: str) -> str:
    """Return Markdown as HTML, or as plain text if it is too complex to parse."""
    parser = _parser()
    if is_too_complex(text, blocks_of(text, parser), _MAX_MESSAGE_CHARS):
        return _plain(text)
    tokens = parser.parse(text)
    make_safe(tokens)
    for token in tokens:
        if style := token.attrs.pop("style", None):  # the content policy forbids inline styles
            token.attrs["align"] = str(style).removeprefix("text-align:")
    return f"<div>{parser.renderer.render(tokens, parser.options, {})}</div>"


@lru_cache(1)
def _parser() -> MarkdownIt:
    parser = new_parser()
    for name, rule in (("fence", _code), ("code_block", _code), (MATH_BLOCK, _math)):
        parser.add_render_rule(name, rule)
    return parser


def _math(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    lines = escape(tokens[at].content.strip("\n")).split("\n")
    return f"<p>{'<br>'.join(lines)}</p>\n"


def _code(_: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    code, name = tokens[at].content, (tokens[at].info.split() or ["text"])[0]
    longest = max(map(len, code.split("\n")))
    if len(code) > _MAX_CODE_CHARACTERS or longest > _MAX_COLOURED_LINE_CHARS:
        name = "text"
    try:
        lexer = _lexers.get_lexer_by_name(name, stripnl=False)
    except ClassNotFound:
        lexer = _lexers.get_lexer_by_name("text", stripnl=False)
    colored = highlight(code, lexer, _formatters.HtmlFormatter(nowrap=True))
    return f'<pre><code class="code">{colored}</code></pre>\n'


@lru_cache(1)
def _colors() -> str:
    """Return the styles of code for light and dark pages."""
    light = _formatters.HtmlFormatter(style="default").get_style_defs(".code")
    dark = _formatters.HtmlFormatter(style="github-dark").get_style_defs(".code")
    plain = ".code { background: none; }"
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{plain}\n"
