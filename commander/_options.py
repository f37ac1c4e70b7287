"""The options of `put_job`, `call_handler`, `commander.run` and the thread-safe puts."""

from __future__ import annotations

from abc import ABC
from typing import Any, TypedDict

from ._place import On
from ._policy import Policy, Restart, Retry
from ._report import type_name

__all__ = ["HandlerOptions", "JobOptions", "NodeLimits", "SyncOptions", "check_limits"]


class NodeLimits(ABC):  # noqa: B024 - the engine asks nothing of it
    """The base class of `Limits`, which bound a node and all nodes below it.

    The engine only stores them. Backends get them from `limits_around` and obey them.
    """

    def count_again(self, account: str, amount: Any) -> None:  # noqa: B027 - most count nothing
        """Count usage of an earlier execution of a durable run."""


def check_limits(limits: object) -> None:
    """Raise `TypeError` unless `limits` is a `NodeLimits` or None."""
    if limits is not None and not isinstance(limits, NodeLimits):
        raise TypeError(
            f"limits must be an object such as Limits(budget=...), not {type_name(limits)}"
        )


class SyncOptions(TypedDict, total=False):
    """The options of a blocking call, as of `Chat.run_sync`. `run` describes them."""

    timeout: float | None
    limits: NodeLimits | None
    context: object


class HandlerOptions(TypedDict, total=False):
    """The options of a handler or a job. `Node.put_job` describes them."""

    timeout: float | None
    retry: Retry | Restart | None
    policy: Policy | None
    claim: bool
    limits: NodeLimits | None
    key: str | None
    context: object


class JobOptions(HandlerOptions, total=False):
    """The options of a job: those of a handler, and those for the queue and the place."""

    priority: int
    on: On | None
