"""Backends by name: `as_backend`, and the pools of connections that such backends share.

Each event loop has one pool. It has one backend for each name, made by `connect`. The users of a
pool are the outermost commanders whose nodes have used it, single streams outside of a tree, and
backends that were entered. When the last user ends, the loop forgets the pool at once, so that a
new request opens another one, and the old one is closed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from threading import Lock
from typing import Any, Self, SupportsIndex

from anyio import to_thread

from ..commander import Commander, Node, outermost_commander
from ..commander.errors import ConfigurationError
from ..commander.waiting import wait_shielded
from ..messages import Delta, Message, OutputMode, Request, require_request
from ._address import hide_secrets, is_address, server_address
from ._backend import Backend
from ._embedding import list_of_texts
from ._providers import connect, hosted_provider
from .limits import Limits
from .override import REPLACEMENTS

__all__ = ["NamedBackend", "as_backend"]


def as_backend(backend: Backend | str) -> Backend:
    """Return a backend, or make one of a name, as everything that takes a `backend` does.

        backend = as_backend("openai:gpt-5-mini")

    A name is an address for `connect`, without settings. The backend connects at its first use and
    is closed by itself: see `NamedBackend`. Raises the errors of `connect` for an unknown name. A
    missing key of a hosted model raises `ConfigurationError` at the first use.
    """
    if not isinstance(backend, str):
        return backend
    backend = backend.strip()
    if backend.startswith("cassette:"):
        return connect(backend)  # it has no connection, and its place in the file must last
    return NamedBackend(backend)


class NamedBackend(Backend):
    """A backend that was given by its name. It needs no `connect` and no block.

        agent = Agent("openai:gpt-5-mini")

    All backends of one name share one pool of connections in each event loop. It opens at the first
    use, and closes when the last commander of that loop whose nodes have used it ends, or the last
    request outside of a tree. The next use opens it again, and reads the key from the environment.
    Entering the backend keeps the pool of the running loop open until the block is left.

    The limits of one pool are shared. For settings, and for connections whose lifetime is yours,
    use `connect`. It pickles as its name.
    """

    def __init__(self, name: str) -> None:
        if is_address(name):
            shown = hide_secrets(server_address(name))
            raise ConfigurationError(
                f"{shown!r} is the address of a server, which needs the name of its model: pass"
                f" connect({shown!r}, model='...')"
            )
        self.name = name
        self._host = hosted_provider(name)
        # A hosted model needs a key, which may never be set where a test replaces the model.
        self._made: Backend | None = None if self._host is not None else connect(name)
        if self._made is None:
            super().__init__(name.partition(":")[2])
            self.provider = name.partition(":")[0]
        else:
            super().__init__(self._made.model, formats=self._made.formats)
            self.provider = self._made.provider

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return as_backend, (self.name,)

    # --- facts about the model

    def _known(self) -> Backend | None:
        """Return a backend of this name; None for a hosted model without a key."""
        pool = _pool_here()
        if pool is not None and self.name in pool.backends:
            return pool.backends[self.name]
        if self._host is None:
            return self._made
        from ._openai import OpenAIBackend

        with suppress(ConfigurationError):  # no key, or a wrong address in the environment
            return OpenAIBackend(self.model, self._host, load=False)
        return None

    @property
    def takes(self) -> frozenset[str] | None:
        """The inputs that the model takes beside text; see `Backend.takes`."""
        return None if self._made is None else self._made.takes

    @property
    def output_modes(self) -> Sequence[OutputMode]:
        """The ways in which its model can be asked for typed output, the best first."""
        known = self._known()
        if known is None and self._host is not None:
            return self._host.modes_of(self.model)
        return super().output_modes if known is None else known.output_modes

    @property
    def item_provider(self) -> str:
        """The provider name of the `ProviderItem`s in its replies."""
        known = self._known()
        return self.provider if known is None else known.item_provider

    @property
    def server(self) -> tuple[str, int] | None:
        """The host and port of its server; None for a model in this process."""
        known = self._known()
        return None if known is None else known.server

    def limits_of_model(self, model: str) -> Sequence[Limits]:
        known = self._known()
        return () if known is None else known.limits_of_model(model)

    def redact(self, text: str) -> str:
        """Return `text` with stars in place of the backend's key."""
        known = self._known()
        return text if known is None else known.redact(text)

    # --- requests

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request`, delta by delta."""
        require_request(request)
        async with _use(self.name) as backend, aclosing(backend.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each of `texts`, in their order; see `Backend.embed`."""
        texts = list_of_texts(texts)
        async with _use(self.name) as backend:
            return await backend.embed(texts)

    async def warm(self, request: Request) -> None:
        """Prepare for requests that begin as `request` does, while the pool is open."""
        async with _use(self.name) as backend:
            await backend.warm(request)

    def check_parts(self, messages: Sequence[Message]) -> None:
        """Raise `ConfigurationError` if the model is known not to take a part of `messages`."""
        if self._made is not None:
            self._made.check_parts(messages)

    # --- lifetime

    async def __aenter__(self) -> Self:
        """Keep the pool of this loop open, and load a model of this process.

        Raises `ConfigurationError` if the key of a hosted model is missing, but not where the
        models of agents are replaced: there it may never be asked.
        """
        pool = _enter_pool()
        try:
            await (await pool.get(self.name)).__aenter__()
        except ConfigurationError:
            if self._host is None or not REPLACEMENTS.get():
                await pool.leave()
                raise
        except BaseException:
            await pool.leave()
            raise
        pool.entered.append(self)
        return self

    async def aclose(self) -> None:
        """End the last block that entered it in this loop. Without one, this does nothing."""
        pool = _pool_here()
        if pool is not None and self in pool.entered:
            pool.entered.remove(self)
            await pool.leave()


class _Pool:
    """The backends by name of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.backends: dict[str, Backend] = {}
        self.users = 0
        self.commanders: set[Commander] = set()  # those that are users
        self.entered: list[NamedBackend] = []

    async def get(self, name: str) -> Backend:
        """Return the backend of a name, made at its first use."""
        if name not in self.backends and hosted_provider(name) is not None:
            from ._openai import load_sdk

            if "openai" not in sys.modules:  # it must not block the loop for a second
                await to_thread.run_sync(load_sdk)
        if name not in self.backends:
            self.backends[name] = connect(name)
        return self.backends[name]

    def keep_until_end_of(self, commander: Commander) -> None:
        """Count a commander as a user until its end."""
        if commander not in self.commanders:

            async def leave(_: Node[Any]) -> None:
                self.commanders.discard(commander)
                await self.leave()

            commander.at_commander_end(leave)
            self.commanders.add(commander)
            self.users += 1

    async def leave(self) -> None:
        """End one use. The last user closes the backends, and waits for that if cancelled."""
        self.users -= 1
        if self.users or self.loop.is_closed():
            return
        with _lock:
            if _pools.get(self.loop) is self:
                del _pools[self.loop]
        backends = [*self.backends.values()]
        if not backends:
            return
        # In a task, because a second cancel must not end it. No other user can reach the backends.
        closing = asyncio.Task(_close(backends), loop=self.loop)
        interrupted = await wait_shielded(closing)
        closing.result()
        if interrupted is not None:
            raise interrupted


async def _close(backends: Sequence[Backend]) -> None:
    failures: list[Exception] = []
    for backend in backends:
        try:
            await backend.aclose()
        except Exception as error:  # noqa: BLE001 - the others must be closed, too
            failures.append(error)
    if failures:
        raise failures[0]


_pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
_lock = Lock()  # loops in several threads open their pools at the same time


def _pool_here() -> _Pool | None:
    """Return the open pool of the running loop, None without either."""
    try:
        return _pools.get(asyncio.get_running_loop())
    except RuntimeError:
        return None


def _enter_pool() -> _Pool:
    """Return the pool of the running loop with one more user."""
    loop = asyncio.get_running_loop()
    with _lock:
        pool = _pools.get(loop)
        if pool is None:
            for other in [other for other in _pools if other.is_closed()]:
                del _pools[other]
            pool = _pools[loop] = _Pool(loop)
        pool.users += 1
    return pool


@asynccontextmanager
async def _use(name: str) -> AsyncGenerator[Backend, None]:
    """Use the backend of a name in the pool of the running loop."""
    pool = _enter_pool()
    try:
        commander = outermost_commander()
        if commander is not None:
            pool.keep_until_end_of(commander)
        yield await pool.get(name)
    finally:
        await pool.leave()
