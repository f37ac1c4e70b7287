"""Ray's end: which machines a thing may run on, joining a cluster, and what Ray's errors mean."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from ..commander import Away, Node
from ..commander.errors import ConfigurationError, MissingExtra, WorkerLost
from ._head import Head, answers, find_head

__all__ = [
    "LOOK_AGAIN",
    "Cluster",
    "Ray",
    "as_lost",
    "as_refused",
    "aside",
    "join",
    "load",
    "this_host",
]

T = TypeVar("T")

# What has not begun after so many seconds: is there still a machine that could take it?
LOOK_AGAIN = 5.0

# A head that does not answer the end of a program within so many seconds is taken for lost.
END = 2.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Ray:
    """Where on a Ray cluster something runs, in Ray's own terms.

    `num_cpus`, `num_gpus`, `memory` (bytes) and `resources` are what one machine must have free;
    Ray waits until one has. `address` is the cluster's, `HOST:PORT`; without one it is the cluster
    that this process has joined, else the one that `RAY_ADDRESS` or Ray itself finds, else a new
    one on this machine. `runtime_env` is handed to Ray as it is. With `autoscaled` what no machine
    has now is waited for, since an autoscaler may bring it; otherwise it is refused.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    autoscaled: bool = False

    def options(self) -> dict[str, Any]:
        """Return what `.options()` of Ray's takes."""
        options: dict[str, Any] = {"num_cpus": self.num_cpus}
        if self.num_gpus:
            options["num_gpus"] = self.num_gpus
        if self.memory:
            options["memory"] = self.memory
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.runtime_env is not None:
            options["runtime_env"] = dict(self.runtime_env)
        return options

    def prepare(self, node: Node[Any]) -> Away:
        """Make a job ready to be sent; raise `TypeError` or `ConfigurationError` if it cannot be.

        The engine calls it when the job is put.
        """
        from ._home import Sent

        return Sent(self, node)

    def needs(self) -> dict[str, float]:
        """Return what one machine must have, by Ray's names of resources."""
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory)}
        return {name: amount for name, amount in (needs | dict(self.resources)).items() if amount}

    def told(self) -> str:
        """Return the needs in words."""
        return _told(self.needs()) or "that needs nothing"


class Cluster:
    """The Ray cluster that this process has joined."""

    def __init__(self, ray: Any, address: str, *, ours: bool) -> None:
        self.ray = ray
        self.address = address
        self.head = Head(address, self._leave if ours else None)
        # Whether the grace is over in which a lost cluster's workers are told to stop.
        self._leaving = threading.Event()
        if ours:
            atexit.register(self._end)  # after Ray's own, so it is called before that
        # Whether a first task has been sent, for which Ray takes its time.
        self.ready = False
        # What some machine has been seen to have.
        self._known: set[frozenset[tuple[str, float]]] = set()
        # The last look for each, and when it began: however many wait, one looks.
        self._looks: dict[frozenset[tuple[str, float]], tuple[float, Future[None]]] = {}

    @property
    def usable(self) -> bool:
        """Whether the process is still a member and the head has not been lost."""
        return self.head.lost is None and _address(self.ray) == self.address

    def _leave(self) -> None:
        # A minute after its head has gone, Ray would end this whole process.
        self._leaving.set()
        self.ray.shutdown()
        atexit.unregister(self._end)

    def _end(self) -> None:
        """Let the program end without Ray's clean-up, if the cluster has lost its head.

        That clean-up waits 5 s for the head, has been seen to hang until Ray's minute was over, and
        blocks if `_leave` is at it. Without it Ray's destructors may crash: so the C library ends
        the process before them, with its own exit status, after Python has flushed all output.
        """
        if self.head.lost is None and (
            _address(self.ray) != self.address or answers(self.address, timeout=END)
        ):
            return
        if self.head.lost is not None:
            self._leaving.wait(END)
        with suppress(AttributeError, TypeError):  # a C library other than glibc
            libc = ctypes.CDLL(None)
            libc.on_exit(libc._exit, None)
        atexit.unregister(import_module("ray._private.worker").shutdown)

    def unknown(self, placement: Ray) -> bool:
        """Whether `check` has never found a machine for `placement`."""
        return frozenset(placement.needs().items()) not in self._known

    def look(self, placement: Ray) -> Future[None]:
        """Call `check` in a thread, unless somebody has lately."""
        needs, now = frozenset(placement.needs().items()), time.monotonic()
        began, look = self._looks.get(needs, (float("-inf"), None))
        if look is None or now - began > LOOK_AGAIN / 2:
            look = aside(self.check, placement)
            self._looks[needs] = now, look
        return look

    def check(self, placement: Ray) -> None:
        """Raise `ConfigurationError` if no machine has what `placement` asks for; it may block."""
        needs = placement.needs()
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        if placement.autoscaled or any(_has(node["Resources"], needs) for node in alive):
            self._known.add(frozenset(needs.items()))
        else:
            raise ConfigurationError(
                f"no machine of the Ray cluster at {self.address} has {_told(needs)}: "
                f"{_most(alive, needs)}; ask for less, add a machine, or say "
                "Ray(autoscaled=True) if one will come by itself"
            )


def _address(ray: Any) -> str | None:
    """Return the address of the cluster that Ray has joined in this process, None if none."""
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def _has(resources: Mapping[str, float], needs: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0) >= amount for name, amount in needs.items())


def _told(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items())


def _most(nodes: list[dict[str, Any]], needs: Mapping[str, float]) -> str:
    most = {name: max((n["Resources"].get(name, 0) for n in nodes), default=0) for name in needs}
    return f"{len(nodes)} machines, which have at most {_told(most)}"


def load() -> Any:
    """Return the module `ray`, or raise `MissingExtra`."""
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtra("running on a Ray cluster", "ray") from None


# --- joining

_lock = threading.Lock()
_cluster: Cluster | None = None
_joining: dict[str | None, Future[Cluster]] = {}
# The processes of a cluster that is started here end with the thread that started them: so one
# thread does it all, and never ends.
_asked: SimpleQueue[tuple[str | None, Future[Cluster]]] = SimpleQueue()
_joiner: threading.Thread | None = None


async def join(address: str | None = None) -> Cluster:
    """Return the cluster at `address`, which this process joins if it has not yet.

    Without an address it is the one that the process has joined by any means. Cancelling the call
    does not stop the joining, which the next call goes on with. Raises `ConfigurationError` if no
    cluster is there, it runs another Ray or Python, or the process has joined another one.
    """
    cluster = _joined(address)
    if cluster is not None:
        return cluster
    return await asyncio.shield(asyncio.wrap_future(_ask(address)))


def _ask(address: str | None) -> Future[Cluster]:
    global _joiner
    with _lock:
        joining = _joining.get(address)
        if joining is None:
            joining = _joining[address] = Future()
            _asked.put((address, joining))
        if _joiner is None:
            _joiner = threading.Thread(target=_join_all, name="ray-join", daemon=True)
            _joiner.start()
    return joining


def _join_all() -> None:
    while True:
        _join(*_asked.get())


def _joined(address: str | None) -> Cluster | None:
    cluster = _cluster
    if cluster is None or not cluster.usable:
        return None
    if address is not None and not _same(address, cluster.address):
        raise ConfigurationError(
            f"this process has joined the Ray cluster at {cluster.address}, so it cannot use the "
            f"one at {address}: a process is in one cluster at a time"
        )
    return cluster


def _same(asked: str, joined: str) -> bool:
    return asked in {"auto", "local", joined}


def _join(address: str | None, joining: Future[Cluster]) -> None:
    global _cluster
    try:
        cluster = _joined(address) or _connect(load(), address)
    except BaseException as error:  # noqa: BLE001 - it is raised where the cluster is awaited
        with _lock:
            del _joining[address]
        joining.set_exception(error)
        return
    with _lock:
        _cluster = cluster
        del _joining[address]
    joining.set_result(cluster)


def _connect(ray: Any, address: str | None) -> Cluster:
    ours = not ray.is_initialized()
    if ours:
        _init(ray, address)
    joined = cast("str", _address(ray))
    if address is not None and not ours and not _same(address, joined):
        raise ConfigurationError(
            f"this process has joined the Ray cluster at {joined}, not the one at {address}: "
            "a process is in one cluster at a time"
        )
    return Cluster(ray, joined, ours=ours)


def _init(ray: Any, address: str | None) -> None:
    where = address or os.environ.get("RAY_ADDRESS")
    if where is not None and where not in {"auto", "local"}:
        find_head(where)
    elif (last := _last_cluster()) is not None and not answers(last, timeout=4):
        if where == "auto":
            find_head(last)
        address = "local"  # Ray itself would wait for the last one for a minute
    log = logging.getLogger("ray._private.worker")
    log.addFilter(_of_use)
    try:
        ray.init(address=address, configure_logging=False)
    except Exception as error:  # Ray raises many kinds, plain ones too
        raise ConfigurationError(_unjoined(where, error)) from error
    finally:
        log.removeFilter(_of_use)


def _of_use(record: logging.LogRecord) -> bool:
    # Ray misses the main thread, in which it would have set a handler that exits.
    return "SIGTERM handler is not set" not in record.getMessage()


def _last_cluster() -> str | None:
    """Return the address of the cluster that this machine was in last, if Ray remembers one."""
    try:
        return import_module("ray._private.utils").read_ray_address()
    except (ImportError, AttributeError, OSError):
        return None


def _unjoined(where: str | None, error: Exception) -> str:
    text = " ".join(str(error).split())
    at = "a Ray cluster" if where is None else f"the Ray cluster at {where}"
    if "ersion mismatch" in text:
        return f"cannot join {at}: {text} Install the same Ray and Python here as there"
    return (
        f"cannot join {at}: {text} (is it running, 'ray status', and has this machine been added "
        "to it with 'ray start --address=...'?)"
    )


@cache
def this_host() -> str:
    """Return the name of this machine, as it is shown for what runs on it."""
    return socket.gethostname()


def aside(function: Callable[..., T], *args: Any) -> Future[T]:
    """Call a function of Ray's in a thread of its own: without a head it may hang.

    Nothing can end the thread, so it is a daemon: the end of the program does not wait for it. Who
    waits for the future may be cancelled; the future itself cannot be, so that many may share it.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            value = function(*args)
        except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
            done.set_exception(error)
        else:
            done.set_result(value)

    threading.Thread(target=run, name="ray-aside", daemon=True).start()
    return done


# --- what Ray's errors mean


def as_lost(error: BaseException, path: str) -> WorkerLost | None:
    """Return the loss that an error of Ray's tells of; None if it tells of something else."""
    exceptions = load().exceptions

    for kinds, what in _losses(exceptions):
        if isinstance(error, kinds):
            return WorkerLost(path, f"{what} ({_first_line(error)})")
    return None


def _losses(exceptions: Any) -> list[tuple[Any, str]]:
    gone = "the Ray worker that ran it went away"
    return [
        (exceptions.OutOfMemoryError, "Ray ended its worker, as the machine was out of memory"),
        (exceptions.NodeDiedError, "the machine that ran it went away"),
        (exceptions.LocalRayletDiedError, "Ray on this machine went away"),
        (
            (
                exceptions.WorkerCrashedError,
                exceptions.RayActorError,
                exceptions.ObjectLostError,
                exceptions.RaySystemError,
                exceptions.RpcError,
            ),
            gone,
        ),
    ]


def as_refused(error: BaseException, what: str) -> ConfigurationError | None:
    """Return the refusal that an error of Ray's tells of: `what` cannot be started at all."""
    exceptions = load().exceptions

    if isinstance(error, exceptions.RuntimeEnvSetupError):
        return ConfigurationError(f"{what}: Ray cannot make its runtime_env: {error}")
    if isinstance(error, (exceptions.TaskUnschedulableError, exceptions.ActorUnschedulableError)):
        return ConfigurationError(f"{what}: no machine can take it: {error}")
    if isinstance(error, exceptions.RayTaskError):
        return ConfigurationError(
            f"{what}: its Ray worker could not begin: {_last_line(error)}. A worker needs this "
            "version of anabranch and what the class imports: install them on all machines, or "
            "send them with Ray(runtime_env={'pip': [...], 'working_dir': ...})"
        )
    return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
