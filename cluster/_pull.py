"""A stream out of an actor, as its reader sees it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any, Self
from uuid import uuid4

from ..commander.errors import WorkerLost
from ..commander.waiting import outlast
from ._pack import Outcome
from ._resident import Lost, Resident

__all__ = ["Pull"]


class Pull:
    """A stream out of an actor; leaving the block ends it there, and waits for that.

        async with Pull(resident, request) as pull:
            while (items := await pull.take()) is not None:
                ...

    `request` is packed. Each `take` is one call to the actor; nothing is fetched before.
    """

    def __init__(self, resident: Resident, request: bytes) -> None:
        self._resident = resident
        self._request = request
        self._key = uuid4().hex
        self._begun = False
        self._ended = False
        self._failure: BaseException | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._cluster, self._actor = await self._resident.located()
        lost = Lost(self._cluster, self._resident.path)
        self._lost = await self._stack.enter_async_context(lost)
        return self

    async def take(self) -> list[Any] | None:
        """Wait until there is something, and return all there is; None at the end.

        Raises what the stream failed with, after what came before it, and `WorkerLost` if the actor
        is gone.
        """
        if not self._ended:
            try:
                packed, self._ended = await self._more()
            except WorkerLost:
                self._ended = True
                self._resident.forget()
                raise
            outcome = Outcome.unpacked(packed)
            self._failure = outcome.failure
            if outcome.value:
                return outcome.value
        if self._failure is not None:
            raise self._failure
        return None

    async def _more(self) -> Any:
        patience = self._resident.patience
        if self._begun:
            return await self._lost.call(self._actor.next, self._key, patience)
        self._begun = True
        self._beat = asyncio.get_running_loop().call_later(patience / 3, self._keep)
        return await self._lost.call(self._actor.open, self._key, self._request, patience)

    def _keep(self) -> None:
        """Tell the actor that this process is alive, however long its reader takes."""
        if not self._cluster.usable:
            return
        patience = self._resident.patience
        self._actor.keep.remote(self._key, patience)
        self._beat = asyncio.get_running_loop().call_later(patience / 3, self._keep)

    async def answer(self, number: int, value: Any, failure: BaseException | None) -> None:
        """Answer an `Ask` that was among the items."""
        packed = Outcome(value, failure).packed()
        await self._lost.call(self._actor.answer, self._key, number, packed)

    async def __aexit__(self, *_: object) -> None:
        if self._beat is not None:
            self._beat.cancel()
        async with self._stack:
            if not self._begun or self._ended:
                return
            ending = asyncio.ensure_future(self._end())
            if (interrupted := await outlast(ending)) is not None:
                raise interrupted

    async def _end(self) -> None:
        with suppress(WorkerLost):
            await self._lost.call(self._actor.close, self._key)
