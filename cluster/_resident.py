"""What lives in an actor, as other processes see it: how it gets there, is found, asked, ended."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from ..commander import current_node
from ..commander.errors import AnabranchError, ConfigurationError, WorkerLost
from ..commander.waiting import outlast
from ._actor import Actor
from ._pack import Outcome
from ._ray import Cluster, Ray, as_lost, as_refused, aside, join, load, this_host

__all__ = ["ANYWHERE", "PATIENCE", "Lost", "NoResident", "Opening", "Resident"]

logger = logging.getLogger("anabranch.cluster")

T = TypeVar("T")
R = TypeVar("R", bound="Resident")

# What lives in the cluster takes little of a machine by itself; what it needs is to be said.
ANYWHERE = Ray(num_cpus=0)

NAMESPACE = "anabranch"

PATIENCE = 30.0
"""After so many seconds without a word of its reader's process a stream is cancelled."""

# Each stream that waits is a call that its actor has under way; Ray starts no thread for it.
CALLS = 100_000

# The cluster's own machine must answer what it knows by heart within so many seconds.
ANSWER = 10.0

# How long what is closed has to free what it holds, before its process is ended.
GRACE = 20.0

# Ray ends an actor that nobody holds; these are held until they are closed, or their driver ends.
_held: dict[str, Any] = {}


class NoResident(AnabranchError, LookupError):
    """Nothing of this name lives in the cluster. Attributes: `name`, and `known`, who does."""

    def __init__(self, kind: str, name: str, known: list[str], address: str) -> None:
        there = ", ".join(known) or "none"
        super().__init__(
            f"the Ray cluster at {address} has no {kind} called {name!r}; it has {there}. "
            "One that is not detached ends with the program that made it"
        )
        self.name = name
        self.known = known


class Resident:
    """An agent or a backend in an actor, by its name; it can be sent anywhere.

    Nothing is asked of the cluster before it is needed. `patience`, in seconds: what this process
    has begun there is cancelled when it has not been heard of for so long.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, *, patience: float = PATIENCE) -> None:
        self.name = name
        self.patience = patience
        self.host = ""  # the machine on which it lives, once that is known
        self._home: tuple[Cluster, Any] | None = None
        self.lost = False  # whether its actor was; it is looked for anew

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{self.host and f' on {self.host}'}>"

    @property
    def path(self) -> str:
        """Who is lost if its actor is: the current node, outside any tree itself."""
        try:
            return current_node().path
        except LookupError:
            return repr(self)

    async def located(self) -> tuple[Cluster, Any]:
        """Return the cluster and the actor, which is looked for at first.

        Raises `NoResident` if there is none, `ConfigurationError` if there is no cluster, and
        `WorkerLost` if it has been found in a cluster that lost its head.
        """
        if self._home is not None and (why := self._home[0].head.lost) is not None:
            raise WorkerLost(self.path, why)  # Ray itself might join another cluster now
        if self._home is None or self.lost:
            cluster, actor = await self._found()
            async with Lost(cluster, self.path) as lost:
                self.host = await lost.call(actor.host)
            self._home, self.lost = (cluster, actor), False
        return self._home

    async def _found(self) -> tuple[Cluster, Any]:
        cluster = await _joined()
        return cluster, await _within(_find, cluster, self.kind, self.name)

    def forget(self) -> None:
        """Look for the actor anew when it is needed next: another may have taken the name."""
        self.lost = True

    async def settle(self, make: bytes, on: Ray, *, detached: bool) -> None:
        """Make an actor of this name and let it make its tenant; cancelled, it leaves nothing.

        Waits for what a machine has but others use. Raises `ConfigurationError` for a name that is
        taken, resources that no machine has, what cannot be imported there; and what making it
        raises there.
        """
        cluster = await join(on.address)
        await _within(cluster.check, on)
        create = partial(_create, detached=detached)
        creating = _within(create, cluster, self.kind, self.name, on)
        created = asyncio.ensure_future(creating)
        interrupted = await outlast(created)
        actor = created.result()
        try:
            if interrupted is not None:
                raise interrupted
            async with Lost(cluster, self.path) as lost:
                self.host = await self._placed(lost, actor, on)
                Outcome.unpacked(await lost.call(actor.start, make)).get()
        except BaseException:
            _kill(cluster, actor)
            raise
        self._home = cluster, actor
        _held[f"{self.kind}:{self.name}"] = actor

    async def _placed(self, lost: Lost, actor: Any, on: Ray) -> str:
        """Wait until a machine has taken the actor; return its name."""
        placed = asyncio.ensure_future(lost.call(actor.host))
        try:
            if not (await asyncio.wait((placed,), timeout=ANSWER))[0]:
                logger.warning("%r waits for a Ray worker (%s)", self, on.told())
            return await placed
        finally:
            placed.cancel()

    def open_beside(self, cluster: Cluster, kind: type[Actor], make: bytes) -> None:
        """Make an actor of this name on this machine, and let it make its tenant; it blocks.

        It ends with this process.
        """
        actor = _create(cluster, self.kind, self.name, ANYWHERE, beside=kind)
        Outcome.unpacked(cluster.ray.get(actor.start.remote(make))).get()
        self.host = this_host()
        self._home = cluster, actor

    async def close(self) -> None:
        """End what it is doing, let it free what it holds, and end its actor. Twice is harmless.

        For those who wait for it, it is lost.
        """
        _held.pop(f"{self.kind}:{self.name}", None)
        with suppress(NoResident):
            ending = asyncio.ensure_future(_end(*(self._home or await self._found())))
            self._home = None
            if (interrupted := await outlast(ending)) is not None:
                raise interrupted
            ending.result()


class Opening(Generic[R]):
    """What `remote` and `serve` return: awaited it is the handle, as a block it is closed too."""

    def __init__(self, resident: R, make: bytes, on: Ray, *, detached: bool) -> None:
        self._resident = resident
        self._settle = partial(resident.settle, make, on, detached=detached)

    def __await__(self) -> Generator[Any, None, R]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> R:
        await self._settle()
        return self._resident

    async def __aexit__(self, *_: object) -> None:
        await self._resident.close()


class Lost:
    """Waits for an actor's answers, and meanwhile for news that the cluster has lost its head.

    An actor that is gone, and a lost head, are `WorkerLost`.
    """

    def __init__(self, cluster: Cluster, path: str) -> None:
        self._cluster = cluster
        self._path = path

    async def __aenter__(self) -> Lost:
        loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[str] = loop.create_future()
        self._number = self._cluster.head.watch(
            lambda why: _later(loop, lambda: self._lost.done() or self._lost.set_result(why))
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cluster.head.unwatch(self._number)
        self._lost.cancel()

    async def call(self, method: Any, *args: Any) -> Any:
        """Return what a method of the actor gives."""
        try:
            return await self.wait(asyncio.ensure_future(method.remote(*args)))
        except self._cluster.ray.exceptions.RayError as error:
            failure = as_lost(error, self._path) or as_refused(error, self._path)
            raise failure or error from None

    async def wait(self, answer: asyncio.Future[T]) -> T:
        """Return the outcome of `answer`, which is cancelled if this is, or the head is lost."""
        try:
            await asyncio.wait((answer, self._lost), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise WorkerLost(self._path, self._lost.result())
            return answer.result()
        finally:
            answer.cancel()


def _later(loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop is closed, and with it those who wait
        loop.call_soon_threadsafe(tell)


async def _joined() -> Cluster:
    """Return the cluster of this process, or one that it finds; it never starts one."""
    joined = load().is_initialized()
    return await join(None if joined else os.environ.get("RAY_ADDRESS") or "auto")


def _known(cluster: Cluster, kind: str) -> list[str]:
    listed = cluster.ray.util.list_named_actors(all_namespaces=True)
    names = (each["name"] for each in listed if each["namespace"] == NAMESPACE)
    return sorted(name.removeprefix(f"{kind}:") for name in names if name.startswith(f"{kind}:"))


def _find(cluster: Cluster, kind: str, name: str) -> Any:
    try:
        return cluster.ray.get_actor(f"{kind}:{name}", namespace=NAMESPACE)
    except ValueError:
        raise NoResident(kind, name, _known(cluster, kind), cluster.address) from None


def _create(
    cluster: Cluster,
    kind: str,
    name: str,
    on: Ray,
    *,
    detached: bool = False,
    beside: type[Actor] | None = None,
) -> Any:
    options = {
        "name": f"{kind}:{name}",
        "namespace": NAMESPACE,
        "lifetime": "detached" if detached else None,
        "max_concurrency": CALLS,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": _beside_this(cluster.ray) if beside else "SPREAD",
    }
    make = cluster.ray.remote(beside or Actor).options(**options, **on.options()).remote
    taken = cluster.ray.exceptions.ActorAlreadyExistsError
    with suppress(taken):
        return make()
    _bury(cluster, kind, name)
    try:
        return make()
    except taken:
        raise ConfigurationError(
            f"the Ray cluster at {cluster.address} has {kind} {name!r} already: close that one, or "
            "take another name"
        ) from None


def _beside_this(ray: Any) -> Any:
    strategies = import_module("ray.util.scheduling_strategies")
    here = ray.get_runtime_context().get_node_id()
    return strategies.NodeAffinitySchedulingStrategy(here, soft=False)


def _bury(cluster: Cluster, kind: str, name: str) -> None:
    """Free the name of an actor that has died: Ray keeps it as long as somebody holds the actor."""
    with suppress(NoResident):
        actor = _find(cluster, kind, name)
        if _has_died(cluster, actor):
            cluster.ray.kill(actor)


def _has_died(cluster: Cluster, actor: Any) -> bool:
    exceptions = cluster.ray.exceptions
    until = time.monotonic() + ANSWER / 2
    while (rest := until - time.monotonic()) > 0:
        try:
            cluster.ray.get(actor.host.remote(), timeout=rest)
        except exceptions.ActorDiedError:
            return True
        except exceptions.ActorUnavailableError:  # Ray does not know yet
            time.sleep(0.1)
        except exceptions.GetTimeoutError:
            return False
        else:
            return False
    return False


async def _end(cluster: Cluster, actor: Any) -> None:
    if not cluster.usable:
        return  # it has ended with its cluster
    try:
        with suppress(TimeoutError, cluster.ray.exceptions.RayError):
            async with asyncio.timeout(GRACE):
                await actor.stop.remote()
    finally:
        _kill(cluster, actor)


def _kill(cluster: Cluster, actor: Any) -> None:
    if cluster.usable:  # or Ray would start a new one here
        cluster.ray.kill(actor)


async def _within(function: Callable[..., T], *args: Any) -> T:
    """Call what asks the cluster something, in a thread; give up after `ANSWER` seconds."""
    try:
        async with asyncio.timeout(ANSWER):  # wait_for of Python 3.11 may lose a cancel
            return await asyncio.wrap_future(aside(function, *args))
    except TimeoutError:
        raise ConfigurationError(
            f"the Ray cluster does not answer within {ANSWER:g} s: is it up ('ray status')?"
        ) from None
