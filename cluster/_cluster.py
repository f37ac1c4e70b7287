"""Membership in a Ray cluster: join it, notice the loss of its head, and leave it.

Ray waits a minute for a lost head and then ends the process. So this module probes the head, and
calls that wait for the cluster get `WorkerLost` within seconds.
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

# Seconds between probes. A head that has not answered for the timeout is lost.
PROBE_INTERVAL_SECONDS = 0.5
PROBE_TIMEOUT_SECONDS = 5.0
# Seconds in which the head must answer at the end of a program; otherwise it counts as lost.
EXIT_SECONDS = 2.5
# Seconds between the loss of the head and leaving the cluster, which kills its workers here.
LEAVE_GRACE_SECONDS = 1.0

# The start of a gRPC connection: the preface of HTTP/2 and an empty settings frame. The server's
# first frame is also a settings frame, whose type is in the fourth byte.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def _is_answering(address: str, *, timeout: float) -> bool:
    """Return whether a gRPC server answers; with TLS, whether a server listens."""
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
    """Probes the head of a cluster while callers watch it."""

    def __init__(self, address: str, leave: Callable[[], None] | None) -> None:
        self.address = address
        # The reason why the head is considered lost, None while it is not.
        self.loss_reason: str | None = None
        self._leave = leave
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[str], None]] = {}
        self._count = 0
        self._probing = False

    def watch(self, on_loss: Callable[[str], None]) -> int:
        """Call `on_loss(why)` when the head is lost; return the number for `unwatch`.

        The call comes from another thread, or from this one if the head is already lost.
        """
        with self._lock:
            self._count += 1
            number = self._count
            self._callbacks[number] = on_loss
            if not self._probing and self.loss_reason is None:
                self._probing = True
                threading.Thread(target=self._probe, name="ray-head", daemon=True).start()
            reason = self.loss_reason
        if reason is not None:
            on_loss(reason)
        return number

    def unwatch(self, number: int) -> None:
        """Remove a callback."""
        self._callbacks.pop(number, None)

    def _probe(self) -> None:
        # The time of the first failed probe. If this machine was suspended, the last successful one
        # may be long ago although the head is alive.
        silent: float | None = None
        while silent is None or time.monotonic() - silent < PROBE_TIMEOUT_SECONDS:
            time.sleep(PROBE_INTERVAL_SECONDS)
            with self._lock:
                if not self._callbacks:
                    self._probing = False
                    return
            if _is_answering(self.address, timeout=PROBE_TIMEOUT_SECONDS / 2):
                silent = None
            elif silent is None:
                silent = time.monotonic()
        # Ray's `sys.excepthook` would wait for the head and hide the error.
        hook = sys.modules.get(sys.excepthook.__module__)
        if hook is not None and hook.__name__.startswith("ray."):
            sys.excepthook = getattr(hook, "normal_excepthook", sys.__excepthook__)
        with self._lock:
            why = self.loss_reason = f"the head of the Ray cluster at {self.address} went away"
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback(why)
        if self._leave is not None:
            time.sleep(LEAVE_GRACE_SECONDS)
            self._leave()


class Cluster:
    """The Ray cluster that this process has joined."""

    def __init__(self, ray: Any, address: str, *, is_joined_here: bool) -> None:
        self.ray = ray
        self.address = address
        # The addresses that mean this cluster: its machine may have several.
        self.known_addresses: set[str | None] = {None, "auto", "local", address}
        self.head: FailureDetector = FailureDetector(
            address, self._leave if is_joined_here else None
        )
        self.machines: Machines = Machines(ray, address)
        # Whether a task was submitted. Ray blocks the caller of the first submission, so that one
        # must not run in the event loop.
        self.has_submitted = False
        # Set when the grace period after the loss of the head is over.
        self._leaving = threading.Event()
        if is_joined_here:
            atexit.register(self._at_exit)  # registered after Ray's own handler, so it runs first

    @property
    def is_usable(self) -> bool:
        """Whether this process is still a member and the head is not lost."""
        return self.head.loss_reason is None and _address_of(self.ray) == self.address

    def _leave(self) -> None:
        # Otherwise Ray would end this process a minute after the loss.
        self._leaving.set()
        self.ray.shutdown()
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Skip Ray's cleanup at exit if the cluster has lost its head.

        The cleanup waits 5 s for the head, was seen to hang for a minute, and blocks if `_leave` is
        running. If it is skipped, Ray's C++ destructors may crash. So an exit handler of the C
        library ends the process before they run. It keeps the exit status, and Python has flushed
        all output by then.
        """
        if self.head.loss_reason is not None:
            self._leaving.wait(EXIT_SECONDS)
        elif _address_of(self.ray) != self.address or _is_answering(
            self.address, timeout=EXIT_SECONDS
        ):
            return
        with suppress(AttributeError, TypeError):  # a C library other than glibc
            libc = ctypes.CDLL(None)
            libc.on_exit(libc._exit, None)
        atexit.unregister(self.ray.shutdown)


def _address_of(ray: Any) -> str | None:
    """Return the address of the cluster that Ray has joined in this process, else None."""
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


class Monitor:
    """Waits for answers of a cluster, and stops waiting when its head is lost.

        async with Monitor(cluster, path) as monitor:
            answer = await monitor.call(actor.method, argument)

    The loss of an actor or of the head raises `WorkerLost` for `path`. `on_loss` is called in
    another thread when the head is lost.
    """

    def __init__(
        self, cluster: Cluster, path: str, on_loss: Callable[[], object] | None = None
    ) -> None:
        self._cluster = cluster
        self._path = path
        self._on_loss = on_loss

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # Has the reason once the head is lost.
        self.loss: asyncio.Future[str] = loop.create_future()

        def tell(why: str) -> None:
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                loop.call_soon_threadsafe(lambda: self.loss.done() or self.loss.set_result(why))
            if self._on_loss is not None:
                self._on_loss()

        self._number = self._cluster.head.watch(tell)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cluster.head.unwatch(self._number)
        self.loss.cancel()

    async def call(self, method: Any, *args: Any, lending: bool = False) -> Any:
        """Return the result of a method of an actor.

        With `lending`, other Ray tasks may use this task's CPUs during the wait. Use it if the
        method needs CPUs.
        """
        answer = method.remote(*args)
        try:
            with lend_while_waiting(answer) if lending else nullcontext():
                return await self.wait(asyncio.ensure_future(answer))
        except self._cluster.ray.exceptions.RayError as error:
            raise translate_error(error, self._path) from None

    async def wait(self, answer: asyncio.Future[T]) -> T:
        """Return the outcome of `answer`; cancel it if this is cancelled or the head is lost."""
        try:
            await asyncio.wait((answer, self.loss), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise WorkerLost(self._path, self.loss.result())
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
    """Return the cluster at `address`, which this process joins if necessary.

    Without an address it returns the cluster that the process has joined, or finds one. A cancel
    does not stop the joining; the next call waits for it. Raises `ConfigurationError` if there is
    no cluster, it runs another version of Ray or Python, or the process has joined another one.
    """
    global _joiner
    cluster = _cluster
    if cluster is not None and cluster.is_usable and address in cluster.known_addresses:
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


def _ip_addresses(host: str) -> set[str]:
    """Return the IP addresses of a host, and the word "here" if the host is this machine."""
    try:
        numbers = {str(each[4][0]) for each in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()
    for number in list(numbers):
        family = socket.AF_INET6 if ":" in number else socket.AF_INET
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((number, 0))  # works only for addresses of this machine
            numbers.add("here")
    return numbers


def _serve_requests() -> None:
    # Ray ends the processes of a cluster that it started when the thread that started them ends. So
    # one thread, which never ends, does all the joining.
    global _cluster
    while True:
        address, joining = _requests.get()
        try:
            if _cluster is None or not _cluster.is_usable:
                _cluster = _connect(address)
            cluster = _cluster
            if address not in cluster.known_addresses:
                # Accept another name or address of the same machine, with the same port.
                host, _, port = str(address).rpartition(":")
                current_host, _, current_port = cluster.address.rpartition(":")
                if port != current_port or _ip_addresses(host).isdisjoint(
                    _ip_addresses(current_host)
                ):
                    raise ConfigurationError(
                        f"this process has joined the Ray cluster at {cluster.address}, so it "
                        f"cannot join the one at {address}"
                    )
                cluster.known_addresses.add(address)
        except BaseException as error:  # noqa: BLE001 - raised where the cluster is awaited
            settle = partial(joining.set_exception, error)
        else:
            settle = partial(joining.set_result, cluster)
        with _lock:
            del _joining[address]
        settle()


def _connect(address: str | None) -> Cluster:
    """Return the cluster that Ray has joined in this process; else let Ray join or start one."""
    ray = import_ray()
    if ray.is_initialized():
        return Cluster(ray, ray.get_runtime_context().gcs_address, is_joined_here=False)
    target = address or os.environ.get("RAY_ADDRESS")
    if target is not None and target not in {"auto", "local"}:
        _require_head(target)
    else:
        last: str | None = None  # the last cluster of this machine, if Ray remembers one
        with suppress(ImportError, AttributeError, OSError):
            last = import_module("ray._private.utils").read_ray_address()
        if last is not None and not _is_answering(last, timeout=4):
            if target == "auto":
                _require_head(last)
            address = "local"  # Ray itself would wait a minute for the last one
    log = logging.getLogger("ray._private.worker")
    log.addFilter(_drop_sigterm_warning)
    try:
        ray.init(address=address, configure_logging=False, log_to_driver=True)
    except Exception as error:  # Ray raises many kinds of errors
        text = " ".join(str(error).split())
        at = "a Ray cluster" if target is None else f"the Ray cluster at {target}"
        remedy = (
            " Install the same Ray and Python here as there"
            if "ersion mismatch" in text
            else " (is it running, 'ray status', and has this machine been added to it with "
            "'ray start --address=...'?)"
        )
        raise ConfigurationError(f"cannot join {at}: {text}{remedy}") from error
    finally:
        log.removeFilter(_drop_sigterm_warning)
    return Cluster(ray, ray.get_runtime_context().gcs_address, is_joined_here=True)


def _drop_sigterm_warning(record: logging.LogRecord) -> bool:
    # Ray warns that it cannot set a signal handler outside of the main thread.
    return "SIGTERM handler is not set" not in record.getMessage()


def _require_head(address: str) -> None:
    """Raise `ConfigurationError` unless a gRPC server answers at `address`."""
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"{address}: a Ray client cannot stream reports; run this program on a "
            "machine of the cluster ('ray start --address=HOST:PORT', or 'ray job submit')"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"the address of a Ray cluster must be HOST:PORT, not {address!r}")
    if not _is_answering(address, timeout=4):
        raise ConfigurationError(
            f"there is no Ray cluster at {address}: start one with 'ray start --head', or "
            "correct the address"
        )
