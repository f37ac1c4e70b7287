"""The options of a put: one definition for `put_job`, `call_handler`, `run` and their twins."""

from __future__ import annotations

from abc import ABC
from typing import Any, TypedDict

from ._place import On
from ._policy import Policy, Restart, Retry
from ._report import type_name

__all__ = ["HandlerOptions", "JobOptions", "NodeLimits", "check_limits"]


class NodeLimits(ABC):  # noqa: B024 - the engine asks nothing of it
    """What may be given to a node as its `limits`: it holds for the node and for all below it.

    The engine keeps it and no more. Whoever spends something asks for `limits_around`, and keeps to
    what it finds.
    """

    def count_again(self, account: str, amount: Any) -> None:  # noqa: B027 - most count nothing
        """Count what was spent in an earlier life of a durable run."""


def check_limits(limits: object) -> None:
    """Raise a `TypeError` that says what is wanted unless `limits` is such, or None."""
    if limits is not None and not isinstance(limits, NodeLimits):
        raise TypeError(
            f"limits must be an object such as Limits(budget=...), not {type_name(limits)}"
        )


class HandlerOptions(TypedDict, total=False):
    """The options with which a handler or a job starts; `Node.put_job` describes each."""

    timeout: float | None
    retry: Retry | Restart | None
    policy: Policy | None
    claim: bool
    limits: NodeLimits | None
    key: str | None


class JobOptions(HandlerOptions, total=False):
    """The options of a job, which can also wait in the queue and run at another place."""

    priority: int
    on: On | None
