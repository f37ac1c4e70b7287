"""The options of a put: one definition for `put_job`, `call_handler`, `run` and their twins."""

from __future__ import annotations

from typing import TypedDict

from ._limits import NodeLimits
from ._place import On
from ._policy import Policy, Restart, Retry

__all__ = ["HandlerOptions", "JobOptions"]


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
