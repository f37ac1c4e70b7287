"""The parts of a trace: nodes, their intervals, requests, errors, executions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..messages import Usage

__all__ = ["Execution", "Interval", "TraceError", "TraceNode", "TraceRequest", "TraceState"]

TraceState: TypeAlias = Literal[
    "pending", "running", "joining", "completed", "failed", "cancelled", "lost"
]
"""The state of a node. The end of a "lost" node is not in the recording: its process was killed."""

OPEN_STATES = ("pending", "running", "joining")


@dataclass(slots=True)
class TraceError:
    """An exception: its class, and the line of code that raised it.

    Only recordings with content have its `message`. `of` are the errors of an `ExceptionGroup`.
    """

    type: str
    at: str = ""
    message: str = ""
    of: tuple[TraceError, ...] = ()

    def __str__(self) -> str:
        text = f"{self.type}: {self.message}" if self.message else self.type
        return f"{text} ({self.at})" if self.at else text

    @classmethod
    def read(cls, record: Mapping[str, Any] | None) -> TraceError | None:
        """Read the error in a record."""
        if record is None:
            return None
        inner = [found for each in record.get("of", ()) if (found := cls.read(each)) is not None]
        message = record.get("message", "")
        return cls(record.get("type", "?"), record.get("at", ""), message, (*inner,))


@dataclass(slots=True)
class Interval:
    """The time during which a node's body or children ran: one for each attempt and execution.

    Times are in seconds since the recording began; `end` is None while it lasts.
    """

    start: float
    end: float | None = None
    joined: float | None = None  # when the body returned while children still ran


@dataclass(slots=True)
class TraceRequest:
    """A request to a model. `first` (chunk) and `end` are times, or None before they happen."""

    number: int
    provider: str
    model: str
    start: float
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: int = 0
    tools: tuple[str, ...] = ()
    replayed: bool = False  # the reply came from a journal
    first: float | None = None
    end: float | None = None
    chunks: int = 0
    finish_reason: str = ""
    error: TraceError | None = None
    left: bool = False  # its reader stopped before the end
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    input: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    output: dict[str, Any] | None = None

    @classmethod
    def read(cls, record: Mapping[str, Any], at: float) -> TraceRequest:
        """Read the record of a request that was sent."""
        return cls(
            record["q"],
            record["provider"],
            record["model"],
            at,
            record.get("options", {}),
            record.get("messages", 0),
            tuple(record.get("tools", ())),
            record.get("replayed", False),
            input=record.get("input", []),
        )


@dataclass(eq=False, slots=True)
class TraceNode:
    """A node in a recording. Times are in seconds since the recording began.

    A node of a durable run that ran in several processes is one node, with `intervals` in each.
    `usage` is its usage by model, without that of its children; in such a run, as the last
    execution counts it. `others` are amounts in other units than tokens.
    """

    number: int
    name: str
    parent: TraceNode | None
    put: float
    state: TraceState = "pending"
    children: list[TraceNode] = field(default_factory=lambda: list[TraceNode]())
    own_agent: str = ""
    own_session: str = ""
    run_id: str = ""
    identity: str = ""
    recorded: bool = False  # the last execution took its outcome from the journal
    host: str = ""
    intervals: list[Interval] = field(default_factory=list[Interval])
    ended: float | None = None
    error: TraceError | None = None
    retried: list[tuple[float, TraceError | None]] = field(
        default_factory=lambda: list[tuple[float, TraceError | None]]()
    )
    reason: str = ""
    tool: str = ""
    call_id: str = ""
    call_size: int = 0  # characters of its arguments
    result_size: int = 0
    status: str = ""  # of a tool call: "ok", "failed" or "invalid"
    arguments: Any = None
    result: str = ""
    requests: list[TraceRequest] = field(default_factory=list[TraceRequest])
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    others: dict[str, float] = field(default_factory=dict[str, float])
    waits_for: tuple[int, ...] = ()
    waits_at: str = ""
    waits: str = ""  # a sentence about the wait
    slow: list[tuple[float, float, str]] = field(  # time, duration, line of code
        default_factory=lambda: list[tuple[float, float, str]]()
    )
    text: str = ""  # shown to the user; only in recordings with content
    executions: int = 1  # the number of processes that have it

    @property
    def started(self) -> float | None:
        """When its body first started."""
        return self.intervals[0].start if self.intervals else None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN_STATES

    @property
    def is_bad(self) -> bool:
        """Whether it failed, or was a tool call that failed."""
        return self.state == "failed" or self.status in ("failed", "invalid")

    @property
    def agent(self) -> str:
        """Its agent, or the agent of the nearest ancestor with one."""
        return next((each.own_agent for each in self.upwards() if each.own_agent), "")

    @property
    def session(self) -> str:
        """The session of that agent."""
        return next((each.own_session for each in self.upwards() if each.own_agent), "")

    @property
    def label(self) -> str:
        """Its name and number."""
        return f"{self.name}#{self.number}" if self.number else self.name

    def forget_wait(self) -> None:
        """Clear the wait, because it has ended."""
        self.waits, self.waits_for, self.waits_at = "", (), ""

    def close_interval(self, at: float) -> None:
        """End the current interval, and open requests, whose streams were never closed."""
        if self.intervals and self.intervals[-1].end is None:
            self.intervals[-1].end = at
        for request in self.requests:
            if request.end is None:
                request.end, request.left = at, True

    def upwards(self) -> Iterator[TraceNode]:
        """Yield the node and its ancestors."""
        node: TraceNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def walk(self) -> Iterator[TraceNode]:
        """Yield the node and its descendants, each before its children."""
        stack: list[TraceNode] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def __repr__(self) -> str:
        return f"<{self.label} {self.state}>"


@dataclass(slots=True)
class Execution:
    """One execution: the part of a recording that one process wrote."""

    time: float  # of day, at its start
    offset: float  # of its start, in seconds since the recording began
    pid: int
    host: str
    content: bool
    ended: bool = False
    usage: dict[str, Usage] = field(
        default_factory=dict[str, Usage]
    )  # of the whole tree, at its end
