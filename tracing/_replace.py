"""A file that is written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex

from ..commander.errors import ConfigurationError
from .records import HEAD

__all__ = ["replace_file"]


def replace_file(file: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """Write pieces of text into a file, which is replaced in one step when all are written.

    Whoever reads it meanwhile, or after a crash, finds what was there before, and who may read it
    stays. What is no file, a pipe or a terminal, is written to. Raises `ConfigurationError` where
    that cannot be done, and for a recording, which nobody could make again.
    """
    path = Path(file)
    try:
        path = path.resolve()  # a link keeps pointing at the file it names
        rights = 0o666
        if path.is_file():
            with path.open("rb") as there:
                if there.read(len(HEAD)) == HEAD:
                    raise ValueError("it is a recording, which would be lost")
            rights = stat.S_IMODE(path.stat().st_mode)
        elif path.exists() and not path.is_dir():
            _write(path, "w", pieces)
            return
        part = path.with_name(f".{path.name[:100]}.{token_hex(4)}.part")
        try:
            _write(part, "x", pieces, rights)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot write {os.fspath(file)!r}: {why}") from None


def _write(path: Path, mode: str, pieces: Iterable[str], rights: int = 0o666) -> None:
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, rights)

    # Half of a surrogate pair, which a model can send, has no UTF-8.
    with open(path, mode, encoding="utf-8", errors="replace", newline="\n", opener=opener) as out:
        out.writelines(pieces)
