"""Events: what happened to the nodes of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from ._record import Actor

__all__ = ["Blocked", "Event", "EventKind", "EventSource", "KeyedName", "Origin"]

EventKind: TypeAlias = Literal[
    "put",
    "started",
    "joining",
    "completed",
    "failed",
    "cancelled",
    "retried",
    "placed",
    "text",
    "reasoning",
    "tool_call",
    "tool_result",
    "charged",
    "charged_again",
    "called",
    "answered",
    "request",
    "working",
    "first_chunk",
    "reply",
    "waiting",
    "slow",
    "missed",
]


class KeyedName(str):
    """The name of a node that was put with a key, `Feed[KEY]`, and its two parts."""

    __slots__ = ("key", "node_name")

    node_name: str
    key: str

    def __new__(cls, node_name: str, key: object) -> KeyedName:
        """Create the name; a key of another type is converted to text."""
        text = f"{key}"
        self = super().__new__(cls, f"{node_name}[{text}]")
        self.node_name, self.key = node_name, text
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyedName, (self.node_name, self.key)


class Blocked(NamedTuple):
    """How long a body blocked the loop, and the line that it was running."""

    seconds: float
    at: str


class Origin(NamedTuple):
    """The source of events' times: the time of day at the zero of its clock, and the machine."""

    epoch: float
    host: str | None = None  # None: this machine


class Source(Protocol):
    """An event's node, as far as events describe it: a `Record` or an `EventSource`."""

    @property
    def id(self) -> int:
        """The node's number."""
        ...

    @property
    def parent_id(self) -> int | None:
        """Its parent's number."""
        ...

    @property
    def name(self) -> str:
        """The node's name."""
        ...

    @property
    def origin(self) -> Origin:
        """The clock and the machine."""
        ...

    @property
    def path(self) -> str:
        """The labels from the root to the node."""
        ...

    @property
    def is_special(self) -> bool:
        """Whether it may have a place, an actor or a run; else readers skip those."""
        ...

    @property
    def actor(self) -> Actor | None:
        """The actor that `act_as` set for the node or the nearest node above."""
        ...


class Event(NamedTuple):
    """Something that happened to a node.

    `clock` is in seconds of the loop's monotonic clock, `time` in seconds since 1970. `cpu` is the
    CPU time of the node's own steps so far, in seconds, if the commander measures it and the node
    runs on this machine. `data` depends on the kind:

    - `failed`, `retried`: the exception; `cancelled`: the reason
    - `text`, `reasoning`: a piece of it
    - `placed`: the machine on which the body of a job with `on=` began
    - `charged`: `{account: amount}` for the node's own work; `charged_again`: the same, of an
      earlier execution of its durable run
    - `called`: the tool call that the node executes; `answered`: its result
    - `request`, `working`, `first_chunk`, `reply`: a request to a model, the state of the server
      before the first chunk, the first chunk, and the end of the reply
    - `waiting`: an `Explanation`; only for listeners that name this kind
    - `slow`: a `Blocked`
    - `missed`: the number of events that this listener was too slow for

    `path`, `agent` and `session_id` are looked up when they are read, also in the nodes above. So a
    stored event keeps the engine's state of these nodes alive, with their results. A pickled event
    has the values instead.
    """

    kind: EventKind
    source: Source
    clock: float
    data: Any = None
    cpu: float | None = None

    @property
    def node_id(self) -> int:
        """The node's `node_id`."""
        return self.source.id

    @property
    def parent_id(self) -> int | None:
        """The number of the node's parent; None for a commander's own event."""
        return self.source.parent_id

    @property
    def name(self) -> str:
        """The name of the node's class or function, with the key of its put (`Feed[KEY]`)."""
        return self.source.name

    @property
    def node_name(self) -> str:
        """The name without the key: that of the node's class or function."""
        return getattr(self.source.name, "node_name", self.source.name)

    @property
    def key(self) -> str | None:
        """The key of the put; None without one."""
        return getattr(self.source.name, "key", None)

    @property
    def agent(self) -> str | None:
        """The name of the agent whose work the node does; None if no agent was called."""
        actor = self.source.actor
        return None if actor is None else actor.agent

    @property
    def session_id(self) -> int | str | None:
        """The session of that agent's call; None if the call named none."""
        actor = self.source.actor
        return None if actor is None else actor.session_id

    @property
    def path(self) -> str:
        """The node's `path`."""
        return self.source.path

    @property
    def origin(self) -> Origin:
        """The clock and the machine of the event."""
        return self.source.origin

    @property
    def time(self) -> float:
        """When it happened, in seconds since 1970."""
        return self.origin.epoch + self.clock

    @property
    def host(self) -> str | None:
        """The machine on which it happened; None for this one."""
        return self.origin.host

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}#{self.node_id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        at = self.source
        source = EventSource(at.id, at.parent_id, at.name, at.origin, at.path, at.actor)
        return Event, (self.kind, source, *self[2:])


class EventSource(NamedTuple):
    """The source of an event from another process, or of an event without a node."""

    id: int
    parent_id: int | None
    name: str
    origin: Origin
    path: str
    actor: Actor | None = None

    @property
    def is_special(self) -> bool:
        """Whether it may have a place, an actor or a run."""
        return True
