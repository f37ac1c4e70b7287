"""The engine of a local model: one request at a time, first come, first served."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from ..commander.errors import AnabranchError, BackendError
from ..messages import Delta, Working
from ._engine import SharedEngine, Ticket
from ._local_model import Model, Source
from ._weights import Progress

__all__ = ["LocalEngine", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """What to do with the model, and who is told how its weights are fetched if need be.

    `answer` yields deltas; what it is busy with, which `tell` is told; and None where there is
    nothing yet but it may be stopped. What `gives_way` ends in silence there, for the next one.
    """

    answer: Callable[[Model], Generator[Delta | Working | None, None, None]]
    progress: Callable[[Progress], None]
    tell: Callable[[Working], None] = lambda _: None
    gives_way: bool = False


class _Stopped(BaseException):
    """Unwinds the work on a ticket that nobody waits for; not an error."""


class LocalEngine(SharedEngine[Source, Work]):
    """Loads the model for the first request; if that fails, for the next one again.

    Leaving a request stops its work: not started if it was waiting, at the next token if it was
    speaking, which is waited for. A prompt is read in pieces: the one that is being read cannot be
    interrupted; it is not waited for, what follows is. Weights that are being fetched are fetched
    on as long as another request waits for them.
    """

    thread_name: ClassVar = "anabranch-local"

    def __init__(self, key: Hashable, source: Source) -> None:
        super().__init__(key, source)
        self._queue: queue.SimpleQueue[Ticket[Work] | None] = queue.SimpleQueue()
        self._closed = False
        self.loaded = False  # written by the engine's thread
        self._stage: Working | None = None  # while it loads; written by the engine's thread
        self._ahead = 0  # requests that are served now or wait, but for those that give way
        self._counting = threading.Lock()  # `_ahead`: several loops and the engine's thread

    def begin(self, ticket: Ticket[Work]) -> None:
        """Put it into the queue, and tell what is done before it."""
        with self._counting:
            ahead = self._ahead
            self._ahead += not ticket.work.gives_way
        if (stage := self._stage) is not None:
            ticket.work.tell(stage)
        elif ahead:
            ticket.work.tell(Working("queued", 0, ahead))
        self._queue.put(ticket)

    async def leave(self, ticket: Ticket[Work]) -> None:
        """Wait until its work has stopped, if it has made something already."""
        if ticket.begun:
            await ticket.ended()

    def stop(self) -> None:
        """Break off what is under way and what waits."""
        self._closed = True
        self._queue.put(None)

    def serve(self) -> None:
        """Do the work of one ticket after the other."""
        model: Model | None = None
        while (ticket := self._queue.get()) is not None:
            model = self._answer(ticket, model)
            with self._counting:
                self._ahead -= not ticket.work.gives_way

    def _answer(self, ticket: Ticket[Work], model: Model | None) -> Model | None:
        """Serve one ticket; return the model, loaded now if it was not."""

        def check() -> None:
            if ticket.left or self._closed:
                raise _Stopped

        def tell(stage: Working) -> None:
            self._stage = stage
            for waiting in {ticket, *tuple(self._tickets)}:
                waiting.work.tell(stage)

        def report(state: Progress) -> None:
            if self._closed or self._queue.empty():
                check()
            if state.stage != "ready":
                tell(Working(state.stage, state.done, state.total))
            ticket.work.progress(state)

        error: BaseException | None = None
        try:
            check()
            if model is None:
                tell(Working("loading"))
                model = Model(self.arguments, report)
                self.loaded = True
                self._stage = None
            if not ticket.work.gives_way:
                ticket.work.tell(Working("reading"))
            with closing(ticket.work.answer(model)) as made:  # closing it stops the model
                for item in made:
                    check()
                    if ticket.work.gives_way and not self._queue.empty():
                        break
                    if isinstance(item, Delta):
                        ticket.put(item)
                    elif item is not None:
                        ticket.work.tell(item)
        except _Stopped:
            error = BackendError("the local model was closed while it answered")
        except AnabranchError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the waiter is told
            error = BackendError(f"the local model failed: {type(raised).__name__}: {raised}")
            error.__cause__ = raised
        finally:
            self._stage = None
        ticket.put(error)
        return model
