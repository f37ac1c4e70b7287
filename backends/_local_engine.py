"""The engine of a local model: one request at a time, first come, first served."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Hashable
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from ..commander.errors import AnabranchError, BackendError
from ..messages import Delta
from ._engine import SharedEngine, Ticket
from ._local_model import Model, Source
from ._weights import Progress

__all__ = ["LocalEngine", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """What to do with the model, and who is told how its weights are fetched if need be.

    `answer` yields deltas, and None where there is nothing yet but it may be stopped.
    """

    answer: Callable[[Model], Generator[Delta | None, None, None]]
    progress: Callable[[Progress], None]


class _Stopped(BaseException):
    """Unwinds the work on a ticket that nobody waits for; not an error."""


class LocalEngine(SharedEngine[Source, Work]):
    """Loads the model for the first request; if that fails, for the next one again.

    Leaving a request stops its work: not started if it was waiting, at the next token if it was
    speaking, which is waited for. A prompt that is being read cannot be interrupted; it is not
    waited for, what follows is.
    """

    thread_name: ClassVar = "anabranch-local"

    def __init__(self, key: Hashable, source: Source) -> None:
        super().__init__(key, source)
        self._queue: queue.SimpleQueue[Ticket[Work] | None] = queue.SimpleQueue()
        self._closed = False
        self.loaded = False  # written by the engine's thread

    def begin(self, ticket: Ticket[Work]) -> None:
        """Put it into the queue."""
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

    def _answer(self, ticket: Ticket[Work], model: Model | None) -> Model | None:
        """Serve one ticket; return the model, loaded now if it was not."""

        def check() -> None:
            if ticket.left or self._closed:
                raise _Stopped

        def report(state: Progress) -> None:
            check()
            ticket.work.progress(state)

        error: BaseException | None = None
        try:
            check()
            model = model or Model(self.arguments, report)
            self.loaded = True
            with closing(ticket.work.answer(model)) as deltas:  # closing it stops the model
                for delta in deltas:
                    check()
                    if delta is not None:
                        ticket.put(delta)
        except _Stopped:
            error = BackendError("the local model was closed while it answered")
        except AnabranchError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the waiter is told
            error = BackendError(f"the local model failed: {type(raised).__name__}: {raised}")
            error.__cause__ = raised
        ticket.put(error)
        return model
