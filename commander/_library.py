"""Tells the user's own code from the libraries' when a line is named."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

__all__ = ["is_library"]

PATHS = sysconfig.get_paths()
FOLDERS = tuple(PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
ENGINE = str(Path(__file__).parent)


@cache
def is_library(filename: str) -> bool:
    """Say whether a file belongs to Python, to an installed package or to this room."""
    return filename.startswith((*FOLDERS, ENGINE, "<frozen"))
