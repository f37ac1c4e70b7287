"""The backend for a model in this process, the small one or any GGUF file, and its engine."""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..commander.errors import AnabranchError, BackendError
from ..messages import Delta, ProgressEvent, Request
from ._engine import EngineBackend, SharedEngine, Ticket
from ._local_model import Model, ModelFile
from ._local_options import read_options
from ._local_reply import SMALL_MODEL_STYLE, Deltas, PromptStyle, read_ahead, reply
from ._request_events import progress_listener
from ._timeout import Timeouts
from ._weights import Progress, show_progress

__all__ = ["LocalBackend", "LocalEngine", "Work"]


_SMALL_MODEL = "SmolLM2-135M-Instruct"
_SMALL_MODEL_ACCURACY = (
    "picks the right tool, or none, for 36 of 40 questions (benchmarks/tool_choice.py)"
)


@dataclass(frozen=True, slots=True)
class Work:
    """A ticket's work with the model.

    `answer` yields deltas, progress for `tell`, and None where it can be stopped although there is
    nothing yet. `progress` receives the progress of fetching the weights. With `gives_way` the work
    ends at such a place when another request arrives.
    """

    answer: Callable[[Model], Generator[Delta | ProgressEvent | None, None, None]]
    progress: Callable[[Progress], None]
    tell: Callable[[ProgressEvent], None] = lambda _: None
    gives_way: bool = False


class _Stopped(BaseException):
    """Unwinds the work on a ticket without a reader."""


class LocalEngine(SharedEngine[ModelFile, Work]):
    """Serves one request at a time, first come, first served.

    The first request loads the model. If that fails, the next one tries again. Closing a reply
    removes a request that waits, and stops one that runs at the next token, which `leave` waits
    for. A prompt is read in pieces. The current piece cannot be interrupted, and before the first
    delta nothing waits for it. Fetching weights continues as long as another request waits for
    them.
    """

    thread_name: ClassVar = "anabranch-local"

    def __init__(self, key: Hashable, source: ModelFile) -> None:
        super().__init__(key, source)
        self._queue: queue.SimpleQueue[Ticket[Work] | None] = queue.SimpleQueue()
        self._closed = False
        self.loaded = False  # written by the engine's thread
        self._stage: ProgressEvent | None = (
            None  # progress of loading; written by the engine's thread
        )
        self._ahead = 0  # running and waiting requests, without those that give way
        # guards `_ahead`, which several loops and the engine's thread change
        self._counting = threading.Lock()

    def begin(self, ticket: Ticket[Work]) -> None:
        """Put a ticket into the queue, and report the work before it."""
        with self._counting:
            ahead = self._ahead
            self._ahead += not ticket.work.gives_way
        if (stage := self._stage) is not None:
            ticket.work.tell(stage)
        elif ahead:
            ticket.work.tell(ProgressEvent("queued", 0, ahead))
        self._queue.put(ticket)

    async def leave(self, ticket: Ticket[Work]) -> None:
        """Wait until the ticket's work has stopped, if it has put a delta already."""
        if ticket.begun:
            await ticket.ended()

    def stop(self) -> None:
        """Break off the running request and the waiting ones."""
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

        def tell(stage: ProgressEvent) -> None:
            self._stage = stage
            for waiting in {ticket, *tuple(self._tickets)}:
                waiting.work.tell(stage)

        def report(state: Progress) -> None:
            if self._closed or self._queue.empty():
                check()
            if state.stage != "ready":
                tell(ProgressEvent(state.stage, state.done, state.total))
            ticket.work.progress(state)

        error: BaseException | None = None
        try:
            check()
            if model is None:
                tell(ProgressEvent("loading"))
                model = Model(self.arguments, report)
                self.loaded = True
                self._stage = None
            if not ticket.work.gives_way:
                ticket.work.tell(ProgressEvent("reading"))
            with closing(ticket.work.answer(model)) as made:  # closing stops the model
                for item in made:
                    check()
                    if ticket.work.gives_way and not self._queue.empty():
                        break
                    if isinstance(item, Delta):
                        ticket.put(item)
                    elif item is not None:
                        ticket.work.tell(item)
        except _Stopped:
            error = BackendError("the local model was closed during the reply")
        except AnabranchError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - the reader raises it
            error = BackendError(f"the local model failed: {type(raised).__name__}: {raised}")
            error.__cause__ = raised
        finally:
            self._stage = None
        ticket.put(error)
        return model


class LocalBackend(EngineBackend[LocalEngine]):
    """A language model in this process: no key, no server, no GPU.

        async with connect("local") as backend:
            print((await backend.complete(Request([Message(role="user", content="Hi")]))).content)

    `model` is None for the small model (92 MB, fetched once into the user's cache), the path of a
    GGUF file, or `ORG/REPO/FILE.gguf` on a model hub. `in_situ_quant` is mistralrs's name of a
    quantization to load it in. `progress` is called with the progress of fetching, from another
    thread; by default it is shown on the standard error.

    Requests are served one at a time, in their order. Waiting for the turn counts for the timeouts;
    by default only `between_tokens` is set. Backends of the same model share one copy of it in
    memory, which the last one to close frees.

    Options: `temperature` (0 by default, so that replies repeat), `top_p`, `top_k`, `min_p`,
    `presence_penalty`, `frequency_penalty`, `repetition_penalty`, `stop`, `max_tokens` (512),
    `seed` (with a temperature, it loads the model again), `tool_choice`, `response_format`. A reply
    has one tool call at most. A tool's result is answered in text.

    Entering loads the model, else the first request does. Another thread loads it, but mistralrs
    holds the interpreter during that time (1.5 s for the small model, on two cores).

    The small model shows that everything works; it is not a good assistant. `tool_choice_accuracy`
    is how often it picks the right tool or none; empty for other models.
    """

    provider = "local"

    def __init__(
        self,
        model: str | None = None,
        *,
        in_situ_quant: str | None = None,
        progress: Callable[[Progress], None] | None = None,
        timeouts: Timeouts | None = None,
        **settings: Any,
    ) -> None:
        timeouts = timeouts or Timeouts(connect=None, first_token=None, whole=None)
        super().__init__(model or _SMALL_MODEL, timeouts=timeouts, **settings)
        self.tool_choice_accuracy = "" if model else _SMALL_MODEL_ACCURACY
        self._style = PromptStyle() if model else SMALL_MODEL_STYLE
        self._file = ModelFile.parse(model, in_situ_quant)
        self._progress = progress

    @property
    def takes(self) -> frozenset[str]:
        """Only text."""
        return frozenset()

    def check_defaults(self, options: Mapping[str, Any]) -> None:
        super().check_defaults(options)
        read_options(options)

    async def __aenter__(self) -> Self:
        """Load the model. If that fails or is cancelled, everything is closed again."""
        try:
            await self.prepare()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def prepare(self) -> None:
        if self._engine is None or not self._engine.loaded:
            async for _ in self._run(lambda _: (delta for delta in ())):
                pass

    async def warm(self, request: Request) -> None:
        """Load the model and let it read the beginning of such requests, in pieces.

        A request that arrives waits only for the current piece, and continues from all pieces read
        so far. So does a later call, which reads nothing twice.
        """
        options = read_options({**self.default_options, **request.options})

        def answer(model: Model) -> Deltas:
            return read_ahead(model, request, options, self._style)

        async with aclosing(self._run(answer, gives_way=True)) as deltas:
            async for _ in deltas:
                pass

    def _run(
        self, answer: Callable[[Model], Deltas], *, gives_way: bool = False
    ) -> AsyncGenerator[Delta, None]:
        if self._engine is None:
            self._engine = LocalEngine.open(self._file)
        progress = self._progress or show_progress()
        return self._engine.run(Work(answer, progress, progress_listener(), gives_way))

    def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        options = read_options({**self.default_options, **request.options})
        return self._run(lambda model: reply(model, request, options, self._style))
