"""Being a member of a Ray cluster: joining it, noticing that its head has gone, and leaving it.

Ray itself waits a minute for a head that has gone and then ends the process. So it is probed here,
and whoever waits for something in the cluster gets `WorkerLost` within seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from ..commander.errors import ConfigurationError, WorkerLost
from ._placement import Machines
from ._ray import import_ray, lend_while_waiting, translate_error

__all__ = ["Cluster", "FailureDetector", "Monitor", "join"]

T = TypeVar("T")

# Seconds between two probes of the head; one that has not answered for the timeout is lost.
PROBE_PERIOD = 0.5
PROBE_TIMEOUT = 5.0
# Seconds in which the head must answer at the end of a program; else it is taken for lost.
EXIT_TIMEOUT = 2.5
# Grace period in seconds before leaving a cluster that has lost its head: its workers are killed.
GRACE = 1.0

# How a client of gRPC begins: the preface of HTTP/2 and an empty frame of settings. The server's
# first frame is one of settings too; its type is the fourth byte.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def _answers(address: str, *, timeout: float) -> bool:
    """Say whether a server of gRPC answers; under TLS, whether anything listens."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in {"1", "true", "True"}:
                return True
            connection.settimeout(timeout)
            connection.sendall(HTTP2_PREFACE)
            return connection.recv(9)[3:4] == b"\4"
    except OSError:
        return False


class FailureDetector:
    """Probes a cluster's head as long as somebody wants to know of its loss."""

    def __init__(self, address: str, leave: Callable[[], None] | None) -> None:
        self.address = address
        # Why the head is thought to be lost; None as long as it is there.
        self.lost: str | None = None
        self._leave = leave
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[str], None]] = {}
        self._count = 0
        self._probing = False

    def watch(self, on_loss: Callable[[str], None]) -> int:
        """Call `on_loss(why)` in another thread when the head is lost; return what `unwatch` takes.

        It may be called at once, if the head is lost already.
        """
        with self._lock:
            self._count += 1
            number = self._count
            self._callbacks[number] = on_loss
            if not self._probing and self.lost is None:
                self._probing = True
                threading.Thread(target=self._probe, name="ray-head", daemon=True).start()
            lost = self.lost
        if lost is not None:
            on_loss(lost)
        return number

    def unwatch(self, number: int) -> None:
        """Call it no more."""
        self._callbacks.pop(number, None)

    def _probe(self) -> None:
        # Since when it has been silent: counted from a probe, for this process may have slept.
        silent: float | None = None
        while silent is None or time.monotonic() - silent < PROBE_TIMEOUT:
            time.sleep(PROBE_PERIOD)
            with self._lock:
                if not self._callbacks:
                    self._probing = False
                    return
            if _answers(self.address, timeout=PROBE_TIMEOUT / 2):
                silent = None
            elif silent is None:
                silent = time.monotonic()
        # Ray's hook for uncaught errors would wait for the head, and nobody would see the error.
        hook = sys.modules.get(sys.excepthook.__module__)
        if hook is not None and hook.__name__.startswith("ray."):
            sys.excepthook = getattr(hook, "normal_excepthook", sys.__excepthook__)
        with self._lock:
            why = self.lost = f"the head of the Ray cluster at {self.address} went away"
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback(why)
        if self._leave is not None:
            time.sleep(GRACE)
            self._leave()


class Cluster:
    """The Ray cluster that this process has joined."""

    def __init__(self, ray: Any, address: str, *, joined_here: bool) -> None:
        self.ray = ray
        self.address = address
        # The addresses at which it has been found: those of one machine are many.
        self.known_as = {None, "auto", "local", address}
        self.head = FailureDetector(address, self._leave if joined_here else None)
        self.machines = Machines(ray, address)
        # Whether a first task has been submitted, for which Ray takes its time.
        self.ready = False
        # Whether the grace period after the loss of the head is over.
        self._leaving = threading.Event()
        if joined_here:
            atexit.register(self._at_exit)  # after Ray's own, so it is called before that

    @property
    def usable(self) -> bool:
        """Whether the process is still a member and the head has not been lost."""
        return self.head.lost is None and _address_of(self.ray) == self.address

    def _leave(self) -> None:
        # A minute after its head has gone, Ray would end this whole process.
        self._leaving.set()
        self.ray.shutdown()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Let the program end without Ray's clean-up, if the cluster has lost its head.

        That clean-up waits 5 s for the head, has been seen to hang until Ray's minute was over, and
        blocks if `_leave` is at it. Without it Ray's destructors may crash: so the C library ends
        the process before them, with its own exit status, after Python has flushed all output.
        """
        if self.head.lost is not None:
            self._leaving.wait(EXIT_TIMEOUT)
        elif _address_of(self.ray) != self.address or _answers(self.address, timeout=EXIT_TIMEOUT):
            return
        with suppress(AttributeError, TypeError):  # a C library other than glibc
            libc = ctypes.CDLL(None)
            libc.on_exit(libc._exit, None)
        atexit.unregister(self.ray.shutdown)


def _address_of(ray: Any) -> str | None:
    """Return the address of the cluster that Ray has joined in this process, None if none."""
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


class Monitor:
    """Waits for answers from a cluster, and meanwhile for the news that it has lost its head.

        async with Monitor(cluster, path) as monitor:
            answer = await monitor.call(actor.method, argument)

    The loss of an actor, and of the head, is a `WorkerLost` for `path`. `on_loss` is called too
    when the head is lost, in another thread.
    """

    def __init__(
        self, cluster: Cluster, path: str, on_loss: Callable[[], object] | None = None
    ) -> None:
        self._cluster = cluster
        self._path = path
        self._on_loss = on_loss

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # Why the head is thought to be lost, once it is.
        self.lost: asyncio.Future[str] = loop.create_future()

        def tell(why: str) -> None:
            with suppress(RuntimeError):  # the loop is closed, and with it those who wait
                loop.call_soon_threadsafe(lambda: self.lost.done() or self.lost.set_result(why))
            if self._on_loss is not None:
                self._on_loss()

        self._number = self._cluster.head.watch(tell)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cluster.head.unwatch(self._number)
        self.lost.cancel()

    async def call(self, method: Any, *args: Any, lending: bool = False) -> Any:
        """Return what a method of an actor gives.

        If it may need CPUs to come, those of this Ray task are to be lent meanwhile (`lending`).
        """
        answer = method.remote(*args)
        try:
            with lend_while_waiting(answer) if lending else nullcontext():
                return await self.wait(asyncio.ensure_future(answer))
        except self._cluster.ray.exceptions.RayError as error:
            raise translate_error(error, self._path) from None

    async def wait(self, answer: asyncio.Future[T]) -> T:
        """Return the outcome of `answer`, which is cancelled if this is, or the head is lost."""
        try:
            await asyncio.wait((answer, self.lost), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise WorkerLost(self._path, self.lost.result())
            return answer.result()
        finally:
            answer.cancel()


# --- joining

_lock = threading.Lock()
_cluster: Cluster | None = None
_joining: dict[str | None, Future[Cluster]] = {}
_requests: SimpleQueue[tuple[str | None, Future[Cluster]]] = SimpleQueue()
_joiner: threading.Thread | None = None


async def join(address: str | None = None) -> Cluster:
    """Return the cluster at `address`, which this process joins if it has not yet.

    Without an address it is the one that the process has joined by any means. Cancelling the call
    does not stop the joining, which the next call goes on with. Raises `ConfigurationError` if no
    cluster is there, it runs another Ray or Python, or the process has joined another one.
    """
    global _joiner
    cluster = _cluster
    if cluster is not None and cluster.usable and address in cluster.known_as:
        return cluster
    with _lock:
        joining = _joining.get(address)
        if joining is None:
            joining = _joining[address] = Future()
            _requests.put((address, joining))
        if _joiner is None:
            _joiner = threading.Thread(target=_serve_requests, name="ray-join", daemon=True)
            _joiner.start()
    return await asyncio.shield(asyncio.wrap_future(joining))


def _numbers(host: str) -> set[str]:
    """Return the numbers of a machine; those of this one have "here" among them."""
    try:
        numbers = {str(each[4][0]) for each in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()
    for number in list(numbers):
        family = socket.AF_INET6 if ":" in number else socket.AF_INET
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((number, 0))  # which only the machine itself can
            numbers.add("here")
    return numbers


def _serve_requests() -> None:
    # The processes of a cluster that is started here end with the thread that started them: so one
    # thread does it all, and never ends.
    global _cluster
    while True:
        address, joining = _requests.get()
        try:
            if _cluster is None or not _cluster.usable:
                _cluster = _connect(address)
            cluster = _cluster
            if address not in cluster.known_as:
                # One port of one machine, which has several numbers and names.
                host, _, port = str(address).rpartition(":")
                own_host, _, own_port = cluster.address.rpartition(":")
                if port != own_port or _numbers(host).isdisjoint(_numbers(own_host)):
                    raise ConfigurationError(
                        f"this process has joined the Ray cluster at {cluster.address}, so it "
                        f"cannot use the one at {address}: a process is in one cluster at a time"
                    )
                cluster.known_as.add(address)
        except BaseException as error:  # noqa: BLE001 - it is raised where the cluster is awaited
            settle = partial(joining.set_exception, error)
        else:
            settle = partial(joining.set_result, cluster)
        with _lock:
            del _joining[address]
        settle()


def _connect(address: str | None) -> Cluster:
    """Take the cluster that Ray has joined in this process; else let Ray join or start one."""
    ray = import_ray()
    if ray.is_initialized():
        return Cluster(ray, ray.get_runtime_context().gcs_address, joined_here=False)
    where = address or os.environ.get("RAY_ADDRESS")
    if where is not None and where not in {"auto", "local"}:
        _require_head(where)
    else:
        last: str | None = None  # of the cluster that this machine was in, if Ray remembers one
        with suppress(ImportError, AttributeError, OSError):
            last = import_module("ray._private.utils").read_ray_address()
        if last is not None and not _answers(last, timeout=4):
            if where == "auto":
                _require_head(last)
            address = "local"  # Ray itself would wait for the last one for a minute
    log = logging.getLogger("ray._private.worker")
    log.addFilter(_drop_sigterm_warning)
    try:
        ray.init(address=address, configure_logging=False, log_to_driver=True)
    except Exception as error:  # Ray raises many kinds, plain ones too
        text = " ".join(str(error).split())
        at = "a Ray cluster" if where is None else f"the Ray cluster at {where}"
        remedy = (
            " Install the same Ray and Python here as there"
            if "ersion mismatch" in text
            else " (is it running, 'ray status', and has this machine been added to it with "
            "'ray start --address=...'?)"
        )
        raise ConfigurationError(f"cannot join {at}: {text}{remedy}") from error
    finally:
        log.removeFilter(_drop_sigterm_warning)
    return Cluster(ray, ray.get_runtime_context().gcs_address, joined_here=True)


def _drop_sigterm_warning(record: logging.LogRecord) -> bool:
    # Ray misses the main thread, in which it would have set a handler that exits.
    return "SIGTERM handler is not set" not in record.getMessage()


def _require_head(address: str) -> None:
    """Raise `ConfigurationError` unless a server of Ray's kind answers at `address`."""
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"{address}: a Ray client cannot stream what a tree sends home; run this program on a "
            "machine of the cluster ('ray start --address=HOST:PORT', or 'ray job submit')"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"the address of a Ray cluster is HOST:PORT, not {address!r}")
    if not _answers(address, timeout=4):
        raise ConfigurationError(
            f"there is no Ray cluster at {address}: start one there with 'ray start --head', or "
            "mend the address"
        )
