"""Replace a text file in one step: a reader finds the old text or the new one, never a part."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex

from ..commander.errors import ConfigurationError

__all__ = ["replace_file", "replace_private_file", "resolve_link", "write_pieces"]


def replace_private_file(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file in one step; only its user may read it.

    A crash or a full disk leaves the old file. Raises `OSError` if the file cannot be written or is
    a folder, a pipe or a device, and `ConfigurationError` if no file can have this name.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "only a regular file can be replaced", str(path))
        target = resolve_link(target)
    except (ValueError, RuntimeError) as error:  # a NUL in it; a link to itself
        raise ConfigurationError(f"{str(path)!r} cannot name a file: {error}") from None
    replace_file(target, [text], 0o600)


def resolve_link(path: Path) -> Path:
    """Return the target of a link, so that the link itself is not replaced.

    Raises `RuntimeError` for a link to itself.
    """
    path = path.resolve()
    if path.is_symlink():  # Python 3.13 and later do not raise
        raise RuntimeError("a link to itself")
    return path


def replace_file(path: Path, pieces: Iterable[str], mode: int) -> None:
    """Write pieces of text to a new file beside `path`, sync it, and rename it to `path`.

    `mode` has the permissions of the new file, as for `os.open`.
    """
    part = path.with_name(f".{path.name[:100]}.{token_hex(4)}.part")
    try:
        write_pieces(part, pieces, "x", mode)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_pieces(path: Path, pieces: Iterable[str], how: str, mode: int = 0o666) -> None:
    """Write pieces of text to a new file ("x") or into an existing one ("w"), as UTF-8."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    # A model can send half of a surrogate pair, which UTF-8 cannot encode.
    with open(path, how, encoding="utf-8", errors="replace", newline="\n", opener=opener) as file:
        file.writelines(pieces)
        file.flush()
        if how == "x":
            os.fsync(file.fileno())
