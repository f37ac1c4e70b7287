"""The one interface behind which every model stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

from ..dispatch import Delta, Request

__all__ = ["Backend"]


class Backend(ABC):
    """A model that answers requests with a stream of deltas.

    `model` is its name, `provider` the kind of backend (`openai`, `http`, `local`, `vllm`).
    `default_options` have the wire's names; a request's own options win. Entering opens
    connections or loads the model; leaving closes them; both may be done again. One backend may
    serve any number of streams at once.
    """

    provider: str = "unknown"

    def __init__(self, model: str, **default_options: Any) -> None:
        self.model = model
        self.default_options = default_options

    @abstractmethod
    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request`, delta by delta.

        Raises a `BackendError`; after the first delta only `StreamInterrupted` or `BadResponse`.
        Closing the generator, or cancelling the task that reads it, stops the model and frees the
        connection before it returns. Close it (`contextlib.aclosing`) if you may leave early.
        """

    async def aclose(self) -> None:  # noqa: B027 - most backends hold nothing
        """Free what the backend holds. Closing twice is harmless."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
