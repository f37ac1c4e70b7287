"""The backend for a model in this process: the small one, or any GGUF file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Self

from ..messages import Delta, Request
from ._engine import EngineBackend
from ._local_engine import LocalEngine, Work
from ._local_model import Model, Source
from ._local_options import read_options
from ._local_reply import SMALL_MANNER, Deltas, Manner, read_ahead, reply
from ._request_events import progress_listener
from ._timeout import Timeouts
from ._weights import Progress
from ._weights_progress import show_progress

__all__ = ["LocalBackend"]

_SMALL = "SmolLM2-135M-Instruct"
_ACCURACY = "picks the right tool, or none, for 36 of 40 questions (benchmarks/tool_choice.py)"


class LocalBackend(EngineBackend[LocalEngine]):
    """A language model in this process: no key, no server, no GPU.

    `model` is None for the small model (92 MB, fetched once into the user's cache), the path of
    a GGUF file, or `ORG/REPO/FILE.gguf` on a model hub. `in_situ_quant` is mistralrs's name of a
    quantization to load it in. `progress` is told how the fetching goes, from another thread;
    by default it is shown on the standard error.

    Requests are served one at a time, first come, first served. The time a request waits for its
    turn counts for the timeouts; by default only the one between tokens is set. Backends of the
    same model share one copy of it in memory; the last to close frees it.

    Options: `temperature` (0 by default, so that a first try repeats), `top_p`, `top_k`, `min_p`,
    `presence_penalty`, `frequency_penalty`, `repetition_penalty`, `stop`, `max_tokens` (512),
    `seed` (with a temperature, it costs loading the model anew), `tool_choice`,
    `response_format`. A reply has one tool call at most; a tool's result is answered in text.

    Entering loads the model; so does the first request. That is done in another thread, but
    mistralrs holds the interpreter meanwhile (1.5 s for the small model, on two cores).

    The small model proves the path; it does not make a good assistant. `tool_choice_accuracy`
    says how often it picks the right tool or none; for other models it is empty.
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
        super().__init__(model or _SMALL, timeouts=timeouts, **settings)
        self.tool_choice_accuracy = "" if model else _ACCURACY
        self._manner = Manner() if model else SMALL_MANNER
        self._source = Source.parse(model, in_situ_quant)
        self._progress = progress

    @property
    def takes(self) -> frozenset[str]:
        """Nothing but text."""
        return frozenset()

    def check_defaults(self, options: Mapping[str, Any]) -> None:
        super().check_defaults(options)
        read_options(options)

    async def __aenter__(self) -> Self:
        """Load the model; cancelled or failed meanwhile, it leaves nothing half done behind."""
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
        """Load the model and let it read what such requests begin with, in pieces.

        A request that comes meanwhile takes over after the piece that is being read, and finds
        what was read until then; so does a later call, which reads nothing a second time.
        """
        options = read_options({**self.default_options, **request.options})

        def answer(model: Model) -> Deltas:
            return read_ahead(model, request, options, self._manner)

        async with aclosing(self._run(answer, gives_way=True)) as deltas:
            async for _ in deltas:
                pass

    def _run(
        self, answer: Callable[[Model], Deltas], *, gives_way: bool = False
    ) -> AsyncGenerator[Delta, None]:
        if self._engine is None:
            self._engine = LocalEngine.open(self._source)
        progress = self._progress or show_progress()
        return self._engine.run(Work(answer, progress, progress_listener(), gives_way))

    def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        options = read_options({**self.default_options, **request.options})
        return self._run(lambda model: reply(model, request, options, self._manner))
