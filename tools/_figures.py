"""Where the figures that code draws are saved."""

from __future__ import annotations

import os
import tempfile
from itertools import count
from pathlib import Path

__all__ = ["Figures"]


class Figures:
    """Saves figures in a folder, each under a number of its own; nothing is overwritten.

    The folder is made with the first figure; without a name it is a new one among the temporary
    files, which only its user can read.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self._numbers = count(1)

    def save(self, image: bytes, ending: str) -> Path:
        """Write one figure and return its path; raise `OSError` if that cannot be done."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="anabranch-figures-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = self.folder / f"figure-{next(self._numbers)}.{ending}"
            try:
                with path.open("xb") as file:
                    file.write(image)
            except FileExistsError:
                continue
            return path

    def __reduce__(self) -> tuple[type[Figures], tuple[Path | None]]:
        return Figures, (self.folder,)
