"""The desk: an actor beside a program, through which what runs elsewhere reaches it.

Nobody can call a program, so it reads at its desk, where each commander that has sent something has
a seat. To the seat come reports of what happens elsewhere, and requests for turns of the tree's
limits.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4
from weakref import WeakKeyDictionary

from ..commander import current_node
from ..messages import Usage
from ._actor import Actor, Outlet
from ._pack import pack
from ._ray import Cluster, as_lost, as_refused, aside
from ._resident import Lost, Resident

__all__ = ["Address", "Desk", "News", "Returned", "Sit", "Wanted", "desk_of"]


class Desk(Resident):
    """A handle of a program's desk."""

    kind: ClassVar[str] = "desk"

    _seeking: Future[Any] | None = None

    def seek(self) -> None:
        """Begin to look for its actor, if nobody has yet: the first report need not wait then.

        It goes on in a thread, whatever becomes of what runs here.
        """
        if self._home is None and self._seeking is None:
            self._seeking = aside(asyncio.run, super().located())

    async def located(self) -> tuple[Cluster, Any]:
        """See `Resident.located`."""
        if self._home is None and self._seeking is not None:
            with suppress(Exception):  # it is looked for once more, and that raised
                await asyncio.wrap_future(self._seeking)
        return await super().located()

    async def tell(self, news: News) -> None:
        """Pass a report on to home; return when home has taken it. Raises `WorkerLost`."""
        # The head is not watched meanwhile: without it Ray ends this worker anyway.
        cluster, actor = await self.located()
        try:
            await actor.tell.remote(news.seat, news.call, news.number, news.report)
        except cluster.ray.exceptions.RayError as error:
            raise as_lost(error, self.path) or error from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _desk_called, (self.name,)


@lru_cache(16)
def _desk_called(name: str) -> Desk:
    # One for all that comes to a process from there, so that it is looked for once.
    return Desk(name)


class Address(NamedTuple):
    """Where something that runs elsewhere is heard at home: a desk, a seat there, a call."""

    desk: Desk
    seat: str
    call: str


# --- what is asked of the desk


@dataclass(frozen=True, slots=True)
class Sit:
    """Home reads at this seat from now on."""

    seat: str


@dataclass(frozen=True, slots=True)
class News:
    """A report, the call's `number`th from 1."""

    seat: str
    call: str
    number: int
    report: bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """A turn of the tree's limits, as long as this stream lasts."""

    seat: str
    call: str
    number: str
    model: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Returned:
    """What home is told when a turn is over: what was used, None if nothing was sent."""

    call: str
    number: str
    usage: Usage | None


# --- in the actor


class DeskTenant:
    """Passes on to home what comes for it; home is waited for."""

    def __init__(self) -> None:
        self._seats: dict[str, Outlet] = {}
        self._sat = asyncio.Event()

    async def play(self, outlet: Outlet, request: Sit | Wanted) -> None:
        """Let home sit down, or pass on a wish."""
        if isinstance(request, Sit):
            await self._sit(outlet, request.seat)
        else:
            await self._pass_on(outlet, await self._home(request.seat), request)

    async def tell(self, news: News) -> None:
        """Pass on a report; return when home has taken it."""
        await (await self._home(news.seat)).deliver(news)

    async def _home(self, seat: str) -> Outlet:
        while (home := self._seats.get(seat)) is None:
            self._sat.clear()
            await self._sat.wait()
        return home

    async def _sit(self, outlet: Outlet, seat: str) -> None:
        self._seats[seat] = outlet
        self._sat.set()
        try:
            await asyncio.Event().wait()
        finally:
            del self._seats[seat]

    async def _pass_on(self, outlet: Outlet, home: Outlet, wanted: Wanted) -> None:
        usage = None
        try:
            await home.ask(wanted)
            usage = await outlet.ask(wanted.number)
        finally:
            home.send_nowait(Returned(wanted.call, wanted.number, usage))

    async def aclose(self) -> None:
        """It holds nothing."""


class DeskActor(Actor):
    """The actor of a desk."""

    async def tell(self, seat: str, call: str, number: int, report: bytes) -> None:
        """See `DeskTenant.tell`. A stream for each report would take twice as long."""
        assert isinstance(self._tenant, DeskTenant)
        await self._tenant.tell(News(seat, call, number, report))


async def _make_tenant() -> DeskTenant:
    return DeskTenant()


# --- this program's own

_lock = Lock()
_desks: WeakKeyDictionary[Cluster, Future[Desk]] = WeakKeyDictionary()


async def desk_of(cluster: Cluster) -> Desk:
    """Return this program's desk, which is opened at first, and anew after its loss.

    Raises `WorkerLost` if the cluster's head is lost meanwhile, or Ray cannot keep the desk.
    """
    with _lock:
        opening = _desks.get(cluster)
        if opening is None or (opening.done() and not _usable(opening)):
            opening = _desks[cluster] = aside(_open, cluster)
    async with Lost(cluster, current_node().path) as lost:
        return await lost.wait(asyncio.wrap_future(opening))


def _usable(opening: Future[Desk]) -> bool:
    return opening.exception() is None and not opening.result().lost


def _open(cluster: Cluster) -> Desk:
    desk = _desk_called(uuid4().hex)
    try:
        desk.open_beside(cluster, DeskActor, pack(_make_tenant, "the desk"))
    except cluster.ray.exceptions.RayError as error:
        what = "the desk of this program"
        raise as_lost(error, what) or as_refused(error, what) or error from None
    return desk
