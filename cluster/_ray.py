"""Ray: import it, call it in threads, wait in a Ray task, and translate its errors."""

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
    """The cluster has no such actor. Attributes: `name`, and `known`, the existing names."""

    def __init__(self, kind: str, name: str, known: list[str], address: str) -> None:
        there = ", ".join(known) or "none"
        super().__init__(
            f"the Ray cluster at {address} has no {kind} called {name!r}; it has {there}. "
            "One that is not detached ends with the program that made it"
        )
        self.name = name
        self.known = known


def import_ray() -> Any:
    """Return the module `ray`; raise `MissingExtra` if it is not installed.

    Raises `ConfigurationError` if another package has its name.
    """
    with suppress(ImportError):
        ray = import_module("ray")
        if hasattr(ray, "init"):
            return ray
        # A plain folder has no file: Ray is not installed.
        if getattr(ray, "__file__", None) is not None:
            raise ConfigurationError(
                f"{ray.__file__} takes the name of Ray's own package: rename it, or start the "
                "program where it is not found first"
            )
    raise MissingExtra("running on a Ray cluster", "ray")


@cache
def this_host() -> str:
    """Return the name of this machine, as shown for the nodes that run on it."""
    return socket.gethostname()


def call_in_thread(function: Callable[..., T], *args: Any) -> Future[T]:
    """Call a function of Ray in a new thread: without a head it may hang.

    Nothing can end the thread, so it is a daemon, and the end of the program does not wait for it.
    The future cannot be cancelled, so several callers may share it; each may cancel its own wait.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            value = function(*args)
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)
        else:
            future.set_result(value)

    threading.Thread(target=run, name="ray-call", daemon=True).start()
    return future


def translate_error(error: BaseException, subject: str) -> BaseException:
    """Return the error of Anabranch for an error of Ray.

    `subject` is a node's path, or the thing that should start. Returns `WorkerLost` if the worker
    was lost, `ConfigurationError` if it cannot start at all, else the error itself.
    """
    ray = import_ray().exceptions
    lines = str(error).strip().splitlines() or [type(error).__name__]
    for kinds, loss in (
        (ray.OutOfMemoryError, "Ray ended its worker, because the machine was out of memory"),
        (ray.NodeDiedError, "the machine that ran it went away"),
        (ray.LocalRayletDiedError, "Ray on this machine went away"),
        (ray.WorkerCrashedError, WORKER_LOST),
        (ray.RayActorError, WORKER_LOST),
        (ray.ObjectLostError, WORKER_LOST),
        (ray.RaySystemError, WORKER_LOST),
        (ray.RpcError, WORKER_LOST),
    ):
        if isinstance(error, kinds):
            return WorkerLost(subject, f"{loss} ({lines[0]})")
    if isinstance(error, ray.RuntimeEnvSetupError):
        return ConfigurationError(f"{subject}: Ray cannot make its runtime_env: {error}")
    if isinstance(error, (ray.TaskUnschedulableError, ray.ActorUnschedulableError)):
        return ConfigurationError(f"{subject}: no machine can take it: {error}")
    if isinstance(error, ray.RayTaskError):
        return ConfigurationError(
            f"{subject}: its Ray worker could not start: {lines[-1].strip()}. A worker needs this "
            "version of anabranch and what the class imports: install them on all machines, or "
            "send them with Ray(runtime_env={'pip': [...], 'working_dir': ...})"
        )
    return error


WORKER_LOST = "the Ray worker that ran it went away"


# --- the main thread of a Ray task, which waits for the tree of the task
#
# Ray lends the CPUs of a task to others while its main thread waits in a call of Ray. So while the
# tree waits for something that may need CPUs itself, the main thread waits in such a call.

# Ray ends a wait when one of the tasks has ended. A task that the tree no longer waits for was
# cancelled and ends soon; if it does not, the main thread notices after this time.
WAIT_POLL_SECONDS = 1.0


class MainThread:
    """The wait of the main thread for the end of the tree."""

    current: MainThread | None = None
    """The one of the task that runs in this process; None outside of tasks."""

    def __init__(self) -> None:
        # The rest of the reports, set when the tree is over.
        self.result: TaskResult | None = None
        # Set when `result` is set, or there is another task to wait for.
        self._changed = threading.Event()
        # The Ray tasks that the tree waits for; any thread may change it.
        self._awaited: set[Any] = set()

    def end(self, result: TaskResult) -> None:
        """Report that the tree is over."""
        self.result = result
        self._changed.set()

    @contextmanager
    def lend(self, task: Any) -> Generator[None, None, None]:
        """See `lend_while_waiting`."""
        self._awaited.add(task)
        self._changed.set()
        try:
            yield
        finally:
            self._awaited.discard(task)

    def wait(self, *, lending: bool) -> None:
        """Wait until the tree is over. Raises Ray's error if the task was cancelled."""
        while self.result is None:
            if not (lending and self._awaited):
                self._changed.wait()
                self._changed.clear()
                continue
            ended, _ = import_ray().wait(
                [*self._awaited], timeout=WAIT_POLL_SECONDS, fetch_local=False
            )
            self._awaited.difference_update(ended)


@contextmanager
def lend_while_waiting(task: Any) -> Generator[None, None, None]:
    """In a Ray task, lend its CPUs to others while its tree waits for `task`, a call of Ray.

    Otherwise tasks that wait for other tasks could occupy all CPUs.
    """
    if (main := MainThread.current) is None:
        yield
    else:
        with main.lend(task):
            yield
