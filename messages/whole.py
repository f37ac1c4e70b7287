"""A file of the user's own that is written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from ..commander.errors import ConfigurationError

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file in one step; only its user may read it.

    Whoever reads it, even after a crash or a full disk, finds what was there before or all of the
    text, never a part. Raises `OSError` if that cannot be done, also where something stands that is
    no file: a folder, a pipe, a device; and `ConfigurationError` if no file can have this name.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "this is no file that could be replaced", str(path))
        target = target.resolve()  # a link keeps pointing at the file it names
        if target.is_symlink():  # Python 3.13 and later do not raise
            raise RuntimeError("a link to itself")
    except (ValueError, RuntimeError) as error:  # a NUL in it; a link to itself
        raise ConfigurationError(f"{str(path)!r} cannot name a file: {error}") from None
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
