"""A conversation as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ...messages import Message, Part
from ._export_parts import DATA_IMAGE, arguments_of, file_of, said, too_hard

__all__ = ["markdown_of"]

_PARSER = MarkdownIt("commonmark").enable("table")


def markdown_of(messages: Sequence[Message], title: str) -> str:
    """Return a conversation as Markdown: each message below a heading that is its role.

    These are the only headings of the first level. What a message says stands there as it is, or
    as a quotation where it would break out: with such a heading, HTML, or a fence left open.
    """
    parts = [f"*{_span(said(title))}*"]
    for message in messages:
        parts.append(f"# {message.role.capitalize()}")
        if message.role == "tool":
            parts += [f"What {_span(said(message.name))} gave:"] if message.name else []
            parts.append(_fence(said(message.content)))
        elif message.content:
            parts.append(_contained(said(message.content)))
        if message.reasoning:
            parts += ["It reasoned:", _fence(said(message.reasoning))]
        if message.refusal:
            parts += ["It refused:", _contained(said(message.refusal))]
        for call in message.tool_calls:
            parts += [f"It calls {_span(said(call.name))}:", _fence(arguments_of(call), "json")]
        for part in message.parts:
            if DATA_IMAGE.fullmatch(part.url):
                parts.append(f"![image]({part.url})")
            elif part.kind == "text":
                parts += [f"The file {_span(said(part.about))}:", _fence(file_of(part))]
            else:
                parts.append(f"With it: {_span(said(_where(part)))}")
    return "\n\n".join(parts) + "\n"


def _where(part: Part) -> str:
    return part.url if part.size is None else part.about


def _contained(text: str) -> str:
    """Return Markdown that what follows is no part of, whatever is in it."""
    text = text.strip("\n")
    tokens: list[Token] = []
    _PARSER.block.parse(f"{text}\n", _PARSER, {}, tokens)
    if not too_hard(text, tokens) and not any(map(_breaks_out, tokens)):
        return text
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _breaks_out(token: Token) -> bool:
    if token.type == "html_block" or (token.type == "heading_open" and token.tag == "h1"):
        return True
    first, end = token.map or (0, 0)
    # Of a fence that has its last line, two lines are not its content.
    return token.type == "fence" and token.content.count("\n") + 2 != end - first


def _fence(text: str, language: str = "") -> str:
    """Return text as code, between marks that do not stand in it."""
    marks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{marks}{language}\n{text}\n{marks}"


def _span(text: str) -> str:
    """Return text as code in a line."""
    text = " ".join(text.split()) or " "
    marks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks} {text} {marks}" if "`" in text else f"`{text}`"
