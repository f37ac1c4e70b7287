"""The messages between the processes. "Home" is the process that puts a job or calls an agent.

Messages of a job that runs as a Ray task:

- `TaskSpec`, home to task: a Ray task runs the job. Ray's cancel cancels its tree, then kills it.
- `TaskResult`, task to home: the value of the Ray task, after its tree has ended.
- `Subscribe`, home to mailbox: opens a stream of `ReportDelivery`, `TurnRequest`, `TurnReturned`.
- `ReportDelivery`, task to home through the mailbox: home publishes the events and charges usage.
- `TurnRequest`, task to home through the mailbox: asks for a turn to send a model request.
- `TurnReturned`, mailbox to home: the turn is over, or its task is lost.

Messages of an agent or an engine in a Ray actor:

- `AgentRequest`, home to agent: opens a stream of `Report`, `SentMessage` and `CallerRequest`.
- `Report`, agent to home: as above. The last one has the outcome.
- `SentMessage`, agent to home: home's listeners receive it.
- `CallerRequest`, agent to home: calls a participant of the conversation at home.
- `Request`, home to engine: opens a stream of `Delta`s.

Actors return streams. The reader calls `open`, `next` (returns a `Batch`) and `close`. It renews
its lease with `keep`; without a call for the time of the lease the stream is cancelled. It sends an
`answer` to each `Ask`, unless `CancelAsk` withdraws it. Reports arrive once and in order. If the
mailbox is lost, `TaskResult` still has the last report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..agents import AgentMessage
from ..commander import Actor, EventKind, NodeState, Policy
from ..commander.context import SentContext
from ..messages import Usage
from ._payload import JobPayload

if TYPE_CHECKING:
    from ._mailbox import Mailbox, RemoteLimits

__all__ = [
    "AgentRequest",
    "Ask",
    "Batch",
    "CallerRequest",
    "CancelAsk",
    "EventRecord",
    "NodeRecord",
    "Outcome",
    "ReplyAddress",
    "Report",
    "ReportDelivery",
    "SentMessage",
    "Subscribe",
    "TaskResult",
    "TaskSpec",
    "TreeContext",
    "TurnRequest",
    "TurnReturned",
]

# --- trees


class ReplyAddress(NamedTuple):
    """The address of a remote call's home: a mailbox, an inbox in it, and the call."""

    mailbox: Mailbox
    inbox: str
    call: str


class TreeContext(NamedTuple):
    """The context of a node whose body runs in another process."""

    node_id: int
    parent: str  # the parent's path
    policy: Policy
    slow_after: float | None
    reply_to: ReplyAddress | None  # None if the call's own stream has the reports
    limits: RemoteLimits | None
    # The conversation's limit of messages, the number left, and its session; None outside of one.
    messages: tuple[int, int, str | None] | None
    # The node's `context=`; None without one.
    value: SentContext | None


class TaskSpec(NamedTuple):
    """The input of a Ray task."""

    job: JobPayload
    context: TreeContext


EventRecord: TypeAlias = "tuple[EventKind, int, int | None, str, Actor | None, float, Any]"
"""An event: kind, node id, parent id, name, actor, time and data."""

NodeRecord: TypeAlias = "tuple[int, int | None, str, NodeState]"
"""An unfinished node: id, parent id, name and state."""

Outcome: TypeAlias = "tuple[Literal['completed', 'failed', 'cancelled', 'exit', 'refused'], Any]"
"""The end of a node: its pickled result or failure, or the reason of a cancel or refusal."""

TaskResult: TypeAlias = "tuple[int, bytes | None, bytes]"
"""The value of a Ray task: the number of reports that reached home, the report that was being
sent, if any, and the last report, with the outcome."""


class Report(NamedTuple):
    """The events of a worker since the last report, in order.

    `charges` and `messages` (a count of agents' messages) are those since the last report. If
    events were lost before these, `nodes` are all unfinished nodes. Times are of the worker's
    monotonic clock; `epoch` is the wall-clock time of its zero. Home uses `began` and `sent`, the
    times of the call's start and of this report, to correct the worker's clock.
    """

    host: str
    pid: int
    epoch: float
    began: float
    sent: float
    events: list[EventRecord]
    charges: dict[str, Any]
    messages: int
    nodes: list[NodeRecord] | None
    outcome: Outcome | None


# --- the mailbox


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Home reads this inbox from now on."""

    inbox: str


@dataclass(frozen=True, slots=True)
class ReportDelivery:
    """The report of a call with this `number`, from 1."""

    inbox: str
    call: str
    number: int
    report: bytes


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Ask for a turn: the permission of the tree's limits to send a request to a model.

    `tokens` and `most` are estimates of the request. The turn is held while the stream is open.
    """

    inbox: str
    call: str
    number: str
    model: str
    tokens: int
    most: Usage | None


@dataclass(frozen=True, slots=True)
class TurnReturned:
    """The end of a turn, with the usage of its request; None if no request was sent."""

    call: str
    number: str
    usage: Usage | None


# --- streams

Batch: TypeAlias = tuple[bytes, bool]
"""Part of a stream: its packed items and failure, and whether it is the last part."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question of a stream's producer to its reader. The answer repeats `number`."""

    number: int
    question: Any


@dataclass(frozen=True, slots=True)
class CancelAsk:
    """An item that withdraws an `Ask`."""

    number: int


# --- agents


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A call of an agent's method, or a request for its attribute.

    `arguments` are packed. `has_listener` says whether a listener receives the agent's messages.
    """

    method: str
    arguments: bytes
    context: TreeContext
    has_listener: bool


@dataclass(frozen=True, slots=True)
class CallerRequest:
    """A request of an agent to its caller: "find", or a method of the participant `name`.

    `messages` is the number of messages since the last update of the caller.
    """

    name: str
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    messages: int


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message of an agent, or a piece of one. Texts that home already has are left out."""

    part: AgentMessage
