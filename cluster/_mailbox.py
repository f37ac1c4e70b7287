"""The mailbox: an actor beside a program, by which what runs elsewhere reaches it.

Nobody can call a program, so it reads its mailbox, in which each commander that has sent something
has an inbox. To the inbox come reports of what happens elsewhere, and requests for turns in the
tree's limits. Ray's streaming generators took twice a driver's time for each job, and a cancel cut
them off before the last word; Ray's `Queue` answers nobody, and a report waits for home to take it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from ..commander import current_node
from ._actor import ActorHandle
from ._cluster import Cluster, Monitor
from ._protocol import Delivery, Subscribe, TurnRequest, TurnReturned
from ._ray import call_in_thread, translate_error
from ._stream import ServiceActor, StreamWriter

__all__ = ["Mailbox", "MailboxActor", "mailbox_of"]


class Mailbox(ActorHandle):
    """A handle of a program's mailbox."""

    kind: ClassVar[str] = "mailbox"

    _locating: Future[Any] | None = None

    def locate_in_thread(self) -> None:
        """Begin to look for the actor, if nobody has yet: the first report need not wait then.

        It goes on in a thread, whatever becomes of what runs here.
        """
        if self._location is None and self._locating is None:
            self._locating = call_in_thread(asyncio.run, super().locate())

    async def locate(self) -> tuple[Cluster, Any]:
        """See `ActorHandle.locate`."""
        if self._location is None and self._locating is not None:
            with suppress(Exception):  # it is looked for once more, and that raised
                await asyncio.wrap_future(self._locating)
        return await super().locate()

    async def deliver(self, delivery: Delivery) -> None:
        """Pass a report on to home; return when home has taken it. Raises `WorkerLost`."""
        # The head is not watched meanwhile: without it Ray ends this worker anyway.
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
    """Return the handle: one for all that comes to a process from there, located once."""
    return Mailbox(name)


# --- in the actor


class MailboxService:
    """Passes on to home what comes for it; home is waited for."""

    def __init__(self) -> None:
        self._inboxes: dict[str, StreamWriter] = {}
        self._subscribed = asyncio.Event()

    async def serve(self, writer: StreamWriter, request: Subscribe | TurnRequest) -> None:
        """Let home read an inbox, or ask home for a turn and hold it until it is returned."""
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
        """Return the stream by which home reads an inbox, once it does."""
        while (home := self._inboxes.get(name)) is None:
            self._subscribed.clear()
            await self._subscribed.wait()
        return home

    async def aclose(self) -> None:
        """It holds nothing."""


class MailboxActor(ServiceActor):
    """The actor of a mailbox."""

    def __init__(self) -> None:
        self._mailbox = MailboxService()
        super().__init__(self._mailbox)

    async def deliver(self, inbox: str, call: str, number: int, report: bytes) -> None:
        """Pass on a report; return when home has taken it.

        A stream for each report would take twice as long.
        """
        await (await self._mailbox.inbox(inbox)).deliver(Delivery(inbox, call, number, report))


# --- this program's own

_lock = Lock()
_mailboxes: WeakKeyDictionary[Cluster, Future[Mailbox]] = WeakKeyDictionary()


async def mailbox_of(cluster: Cluster) -> Mailbox:
    """Return this program's mailbox, which is made at first, and anew after its loss.

    Raises `WorkerLost` if the cluster's head is lost meanwhile, or Ray cannot keep the mailbox.
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
            making.done() and (making.exception() is not None or making.result().lost)
        ):
            making = _mailboxes[cluster] = call_in_thread(make)
    async with Monitor(cluster, current_node().path) as monitor:
        return await monitor.wait(asyncio.wrap_future(making))
