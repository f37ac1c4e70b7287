"""The backend for vLLM in this process, on a GPU or a CPU."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Self

from ..commander.errors import ConfigurationError, MissingExtra
from ..messages import Delta, Message, Request
from ._engine import EngineBackend
from ._vllm_engine import VLLMEngine
from ._vllm_reply import answer, check_options

__all__ = ["VLLMBackend"]

_QUIET_ARGUMENTS = {"disable_log_stats": True, "use_tqdm_on_load": False}


class VLLMBackend(EngineBackend[VLLMEngine]):
    """A language model on vLLM's engine in this process.

    `model` is a folder or a name on the model hub. `engine` has arguments of vLLM's engine:
    `tensor_parallel_size`, `quantization`, `max_model_len`, `dtype`, ... `chat_template` replaces
    the tokenizer's. All other settings are default options: those of chat completions
    (`temperature`, `stop`, `max_tokens`, `tool_choice`, `response_format`, ...) and vLLM's sampling
    parameters. The model's generation config sets the rest.

    Entering loads the model, else the first request does, outside its timeouts. Backends with the
    same model and `engine` share one engine in all event loops; the last one to close shuts it
    down. If it dies, requests fail with `BackendUnavailable` (and follow `retries`), and the next
    one starts a new engine. vLLM spawns processes: guard the main module with `if __name__ ==
    "__main__":`.
    """

    provider = "vllm"

    def __init__(
        self,
        model: str,
        *,
        engine: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, **settings)
        if find_spec("vllm") is None:
            raise MissingExtra("vLLM", "vllm")
        self._arguments = {**_QUIET_ARGUMENTS, **(engine or {}), "model": model}
        self._chat_template = chat_template

    @property
    def takes(self) -> frozenset[str]:
        """Images and audio as bytes, because vLLM would fetch an address from this process.

        A model for text alone raises when the request is prepared.
        """
        return frozenset({"image", "audio"})

    def check_defaults(self, options: Mapping[str, Any]) -> None:
        check_options(options)

    async def __aenter__(self) -> Self:
        await self.prepare()
        return self

    async def prepare(self) -> None:
        await self._running().loaded()

    def _running(self) -> VLLMEngine:
        if self._engine is None or self._engine.dead:
            self._engine = VLLMEngine.open(self._arguments)
        return self._engine

    def continuation(self, request: Request, partial: Message) -> Request | None:
        beginning = Message(role="assistant", content=partial.content)
        options = {**request.options, "continue_final_message": True}
        return Request([*request.messages, beginning], request.tools, options)

    def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        defaults, template = self.default_options, self._chat_template
        return self._running().run(lambda loaded: answer(loaded, request, defaults, template))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Raise `ConfigurationError`: an engine in this process only makes replies."""
        raise ConfigurationError(
            f"vLLM in this process makes no embeddings. Run `vllm serve {self.model} --runner"
            " pooling`, and connect to http://HOST:8000/v1."
        )
