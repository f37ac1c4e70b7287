"""The limits of a tree, held at home for all of it: how its parts elsewhere get their turns.

Nobody can call a program, so each one that sends limits on has an actor beside it, its desk. Home
reads there, by a stream for each part of the tree, who wants a turn, and gives it; a turn lasts as
long as the stream by which it was asked for.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future as ThreadFuture
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from ..backends._limits import Turn, Turns
from ..commander import current_node
from ..commander._errors import BudgetExceeded, WorkerLost
from ..commander._observe import outlast
from ..dispatch import Usage
from ._actor import Ask, Outlet
from ._pack import pack
from ._pull import Pull
from ._ray import Cluster, aside
from ._resident import Lost, Resident

__all__ = ["DistantLimits", "shared"]


@dataclass(frozen=True, slots=True)
class Sit:
    """Home's request: from now on it gives the turns of one tree's limits."""

    seat: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request of a tree's part for a turn, which the desk passes on to home."""

    seat: str
    number: str
    model: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Returned:
    """Word to home that a turn is over, with what was used if that is known."""

    number: str
    usage: Usage | None


# --- in the desk


class Desk(Resident):
    """A handle of this program's desk."""

    kind: ClassVar[str] = "desk"


class DeskTenant:
    """Passes on who wants a turn."""

    def __init__(self) -> None:
        self._seats: dict[str, Outlet] = {}

    async def play(self, outlet: Outlet, request: Sit | Wanted) -> None:
        """Let home sit down, or pass on that somebody wants a turn."""
        if isinstance(request, Sit):
            await self._sit(outlet, request.seat)
        elif (home := self._seats.get(request.seat)) is None:
            raise RuntimeError("the tree whose limits these are has ended")
        else:
            await self._pass_on(outlet, home, request)

    async def _sit(self, outlet: Outlet, seat: str) -> None:
        self._seats[seat] = outlet
        outlet.send_nowait(seat)
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
            home.send_nowait(Returned(wanted.number, usage))

    async def aclose(self) -> None:
        """It holds nothing."""


async def _make_tenant() -> DeskTenant:
    return DeskTenant()


_lock = Lock()
_desks: WeakKeyDictionary[Cluster, ThreadFuture[Desk]] = WeakKeyDictionary()


async def _desk_of(cluster: Cluster) -> Desk:
    """Return this program's desk, which is opened at first, and anew after its loss."""
    with _lock:
        opening = _desks.get(cluster)
        if opening is None or (opening.done() and not _usable(opening)):
            opening = _desks[cluster] = aside(_open, cluster)
    async with Lost(cluster, current_node().path) as lost:
        return await lost.wait(asyncio.wrap_future(opening))


def _usable(opening: ThreadFuture[Desk]) -> bool:
    return opening.exception() is None and not opening.result().lost


def _open(cluster: Cluster) -> Desk:
    desk = Desk(uuid4().hex)
    desk.open_beside(cluster, pack(_make_tenant, "the desk"))
    return desk


# --- where a turn is wanted


@dataclass(frozen=True, slots=True)
class DistantLimits:
    """The limits of a tree, as its parts on other machines have them; what they say holds there.

    It can be sent anywhere, and holds until the block of `shared` ends.
    """

    desk: Desk
    seat: str
    counts_tokens: bool

    @asynccontextmanager
    async def request(self, model: str, tokens: int = 0) -> AsyncGenerator[Turn, None]:
        """Wait for a turn, as `Limits.request` does. Raises `WorkerLost` too."""
        turn = Turn(model, tokens)
        wanted = Wanted(self.seat, uuid4().hex, model, tokens)
        async with Pull(self.desk, pack(wanted, "a turn")) as pull:
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


# --- where the limits are


@asynccontextmanager
async def shared(
    limits: Turns | None, cluster: Cluster
) -> AsyncGenerator[DistantLimits | None, None]:
    """Give turns of `limits` to all that has what this yields, until the block ends.

    The turns that are held then are taken back. Raises `WorkerLost` if the desk is gone.
    """
    if limits is None or isinstance(limits, DistantLimits):
        yield limits
        return
    desk, seat = await _desk_of(cluster), uuid4().hex
    async with Pull(desk, pack(Sit(seat), "a seat")) as pull:
        await pull.take()
        giving = asyncio.ensure_future(Giver(limits, pull).give())
        try:
            yield DistantLimits(desk, seat, limits.counts_tokens)
        finally:
            giving.cancel()
            await _outlasting(_ended(giving))


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait((task,))


class Giver:
    """Gives turns of a tree's limits to those for whom its desk asks."""

    def __init__(self, limits: Turns, pull: Pull) -> None:
        self._limits = limits
        self._pull = pull
        self._turns: dict[str, asyncio.Task[None]] = {}
        # Those that have begun, until they are taken back.
        self._given: dict[str, Future[Usage | None]] = {}

    async def give(self) -> None:
        """Do so until this is cancelled or the desk is gone; then take back what was given."""
        try:
            while (items := await self._pull.take()) is not None:
                for item in items:
                    if isinstance(item, Ask):
                        self._want(item)
                    elif isinstance(item, Returned):
                        self._take_back(item)
        except WorkerLost:
            pass  # who wanted a turn is told as well
        finally:
            turns = [*self._turns.values()]
            for turn in turns:
                turn.cancel()
            await asyncio.gather(*turns, return_exceptions=True)

    def _want(self, ask: Ask) -> None:
        self._turns[ask.question.number] = asyncio.ensure_future(self._turn(ask))

    def _take_back(self, returned: Returned) -> None:
        turn = self._turns.pop(returned.number, None)
        if (given := self._given.pop(returned.number, None)) is not None:
            given.set_result(returned.usage)
        elif turn is not None:
            turn.cancel()

    async def _turn(self, ask: Ask) -> None:
        wanted: Wanted = ask.question
        try:
            async with self._limits.request(wanted.model, wanted.tokens) as turn:
                given = self._given[wanted.number] = Future()
                await self._pull.answer(ask.number, None, None)
                turn.usage = await given
        except BudgetExceeded as error:
            await self._pull.answer(ask.number, None, error)
