"""The messages between the processes. "Home" puts a job or calls an agent.

| message | from, to | when | effect | |---|---|---|---| | `TaskSpec` | home, task | a job starts |
a Ray task runs the job | | Ray's cancel | home, task | its node is cancelled | cancels the tree in
the task; later kills it | | `TaskResult` | task, home | its tree has ended | home takes the last
report | | `Subscribe` | home, mailbox | a commander sends its first job | a stream of the next
three | | `ReportDelivery` | task, mailbox, home | something happened | home publishes and charges
it | | `TurnRequest` | task, mailbox, home | a model request under limits | home grants a turn | |
`TurnReturned` | mailbox, home | a turn is over, or its holder lost | the turn is free | |
`AgentRequest` | home, agent | an agent is called | a stream of the next three | | `Report` | agent,
home | something happened | as above; the last has the outcome | | `SentMessage` | agent, home | the
agent sends a message | home's listeners receive it | | `CallerRequest` | agent, home | it calls a
participant at home | home answers | | a `Request` | home, engine | a model request | a stream of
`Delta`s |

Actors return streams: the reader calls `open`, `next` and `close` for `Batch`es, renews its lease
with `keep`, and sends an `answer` to an `Ask`, unless `CancelAsk` withdraws it. A stream is
cancelled if its reader does not call for the time of the lease. Reports arrive once and in order.
If the mailbox is lost, `TaskResult` still has the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..agents import AgentMessage
from ..commander import Actor, EventKind, NodeState, Policy
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
    monotonic clock, whose zero was at `epoch` of its wall clock; `began` and `sent` place them
    between the start and the arrival.
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
    """A request for a turn under the tree's limits, for the length of this stream."""

    inbox: str
    call: str
    number: str
    model: str
    tokens: int
    most: Usage | None


@dataclass(frozen=True, slots=True)
class TurnReturned:
    """A turn is over: its usage, None if nothing was sent."""

    call: str
    number: str
    usage: Usage | None


# --- streams

Batch: TypeAlias = tuple[bytes, bool]
"""Part of a stream: its packed items and failure, and whether it is the last part."""


@dataclass(frozen=True, slots=True)
class Ask:
    """An item with which a producer asks its reader; the reader answers with the number."""

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
    """A message, without its text if the other end has it."""

    part: AgentMessage
