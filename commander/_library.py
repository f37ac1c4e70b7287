"""Tells the user's own code from the libraries' when a line is named."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

__all__ = ["is_library", "is_python"]

PATHS = sysconfig.get_paths()
PYTHON = (PATHS["stdlib"], PATHS["platstdlib"], "<frozen")
PACKAGES = (PATHS["purelib"], PATHS["platlib"])
ENGINE = str(Path(__file__).parent)


@cache
def is_library(filename: str) -> bool:
    """Say whether a file belongs to Python, to an installed package or to this room."""
    return filename.startswith((*PYTHON, *PACKAGES, ENGINE))


@cache
def is_python(filename: str) -> bool:
    """Say whether a file belongs to Python itself or to this room, and to no other package."""
    if filename.startswith(ENGINE):
        return True
    return filename.startswith(PYTHON) and not filename.startswith(PACKAGES)
