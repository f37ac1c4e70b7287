"""A conversation as a file to read: Markdown, or a page of HTML that asks nobody for anything.

Neither has what looks like a key, and nothing that was said passes for what the file says: no
message ends its own place or takes another's role.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...commander.errors import ConfigurationError
from ...messages import Message
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
    text = write(messages, title)
    try:
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "this is no file that could be replaced", str(path))
        target = target.resolve()  # a link keeps pointing at the file it names
    except (ValueError, RuntimeError) as error:  # a NUL in it; a link to itself
        raise ConfigurationError(f"{str(path)!r} cannot name a file: {error}") from None
    descriptor, name = tempfile.mkstemp(prefix=".chat.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
