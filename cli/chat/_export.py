"""A conversation as a file to read: Markdown, or a page of HTML that asks nobody for anything.

Neither has what looks like a key, and nothing that was said passes for what the file says: no
message ends its own place or takes another's role.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...commander.errors import ConfigurationError
from ...messages import Message
from ...messages.whole import write_whole
from ._export_html import html_of
from ._export_markdown import markdown_of

__all__ = ["export"]

_WRITERS: Mapping[str, Callable[[Sequence[Message], str], str]] = {
    ".md": markdown_of,
    ".markdown": markdown_of,
    ".html": html_of,
    ".htm": html_of,
}


def export(messages: Sequence[Message], path: str | os.PathLike[str], title: str = "Chat") -> None:
    """Write a conversation to a file: `.md` is Markdown, `.html` a page.

    The file is replaced in one step: whoever reads it, even after a crash or a full disk, finds
    what was there before or the whole conversation, never a part. Only its user may read it.
    Raises `ConfigurationError` for another ending and for what can name no file, `OSError` if it
    cannot be written, also where something stands that is no file.
    """
    target = Path(path)
    write = _WRITERS.get(target.suffix.lower())
    if write is None:
        raise ConfigurationError(f"{str(path)!r} is to end in one of {', '.join(_WRITERS)}")
    write_whole(path, write(messages, title))
