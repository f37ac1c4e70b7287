"""Ray itself: loading it, calling it where it may hang, waiting in a task, what its errors mean."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ..commander.errors import AnabranchError, ConfigurationError, MissingExtra, WorkerLost

if TYPE_CHECKING:
    from ._protocol import TaskResult

__all__ = [
    "ActorNotFound",
    "MainThread",
    "call_in_thread",
    "import_ray",
    "lend_while_waiting",
    "this_host",
    "translate_error",
]

T = TypeVar("T")


class ActorNotFound(AnabranchError, LookupError):
    """No actor of this name is in the cluster. Attributes: `name`, and `known`, the names there."""

    def __init__(self, kind: str, name: str, known: list[str], address: str) -> None:
        there = ", ".join(known) or "none"
        super().__init__(
            f"the Ray cluster at {address} has no {kind} called {name!r}; it has {there}. "
            "One that is not detached ends with the program that made it"
        )
        self.name = name
        self.known = known


def import_ray() -> Any:
    """Return the module `ray`; raise `MissingExtra`, or `ConfigurationError` for another's."""
    with suppress(ImportError):
        ray = import_module("ray")
        if hasattr(ray, "init"):
            return ray
        if getattr(ray, "__file__", None) is not None:  # or it is a mere folder, and Ray is nowhere
            raise ConfigurationError(
                f"{ray.__file__} takes the name of Ray's own package: rename it, or start the "
                "program where it is not found first"
            )
    raise MissingExtra("running on a Ray cluster", "ray")


@cache
def this_host() -> str:
    """Return the name of this machine, as it is shown for what runs on it."""
    return socket.gethostname()


def call_in_thread(function: Callable[..., T], *args: Any) -> Future[T]:
    """Call a function of Ray's in a thread of its own: without a head it may hang.

    Nothing can end the thread, so it is a daemon: the end of the program does not wait for it. Who
    waits for the future may be cancelled; the future itself cannot be, so that many may share it.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            value = function(*args)
        except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
            future.set_exception(error)
        else:
            future.set_result(value)

    threading.Thread(target=run, name="ray-call", daemon=True).start()
    return future


def translate_error(error: BaseException, subject: str) -> BaseException:
    """Return what an error of Ray's means for `subject`, a node's path or what is to be started.

    `WorkerLost` if what ran it went away, `ConfigurationError` if it cannot be started at all, and
    the error itself if it says something else.
    """
    ray = import_ray().exceptions
    lines = str(error).strip().splitlines() or [type(error).__name__]
    for kinds, loss in (
        (ray.OutOfMemoryError, "Ray ended its worker, as the machine was out of memory"),
        (ray.NodeDiedError, "the machine that ran it went away"),
        (ray.LocalRayletDiedError, "Ray on this machine went away"),
        (ray.WorkerCrashedError, WORKER_GONE),
        (ray.RayActorError, WORKER_GONE),
        (ray.ObjectLostError, WORKER_GONE),
        (ray.RaySystemError, WORKER_GONE),
        (ray.RpcError, WORKER_GONE),
    ):
        if isinstance(error, kinds):
            return WorkerLost(subject, f"{loss} ({lines[0]})")
    if isinstance(error, ray.RuntimeEnvSetupError):
        return ConfigurationError(f"{subject}: Ray cannot make its runtime_env: {error}")
    if isinstance(error, (ray.TaskUnschedulableError, ray.ActorUnschedulableError)):
        return ConfigurationError(f"{subject}: no machine can take it: {error}")
    if isinstance(error, ray.RayTaskError):
        return ConfigurationError(
            f"{subject}: its Ray worker could not begin: {lines[-1].strip()}. A worker needs this "
            "version of anabranch and what the class imports: install them on all machines, or "
            "send them with Ray(runtime_env={'pip': [...], 'working_dir': ...})"
        )
    return error


WORKER_GONE = "the Ray worker that ran it went away"


# --- the main thread of a Ray task, which waits for the tree that the task drives
#
# Ray lends out the CPUs of a task that waits in its main thread by a call of Ray's. So while the
# tree waits for something that may need CPUs itself, the main thread waits in that call.

# Ray ends a wait when one of the tasks has ended. What is not waited for any more has been
# cancelled and ends soon; if it does not, the main thread looks after so many seconds.
LOOK = 1.0


class MainThread:
    """What the main thread waits for: the end of the tree."""

    current: MainThread | None = None
    """That of the task which this process runs; None elsewhere."""

    def __init__(self) -> None:
        # What is left to be reported, once the tree is over.
        self.result: TaskResult | None = None
        # Set when `result` is, or there is more to wait for.
        self._news = threading.Event()
        # The Ray tasks that the tree itself waits for; each thread may change it.
        self._awaited: set[Any] = set()

    def end(self, result: TaskResult) -> None:
        """Say that the tree is over."""
        self.result = result
        self._news.set()

    @contextmanager
    def lend(self, task: Any) -> Generator[None, None, None]:
        """See `lend_while_waiting`."""
        self._awaited.add(task)
        self._news.set()
        try:
            yield
        finally:
            self._awaited.discard(task)

    def wait(self, *, lending: bool) -> None:
        """Wait until the tree is over. Raises what Ray raises where the task was cancelled."""
        while self.result is None:
            if not (lending and self._awaited):
                self._news.wait()
                self._news.clear()
                continue
            ended, _ = import_ray().wait([*self._awaited], timeout=LOOK, fetch_local=False)
            self._awaited.difference_update(ended)


@contextmanager
def lend_while_waiting(task: Any) -> Generator[None, None, None]:
    """Lend out, inside a Ray task, its CPUs while its tree waits for `task`, a call of Ray's.

    So those who wait for others that need CPUs never take up all there are.
    """
    if (main := MainThread.current) is None:
        yield
    else:
        with main.lend(task):
            yield
