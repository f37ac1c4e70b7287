"""Engines: a backend in an actor, and the backend that connects all trees of the cluster to it.

Not a deployment of Ray Serve: its replicas would not share limits, and the engine of a model
batches requests already. With streams out of one actor, a slow reader slows down the model.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, ClassVar, Self

from pydantic import SecretStr

from ..backends import Backend, ModelBackend, Retries, Timeouts, connect
from ..commander import Commander
from ..commander.errors import ConfigurationError
from ..messages import Delta, Request, Usage
from ._actor import ANY_MACHINE, LEASE_SECONDS, ActorHandle, PendingActor
from ._payload import pack
from ._placement import Ray
from ._ray import import_ray
from ._stream import StreamReader, StreamWriter

__all__ = ["Engine", "RayBackend", "serve"]


class Engine(ActorHandle):
    """A handle of a backend in an actor; `connect("ray:NAME")` makes the backend that uses it."""

    kind: ClassVar[str] = "engine"


def serve(
    name: str,
    backend: str | Backend | Callable[[], Backend],
    *,
    on: Ray = ANY_MACHINE,
    detached: bool = False,
    api_key: str | SecretStr | None = None,
    **settings: Any,
) -> PendingActor[Engine]:
    """Put a backend into an actor under `name`; await the result, or enter it as a block.

        async with serve("llm", "vllm:Qwen/Qwen3-8B", on=Ray(num_gpus=1)):
            backend = connect("ray:llm")

    `backend` is an address for `connect`, with its `settings`, or a backend that `connect` made, or
    a function, plain or async, that makes one there. All users share its limits. It ends with the
    block, by `close`, and with this program unless `detached`.

    Raises the errors of loading and of `ActorHandle.start`, and `TypeError` for unused settings.
    The key is read from the environment there, so `api_key=` is refused.
    """
    import_ray()
    if api_key is not None:
        raise ConfigurationError(
            "a key is not sent to another machine; set its environment variable there"
            " (such as OPENAI_API_KEY), and omit api_key"
        )
    if isinstance(backend, str):
        backend = connect(backend, **settings)
    elif settings:
        raise TypeError(
            f"{', '.join(settings)}: settings need an address for connect, not {backend!r}"
        )
    factory = pack(_EngineFactory(backend), f"the backend of {name!r}")
    return PendingActor(Engine(name), factory, on, detached=detached)


@dataclass(frozen=True, slots=True)
class _EngineFactory:
    """Creates the service in the actor."""

    source: Backend | Callable[[], Backend]

    async def __call__(self) -> _EngineService:
        source = self.source if isinstance(self.source, Backend) else self.source()
        backend = await source if isawaitable(source) else source
        return _EngineService(await backend.__aenter__())


class _EngineService:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def serve(self, writer: StreamWriter, request: Request | list[str]) -> None:
        if isinstance(request, list):
            await writer.send(await self._embed(request))
            return
        async with aclosing(self._backend.stream(request)) as deltas:
            async for delta in deltas:
                await writer.send(delta)

    async def _embed(self, texts: list[str]) -> tuple[list[list[float]], Usage]:
        """Return the vectors, and the usage that a separate tree was charged for them."""
        async with Commander() as commander:
            vectors = await self._backend.embed(texts)
            return vectors, sum(commander.usage().values(), Usage())

    async def aclose(self) -> None:
        await self._backend.aclose()


class RayBackend(ModelBackend):
    """A backend that uses the backend in an actor of the cluster, by the name given to `serve`.

    The settings of the served backend (timeouts, retries, limits, options) apply to all its users.
    The settings here apply to this tree in addition; by default it neither times out nor retries.
    Usage is charged to the engine's name. `lease`, in seconds: if this process dies, its replies
    are cancelled after that time.

    Raises the errors of the served backend, `WorkerLost` if its actor or machine is lost, and at
    the first use `ActorNotFound` or `ConfigurationError` if there is none.
    """

    provider = "ray"

    def __init__(
        self,
        name: str,
        *,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        lease: float = LEASE_SECONDS,
        **settings: Any,
    ) -> None:
        import_ray()
        if not name:
            raise ConfigurationError("'ray:' must have the name of an engine: 'ray:NAME'")
        if settings.keys() & {"base_url", "api_key"}:
            raise ConfigurationError("an engine on Ray must not have base_url or api_key")
        timeouts = timeouts or Timeouts(None, None, None, None)
        super().__init__(name, timeouts=timeouts, retries=retries or Retries(1), **settings)
        self._engine = Engine(name, lease=lease)

    async def __aenter__(self) -> Self:
        """Find the engine."""
        await self._engine.locate()
        return self

    async def attempt(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        # With the options of this backend, and only the schemas of the tools.
        tools = [
            _ToolSchema(tool.name, tool.description, tool.parameters) for tool in request.tools
        ]
        options = {**self.default_options, **request.options}
        packed = pack(Request(request.messages, tools, options), "the request")
        async with StreamReader(self._engine, packed) as reader:
            while (deltas := await reader.take()) is not None:
                yield deltas

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self.embed_with(self._embed_once, texts)

    async def _embed_once(self, texts: list[str]) -> tuple[list[list[float]], Usage]:
        async with StreamReader(self._engine, pack(texts, "the texts")) as reader:
            answers: list[tuple[list[list[float]], Usage]] = []
            while (items := await reader.take()) is not None:
                answers += items
        return answers[0]


@dataclass(frozen=True, slots=True)
class _ToolSchema:
    name: str
    description: str
    parameters: Mapping[str, Any]
