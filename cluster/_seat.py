"""A commander's seat at the desk of its program: there it hears of all that it has elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Self
from uuid import uuid4
from weakref import WeakKeyDictionary

from ..backends.limits import Turns, limits_of, turn_in
from ..commander import Commander, Node
from ..commander.errors import BudgetExceeded, WorkerLost
from ..messages import Usage
from ._actor import Ask, Drop
from ._desk import Address, Desk, News, Returned, Sit, Wanted, desk_of
from ._limits import DistantLimits
from ._pack import pack
from ._pull import Pull
from ._ray import Cluster

__all__ = ["Call", "Seat", "seat_of"]

logger = logging.getLogger("anabranch.cluster")

_seats: WeakKeyDictionary[Commander, Seat] = WeakKeyDictionary()


async def seat_of(commander: Commander, cluster: Cluster) -> Seat:
    """Return the commander's seat, which it keeps until it closes."""
    seat = _seats.get(commander)
    if seat is None or seat.left:
        stand = getattr(commander, "stand", None)
        home: Address | None = None if stand is None else stand.home
        desk = await desk_of(cluster) if home is None else home.desk
        if (seat := _seats.get(commander)) is None or seat.left:
            seat = _seats[commander] = Seat(desk)
            commander.at_commander_end(lambda _: seat.close())
    return seat


class Seat:
    """Reads what comes for the calls of one commander."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.name = uuid4().hex
        self.calls: dict[str, Call] = {}
        # Whether nothing is read any more: the commander has closed, or the desk was lost.
        self.left = False
        self._reading = asyncio.get_running_loop().create_task(self._read(), context=Context())

    async def close(self) -> None:
        """Leave the seat."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    async def _read(self) -> None:
        try:
            async with Pull(self.desk, pack(Sit(self.name), "a seat")) as pull:
                while (items := await pull.take()) is not None:
                    for item in items:
                        self._pass_on(pull, item)
        except Exception as error:  # noqa: BLE001 - what runs goes on, and is heard at its end
            logger.warning("nothing is heard any more of what runs elsewhere: %r", error)
        finally:
            self.left = True
            for call in self.calls.values():
                call.moved.set()

    def _pass_on(self, pull: Pull, item: News | Ask | Drop | Returned) -> None:
        if isinstance(item, Drop):
            return  # what is not wanted any more is also told to be over
        wanted = item.question if isinstance(item, Ask) else item
        if (call := self.calls.get(wanted.call)) is None:
            return  # it has ended; who asks is told when its stream is
        if isinstance(item, News):
            call.hear(item.number, item.report)
        elif isinstance(item, Ask):
            call.give(pull, item)
        else:
            call.take_back(item)


class Call:
    """Something elsewhere, as it is heard at home: its reports in order, and its turns.

        async with Call(node, seat, take) as call: ...

    `take` is called with each report, in the context in which the call was made. At the end of the
    block the turns that it had are given back: after a failure at once, else when it says so.
    """

    def __init__(self, node: Node[Any], seat: Seat, take: Callable[[bytes], object]) -> None:
        self.address = Address(seat.desk, seat.name, uuid4().hex)
        self.moved = asyncio.Event()
        self._limits: list[Turns] = limits_of(node)
        self._seat = seat
        self._take = take
        self._context = copy_context()
        self._heard = 0
        self._fault: Exception | None = None
        self._turns: dict[str, asyncio.Task[None]] = {}
        # Those that have begun, until they are taken back.
        self._given: dict[str, asyncio.Future[Usage | None]] = {}

    @property
    def limits(self) -> DistantLimits | None:
        """The limits of the tree, to be sent with it."""
        match self._limits:
            case []:
                return None
            case [DistantLimits() as elsewhere]:
                return elsewhere
            case several:
                return DistantLimits(self.address, any(each.counts_tokens for each in several))

    async def __aenter__(self) -> Self:
        self._seat.calls[self.address.call] = self
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if error is None:
                await self._until(lambda: not self._turns)
        finally:
            del self._seat.calls[self.address.call]
            for turn in self._turns.values():
                turn.cancel()

    async def caught_up(self, count: int) -> None:
        """Wait until so many reports were heard, or no more can be."""
        await self._until(lambda: self._heard >= count)

    def check(self) -> None:
        """Raise what taking a report has raised."""
        if self._fault is not None:
            raise self._fault

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not (reached() or self._seat.left):
            self.moved.clear()
            await self.moved.wait()

    def hear(self, number: int, report: bytes) -> None:
        """Take a report, unless it was heard before."""
        if number > self._heard:
            self._heard = number
            try:
                self._context.run(self._take, report)
            except Exception as error:  # noqa: BLE001 - it is the call's own, and raised there
                self._fault = error
            self.moved.set()

    def give(self, pull: Pull, ask: Ask) -> None:
        """Give a turn of the limits, when there is one."""
        turn = asyncio.ensure_future(self._turn(pull, ask))
        self._turns[ask.question.number] = turn
        turn.add_done_callback(lambda _: self._over(ask.question.number))

    def take_back(self, returned: Returned) -> None:
        """End a turn, or the wait for it."""
        given = self._given.get(returned.number)
        if given is not None and not given.done():
            given.set_result(returned.usage)
        elif (turn := self._turns.get(returned.number)) is not None:
            turn.cancel()

    def _over(self, number: str) -> None:
        del self._turns[number]
        self._given.pop(number, None)
        self.moved.set()

    async def _turn(self, pull: Pull, ask: Ask) -> None:
        wanted: Wanted = ask.question
        with suppress(WorkerLost):  # who wanted it is told as well
            try:
                async with turn_in(self._limits, wanted.model, wanted.tokens) as turn:
                    given = self._given[wanted.number] = asyncio.Future()
                    turn.usage = Usage()
                    await pull.answer(ask.number, None, None)
                    turn.usage = None  # if it is lost from here on, its estimate counts
                    if (usage := await given) is None:
                        turn.unsend()
                    else:
                        turn.usage = usage
            except BudgetExceeded as error:
                await pull.answer(ask.number, None, error)
