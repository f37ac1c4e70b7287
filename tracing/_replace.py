"""Write what is made of a recording to a file, but never over a recording."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from ..commander.errors import ConfigurationError
from ..messages.whole import replace_file, resolve, write_pieces
from .records import HEAD

__all__ = ["write_output"]


def write_output(file: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """Replace a file in one step and keep its permissions; write into a pipe or a terminal.

    Raises `ConfigurationError` if it cannot be written, or is a recording: that would be lost.
    """
    try:
        path = resolve(Path(file))
        if path.exists() and not (path.is_file() or path.is_dir()):
            write_pieces(path, pieces, "w")
            return
        mode = 0o666
        if path.is_file():
            with path.open("rb") as before:
                if before.read(len(HEAD)) == HEAD:
                    raise ValueError("it is a recording, which would be lost")
            mode = stat.S_IMODE(path.stat().st_mode)
        replace_file(path, pieces, mode)
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot write {os.fspath(file)!r}: {why}") from None
