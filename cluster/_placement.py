"""Where a thing may run: what one machine must have free, and whether any machine has it at all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeAlias

from ..commander import Node, RemoteBody
from ..commander.errors import ConfigurationError
from ._payload import check_runtime_env
from ._ray import call_in_thread

__all__ = ["CHECK_AFTER", "Machines", "Ray"]

# What has not begun after so many seconds: is there still a machine that could take it?
CHECK_AFTER = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Ray:
    """Where on a Ray cluster something runs, in Ray's own terms.

    `num_cpus`, `num_gpus`, `memory` (bytes) and `resources` are what one machine must have free;
    Ray waits until one has. `address` is the cluster's, `HOST:PORT`; without one it is the cluster
    that this process has joined, else the one that `RAY_ADDRESS` or Ray itself finds, else a new
    one on this machine. `runtime_env` is handed to Ray as it is. With `autoscaled` what no machine
    has now is waited for, since an autoscaler may bring it; otherwise it is refused. A job that was
    cancelled has `grace` seconds to end; then Ray ends its worker by force.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    address: str | None = None
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)
    autoscaled: bool = False
    grace: float = 5.0

    def options(self) -> dict[str, Any]:
        """Return what `.options()` of Ray's takes.

        `ConfigurationError` if it would tell a key, or an amount is no number of 0 or more.
        """
        amounts = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "memory": self.memory}
        for name, amount in {**amounts, "grace": self.grace, **self.resources}.items():
            if not (isinstance(amount, Real) and amount >= 0):
                raise ConfigurationError(f"Ray({name}={amount!r}): it must be a number, 0 or more")
        options: dict[str, Any] = {"num_cpus": self.num_cpus}
        if self.num_gpus:
            options["num_gpus"] = self.num_gpus
        if self.memory:
            options["memory"] = self.memory
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.runtime_env is not None:
            options["runtime_env"] = check_runtime_env(self.runtime_env)
        return options

    def prepare(self, node: Node[Any]) -> RemoteBody:
        """Make a job ready to be sent; raise `TypeError` or `ConfigurationError` if it cannot be.

        The engine calls it when the job is put.
        """
        from ._job import RemoteJob

        return RemoteJob(self, node)

    def needs(self) -> dict[str, float]:
        """Return what one machine must have, by Ray's names of resources."""
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory)}
        return {name: amount for name, amount in (needs | dict(self.resources)).items() if amount}

    def describe(self) -> str:
        """Return the needs in words."""
        return _in_words(self.needs()) or "that needs nothing"


Needs: TypeAlias = "frozenset[tuple[str, float]]"


class Machines:
    """The machines of a cluster: does any of them have what is asked for?"""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray = ray
        self._address = address
        # What some machine has been seen to have.
        self._known: set[Needs] = set()
        # The last check of each, and when it began: however many wait, one looks.
        self._checks: dict[Needs, tuple[float, Future[None]]] = {}

    def is_known(self, place: Ray) -> bool:
        """Whether a check has ever found a machine for `place`."""
        return frozenset(place.needs().items()) in self._known

    def check_in_thread(self, place: Ray) -> Future[None]:
        """Call `check` in a thread, unless somebody has lately."""
        needs, now = frozenset(place.needs().items()), time.monotonic()
        began, check = self._checks.get(needs, (float("-inf"), None))
        if check is None or now - began > CHECK_AFTER / 2:
            check = call_in_thread(self.check, place)
            self._checks[needs] = now, check
        return check

    def check(self, place: Ray) -> None:
        """Raise `ConfigurationError` if no machine has what `place` asks for; it may block."""
        needs = place.needs()
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if place.autoscaled or any(
            all(machine.get(name, 0) >= amount for name, amount in needs.items())
            for machine in machines
        ):
            self._known.add(frozenset(needs.items()))
            return
        most = {name: max((each.get(name, 0) for each in machines), default=0) for name in needs}
        raise ConfigurationError(
            f"no machine of the Ray cluster at {self._address} has {_in_words(needs)}: "
            f"{len(machines)} machines, which have at most {_in_words(most)}; ask for less, add a "
            "machine, or say Ray(autoscaled=True) if one will come by itself"
        )


def _in_words(needs: Mapping[str, float]) -> str:
    """Return an amount of resources as text: `1 CPU and 2 GPU`."""
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items())
