"""The mailbox of a program: an actor that remote tasks call.

Ray has no calls to a program, so the program reads its mailbox. Each commander with remote nodes
has an inbox there, for reports, and for requests for turns under the tree's limits. Ray's streaming
generators needed twice the driver time for each job, and lost the last report after a cancel. Ray's
`Queue` cannot answer, and does not tell when home has taken a report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, Self
from uuid import uuid4
from weakref import WeakKeyDictionary

from ..backends.limits import Turn, TurnLimits, limits_of, turn_in
from ..commander import Commander, Node, current_node
from ..commander.errors import BudgetExceeded, WorkerLost
from ..commander.waiting import wait_shielded
from ..messages import Usage
from ._actor import ActorHandle
from ._cluster import Cluster, Monitor
from ._payload import Result, pack
from ._protocol import (
    Ask,
    CancelAsk,
    ReplyAddress,
    ReportDelivery,
    Subscribe,
    TurnRequest,
    TurnReturned,
)
from ._ray import call_in_thread, translate_error
from ._stream import ServiceActor, StreamReader, StreamWriter
from ._subtree import RemoteCommander

__all__ = [
    "CommanderInbox",
    "Mailbox",
    "MailboxActor",
    "RemoteCall",
    "RemoteLimits",
    "inbox_of",
    "mailbox_of",
]

logger = logging.getLogger("anabranch.cluster")


class Mailbox(ActorHandle):
    """A handle of a program's mailbox."""

    kind: ClassVar[str] = "mailbox"

    _locating: Future[Any] | None = None

    def locate_in_thread(self) -> None:
        """Start to locate the actor in a thread, so that the first report need not wait.

        The thread continues if this task ends.
        """
        if self._location is None and self._locating is None:
            self._locating = call_in_thread(asyncio.run, super().locate())

    async def locate(self) -> tuple[Cluster, Any]:
        """See `ActorHandle.locate`."""
        if self._location is None and self._locating is not None:
            with suppress(Exception):  # located again below, which raises the error
                await asyncio.wrap_future(self._locating)
        return await super().locate()

    async def deliver(self, delivery: ReportDelivery) -> None:
        """Send a report home; return when home has taken it. Raises `WorkerLost`."""
        # No watch of the head: without it Ray ends this worker anyway.
        cluster, actor = await self.locate()
        try:
            await actor.deliver.remote(
                delivery.inbox, delivery.call, delivery.number, delivery.report
            )
        except cluster.ray.exceptions.RayError as error:
            raise translate_error(error, self.path) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _get_mailbox, (self.name,)


@lru_cache(16)
def _get_mailbox(name: str) -> Mailbox:
    """Return the handle, shared by all calls from one program, so that it is located once."""
    return Mailbox(name)


# --- in the actor


class MailboxService:
    """Forwards messages to home, and waits until home takes them."""

    def __init__(self) -> None:
        self._inboxes: dict[str, StreamWriter] = {}
        self._subscribed = asyncio.Event()

    async def serve(self, writer: StreamWriter, request: Subscribe | TurnRequest) -> None:
        """Stream an inbox to home, or get a turn from home and hold it until it is returned."""
        if isinstance(request, Subscribe):
            self._inboxes[request.inbox] = writer
            self._subscribed.set()
            try:
                await asyncio.Event().wait()
            finally:
                del self._inboxes[request.inbox]
        else:
            home, usage = await self.inbox(request.inbox), None
            try:
                await home.ask(request)
                usage = await writer.ask(request.number)
            finally:
                home.send_nowait(TurnReturned(request.call, request.number, usage))

    async def inbox(self, name: str) -> StreamWriter:
        """Return the stream of an inbox, once home reads it."""
        while (home := self._inboxes.get(name)) is None:
            self._subscribed.clear()
            await self._subscribed.wait()
        return home

    async def aclose(self) -> None:
        """Do nothing: it has no resources."""


class MailboxActor(ServiceActor):
    """The actor of a mailbox."""

    def __init__(self) -> None:
        self._mailbox = MailboxService()
        super().__init__(self._mailbox)

    async def deliver(self, inbox: str, call: str, number: int, report: bytes) -> None:
        """Forward a report; return when home has taken it.

        A stream for each report would take twice as long.
        """
        await (await self._mailbox.inbox(inbox)).deliver(
            ReportDelivery(inbox, call, number, report)
        )


# --- the mailbox of this program

_lock = Lock()
_mailboxes: WeakKeyDictionary[Cluster, Future[Mailbox]] = WeakKeyDictionary()


async def mailbox_of(cluster: Cluster) -> Mailbox:
    """Return this program's mailbox; create it at the first use and after a loss.

    Raises `WorkerLost` if the cluster loses its head or Ray cannot keep the mailbox.
    """

    def make() -> Mailbox:
        mailbox = _get_mailbox(uuid4().hex)
        try:
            mailbox.start_beside(cluster, MailboxActor)
        except cluster.ray.exceptions.RayError as error:
            raise translate_error(error, "the mailbox of this program") from None
        return mailbox

    with _lock:
        making = _mailboxes.get(cluster)
        if making is None or (
            making.done() and (making.exception() is not None or making.result().is_lost)
        ):
            making = _mailboxes[cluster] = call_in_thread(make)
    async with Monitor(cluster, current_node().path) as monitor:
        return await monitor.wait(asyncio.wrap_future(making))


# --- the inbox of a commander

_inboxes: WeakKeyDictionary[Commander, CommanderInbox] = WeakKeyDictionary()


async def inbox_of(commander: Commander, cluster: Cluster) -> CommanderInbox:
    """Return the commander's inbox, which closes with the commander."""
    inbox = _inboxes.get(commander)
    if inbox is None or inbox.is_closed:
        address = commander.context.reply_to if isinstance(commander, RemoteCommander) else None
        mailbox = await mailbox_of(cluster) if address is None else address.mailbox
        if (inbox := _inboxes.get(commander)) is None or inbox.is_closed:
            inbox = _inboxes[commander] = CommanderInbox(mailbox)
            commander.at_commander_end(lambda _: inbox.close())
    return inbox


class CommanderInbox:
    """Reads the messages for the calls of one commander."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.name = uuid4().hex
        self.calls: dict[str, RemoteCall] = {}
        # Whether it has stopped reading: the commander has closed, or the mailbox was lost.
        self.is_closed = False
        self._reading = asyncio.get_running_loop().create_task(self._read(), context=Context())

    async def close(self) -> None:
        """Stop reading."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    async def _read(self) -> None:
        try:
            async with StreamReader(self.mailbox, pack(Subscribe(self.name), "an inbox")) as reader:
                while (items := await reader.take()) is not None:
                    for item in items:
                        if isinstance(item, CancelAsk):
                            continue  # a `TurnReturned` follows for such a turn
                        message = item.question if isinstance(item, Ask) else item
                        if (call := self.calls.get(message.call)) is None:
                            continue  # the end of its stream tells the other side
                        if isinstance(item, ReportDelivery):
                            call.take(item.number, item.report)
                        elif isinstance(item, Ask):
                            call.grant_turn(reader, item)
                        else:
                            call.end_turn(item)
        except Exception as error:  # noqa: BLE001 - jobs continue, and report at their end
            logger.warning("remote jobs will report only at their end: %r", error)
        finally:
            self.is_closed = True
            for call in self.calls.values():
                call.progress.set()


class RemoteCall:
    """A remote call, as home sees it: its reports in order, and its turns.

        async with RemoteCall(node, inbox, on_report) as call: ...

    `on_report` is called with each report, in the context of the call. The end of the block waits
    for the return of its turns; after a failure it cancels them.
    """

    def __init__(
        self,
        node: Node[Any],
        inbox: CommanderInbox,
        on_report: Callable[[bytes], object] | None = None,
    ) -> None:
        self.address = ReplyAddress(inbox.mailbox, inbox.name, uuid4().hex)
        # Set when a report was taken, a turn is over, or the inbox has closed.
        self.progress = asyncio.Event()
        self._limits: list[TurnLimits] = limits_of(node)
        self._inbox = inbox
        self._on_report = on_report
        self._context = copy_context()
        self._received = 0
        self._fault: Exception | None = None
        self._turns: dict[str, asyncio.Task[None]] = {}
        # Granted turns, until they are returned.
        self._granted: dict[str, asyncio.Future[Usage | None]] = {}

    @property
    def limits(self) -> RemoteLimits | None:
        """The limits of the tree, in the form in which they are sent."""
        match self._limits:
            case []:
                return None
            case [RemoteLimits() as remote_limits]:
                return remote_limits
            case limits:
                return RemoteLimits(self.address, any(each.counts_tokens for each in limits))

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
        """Wait until `count` reports were taken, or the inbox has closed."""
        await self._until(lambda: self._received >= count)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not (reached() or self._inbox.is_closed):
            self.progress.clear()
            await self.progress.wait()

    def check(self) -> None:
        """Raise the error of taking a report."""
        if self._fault is not None:
            raise self._fault

    def take(self, number: int, report: bytes) -> None:
        """Take a report, unless it was already taken."""
        if number > self._received:
            self._received = number
            assert self._on_report is not None
            try:
                self._context.run(self._on_report, report)
            except Exception as error:  # noqa: BLE001 - raised in the call, by `check`
                self._fault = error
            self.progress.set()

    def grant_turn(self, reader: StreamReader, ask: Ask) -> None:
        """Grant a turn under the limits when one is free."""
        request: TurnRequest = ask.question
        number = request.number

        async def hold() -> None:
            with suppress(WorkerLost):  # the other side gets the same error
                try:
                    async with turn_in(
                        self._limits, request.model, request.tokens, request.most
                    ) as turn:
                        granted = self._granted[number] = asyncio.Future()
                        turn.usage = Usage()
                        await reader.answer(ask.number, Result())
                        turn.usage = None  # if it is lost from here on, its estimate counts
                        if (usage := await granted) is None:
                            turn.mark_unsent()
                        else:
                            turn.usage = usage
                except BudgetExceeded as error:
                    await reader.answer(ask.number, Result(failure=error))

        def remove_turn(_: object) -> None:
            del self._turns[number]
            self._granted.pop(number, None)
            self.progress.set()

        self._turns[number] = asyncio.ensure_future(hold())
        self._turns[number].add_done_callback(remove_turn)

    def end_turn(self, returned: TurnReturned) -> None:
        """End a granted turn, or the wait for it."""
        granted = self._granted.get(returned.number)
        if granted is not None and not granted.done():
            granted.set_result(returned.usage)
        elif (turn := self._turns.get(returned.number)) is not None:
            turn.cancel()


@dataclass(frozen=True, slots=True)
class RemoteLimits(TurnLimits):
    """The limits of a tree in another process: home grants the turns."""

    home: ReplyAddress
    estimates: bool

    @property
    def counts_tokens(self) -> bool:
        """Whether home uses an estimate of a request's tokens."""
        return self.estimates

    @asynccontextmanager
    async def request(
        self, model: str, tokens: int = 0, most: Usage | None = None
    ) -> AsyncGenerator[Turn, None]:
        """Wait for a turn, as `Limits.request` does. Also raises `WorkerLost`."""
        mailbox, inbox, call = self.home
        turn = Turn(model, tokens, most=most)
        request = TurnRequest(inbox, call, uuid4().hex, model, tokens, most)
        async with StreamReader(mailbox, pack(request, "a turn")) as reader:
            granted = await reader.take() or ()
            try:
                yield turn
            finally:
                for ask in granted:  # return it even if this is cancelled
                    returning = asyncio.ensure_future(reader.answer(ask.number, Result(turn.usage)))
                    interrupted = await wait_shielded(returning)
                    with suppress(WorkerLost):  # the mailbox may be lost
                        returning.result()
                    if interrupted is not None:
                        raise interrupted
