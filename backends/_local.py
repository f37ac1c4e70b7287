"""The backend for a model in this process: the small one, or any GGUF file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from typing import Any, Self

from ..commander._errors import ConfigurationError
from ..dispatch import Delta, Request
from ._backend import Backend
from ._local_engine import Engine, Work
from ._local_model import Model, Sampling, Source
from ._local_tools import Manner, reply
from ._weights import Progress
from ._weights_progress import show_progress

__all__ = ["LocalBackend"]

_SMALL = "SmolLM2-135M-Instruct"
# Under the system message of its own template it answers questions about France in French.
_SMALL_MANNER = Manner(system="You are a helpful assistant.", longest=120)
_OPTIONS = frozenset(Sampling.__dataclass_fields__) - {"grammar", "grammar_type"}


class LocalBackend(Backend):
    """A language model in this process: no key, no server, no GPU.

    `model` is None for the small model (92 MB, fetched once into the user's cache), the path of
    a GGUF file, or `ORG/REPO/FILE.gguf` on a model hub. Requests are served one at a time, first
    come, first served. Backends of the same model share one copy of it in memory.

    Options: `temperature` (0 by default, so that a first try repeats), `top_p`, `top_k`, `min_p`,
    `presence_penalty`, `frequency_penalty`, `repetition_penalty`, `stop`, `max_tokens` (512),
    `seed` (with a temperature, it costs loading the model anew), `tool_choice`. `progress` is
    told how the fetching goes, from another thread. The weights are read in the owner thread, but
    mistralrs holds the interpreter meanwhile (1.5 s for the small model).

    The small model proves the path; it does not make a good assistant. `tool_choice_accuracy`
    says how often it picks the right tool or none.
    """

    provider = "local"
    tool_choice_accuracy = ""

    def __init__(
        self,
        model: str | None = None,
        *,
        in_situ_quant: str | None = None,
        progress: Callable[[Progress], None] | None = None,
        **default_options: Any,
    ) -> None:
        super().__init__(model or _SMALL, **default_options)
        self._source = Source.parse(model, in_situ_quant)
        self._progress = progress
        self._manner = Manner() if model else _SMALL_MANNER
        self._engine: Engine | None = None

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request`, delta by delta, once the requests before it are answered.

        Closing the generator takes a waiting request out of the queue and stops a speaking model
        at its next token. A prompt that is being read cannot be interrupted; closing does not
        wait for it, the next request does.
        """
        sampling, tool_choice = _read_options({**self.default_options, **request.options})

        def work(model: Model) -> Generator[Delta | None, None, None]:
            return reply(model, request, sampling, tool_choice, self._manner)

        async with aclosing(self._run(work)) as deltas:
            async for delta in deltas:
                yield delta

    async def __aenter__(self) -> Self:
        async for _ in self._run(lambda _: (delta for delta in ())):
            pass
        return self

    async def aclose(self) -> None:
        """Give the model back; the last backend to do so ends its thread and frees it.

        A reply that is still being given there breaks off. The backend may be used again.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    def _run(self, work: Work) -> AsyncGenerator[Delta, None]:
        if self._engine is None:
            self._engine = Engine.open(self._source)
        return self._engine.run(work, self._progress or show_progress())


def _read_options(options: Mapping[str, Any]) -> tuple[Sampling, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    tool_choice = given.pop("tool_choice", "auto")
    if unknown := given.keys() - _OPTIONS:
        raise ConfigurationError(
            f"the local model has no option {', '.join(sorted(unknown))};"
            f" it has {', '.join(sorted(_OPTIONS | {'tool_choice'}))}"
        )
    if "stop" in given:
        stop = given["stop"]
        given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return Sampling(**given), tool_choice
