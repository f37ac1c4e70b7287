"""Recorded effects that an execution has not replayed yet, and the new effects that wait for them.

A new effect may be a recorded one that an edit of the code has moved to another node or given
another name. So it is held while such a recorded effect can still be replayed. If that one cannot
be replayed any more, the run is parked before anything is done.

Code that has not changed is never parked. All that a recorded effect waited for is recorded too, so
its caller comes to it again without the help of any effect that is new. A lock is the exception:
this time the new effect may have got it first. Where locks alone keep all from going on, the new
effect is done.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..commander import Node, current_node
from ..commander.scope import scope_of
from ..commander.waiting import lending_slot
from ._held import Stuck
from ._json import digest

if TYPE_CHECKING:
    from ._file import Row
    from ._ledger import Ledger
    from ._scope import NodeScope

__all__ = ["SHORT", "Intent", "Intents", "caller_in", "caller_node", "hold", "wait_for_unreplayed"]

SHORT = 16  # hexadecimal digits of a digest that an intent has of its inputs and attempts
POLL_SECONDS = 0.01
WARNING_SECONDS = 30.0  # for which an effect is held before the log says so

logger = logging.getLogger("anabranch.store")

Outlook: TypeAlias = Literal["past", "coming", "lost"]
"""A recorded effect is of a part that does not run again; is to come; is not made any more."""


class Intent(NamedTuple):
    """A recorded effect: the call with which it was begun."""

    ident: bytes
    seq: int
    name: str
    inputs: str  # their digest; "" in journals of earlier releases
    by: str  # the caller in its attempt
    at: str  # the caller's name, likewise
    key: str | None


class Intents:
    """The effects that earlier executions have begun."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.by_caller: defaultdict[str, dict[bytes, Intent]] = defaultdict(dict)
        self._by_call: defaultdict[tuple[str, str], dict[bytes, Intent]] = defaultdict(dict)
        # By a node in its attempt: the node, and the one above it in its attempt. What has no
        # entry above it is a root.
        self.above: dict[str, tuple[str, str]] = {}
        # The nodes of all these, and those of them that this execution has put.
        self.nodes: set[bytes] = set()
        self.put: dict[bytes, Node[Any]] = {}
        # Those that a node which has completed did not make again.
        self.lost: set[bytes] = set()
        # By a node in its attempt: the numbers and times of the intents to which its own task has
        # led, and what this execution comes to by then: the effect, or the node below that made it.
        self.led_to: defaultdict[str, deque[tuple[int, float, bytes, bool]]] = defaultdict(deque)
        # The time of the last one that it has come to; and when the run was begun.
        self._led_last: dict[str, float] = {}
        self.began = 0.0

    def add(self, row: Row) -> None:
        """Add an intent of an earlier execution."""
        value = json.loads(row.value)
        call = bytes.fromhex(value.get("call", "")) or row.ident
        name, inputs, links = value["name"], value.get("inputs", ""), _links(value["by"])
        by, at = links[0][1], value.get("at", "")
        intent = Intent(call, row.seq, name, inputs, by, at, value.get("key"))
        self.names.add(name)
        self.by_caller[by].setdefault(call, intent)
        if inputs:
            self._by_call[name, inputs].setdefault(call, intent)
            self.nodes.update(bytes.fromhex(who) for who, _ in links)
            self._link(links)
        below = call
        unseen = [*value.get("unseen", ()), *repeat(0, len(links))]
        for level, (who, now) in enumerate(links[: value.get("led", 0)]):
            # What was a row by then, and had not been seen to end, ends after it.
            number = min(unseen[level] or row.seq, row.seq)
            self.led_to[now].append((number, row.time, below, level > 0))
            below = bytes.fromhex(who)

    def _link(self, links: list[tuple[str, str]]) -> None:
        """Take note of the nodes above a caller, itself first."""
        for (who, now), (_, above) in zip(links, [*links[1:], ("", "")], strict=True):
            self.above.setdefault(now, (who, above))

    def name_caller(self, caller: NodeScope) -> str:
        """Return what an intent says of its caller.

        It names the caller and the nodes above it, up to the first that an intent has named before.
        So an intent stays small however deep its caller is.
        """
        names: list[str] = []
        for scope in caller.up():
            names.append(_name(scope))
            if scope.is_root or scope.now.hex() in self.above:
                break
        by = " ".join(names)
        self._link(_links(by))
        return by

    def first_left(self, now: bytes, claimed: set[bytes]) -> tuple[float, float]:
        """Return the number of the first intent to which the own task of a node leads again.

        And how many seconds after the one before that was, or after the run's beginning. That task
        comes to them one after the other, so what had not ended by then was not needed for it. The
        number is infinity if there is none.
        """
        key = now.hex()
        left = self.led_to.get(key)
        while left:
            number, when, what, is_node = left[0]
            if what not in (self.put if is_node else claimed):
                return number, when - self._led_last.get(key, self.began)
            self._led_last[key] = when
            left.popleft()
        return inf, 0.0

    def path(self, by: str) -> list[list[str]]:
        """Return a caller and all nodes above it; empty if the journal does not say that."""
        path: list[list[str]] = []
        while by in self.above:
            who, above = self.above[by]
            path.append([who, by])
            by = above
        return path

    def put_on(self, path: list[list[str]]) -> list[tuple[Node[Any], str]]:
        """Return the nodes of a path that this execution has put, each with its attempt."""
        nodes = [(self.put.get(bytes.fromhex(who)), now) for who, now in path]
        return [(node, now) for node, now in nodes if node is not None]

    def like(self, by: str, name: str, inputs: str, key: str | None) -> Iterator[Intent]:
        """Yield those which a new effect may be: moved, with another name, or with other inputs."""
        same_call = self._by_call.get((name, inputs), {})
        yield from (each for each in same_call.values() if each.by != by)
        for each in self.by_caller.get(by, {}).values():
            if each.name == name or each.inputs == inputs:
                yield each


def _name(scope: NodeScope) -> str:
    """Return what names a node in its attempt: its identity, and the attempt if not the first."""
    ident, now = scope.ident, scope.now
    if now == ident:
        return ident.hex()
    return f"{ident.hex()}:{scope.attempt if now == digest(ident, scope.attempt) else 'end'}"


def _links(by: str) -> list[tuple[str, str]]:
    """Return the nodes that are named so: who each is, and who it is in its attempt."""
    links: list[tuple[str, str]] = []
    for each in by.split():
        who, _, attempt = each.partition(":")
        now = bytes.fromhex(who)
        if attempt:
            now = digest(now, int(attempt) if attempt.isdigit() else attempt)
        links.append((who, now.hex()))
    return links


def caller_in(intent: dict[str, Any]) -> str:
    """Return who called, in its attempt."""
    return _links(intent["by"])[0][1]


def caller_node(caller: NodeScope) -> Node[Any] | None:
    """Return the node at or above this code that has this scope."""
    node: Node[Any] | None = current_node()
    while node is not None and scope_of(node) is not caller:
        node = node.parent
    return node


async def wait_for_unreplayed(caller: NodeScope, name: str, inputs: str, key: str | None) -> None:
    """Hold a new effect while a recorded one that it may be can still be replayed.

    Raises `JournalMismatch` if that one cannot be replayed any more.
    """
    ledger = caller.ledger
    intents, by = ledger.intents, caller.now.hex()

    def left() -> list[Intent]:
        return [
            each
            for each in intents.like(by, name, inputs, key)
            if each.ident not in ledger.claimed and not (key is not None and each.key is not None)
        ]

    if not left():
        return
    here = caller_node(caller)

    def decide() -> bool:
        stuck = Stuck(ledger)
        outlooks = [(each, _outlook(ledger, each, caller, here, stuck)) for each in left()]
        for each, outlook in outlooks:
            if outlook == "lost":
                raise ledger.mismatch(_describe(ledger, each, name, inputs, here))
        return all(outlook == "past" for _, outlook in outlooks)

    def warn() -> None:
        if not (waiting := left()):
            return
        logger.warning(
            "the run %r waits: %s so far",
            *(ledger.run_id, _describe(ledger, waiting[0], name, inputs, here)),
        )

    timer = ledger.loop.call_later(WARNING_SECONDS, warn)
    try:
        await hold(ledger, decide)
    finally:
        timer.cancel()


@lending_slot()
async def hold(ledger: Ledger, decide: Callable[[], bool]) -> bool:
    """Wait until `decide()` is true; return False if nothing of the run goes on for a lock."""
    while True:
        # Others have to be where they wait before it can be seen that they do.
        future = ledger.loop.create_future()
        timer = ledger.loop.call_later(POLL_SECONDS, future.set_result, None)
        ledger.held.add(future)
        try:
            await future
        finally:
            ledger.held.discard(future)
            timer.cancel()
        if decide():
            return True
        stuck = Stuck(ledger, locks=True)
        if all(root in stuck for root in ledger.roots.running.values()):
            return False


def _outlook(
    ledger: Ledger, intent: Intent, caller: NodeScope, here: Node[Any] | None, stuck: Stuck
) -> Outlook:
    if intent.ident in ledger.intents.lost:
        return "lost"
    path = ledger.intents.path(intent.by)
    if not path:  # of an earlier release: only its own caller is known
        if here is None or intent.by != caller.now.hex():
            return "past"
        return _outlook_below(here, stuck)
    if not ledger.runs_again(path):
        return "past"
    found = ledger.intents.put_on(path)
    if not found:
        return "past"
    for node, now in found:
        scope: Any = scope_of(node)
        skipped = scope.recorded or scope.skips or scope.cancelled is not None
        if skipped or scope.in_attempt.hex() != now:
            return "past"
    return _outlook_below(found[0][0], stuck)


def _outlook_below(node: Node[Any], stuck: Stuck) -> Outlook:
    """Say whether a node still comes to what it did: the last one on the way that was put again."""
    if node.state == "completed":
        return "lost"
    if node.state in ("failed", "cancelled") or (node.state == "joining" and node.error):
        return "past"
    return "lost" if node in stuck else "coming"


def _describe(
    ledger: Ledger, intent: Intent, name: str, inputs: str, here: Node[Any] | None
) -> str:
    same = "the same inputs" if intent.inputs == inputs else "other inputs"
    path, where = ledger.intents.path(intent.by), ""
    if found := ledger.intents.put_on(path):
        node, now = found[0]
        below = [each for _, each in path].index(now)  # how many nodes there were below it
        between = "/..." if below > 1 else ""
        where = f" at {node.path}{f'{between}/{intent.at}' if below else ''}"
    return (
        f"{(here or current_node()).path} would call {name!r}, but the journal has a call of"
        f" {intent.name!r} with {same}{where} (row {intent.seq}), which the code does not make"
        " again"
    )
