"""Whether the head of a Ray cluster is there: asked before joining, and watched while it is used.

Ray itself waits a minute for a head that has gone and then ends the process. So it is asked here,
and whoever waits for something in the cluster is told within seconds.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from ..commander.errors import ConfigurationError

__all__ = ["Head", "find_head"]

PERIOD = 0.5
# A head that has not answered for so many seconds is lost.
PATIENCE = 5.0
# In so many seconds those who are told may still use what is left of the cluster.
GRACE = 1.0

# How a client of gRPC begins: the preface of HTTP/2 and an empty frame of settings. The server's
# first frame is one of settings too; its type is the fourth byte.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


class Head:
    """Watches a cluster's head as long as somebody wants to be told of its loss."""

    def __init__(self, address: str, leave: Callable[[], None] | None) -> None:
        self.address = address
        # Why it is thought to be lost; None as long as it is there.
        self.lost: str | None = None
        self._leave = leave
        self._lock = threading.Lock()
        self._tell: dict[int, Callable[[str], None]] = {}
        self._count = 0
        self._watching = False

    def watch(self, tell: Callable[[str], None]) -> int:
        """Call `tell(why)`, in another thread, when the head is lost; return what `unwatch` takes.

        It may be called at once, if the head is lost already.
        """
        with self._lock:
            self._count += 1
            number = self._count
            self._tell[number] = tell
            if not self._watching and self.lost is None:
                self._watching = True
                threading.Thread(target=self._watch, name="ray-head", daemon=True).start()
            lost = self.lost
        if lost is not None:
            tell(lost)
        return number

    def unwatch(self, number: int) -> None:
        """Tell no more."""
        self._tell.pop(number, None)

    def _watch(self) -> None:
        # Since when it has been silent: counted from a question, for this process may have slept.
        silent: float | None = None
        while silent is None or time.monotonic() - silent < PATIENCE:
            time.sleep(PERIOD)
            if not self._wanted():
                return
            if answers(self.address, timeout=PATIENCE / 2):
                silent = None
            elif silent is None:
                silent = time.monotonic()
        self._lose(f"the head of the Ray cluster at {self.address} went away")

    def _wanted(self) -> bool:
        with self._lock:
            if not self._tell:
                self._watching = False
            return self._watching

    def _lose(self, why: str) -> None:
        _print_errors_at_once()
        with self._lock:
            self.lost = why
            tell = list(self._tell.values())
        for each in tell:
            each(why)
        if self._leave is not None:
            time.sleep(GRACE)
            self._leave()


def _print_errors_at_once() -> None:
    """Take away Ray's hook, which tells the head of an uncaught error before it prints that.

    It would wait for the head until Ray ends the process, and nobody would see the error.
    """
    module = sys.modules.get(sys.excepthook.__module__)
    if module is not None and module.__name__.startswith("ray."):
        sys.excepthook = getattr(module, "normal_excepthook", sys.__excepthook__)


def find_head(address: str) -> None:
    """Raise `ConfigurationError` unless a server of Ray's kind answers at `address`."""
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"{address}: a Ray client cannot stream what a tree sends home; run this program on a "
            "machine of the cluster ('ray start --address=HOST:PORT', or 'ray job submit')"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"the address of a Ray cluster is HOST:PORT, not {address!r}")
    if not answers(address, timeout=4):
        raise ConfigurationError(
            f"there is no Ray cluster at {address}: start one there with 'ray start --head', or "
            "mend the address"
        )


def answers(address: str, *, timeout: float) -> bool:
    """Say whether a server of gRPC answers; under TLS, whether anything listens."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in {"1", "true", "True"}:
                return True
            connection.settimeout(timeout)
            connection.sendall(GREETING)
            return connection.recv(9)[3:4] == b"\4"
    except OSError:
        return False
