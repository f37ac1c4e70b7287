"""Engines: a backend in an actor, and the backend by which every tree in the cluster reaches it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, ClassVar, Self

from pydantic import SecretStr

from ..backends import Backend, ModelBackend, Retries, Timeouts, connect
from ..commander.errors import ConfigurationError
from ..messages import Delta, Request
from ._actor import Outlet
from ._pack import pack
from ._pull import Pull
from ._ray import Ray
from ._resident import ANYWHERE, PATIENCE, Opening, Resident

__all__ = ["Engine", "RayBackend", "serve"]


class Engine(Resident):
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
) -> Opening[Engine]:
    """Put a backend into an actor under `name`: awaited, or as a block, its model is loaded there.

        async with serve("llm", "vllm:Qwen/Qwen3-8B", on=Ray(num_gpus=1)):
            backend = connect("ray:llm")

    `backend` is what `connect` takes, with its `settings`, or what `connect` makes, or a function,
    plain or async, that makes one there. Its limits are those of all who use it. At the end of the
    block, or by `close`, it ends; also with this program, unless `detached`.

    Raises what loading raises, and what `Resident.settle` does. A key is found there in the
    environment: `api_key=` is refused.
    """
    if api_key is not None:
        raise ConfigurationError(
            "a key is not sent to another machine: set the environment variable of its name there"
            " (OPENAI_API_KEY), and leave out api_key"
        )
    source = connect(backend, **settings) if isinstance(backend, str) else backend
    loading = pack(_Loading(source), f"the backend of {name!r}")
    return Opening(Engine(name), loading, on, detached=detached)


@dataclass(frozen=True, slots=True)
class _Loading:
    """Makes the tenant, in the actor."""

    source: Backend | Callable[[], Backend]

    async def __call__(self) -> _Tenant:
        made = self.source if isinstance(self.source, Backend) else self.source()
        backend = await made if isawaitable(made) else made
        return _Tenant(await backend.__aenter__())


class _Tenant:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def play(self, outlet: Outlet, request: Request) -> None:
        async with aclosing(self._backend.stream(request)) as deltas:
            async for delta in deltas:
                await outlet.send(delta)

    async def aclose(self) -> None:
        await self._backend.aclose()


class RayBackend(ModelBackend):
    """A backend that lives in an actor of the cluster, under the name given to `serve`.

    What its settings are there (timeouts, retries, limits, options) holds for all who use it; those
    given here are this tree's, and come on top: by default it waits and tries no further than the
    engine does. Usage is charged to the engine's name. `patience`, in seconds: if this process
    dies, its replies are cancelled there after that time.

    Raises what the backend there raises, `WorkerLost` if its actor or machine is gone, and at first
    use `NoResident` or `ConfigurationError` if there is none.
    """

    provider = "ray"

    def __init__(
        self,
        name: str,
        *,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        patience: float = PATIENCE,
        **settings: Any,
    ) -> None:
        timeouts = timeouts or Timeouts(None, None, None, None)
        super().__init__(name, timeouts=timeouts, retries=retries or Retries(1), **settings)
        self._engine = Engine(name, patience=patience)

    async def __aenter__(self) -> Self:
        """Find the engine."""
        await self._engine.located()
        return self

    async def _attempt(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        async with Pull(self._engine, pack(self._travelling(request), "the request")) as pull:
            while (deltas := await pull.take()) is not None:
                yield deltas

    def _travelling(self, request: Request) -> Request:
        """Return the request with this backend's options, of its tools only what models see."""
        tools = [_Schema(tool.name, tool.description, tool.parameters) for tool in request.tools]
        return Request(request.messages, tools, {**self.default_options, **request.options})


@dataclass(frozen=True, slots=True)
class _Schema:
    name: str
    description: str
    parameters: Mapping[str, Any]
