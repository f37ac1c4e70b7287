"""Engines: a backend in an actor, and the backend by which every tree in the cluster reaches it.

Not a deployment of Ray Serve: its replicas would not share limits, and a model's own engine batches
already. One actor is enough, and by its streams a slow reader holds the model back.
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
from ._actor import ANYWHERE, LEASE, ActorHandle, PendingActor
from ._payload import pack
from ._placement import Ray
from ._ray import import_ray
from ._stream import StreamReader, StreamWriter

__all__ = ["Engine", "RayBackend", "serve"]


class Engine(ActorHandle):
    """A handle of a backend in an actor: `connect("ray:NAME")` is a backend that reaches it."""

    kind: ClassVar[str] = "engine"


def serve(
    name: str,
    backend: str | Backend | Callable[[], Backend],
    *,
    on: Ray = ANYWHERE,
    detached: bool = False,
    api_key: str | SecretStr | None = None,
    **settings: Any,
) -> PendingActor[Engine]:
    """Put a backend into an actor under `name`: awaited, or as a block, its model is loaded there.

        async with serve("llm", "vllm:Qwen/Qwen3-8B", on=Ray(num_gpus=1)):
            backend = connect("ray:llm")

    `backend` is what `connect` takes, with its `settings`, or what `connect` makes, or a function,
    plain or async, that makes one there. Its limits are those of all who use it. At the end of the
    block, or by `close`, it ends; also with this program, unless `detached`.

    Raises what loading raises, and what `ActorHandle.start` does; `TypeError` for settings that
    nothing would use. A key is found there in the
    environment: `api_key=` is refused.
    """
    import_ray()
    if api_key is not None:
        raise ConfigurationError(
            "a key is not sent to another machine: set the environment variable of its name there"
            " (OPENAI_API_KEY), and leave out api_key"
        )
    if isinstance(backend, str):
        backend = connect(backend, **settings)
    elif settings:
        raise TypeError(f"{', '.join(settings)}: settings are for connect, and {backend!r} is made")
    factory = pack(_EngineFactory(backend), f"the backend of {name!r}")
    return PendingActor(Engine(name), factory, on, detached=detached)


@dataclass(frozen=True, slots=True)
class _EngineFactory:
    """Makes the service, in the actor."""

    source: Backend | Callable[[], Backend]

    async def __call__(self) -> _EngineService:
        made = self.source if isinstance(self.source, Backend) else self.source()
        backend = await made if isawaitable(made) else made
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
        """Return the vectors, and what a tree of their own was charged for them."""
        async with Commander() as commander:
            vectors = await self._backend.embed(texts)
            return vectors, sum(commander.usage().values(), Usage())

    async def aclose(self) -> None:
        await self._backend.aclose()


class RayBackend(ModelBackend):
    """A backend that lives in an actor of the cluster, under the name given to `serve`.

    What its settings are there (timeouts, retries, limits, options) holds for all who use it; those
    given here are this tree's, and come on top: by default it waits and tries no further than the
    engine does. Usage is charged to the engine's name. `lease`, in seconds: if this process
    dies, its replies are cancelled there after that time.

    Raises what the backend there raises, `WorkerLost` if its actor or machine is gone, and at first
    use `ActorNotFound` or `ConfigurationError` if there is none.
    """

    provider = "ray"

    def __init__(
        self,
        name: str,
        *,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        lease: float = LEASE,
        **settings: Any,
    ) -> None:
        import_ray()
        if not name:
            raise ConfigurationError("which engine? 'ray:NAME', as it was given to cluster.serve")
        if settings.keys() & {"base_url", "api_key"}:
            raise ConfigurationError(
                "an engine on Ray is reached by its name: no base_url, no api_key"
            )
        timeouts = timeouts or Timeouts(None, None, None, None)
        super().__init__(name, timeouts=timeouts, retries=retries or Retries(1), **settings)
        self._engine = Engine(name, lease=lease)

    async def __aenter__(self) -> Self:
        """Find the engine."""
        await self._engine.locate()
        return self

    async def attempt(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        # With this backend's options, and of the tools only what models see.
        tools = [_Schema(tool.name, tool.description, tool.parameters) for tool in request.tools]
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
class _Schema:
    name: str
    description: str
    parameters: Mapping[str, Any]
