"""The backend for a model in this process: the small one, or any GGUF file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from typing import Any, Self

from ..messages import Delta, Request
from ._local_engine import Engine, Work
from ._local_model import Model, Source
from ._local_options import read_options
from ._local_small import SMALL_MANNER
from ._local_tools import Manner, reply
from ._model import ModelBackend
from ._timeout import Timeouts
from ._weights import Progress
from ._weights_progress import show_progress

__all__ = ["LocalBackend"]

_SMALL = "SmolLM2-135M-Instruct"
_ACCURACY = "picks the right tool, or none, for 36 of 40 questions (benchmarks/tool_choice.py)"


class LocalBackend(ModelBackend):
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
        read_options(self.default_options)
        self.tool_choice_accuracy = "" if model else _ACCURACY
        self._manner = Manner() if model else SMALL_MANNER
        self._source = Source.parse(model, in_situ_quant)
        self._progress = progress
        self._engine: Engine | None = None

    async def __aenter__(self) -> Self:
        """Load the model; cancelled or failed meanwhile, it leaves nothing half done behind."""
        try:
            await self._load()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """Give the model back; the last backend to do so ends its thread and frees it.

        A reply that is still being given there breaks off. The backend may be used again.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _load(self) -> None:
        async for _ in self._run(lambda _: (delta for delta in ())):
            pass

    def _run(self, work: Work) -> AsyncGenerator[Delta, None]:
        if self._engine is None:
            self._engine = Engine.open(self._source)
        return self._engine.run(work, self._progress or show_progress())

    async def _once(self, request: Request, reply: Any) -> AsyncGenerator[Delta, None]:
        """Load the model first: the timeouts count from the sending."""
        if self._engine is None or not self._engine.loaded:
            await self._load()
        async with aclosing(super()._once(request, reply)) as deltas:
            async for delta in deltas:
                yield delta

    def _attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        options = read_options({**self.default_options, **request.options})

        def work(model: Model) -> Generator[Delta | None, None, None]:
            return reply(model, request, options, self._manner)

        return self._run(work)
