"""Placement: the resources that a job or actor needs, and the machines that have them."""

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

__all__ = ["CHECK_SECONDS", "Machines", "Ray"]

# If a job has not started after so many seconds, check again whether a machine can run it.
CHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Ray:
    """The place on a Ray cluster where something runs, in Ray's terms.

        job = commander.put_job(Train("a.csv"), on=Ray(num_gpus=1))

    `num_cpus`, `num_gpus`, `memory` (bytes) and `resources` are the free resources that one machine
    must have; Ray waits for such a machine. `address` is the cluster's `HOST:PORT`. Without it,
    this is the cluster that the process has joined, else the one of `RAY_ADDRESS` or found by Ray,
    else a new one on this machine. `runtime_env` is passed to Ray. If no machine has the
    resources, a job with `autoscaled` waits for one, and any other is refused. A cancelled job has
    `grace` seconds to end; then Ray kills its worker.
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
        """Return the arguments of Ray's `.options()`.

        Raises `ConfigurationError` for a secret in them, and for an amount below 0.
        """
        amounts = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "memory": self.memory}
        for name, amount in {**amounts, "grace": self.grace, **self.resources}.items():
            if not (isinstance(amount, Real) and amount >= 0):
                raise ConfigurationError(
                    f"Ray({name}={amount!r}): it must be a number of at least 0"
                )
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
        """Make a job ready to be sent; the engine calls it when the job is put.

        Raises `TypeError` or `ConfigurationError` if the job cannot be sent.
        """
        from ._job import RemoteJob

        return RemoteJob(self, node)

    def needs(self) -> dict[str, float]:
        """Return the resources that one machine must have, by Ray's names."""
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory)}
        return {name: amount for name, amount in (needs | dict(self.resources)).items() if amount}

    def describe(self) -> str:
        """Return the resources as text."""
        return _in_words(self.needs()) or "no resources"


Needs: TypeAlias = "frozenset[tuple[str, float]]"


class Machines:
    """The machines of a cluster, and whether one of them has certain resources."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray = ray
        self._address = address
        # Resources that some machine had.
        self._known: set[Needs] = set()
        # The time and result of the last check for each: many waiting jobs share one check.
        self._checks: dict[Needs, tuple[float, Future[None]]] = {}

    def is_known(self, place: Ray) -> bool:
        """Return whether a check has found a machine for `place`."""
        return frozenset(place.needs().items()) in self._known

    def check_in_thread(self, place: Ray) -> Future[None]:
        """Run `check` in a thread, unless a recent one can be used."""
        needs, now = frozenset(place.needs().items()), time.monotonic()
        started, check = self._checks.get(needs, (float("-inf"), None))
        if check is None or now - started > CHECK_SECONDS / 2:
            check = call_in_thread(self.check, place)
            self._checks[needs] = now, check
        return check

    def check(self, place: Ray) -> None:
        """Raise `ConfigurationError` if no machine has the resources of `place`. May block."""
        needs = place.needs()
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if place.autoscaled or any(
            all(machine.get(name, 0) >= amount for name, amount in needs.items())
            for machine in machines
        ):
            self._known.add(frozenset(needs.items()))
            return
        largest = {name: max((each.get(name, 0) for each in machines), default=0) for name in needs}
        raise ConfigurationError(
            f"no machine of the Ray cluster at {self._address} has {_in_words(needs)}: "
            f"{len(machines)} machines, with at most {_in_words(largest)}. Request less, add a "
            "machine, or use Ray(autoscaled=True)"
        )


def _in_words(needs: Mapping[str, float]) -> str:
    """Return an amount of resources as text: `1 CPU and 2 GPU`."""
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items())
