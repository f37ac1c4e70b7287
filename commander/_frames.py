"""The frames of a suspended coroutine, and which of them are the user's code."""

from __future__ import annotations

import asyncio
import gc
import os
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, TypeVar

__all__ = [
    "awaited_by",
    "chain",
    "frame_of",
    "frames",
    "is_library",
    "is_python",
    "is_sleeping",
    "mark_driver",
]

F = TypeVar("F", bound=Callable[..., Any])

DRIVERS: set[CodeType] = set()


def mark_driver(function: F) -> F:
    """Mark a generator-based coroutine that steps the coroutine in its variable `body`.

    Without the mark, `chain` would end at it: Python does not expose the awaited coroutine.
    """
    DRIVERS.add(function.__code__)  # type: ignore[attr-defined]
    return function


def frames(coroutine: object) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of those it awaits, outermost first."""
    for thing in chain(coroutine):
        frame = frame_of(thing)
        if frame is not None:
            yield frame


def is_sleeping(coroutine: object) -> bool:
    """Return whether a coroutine is suspended in `asyncio.sleep`."""
    innermost = list(frames(coroutine))[-1:]
    return bool(innermost) and innermost[0].f_code is asyncio.sleep.__code__


def chain(thing: object) -> Iterator[object]:
    """Yield a coroutine, the one it awaits, and so on, as far as they have frames."""
    while thing is not None:
        names = NAMES.get(type(thing))
        if names is None:
            # A wrapper in C, such as that of a step of an async generator.
            thing = next((each for each in gc.get_referents(thing) if type(each) in NAMES), None)
            continue
        yield thing
        frame, inner = getattr(thing, names[0]), getattr(thing, names[1])
        if inner is None and frame is not None and frame.f_code in DRIVERS:
            inner = frame.f_locals["body"]
        thing = inner


def frame_of(thing: object) -> FrameType | None:
    """Return the frame of a coroutine from `chain`; None if it has ended."""
    return getattr(thing, NAMES[type(thing)][0])


def awaited_by(thing: object) -> object:
    """Return the awaitable of a coroutine from `chain`; None if it runs or has not begun."""
    return getattr(thing, NAMES[type(thing)][1])


# The types that have frames, with the attributes of the frame and of the awaitable.
NAMES: dict[type, tuple[str, str]] = {
    CoroutineType: ("cr_frame", "cr_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}


# --- the owner of a file

PATHS = sysconfig.get_paths()
PYTHON = (PATHS["stdlib"], PATHS["platstdlib"], "<frozen")
PACKAGES = (PATHS["purelib"], PATHS["platlib"])
SITES = {"site-packages", "dist-packages"}
ENGINE = str(Path(__file__).parent)
# The folder of all of Anabranch.
ROOT = str(Path(__file__).parent.parent) + os.sep


@cache
def is_library(filename: str) -> bool:
    """Return whether a file belongs to Python, to an installed package or to the engine."""
    return filename.startswith((*PYTHON, ENGINE)) or _is_installed(filename)


@cache
def is_python(filename: str) -> bool:
    """Return whether a file belongs to Python itself or to the engine."""
    if filename.startswith(ENGINE):
        return True
    return filename.startswith(PYTHON) and not _is_installed(filename)


def _is_installed(filename: str) -> bool:
    # `.pth` files and the site folders of the user and the system are not in `PATHS`.
    folders = Path(filename).parts
    return filename.startswith(PACKAGES) or not SITES.isdisjoint(folders)
