"""Objects that belong to one event loop, such as connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["Connections", "PerLoop"]

_T = TypeVar("_T")


class PerLoop(Generic[_T]):
    """One object for each event loop, made at first use."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, _T] = {}

    def get(self) -> _T:
        """Return the running loop's object."""
        loop = asyncio.get_running_loop()
        made = self._made.get(loop)
        if made is None:
            for other in [other for other in self._made if other.is_closed()]:
                del self._made[other]
            made = self._made[loop] = self._make()
        return made

    def pop(self) -> _T | None:
        """Remove the running loop's object and return it, None if there is none."""
        return self._made.pop(asyncio.get_running_loop(), None)


class Closable(Protocol):
    """An object with connections to close."""

    async def close(self) -> None:
        """Close the connections."""
        ...


_C = TypeVar("_C", bound=Closable)


class Connections(Generic[_C]):
    """A client for each event loop, opened at first use and closed by `close`.

    An open client is closed with its loop: an async generator holds it, and `asyncio.run` and our
    own `run` close those before the loop.
    """

    __slots__ = ("_clients",)

    def __init__(self, open_client: Callable[[], _C]) -> None:
        async def hold() -> AsyncGenerator[_C, None]:
            client = open_client()
            try:
                while True:
                    yield client
            finally:
                await client.close()

        self._clients = PerLoop(hold)

    async def get(self) -> _C:
        """Return the running loop's client."""
        return await anext(self._clients.get())

    async def close(self) -> None:
        """Close the running loop's client. The next request opens another one."""
        if (client := self._clients.pop()) is not None:
            await client.aclose()
