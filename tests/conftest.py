"""The environment of every test: one seed, no connection that leaves this machine, a small heap."""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import random
import shlex
import signal
import socket
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, seed, settings
from platformdirs import user_data_dir
from support.seeds import LONG, SEED

# On a busy core, the small model's threads wait for each other. One thread was five times faster
# when measured.
os.environ.setdefault("RAYON_NUM_THREADS", "1")

# Tests neither read nor write the data of the developer's own programs.
OWN_DATA = Path(user_data_dir("anabranch"))
HAD_DATA = OWN_DATA.exists()
_FOLDER = TemporaryDirectory(prefix="anabranch-tests-", ignore_cleanup_errors=True)
for _kind in ("DATA", "STATE", "CONFIG"):
    os.environ[f"XDG_{_kind}_HOME"] = str(Path(_FOLDER.name, _kind.lower()))

# No object that exists before the tests begin is garbage, so collections would be wasted.
gc.disable()

# `nohup`, or a shell that starts the tests in the background, makes them and their programs ignore
# these signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A slow machine must not fail a test, neither in its examples nor in making them.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")


MAX_WORKERS = 8
# xdist begins with the files that have the most tests. These have few, or are groups. If one of
# them began last, the other workers would wait for it.
LONGEST = (
    "small model",
    "tests/project/test_examples_durable.py",
    "tests/project/test_packaging.py",
)


class OutsideConnection(Exception):
    """A test tried to connect to an address outside of loopback."""


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
            f"{event} to {host!r}: the tests may reach only this machine;"
            " use tests/support/scripted_server.py"
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
    """Return whether an address belongs to this machine. Local programs may connect over it too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        try:
            own.bind((address, 0))
        except OSError:
            return False
    return True


# An audit hook sees every socket of this process, including those of asyncio and C code.
sys.addaudithook(_refuse_outside)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """End the run when a worker dies, with the name of the test that it ran.

    xdist would start another worker and run that test again, which may kill the new worker too.
    """
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = "0"


def pytest_report_header() -> str:
    return f"ANABRANCH_SEED={SEED}" + (", with the long tests" if LONG else "")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    for item in items:
        if item.get_closest_marker("long") and not LONG:
            item.add_marker(pytest.mark.skip(reason="long: not run"))
        if "small_model" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("small model"))  # one worker loads it
        if "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("postgres"))  # one worker runs it
        if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
            seed(SEED)(getattr(item.obj, "__func__", item.obj))
    yield
    _name_groups(config, items)


def _name_groups(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Restore the groups in test ids: pytest 9.2 does not read the `_nodeid` of xdist 3.8."""
    if not getattr(config.option, "loadgroup", False):  # not a worker of `--dist loadgroup`
        return
    for item in items:
        named = vars(item).get("_nodeid", item.nodeid)
        if named != item.nodeid:
            item._id = type(item._id).parse(named)  # pyright: ignore
        is_grouped = item.get_closest_marker("xdist_group") is not None
        assert not is_grouped or _without_group(item.nodeid) != item.nodeid, (
            f"{item.nodeid}: xdist does not see its group"
        )


def _without_group(nodeid: str) -> str:
    """Return a test's id without the group that xdist adds."""
    end = nodeid.rfind("@")
    return nodeid[:end] if end > nodeid.rfind("]") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start two workers for each core: many tests wait for a process, a terminal or a timer."""
    return min(2 * (os.cpu_count() or 1), MAX_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files or groups, the longest ones first.

    Each worker then makes the fixtures of a module once. After every test, xdist's scheduler
    inspects all units that it has assigned. With one unit for each test this takes half a minute in
    all.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            if first := next((each for each in LONGEST if each in self.workqueue), None):
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return ByFile(config, log)


def pytest_collection_finish() -> None:
    _leave_out_what_is_there()
    gc.enable()


def _leave_out_what_is_there() -> None:
    """Exclude all existing objects from later collections.

    Visiting them takes a third of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def light_heap() -> None:
    """Limit collections to objects of the test, for modules that collect often."""
    _leave_out_what_is_there()


@pytest.fixture(scope="session")
def small_model() -> Generator[Any]:
    """The model in this process, loaded once for all tests that request it."""
    from support.local_model import open_shared_engine

    with open_shared_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def postgres() -> Generator[Any]:
    """A server for all tests that request it. Without an installed one they are skipped."""
    from support.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    random.seed(SEED)


@pytest.fixture(scope="session", autouse=True)
def _own_data() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """Fail if a test has made a journal of chats in the developer's own folder."""
    yield
    assert HAD_DATA or not OWN_DATA.exists(), f"a test has written into {OWN_DATA}"


@pytest.fixture(autouse=True)
def _busy_machine(request: pytest.FixtureRequest) -> Generator[None]:
    """Keep the warning about slow bodies out of the logs that tests count, except in its own tests.

    On a busy machine any body may take longer than the limit.
    """
    logger = logging.getLogger("anabranch")
    own = request.path.name == "test_t12_slow.py"

    def keep(record: logging.LogRecord) -> bool:
        return own or "blocks the event loop" not in str(record.msg)

    logger.addFilter(keep)
    yield
    logger.removeFilter(keep)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the command for a replay to the report of a failed test."""
    report = yield
    if report.failed:
        test = _without_group(item.nodeid)
        flags = "ANABRANCH_LONG=1 " if LONG else ""
        line = f"ANABRANCH_SEED={SEED} {flags}{sys.executable} -m pytest {shlex.quote(test)}"
        report.sections.append(("play it again", line))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print why tests were skipped: the exceptions that the conformance suite declares, and others.

    The suites of Ray and of vLLM print separate sections.
    """
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports]
    declared = sorted(reason for reason in reasons if reason.startswith("declared: "))
    if declared:
        terminalreporter.section(f"backend conformance: {len(declared)} declared exceptions")
        for reason in declared:
            terminalreporter.line(reason.removeprefix("declared: "))
    if long := sum(reason == "long: not run" for reason in reasons):
        terminalreporter.section(f"long tests: {long} NOT RUN")
        terminalreporter.line("make test-all runs them, and more examples of many others")
    others = [
        f"{report.nodeid}: {reason}"
        for report, reason in zip(reports, reasons, strict=True)
        if not reason.startswith("declared: ") and not reason.endswith(": not run")
    ]
    if others:
        terminalreporter.section(f"skipped: {len(others)}")
        for each in sorted(others):
            terminalreporter.line(each)
