"""What a run keeps of the work below its nodes: replies of models, and effects outside.

Backends and tools get these from the node's scope; the room that has journals implements them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["Effect", "KeptReply"]


class KeptReply(ABC):
    """A reply of a model's that the journal has, or will have when it is whole."""

    # As it was kept in an earlier life; None if it has to be asked for.
    recorded: str | None
    # What it has taken in earlier lives that ended before it did, by account.
    spent: Sequence[tuple[str, Any]] = ()
    # Whether somebody reads along: its text is to be told (`hear`) as it grows.
    hears: bool = False

    @abstractmethod
    def hear(self, text: str) -> None:
        """Take the next piece of its text, which somebody else may read before it is whole."""

    @abstractmethod
    def coming(self) -> AbstractContextManager[None]:
        """Take note, for the length of the block, that it is being read and is not whole yet."""

    @abstractmethod
    def keep(self, text: str) -> None:
        """Keep it, before anybody sees that it is whole."""

    @abstractmethod
    def break_off(self, text: str, error: BaseException) -> None:
        """Keep what came of it before `error`, and keep that.

        `GeneratorExit` and `CancelledError` say that its reader has left it, and is no failure.
        """

    @abstractmethod
    async def end(self) -> None:
        """End a recorded one as it ended, after all that came of it.

        Does nothing for a whole one; raises what it failed with; waits to be left by a reader whose
        wait was cancelled.
        """


class Effect(ABC):
    """Something done outside, which is done once in the life of its run, in whatever attempt."""

    @property
    @abstractmethod
    def key(self) -> str:
        """A name of this effect alone: the same in each attempt and each life of the run."""

    @property
    @abstractmethod
    def forgotten(self) -> bool:
        """Whether an earlier life had such effects: what its process kept of them is gone."""

    @abstractmethod
    def changed(self, inputs: Mapping[str, Any]) -> Effect:
        """Return the one with these inputs in its place; itself, if they are its own."""

    @abstractmethod
    async def ask(
        self,
        inputs: Mapping[str, Any],
        here: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]],
        check: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Return about which inputs a person was asked, and the answer: once in the run's life.

        The answer is the first that comes, from elsewhere or from `here`, which gives None if
        nobody is there. Both are plain JSON. Raises what `here` raised, or `check` of the inputs
        that the answer has, in each life; a run that has failed by that and is resumed asks anew.
        """

    @abstractmethod
    async def do(
        self,
        work: Callable[[], Awaitable[Any]],
        *,
        again: bool = False,
        reconcile: Callable[[str], Awaitable[Any]] | None = None,
        horizon: float = 0.0,
        timeout: float | None = None,
        check: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> Any:
        """Return what `work` gave, in this life or an earlier one, or do it: text or an object.

        It gets `timeout` seconds; one that is cut off by that fails with `TimeoutError`. One that
        fails has ended, and what it raised is raised again for the same attempt in each life.

        One that had begun and of whose end nothing is known is in doubt: it is done again
        if it is harmless, or if it may be sent `again` under its key; else `reconcile` is asked,
        `horizon` seconds after it began at the earliest: it gives what the effect gave, False if it
        was not done, None if that cannot be known. Then, and without it, a person is waited for,
        and again if `check` raises `ValueError` for the answer; what it returns is kept.
        """
