"""The limits of a tree, as its parts elsewhere have them: home says whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ..backends.limits import Turn
from ..commander.errors import WorkerLost
from ..commander.waiting import outlast
from ._desk import Address, Wanted
from ._pack import pack
from ._pull import Pull

__all__ = ["DistantLimits"]


@dataclass(frozen=True, slots=True)
class DistantLimits:
    """Limits that are held at home. They can be sent on."""

    home: Address
    counts_tokens: bool

    @asynccontextmanager
    async def request(self, model: str, tokens: int = 0) -> AsyncGenerator[Turn, None]:
        """Wait for a turn, as `Limits.request` does. Raises `WorkerLost` too."""
        desk, seat, call = self.home
        turn, wanted = Turn(model, tokens), Wanted(seat, call, uuid4().hex, model, tokens)
        async with Pull(desk, pack(wanted, "a turn")) as pull:
            given = await pull.take() or ()
            try:
                yield turn
            finally:
                for ask in given:
                    await _outlasting(pull.answer(ask.number, turn.usage, None))


async def _outlasting(ending: Coroutine[Any, Any, object]) -> None:
    """Let it end, also where this is cancelled; whom it was for may have gone."""
    ended = asyncio.ensure_future(ending)
    interrupted = await outlast(ended)
    with suppress(WorkerLost):
        ended.result()
    if interrupted is not None:
        raise interrupted
