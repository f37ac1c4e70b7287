"""What every test runs under: no connection leaves this machine."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside the tests: `import _server`

# A shell that runs the tests in the background has them and the programs they start ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test fails because the machine is slow: not in its examples, nor in making them.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


class OutsideConnection(Exception):
    """A test tried to reach something beyond loopback."""


_WATCHED = {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}


def _refuse_outside(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED:
        return
    address = arguments[0] if event.startswith("socket.get") else arguments[1]
    if event.startswith("socket.get"):
        host = address
    elif arguments[0].family not in {socket.AF_INET, socket.AF_INET6}:
        return  # between processes of this machine
    else:
        host = address[0]
    if not _is_here(host):
        raise OutsideConnection(
            f"{event} to {host!r}: the tests may reach only this machine; use tests/_server.py"
        )


def _is_here(host: object) -> bool:
    if host is None or host in {"", "localhost", b"localhost"}:
        return True
    name = host.decode() if isinstance(host, bytes) else str(host)
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or _is_own(name)


@cache
def _is_own(address: str) -> bool:
    """Say whether an address is one of this machine's, under which its programs meet too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        try:
            own.bind((address, 0))
        except OSError:
            return False
    return True


# An audit hook sees every socket of this process, also those that asyncio and C code connect.
sys.addaudithook(_refuse_outside)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print why tests were skipped: the exceptions that the conformance suite declares, and others.

    The suites of Ray and of vLLM print a section of their own.
    """
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports]
    declared = sorted(reason for reason in reasons if reason.startswith("declared: "))
    if declared:
        terminalreporter.section(f"backend conformance: {len(declared)} declared exceptions")
        for reason in declared:
            terminalreporter.line(reason.removeprefix("declared: "))
    others = [
        f"{report.nodeid}: {reason}"
        for report, reason in zip(reports, reasons, strict=True)
        if not reason.startswith("declared: ") and not reason.endswith(": not run")
    ]
    if others:
        terminalreporter.section(f"skipped: {len(others)}")
        for each in sorted(others):
            terminalreporter.line(each)
