"""A Ray cluster of three nodes on this machine, for the tests of `anabranch.cluster`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from functools import partial, wraps
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from support.optional_suites import report_skipped, skip_suite, tests_in
from support.paths import TESTS

_HERE = Path(__file__).parent

PATIENCE = 90.0  # seconds

WANTED = os.environ.get("ANABRANCH_RAY") == "1"
HAVE_RAY = find_spec("ray") is not None
if WANTED:  # also of the workers, and of programs that put jobs
    os.environ["PYTHONPATH"] = str(TESTS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not (WANTED and HAVE_RAY):
        skip_suite(items, _HERE, "Ray")
    for item in tests_in(items, _HERE):
        item.add_marker(pytest.mark.filterwarnings("default"))  # Ray's own imports warn
        if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj)


def _bounded(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
    """Let a test that hangs fail, and say where."""

    @wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            await test(*args, **kwargs)

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_skipped(terminalreporter, "Ray", "on a Ray cluster did not run: make test-ray")


class Nodes:
    """The cluster: a head with the driver, and machines that come and go."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "include_dashboard": False,
                # Workers take seconds to start, and Ray ends those that have been idle for one.
                "_system_config": {"idle_worker_killing_time_threshold_ms": 120_000},
            },
        )
        self.address: str = self.cluster.address

    def add(self, name: str, cpus: int = 2) -> Any:
        """Add a machine that has a resource of this name."""
        return self.cluster.add_node(num_cpus=cpus, resources={name: 100})

    def remove(self, node: Any) -> None:
        """Remove a machine without notice to its processes."""
        self.cluster.remove_node(node, allow_graceful=False)

    async def lose_mailbox(self) -> None:
        """Kill the mailbox of this program."""
        from anabranch.cluster._cluster import join
        from anabranch.cluster._mailbox import _mailboxes

        cluster, mailbox = await _mailboxes[await join()].result().locate()
        cluster.ray.kill(mailbox)


@pytest.fixture(scope="session")
def nodes() -> Generator[Nodes]:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = Nodes()
    nodes.add("left")
    nodes.add("right")
    ray.init(address=nodes.address, configure_logging=False, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the path of a file for the notes of jobs."""
    path = tmp_path / "noted"
    path.touch()
    return str(path)


Noted = Callable[[str], Any]


@pytest.fixture
def noted(file: str) -> Noted:
    """Return a function that waits for a line with this start, and returns it."""

    from support.ray_jobs import wait_for_line

    return partial(wait_for_line, file)
