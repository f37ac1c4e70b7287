"""Named Ray actors as other processes see them: create, find, call and close them."""

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
from ._stream import CLOSE_SECONDS, ServiceActor

__all__ = ["ANY_MACHINE", "LEASE_SECONDS", "ActorHandle", "PendingActor"]

logger = logging.getLogger("anabranch.cluster")

T = TypeVar("T")
H = TypeVar("H", bound="ActorHandle")

# Actors need few CPUs themselves; callers state the needs of their agent or model.
ANY_MACHINE = Ray(num_cpus=0)

ACTOR_NAMESPACE = "anabranch"

LEASE_SECONDS = 30.0
"""Seconds without a heartbeat of the reader's process after which a stream is cancelled."""

# Each waiting stream is a running call of its actor; Ray starts no thread for it.
MAX_ACTOR_CALLS = 100_000

# Limit for questions that the cluster answers without starting anything.
ANSWER_SECONDS = 10.0

# Ray ends an actor without references, so these are kept until `close` or the end of the program.
_actors_in_use: dict[str, Any] = {}


class ActorHandle:
    """A handle of an agent or backend in an actor, by name; it can be sent to other processes.

    Contacts the cluster at the first use. `lease`, in seconds: the actor cancels this process's
    calls after that time without a heartbeat.
    """

    kind: ClassVar[str]
    may_put_jobs: ClassVar[bool] = False  # whether callers should lend it their CPUs

    def __init__(self, name: str, *, lease: float = LEASE_SECONDS) -> None:
        self.name = name
        self.lease = lease
        self.host: str = ""  # its machine, once located
        self._location: tuple[Cluster, Any] | None = None
        self.is_lost: bool = False  # its actor was lost: look it up again

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{self.host and f' on {self.host}'}>"

    @property
    def path(self) -> str:
        """The node that a loss is reported for, or the handle outside of a tree."""
        try:
            return current_node().path
        except LookupError:
            return repr(self)

    async def locate(self) -> tuple[Cluster, Any]:
        """Return the cluster and the actor, and look it up at the first use.

        Raises `ActorNotFound` if there is none, `ConfigurationError` without a cluster, and
        `WorkerLost` if the cluster of an earlier use has lost its head.
        """
        if self._location is not None and (why := self._location[0].head.loss_reason) is not None:
            raise WorkerLost(self.path, why)  # Ray might join another cluster if it were called now
        if self._location is None or self.is_lost:
            cluster, actor = await self._find()
            async with Monitor(cluster, self.path) as monitor:
                # The actor answers once it has a machine.
                self.host = await monitor.call(actor.host, lending=True)
            self._location, self.is_lost = (cluster, actor), False
        return self._location

    async def _find(self) -> tuple[Cluster, Any]:
        # The cluster of this process, or a running one; this never starts a cluster.
        joined = import_ray().is_initialized()
        cluster = await join(None if joined else os.environ.get("RAY_ADDRESS") or "auto")
        return cluster, await _ask_cluster(_get_actor, cluster, self.kind, self.name)

    def forget(self) -> None:
        """Look up the actor again at the next use: another may have the name by then."""
        self.is_lost = True

    async def start(self, make: bytes, on: Ray, *, detached: bool) -> None:
        """Create an actor with this name and its service; a cancel leaves nothing behind.

        Waits while other programs use the resources. Raises `ConfigurationError` for a name in use,
        for resources that no machine has and for imports that fail there, and the errors of
        creating the service.
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
                    if not (await asyncio.wait((placed,), timeout=ANSWER_SECONDS))[0]:
                        logger.warning("%r waits for a Ray worker (%s)", self, on.describe())
                    self.host = await placed
                finally:
                    placed.cancel()
                Result.load(await monitor.call(actor.start, make, lending=True)).get()
        except BaseException:
            _kill(cluster, actor)
            raise
        self._location = cluster, actor
        _actors_in_use[f"{self.kind}:{self.name}"] = actor

    def start_beside(self, cluster: Cluster, kind: type[ServiceActor]) -> None:
        """Create an actor of this name and class on this machine. Blocks.

        It ends with this process.
        """
        actor = _create(cluster, self.kind, self.name, ANY_MACHINE, beside=kind)
        cluster.ray.get(actor.host.remote())
        self.host = this_host()
        self._location = cluster, actor

    async def close(self) -> None:
        """End the actor's calls, close its service and end it. Twice is harmless.

        Callers that still wait get `WorkerLost`.
        """
        _actors_in_use.pop(f"{self.kind}:{self.name}", None)
        with suppress(ActorNotFound):
            cluster, actor = self._location or await self._find()
            self._location = None
            if not cluster.is_usable:
                return  # it ended with its cluster

            async def end() -> None:
                try:
                    with suppress(TimeoutError, cluster.ray.exceptions.RayError):
                        async with asyncio.timeout(CLOSE_SECONDS):
                            await actor.stop.remote()
                finally:
                    _kill(cluster, actor)

            ending = asyncio.ensure_future(end())
            if (interrupted := await wait_shielded(ending)) is not None:
                raise interrupted
            ending.result()


class PendingActor(Generic[H]):
    """The return value of `remote` and `serve`: await it for the handle, or enter it as a block.

    The end of the block closes the actor.
    """

    def __init__(self, handle: H, make: bytes, on: Ray, *, detached: bool) -> None:
        on.options()  # raise for invalid options now, not when awaited
        if not (handle.name and handle.name.isprintable()):
            raise ConfigurationError(f"{handle.name!r} is not a valid name for an {handle.kind}")
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
    """Call a blocking function of the cluster in a thread; give up after `ANSWER_SECONDS`."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):  # Python 3.11's `wait_for` may lose a cancel
            return await asyncio.wrap_future(call_in_thread(function, *args))
    except TimeoutError:
        raise ConfigurationError(
            f"the Ray cluster did not answer within {ANSWER_SECONDS:g} s; check 'ray status'"
        ) from None


# --- blocking functions


def _get_actor(cluster: Cluster, kind: str, name: str) -> Any:
    try:
        return cluster.ray.get_actor(f"{kind}:{name}", namespace=ACTOR_NAMESPACE)
    except ValueError:
        listed = cluster.ray.util.list_named_actors(all_namespaces=True)
        there = (
            each["name"].partition(":") for each in listed if each["namespace"] == ACTOR_NAMESPACE
        )
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
        "namespace": ACTOR_NAMESPACE,
        "lifetime": "detached" if detached else None,
        "max_concurrency": MAX_ACTOR_CALLS,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": strategy,
    }
    make = cluster.ray.remote(beside or ServiceActor).options(**options, **on.options()).remote
    taken = cluster.ray.exceptions.ActorAlreadyExistsError
    with suppress(taken):
        return make()
    # Ray keeps the name of a dead actor while a reference to it exists; killing it frees the name.
    until = time.monotonic()
    with suppress(ActorNotFound):
        actor = _get_actor(cluster, kind, name)
        if _has_died(cluster, actor):
            cluster.ray.kill(actor)
            until += ANSWER_SECONDS / 4
    while True:
        try:
            return make()
        except taken:
            if time.monotonic() >= until:
                raise ConfigurationError(
                    f"the Ray cluster at {cluster.address} has {kind} {name!r} already; close it"
                    " or use another name"
                ) from None
            time.sleep(0.05)  # Ray frees the name a moment after the kill


def _has_died(cluster: Cluster, actor: Any) -> bool:
    exceptions = cluster.ray.exceptions
    until = time.monotonic() + ANSWER_SECONDS / 2
    while (rest := until - time.monotonic()) > 0:
        try:
            cluster.ray.get(actor.host.remote(), timeout=rest)
        except exceptions.ActorDiedError:
            return True
        except exceptions.ActorUnavailableError:  # Ray does not know yet whether it has died
            time.sleep(0.1)
        except exceptions.GetTimeoutError:
            return False
        else:
            return False
    return False


def _kill(cluster: Cluster, actor: Any) -> None:
    if cluster.is_usable:  # otherwise Ray would start a cluster here
        cluster.ray.kill(actor)
