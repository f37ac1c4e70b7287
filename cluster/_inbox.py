"""A commander's inbox in the mailbox of its program: what comes from all that it has elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4
from weakref import WeakKeyDictionary

from ..backends.limits import Turn, Turns, limits_of, turn_in
from ..commander import Commander, Node
from ..commander.errors import BudgetExceeded, WorkerLost
from ..commander.waiting import outlast
from ..messages import Usage
from ._cluster import Cluster
from ._mailbox import Mailbox, mailbox_of
from ._payload import Result, pack
from ._protocol import Ask, CancelAsk, Delivery, ReplyAddress, Subscribe, TurnRequest, TurnReturned
from ._remote import RemoteCommander
from ._stream import StreamReader

__all__ = ["Inbox", "RemoteCall", "RemoteLimits", "inbox_of"]

logger = logging.getLogger("anabranch.cluster")

_inboxes: WeakKeyDictionary[Commander, Inbox] = WeakKeyDictionary()


async def inbox_of(commander: Commander, cluster: Cluster) -> Inbox:
    """Return the commander's inbox, which it keeps until it closes."""
    inbox = _inboxes.get(commander)
    if inbox is None or inbox.closed:
        address = commander.context.reply_to if isinstance(commander, RemoteCommander) else None
        mailbox = await mailbox_of(cluster) if address is None else address.mailbox
        if (inbox := _inboxes.get(commander)) is None or inbox.closed:
            inbox = _inboxes[commander] = Inbox(mailbox)
            commander.at_commander_end(lambda _: inbox.close())
    return inbox


class Inbox:
    """Reads what comes for the calls of one commander."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.name = uuid4().hex
        self.calls: dict[str, RemoteCall] = {}
        # Whether nothing is read any more: the commander has closed, or the mailbox was lost.
        self.closed = False
        self._reading = asyncio.get_running_loop().create_task(self._read(), context=Context())

    async def close(self) -> None:
        """Read no more."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    async def _read(self) -> None:
        try:
            async with StreamReader(self.mailbox, pack(Subscribe(self.name), "an inbox")) as reader:
                while (items := await reader.take()) is not None:
                    for item in items:
                        self._dispatch(reader, item)
        except Exception as error:  # noqa: BLE001 - jobs go on, and report at their end
            logger.warning("no more reports from jobs elsewhere before their end: %r", error)
        finally:
            self.closed = True
            for call in self.calls.values():
                call.progress.set()

    def _dispatch(
        self, reader: StreamReader, item: Delivery | Ask | CancelAsk | TurnReturned
    ) -> None:
        if isinstance(item, CancelAsk):
            return  # of such a turn a `TurnReturned` comes too
        message = item.question if isinstance(item, Ask) else item
        if (call := self.calls.get(message.call)) is None:
            return  # it has ended; who asks learns that when its stream ends
        if isinstance(item, Delivery):
            call.take(item.number, item.report)
        elif isinstance(item, Ask):
            call.grant_turn(reader, item)
        else:
            call.end_turn(item)


class RemoteCall:
    """A call of something elsewhere, as home sees it: its reports in order, and its turns.

        async with RemoteCall(node, inbox, on_report) as call: ...

    `on_report` is called with each report, in the context in which the call was made. At the end
    of the block the turns that it had are given back: after a failure at once, else when it says
    so.
    """

    def __init__(
        self, node: Node[Any], inbox: Inbox, on_report: Callable[[bytes], object] | None = None
    ) -> None:
        self.address = ReplyAddress(inbox.mailbox, inbox.name, uuid4().hex)
        # Set whenever a report was taken, a turn is over, or the inbox has closed.
        self.progress = asyncio.Event()
        self._limits: list[Turns] = limits_of(node)
        self._inbox = inbox
        self._on_report = on_report
        self._context = copy_context()
        self._received = 0
        self._fault: Exception | None = None
        self._turns: dict[str, asyncio.Task[None]] = {}
        # Those that have begun, until they are returned.
        self._granted: dict[str, asyncio.Future[Usage | None]] = {}

    @property
    def limits(self) -> RemoteLimits | None:
        """The limits of the tree, to be sent with it."""
        match self._limits:
            case []:
                return None
            case [RemoteLimits() as elsewhere]:
                return elsewhere
            case several:
                return RemoteLimits(self.address, any(each.counts_tokens for each in several))

    async def __aenter__(self) -> Self:
        self._inbox.calls[self.address.call] = self
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if error is None:
                await self._until(lambda: not self._turns)
        finally:
            del self._inbox.calls[self.address.call]
            for turn in self._turns.values():
                turn.cancel()

    async def wait_for_reports(self, count: int) -> None:
        """Wait until so many reports were taken, or no more can be."""
        await self._until(lambda: self._received >= count)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not (reached() or self._inbox.closed):
            self.progress.clear()
            await self.progress.wait()

    def check(self) -> None:
        """Raise what taking a report has raised."""
        if self._fault is not None:
            raise self._fault

    def take(self, number: int, report: bytes) -> None:
        """Take a report, unless it was taken before."""
        if number > self._received:
            self._received = number
            assert self._on_report is not None
            try:
                self._context.run(self._on_report, report)
            except Exception as error:  # noqa: BLE001 - it is the call's own, and raised there
                self._fault = error
            self.progress.set()

    def grant_turn(self, reader: StreamReader, ask: Ask) -> None:
        """Give a turn of the limits, when there is one."""
        request: TurnRequest = ask.question
        number = request.number

        async def hold() -> None:
            with suppress(WorkerLost):  # who wanted it learns that too
                try:
                    async with turn_in(
                        self._limits, request.model, request.tokens, request.most
                    ) as turn:
                        granted = self._granted[number] = asyncio.Future()
                        turn.usage = Usage()
                        await reader.answer(ask.number, Result())
                        turn.usage = None  # if it is lost from here on, its estimate counts
                        if (usage := await granted) is None:
                            turn.unsend()
                        else:
                            turn.usage = usage
                except BudgetExceeded as error:
                    await reader.answer(ask.number, Result(failure=error))

        def over(_: object) -> None:
            del self._turns[number]
            self._granted.pop(number, None)
            self.progress.set()

        self._turns[number] = asyncio.ensure_future(hold())
        self._turns[number].add_done_callback(over)

    def end_turn(self, returned: TurnReturned) -> None:
        """End a turn, or the wait for it."""
        granted = self._granted.get(returned.number)
        if granted is not None and not granted.done():
            granted.set_result(returned.usage)
        elif (turn := self._turns.get(returned.number)) is not None:
            turn.cancel()


@dataclass(frozen=True, slots=True)
class RemoteLimits(Turns):
    """The limits of a tree as its parts elsewhere have them: home gives the turns."""

    home: ReplyAddress
    estimates: bool

    @property
    def counts_tokens(self) -> bool:
        """Whether an estimate of a request's tokens is of any use at home."""
        return self.estimates

    @asynccontextmanager
    async def request(
        self, model: str, tokens: int = 0, most: Usage | None = None
    ) -> AsyncGenerator[Turn, None]:
        """Wait for a turn, as `Limits.request` does. Raises `WorkerLost` too."""
        mailbox, inbox, call = self.home
        turn = Turn(model, tokens, most=most)
        request = TurnRequest(inbox, call, uuid4().hex, model, tokens, most)
        async with StreamReader(mailbox, pack(request, "a turn")) as reader:
            granted = await reader.take() or ()
            try:
                yield turn
            finally:
                for ask in granted:  # it is returned also where this is cancelled
                    returning = asyncio.ensure_future(reader.answer(ask.number, Result(turn.usage)))
                    interrupted = await outlast(returning)
                    with suppress(WorkerLost):  # whom it was for may have gone
                        returning.result()
                    if interrupted is not None:
                        raise interrupted
