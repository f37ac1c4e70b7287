"""What the processes say to each other; home is where a job is put or an agent is asked.

| message | from, to | when | what follows |
|---|---|---|---|
| `TaskSpec` | home, task | a job starts | a Ray task drives the job |
| Ray's cancel | home, task | its node is cancelled | the tree in the task is; later, by force |
| `TaskResult` | task, home | its tree has ended | home takes the last report |
| `Subscribe` | home, mailbox | a commander sends its first job | a stream of the next three |
| `Delivery` | task, mailbox, home | something has happened | home shows and charges it |
| `TurnRequest` | task, mailbox, home | a model is asked under limits | home answers by a turn |
| `TurnReturned` | mailbox, home | a turn is over, or its holder gone | the turn is free |
| `AgentCall` | home, agent | an agent is asked | a stream of the next three |
| `Report` | agent, home | something has happened | as above; the last has the outcome |
| `MessagePart` | agent, home | the agent says something | those who listen hear it |
| `CallerRequest` | agent, home | it wants somebody who is at home | home answers |
| a `Request` | home, engine | a model is asked | a stream of `Delta`s |

What an actor gives is a stream: its reader calls `open`, `next` and `close` for `Batch`es, renews
its lease by `keep`, and gives an `answer` to an `Ask`, which `CancelAsk` takes back. Without a word
of its reader for the time of the lease the stream is cancelled. Reports arrive once and in order;
if the mailbox is lost, `TaskResult` still has the last one.
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
    "AgentCall",
    "Ask",
    "Batch",
    "CallerRequest",
    "CancelAsk",
    "Delivery",
    "EventRecord",
    "MessagePart",
    "NodeRecord",
    "Outcome",
    "ReplyAddress",
    "Report",
    "Subscribe",
    "TaskResult",
    "TaskSpec",
    "TreeContext",
    "TurnRequest",
    "TurnReturned",
]

# --- trees


class ReplyAddress(NamedTuple):
    """Where something that runs elsewhere reaches home: a mailbox, an inbox there, a call."""

    mailbox: Mailbox
    inbox: str
    call: str


class TreeContext(NamedTuple):
    """Where at home a node stands whose body runs elsewhere, and what holds for it."""

    node_id: int
    parent: str  # its path
    policy: Policy
    slow_after: float | None
    reply_to: ReplyAddress | None  # None where a stream of its own leads home
    limits: RemoteLimits | None
    # The limit of messages of the conversation that it belongs to, and how many are left; None
    # outside any.
    messages: tuple[int, int, str | None] | None


class TaskSpec(NamedTuple):
    """What a Ray task is to do."""

    job: JobPayload
    context: TreeContext


EventRecord: TypeAlias = "tuple[EventKind, int, int | None, str, Actor | None, float, Any]"
"""An event: its kind, the node's id, its parent's, its name, who acts there, when, and its data."""

NodeRecord: TypeAlias = "tuple[int, int | None, str, NodeState]"
"""An unfinished node: its id, its parent's, its name and state."""

Outcome: TypeAlias = "tuple[Literal['completed', 'failed', 'cancelled', 'exit', 'refused'], Any]"
"""How a node ended: with its pickled result or failure, the reason, or why it never began."""

TaskResult: TypeAlias = "tuple[int, bytes | None, bytes]"
"""The value of a Ray task: how many reports have arrived at home, the next if it was under way, and
the last one, with the outcome."""


class Report(NamedTuple):
    """What has happened in a worker since the last report, in order.

    `charges` and `messages` (how many of agents) are what came since the last report. `nodes` are
    all that are unfinished, where events were lost before the first of these. Times are of the
    worker's monotonic clock, whose zero was at `epoch` by its time of day; `began` and `sent` place
    them between the start at home and the report's arrival.
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
class Delivery:
    """A report, the call's `number`th from 1."""

    inbox: str
    call: str
    number: int
    report: bytes


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn in the tree's limits is wanted, as long as this stream lasts."""

    inbox: str
    call: str
    number: str
    model: str
    tokens: int
    most: Usage | None


@dataclass(frozen=True, slots=True)
class TurnReturned:
    """A turn is over: what was used, None if nothing was sent."""

    call: str
    number: str
    usage: Usage | None


# --- streams

Batch: TypeAlias = tuple[bytes, bool]
"""What came of a part of a stream, packed: its items and a failure; and whether it is the last."""


@dataclass(frozen=True, slots=True)
class Ask:
    """An item by which a producer asks its reader something; the reader answers by the number."""

    number: int
    question: Any


@dataclass(frozen=True, slots=True)
class CancelAsk:
    """An item that takes an `Ask` back."""

    number: int


# --- agents


@dataclass(frozen=True, slots=True)
class AgentCall:
    """What is asked of an agent: one of its methods, or what it has under that name.

    `arguments` are packed; `listened` says whether somebody hears what the agent says.
    """

    method: str
    arguments: bytes
    context: TreeContext
    listened: bool


@dataclass(frozen=True, slots=True)
class CallerRequest:
    """What an agent asks of its caller: "find", or a method of the participant `name` there.

    `messages` is how many were said since the caller last heard of it.
    """

    name: str
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    messages: int


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Something that was said, its text left out if the other end has it."""

    part: AgentMessage
