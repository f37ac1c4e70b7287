"""What an event is: something that happened to a node of a tree."""

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
    """The name of a node that was put with a key, `Feed[KEY]`, and what it is made of."""

    __slots__ = ("key", "node_name")

    node_name: str
    key: str

    def __new__(cls, node_name: str, key: object) -> KeyedName:
        """Make the name; a key that is no text is shown as text."""
        text = f"{key}"
        self = super().__new__(cls, f"{node_name}[{text}]")
        self.node_name, self.key = node_name, text
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyedName, (self.node_name, self.key)


class Blocked(NamedTuple):
    """That a body has blocked the loop: for how long, and the line that was seen to do so."""

    seconds: float
    at: str


class Origin(NamedTuple):
    """Where events come from: the time of day at the zero of its clock, and the machine."""

    epoch: float
    host: str | None = None  # None: this one


class Source(Protocol):
    """The node that an event is of, as far as events tell of it."""

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
        """What it goes by."""
        ...

    @property
    def origin(self) -> Origin:
        """Whose clock it has."""
        ...

    @property
    def path(self) -> str:
        """Where it stands."""
        ...

    @property
    def is_special(self) -> bool:
        """Whether there may be more to it: another machine, an actor of its own, a run."""
        ...

    @property
    def actor(self) -> Actor | None:
        """Whose work the node does, as `act_as` has said of it or of a node above."""
        ...


class Event(NamedTuple):
    """Something that happened to a node.

    `clock` is in seconds of the loop's own monotonic clock, `time` in seconds since the epoch,
    reckoned from it by its `origin`. `data` holds what the kind brings: the exception of
    `failed` and `retried`, the reason of `cancelled`, a piece of `text` or of `reasoning`, the
    machine of `placed`
    (where the body of a job that was put elsewhere has begun), what was `charged` to the node for
    its own work (`{account: amount}`; `charged_again`: what an earlier life of its run has spent,
    and this one counts), the call of a tool that the node is (`called`) and what that gave
    (`answered`), what a model was asked (`request`), what it does before it speaks (`working`),
    of which request the `first_chunk` came, and how it ended (`reply`), what the node is `waiting`
    for (told to those alone who name that
    kind), by how much it was too `slow` for the loop, the number of events `missed` by this
    listener. `cpu` is what the node's own steps have taken so far, in seconds of CPU time, if the
    commander measures it and the node is of this machine.

    What it tells of the node (`agent` and `session_id` say whose work it does, `path` where it
    stands) is found when it is asked for, also from the nodes above: an event that is kept keeps
    what the engine has of these, their results included. A pickled one holds its answers instead.
    """

    kind: EventKind
    source: Source
    clock: float
    data: Any = None
    cpu: float | None = None

    @property
    def node_id(self) -> int:
        """The node's number, as `node.node_id`."""
        return self.source.id

    @property
    def parent_id(self) -> int | None:
        """The number of the node's parent; None for a commander's own event."""
        return self.source.parent_id

    @property
    def name(self) -> str:
        """What the node goes by: its class or function, with the key of its put (`Feed[KEY]`)."""
        return self.source.name

    @property
    def node_name(self) -> str:
        """The name without the key: that of the node's class or function."""
        return getattr(self.source.name, "node_name", self.source.name)

    @property
    def key(self) -> str | None:
        """The key with which the node was put, None without one."""
        return getattr(self.source.name, "key", None)

    @property
    def agent(self) -> str | None:
        """The name of the agent whose call the node belongs to, the nearest above it."""
        actor = self.source.actor
        return None if actor is None else actor.agent

    @property
    def session_id(self) -> int | str | None:
        """The session in which that agent was asked, None if none was named."""
        actor = self.source.actor
        return None if actor is None else actor.session_id

    @property
    def path(self) -> str:
        """Where the node stands, as `node.path`."""
        return self.source.path

    @property
    def origin(self) -> Origin:
        """Whose clock it was."""
        return self.source.origin

    @property
    def time(self) -> float:
        """When it happened, in seconds of the time of day."""
        return self.origin.epoch + self.clock

    @property
    def host(self) -> str | None:
        """The machine on which it happened, if that is another one."""
        return self.origin.host

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}#{self.node_id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        at = self.source
        source = EventSource(at.id, at.parent_id, at.name, at.origin, at.path, at.actor)
        return Event, (self.kind, source, *self[2:])


class EventSource(NamedTuple):
    """The source of an event that comes from another process, or is of no node."""

    id: int
    parent_id: int | None
    name: str
    origin: Origin
    path: str
    actor: Actor | None = None

    @property
    def is_special(self) -> bool:
        """Whether there may be more to it: another machine, an actor of its own, a run."""
        return True
