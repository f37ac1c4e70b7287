"""What a recording has of a node: when and where it ran, what it asked, what it spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..messages import Usage

__all__ = ["Life", "Spell", "TraceError", "TraceNode", "TraceRequest", "TraceState"]

TraceState: TypeAlias = Literal[
    "pending", "running", "joining", "completed", "failed", "cancelled", "lost"
]
"""A node's state; "lost" is one whose end is not in the recording, as its process was killed."""

OPEN = ("pending", "running", "joining")


@dataclass(slots=True)
class TraceError:
    """What something failed with: the exception's class, and the line of code that raised it.

    `message` is there in recordings with content alone; `of` are those of an `ExceptionGroup`.
    """

    type: str
    at: str = ""
    message: str = ""
    of: tuple[TraceError, ...] = ()

    def __str__(self) -> str:
        said = f"{self.type}: {self.message}" if self.message else self.type
        return f"{said} ({self.at})" if self.at else said

    @classmethod
    def read(cls, said: Mapping[str, Any] | None) -> TraceError | None:
        """Read what a line says of an error."""
        if said is None:
            return None
        inner = [found for each in said.get("of", ()) if (found := cls.read(each)) is not None]
        return cls(said.get("type", "?"), said.get("at", ""), said.get("message", ""), (*inner,))


@dataclass(slots=True)
class Spell:
    """A stretch of time in which a node's body or children ran: one for each attempt and life.

    In seconds since the recording began; `end` is None while it lasts.
    """

    start: float
    end: float | None = None
    joined: float | None = None  # when the body had returned, and children went on


@dataclass(slots=True)
class TraceRequest:
    """A question to a model. `first` and `end` are times as a node's, None before they came."""

    number: int
    provider: str
    model: str
    start: float
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: int = 0
    tools: tuple[str, ...] = ()
    replayed: bool = False  # from a journal: nobody was asked
    first: float | None = None
    end: float | None = None
    chunks: int = 0
    finish_reason: str = ""
    error: TraceError | None = None
    left: bool = False  # its reader went away before the end
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    input: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    output: dict[str, Any] | None = None


@dataclass(eq=False, slots=True)
class TraceNode:
    """What the recording has of one node. Times are in seconds since the recording began.

    Of a durable run that several processes have driven, a node that comes in more than one of them
    is one node, with a spell in each. `usage` is what it has spent itself, by account; in such a
    run what the last life counts for it. `others` is what was charged in other units than tokens.
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
    kept: bool = False  # its outcome came from the journal in the last life
    host: str = ""
    spells: list[Spell] = field(default_factory=list[Spell])
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
    status: str = ""  # of a call of a tool: "ok", "failed" or "invalid"
    arguments: Any = None
    result: str = ""
    requests: list[TraceRequest] = field(default_factory=list[TraceRequest])
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    others: dict[str, float] = field(default_factory=dict[str, float])
    waits_for: tuple[int, ...] = ()
    waits_at: str = ""
    waits: str = ""  # what it waits for, in words, as far as that is known
    slow: list[tuple[float, float, str]] = field(  # when, for how long, at which line
        default_factory=lambda: list[tuple[float, float, str]]()
    )
    text: str = ""  # said to the user; in recordings with content alone
    lives: int = 1

    @property
    def started(self) -> float | None:
        """When its body first began."""
        return self.spells[0].start if self.spells else None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN

    @property
    def is_bad(self) -> bool:
        """Whether it has failed, or was a call of a tool that did."""
        return self.state == "failed" or self.status in ("failed", "invalid")

    @property
    def agent(self) -> str:
        """Whose work it does: the agent's that is named nearest above it."""
        return next((each.own_agent for each in self.upwards() if each.own_agent), "")

    @property
    def session(self) -> str:
        """The session in which that agent was asked."""
        return next((each.own_session for each in self.upwards() if each.own_agent), "")

    @property
    def label(self) -> str:
        """Its name and number."""
        return f"{self.name}#{self.number}" if self.number else self.name

    def upwards(self) -> Iterator[TraceNode]:
        """Yield the node and all above it."""
        node: TraceNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def walk(self) -> Iterator[TraceNode]:
        """Yield the node and all below it, each before its children."""
        stack: list[TraceNode] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def __repr__(self) -> str:
        return f"<{self.label} {self.state}>"


@dataclass(slots=True)
class Life:
    """One process's part of a recording."""

    time: float  # of day, when it began
    offset: float  # the same, in seconds since the recording began
    pid: int
    host: str
    content: bool
    ended: bool = False
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])  # as the tree says at its end
