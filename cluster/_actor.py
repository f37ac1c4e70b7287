"""Named Ray actors as other processes see them: how one is made, found, called and closed."""

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
from ..commander.errors import ConfigurationError, WorkerLost
from ..commander.waiting import wait_shielded
from ._cluster import Cluster, Monitor, join
from ._payload import Result
from ._placement import Ray
from ._ray import ActorNotFound, call_in_thread, import_ray, this_host
from ._stream import CLOSE_TIMEOUT, ServiceActor

__all__ = ["ANYWHERE", "LEASE", "ActorHandle", "PendingActor"]

logger = logging.getLogger("anabranch.cluster")

T = TypeVar("T")
H = TypeVar("H", bound="ActorHandle")

# An actor takes little of a machine by itself; what its agent or model needs is to be said.
ANYWHERE = Ray(num_cpus=0)

NAMESPACE = "anabranch"

LEASE = 30.0
"""Seconds without a heartbeat of its reader's process after which a stream is cancelled."""

# Each stream that waits is a call that its actor has under way; Ray starts no thread for it.
MAX_CALLS = 100_000

# The cluster's own machine must answer what it knows by heart within so many seconds.
ANSWER_TIMEOUT = 10.0

# Ray ends an actor that nobody holds; these are held until they are closed, or their driver ends.
_held: dict[str, Any] = {}


class ActorHandle:
    """An agent or a backend in an actor, by its name; it can be sent anywhere.

    Nothing is asked of the cluster before it is needed. `lease`, in seconds: what this process
    has begun there is cancelled when it gave no sign of life for so long.
    """

    kind: ClassVar[str]
    puts_jobs: ClassVar[bool] = False  # so that who waits for it should lend it CPUs

    def __init__(self, name: str, *, lease: float = LEASE) -> None:
        self.name = name
        self.lease = lease
        self.host = ""  # the machine on which it lives, once that is known
        self._location: tuple[Cluster, Any] | None = None
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

    async def locate(self) -> tuple[Cluster, Any]:
        """Return the cluster and the actor, which is looked for at first.

        Raises `ActorNotFound` if there is none, `ConfigurationError` if there is no cluster, and
        `WorkerLost` if it has been found in a cluster that lost its head.
        """
        if self._location is not None and (why := self._location[0].head.lost) is not None:
            raise WorkerLost(self.path, why)  # Ray itself might join another cluster now
        if self._location is None or self.lost:
            cluster, actor = await self._find()
            async with Monitor(cluster, self.path) as monitor:
                # It answers once it has a machine.
                self.host = await monitor.call(actor.host, lending=True)
            self._location, self.lost = (cluster, actor), False
        return self._location

    async def _find(self) -> tuple[Cluster, Any]:
        # The cluster of this process, or one that it finds; it never starts one.
        joined = import_ray().is_initialized()
        cluster = await join(None if joined else os.environ.get("RAY_ADDRESS") or "auto")
        return cluster, await _ask_cluster(_get_actor, cluster, self.kind, self.name)

    def forget(self) -> None:
        """Look for the actor anew when it is needed next: another may have taken the name."""
        self.lost = True

    async def start(self, make: bytes, on: Ray, *, detached: bool) -> None:
        """Make an actor of this name and let it make its service; cancelled, it leaves nothing.

        Waits for what a machine has but others use. Raises `ConfigurationError` for a name that is
        taken, resources that no machine has, what cannot be imported there; and what making it
        raises there.
        """
        cluster = await join(on.address)
        await _ask_cluster(cluster.machines.check, on)
        creating = _ask_cluster(
            partial(_create, detached=detached), cluster, self.kind, self.name, on
        )
        created = asyncio.ensure_future(creating)
        interrupted = await wait_shielded(created)
        actor = created.result()
        try:
            if interrupted is not None:
                raise interrupted
            async with Monitor(cluster, self.path) as monitor:
                placed = asyncio.ensure_future(monitor.call(actor.host, lending=True))
                try:
                    if not (await asyncio.wait((placed,), timeout=ANSWER_TIMEOUT))[0]:
                        logger.warning("%r waits for a Ray worker (%s)", self, on.describe())
                    self.host = await placed
                finally:
                    placed.cancel()
                Result.load(await monitor.call(actor.start, make, lending=True)).get()
        except BaseException:
            _kill(cluster, actor)
            raise
        self._location = cluster, actor
        _held[f"{self.kind}:{self.name}"] = actor

    def start_beside(self, cluster: Cluster, kind: type[ServiceActor]) -> None:
        """Make an actor of this name and kind on this machine; it blocks.

        It ends with this process.
        """
        actor = _create(cluster, self.kind, self.name, ANYWHERE, beside=kind)
        cluster.ray.get(actor.host.remote())
        self.host = this_host()
        self._location = cluster, actor

    async def close(self) -> None:
        """End what it is doing, let it free what it holds, and end its actor. Twice is harmless.

        For those who wait for it, it is lost.
        """
        _held.pop(f"{self.kind}:{self.name}", None)
        with suppress(ActorNotFound):
            cluster, actor = self._location or await self._find()
            self._location = None
            if not cluster.usable:
                return  # it has ended with its cluster

            async def end() -> None:
                try:
                    with suppress(TimeoutError, cluster.ray.exceptions.RayError):
                        async with asyncio.timeout(CLOSE_TIMEOUT):
                            await actor.stop.remote()
                finally:
                    _kill(cluster, actor)

            ending = asyncio.ensure_future(end())
            if (interrupted := await wait_shielded(ending)) is not None:
                raise interrupted
            ending.result()


class PendingActor(Generic[H]):
    """What `remote` and `serve` return: awaited it is the handle, as a block it is closed too."""

    def __init__(self, handle: H, make: bytes, on: Ray, *, detached: bool) -> None:
        on.options()  # what it refuses is refused now
        if not (handle.name and handle.name.isprintable()):
            raise ConfigurationError(f"{handle.name!r} is no name for an {handle.kind}")
        self._handle = handle
        self._start = partial(handle.start, make, on, detached=detached)

    def __await__(self) -> Generator[Any, None, H]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> H:
        await self._start()
        return self._handle

    async def __aexit__(self, *_: object) -> None:
        await self._handle.close()


async def _ask_cluster(function: Callable[..., T], *args: Any) -> T:
    """Call what asks the cluster something, in a thread; give up after `ANSWER_TIMEOUT` seconds."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):  # wait_for of Python 3.11 may lose a cancel
            return await asyncio.wrap_future(call_in_thread(function, *args))
    except TimeoutError:
        raise ConfigurationError(
            f"the Ray cluster does not answer within {ANSWER_TIMEOUT:g} s: is it up ('ray status')?"
        ) from None


# --- what blocks, in a thread


def _get_actor(cluster: Cluster, kind: str, name: str) -> Any:
    try:
        return cluster.ray.get_actor(f"{kind}:{name}", namespace=NAMESPACE)
    except ValueError:
        listed = cluster.ray.util.list_named_actors(all_namespaces=True)
        there = (each["name"].partition(":") for each in listed if each["namespace"] == NAMESPACE)
        known = sorted(other for of, _, other in there if of == kind)
        raise ActorNotFound(kind, name, known, cluster.address) from None


def _create(
    cluster: Cluster,
    kind: str,
    name: str,
    on: Ray,
    *,
    detached: bool = False,
    beside: type[ServiceActor] | None = None,
) -> Any:
    strategy: Any = "SPREAD"
    if beside is not None:
        here = cluster.ray.get_runtime_context().get_node_id()
        strategies = import_module("ray.util.scheduling_strategies")
        strategy = strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    options = {
        "name": f"{kind}:{name}",
        "namespace": NAMESPACE,
        "lifetime": "detached" if detached else None,
        "max_concurrency": MAX_CALLS,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": strategy,
    }
    make = cluster.ray.remote(beside or ServiceActor).options(**options, **on.options()).remote
    taken = cluster.ray.exceptions.ActorAlreadyExistsError
    with suppress(taken):
        return make()
    # Ray keeps the name of an actor that has died as long as somebody holds the actor: free it.
    with suppress(ActorNotFound):
        actor = _get_actor(cluster, kind, name)
        if _has_died(cluster, actor):
            cluster.ray.kill(actor)
    try:
        return make()
    except taken:
        raise ConfigurationError(
            f"the Ray cluster at {cluster.address} has {kind} {name!r} already: close that one, or "
            "take another name"
        ) from None


def _has_died(cluster: Cluster, actor: Any) -> bool:
    exceptions = cluster.ray.exceptions
    until = time.monotonic() + ANSWER_TIMEOUT / 2
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


def _kill(cluster: Cluster, actor: Any) -> None:
    if cluster.usable:  # or Ray would start a new one here
        cluster.ray.kill(actor)
