"""Failures and values whose code raises, as results of remote jobs; workers import them too."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from anabranch import Job
from anabranch.commander import charge, emit


class Frozen:
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("it is frozen")


class Mute:
    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


class Leaving:
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class Unsendable:
    def __reduce__(self) -> Any:
        raise LookupError("it is not sent")


class Exiting:
    def __reduce__(self) -> Any:
        raise SystemExit("it is not sent")


class Other:
    def __reduce__(self) -> Any:
        return str, ("no exception",)


class Unreadable:
    def __reduce__(self) -> Any:
        return sys.exit, ("it is not read",)


class Hiding:
    def __getattribute__(self, name: str) -> Any:
        raise LookupError("no attributes")


class Untrue:
    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise LookupError("no class")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise LookupError("no name")


ODDITIES = [Frozen, Mute, Leaving, Unsendable, Exiting, Other, Unreadable, Hiding, Untrue]
NOTES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: "no list",
    lambda: [threading.Lock()],
    lambda: [3],
]


def odd_error(seed: int) -> BaseException:
    """Return an exception of a random class named Odd."""
    chance = random.Random(seed)
    bases = chance.sample(ODDITIES, chance.randint(0, 2))
    base = chance.choice((ValueError, BaseException))
    kind = chance.choice((type, Nameless))("Odd", (*bases, base), {})
    error = kind("odd")
    if chance.random() < 0.5:
        object.__setattr__(error, "__notes__", chance.choice(NOTES)())
    if chance.random() < 0.3:
        object.__setattr__(error, "lock", threading.Lock())
    return error


class Odd(Job[None]):
    """A job that emits a misbehaving value, then raises a misbehaving exception."""

    seed: int

    async def task(self) -> None:
        chance = random.Random(self.seed)
        bases = chance.choice((Mute, Leaving)), chance.choice((Unsendable, Exiting))
        emit(self, "text", type("Said", bases, {})())
        raise odd_error(self.seed)


class Owing(Job[str]):
    """A job that charges usage which cannot be pickled."""

    async def task(self) -> str:
        charge("odd", threading.Lock())
        return "done"
