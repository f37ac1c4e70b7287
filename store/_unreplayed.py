"""What the journal has and this execution has not replayed yet: recorded effects and nodes.

A recorded effect is in the journal as an intent: the row that was written before it was called. The
names of an intent are those of the nodes above the caller, each in its attempt (`now`).
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ..commander import Node
from ._json import digest
from ._seal import Row

if TYPE_CHECKING:
    from ._scope import NodeScope
    from ._state import JournalState

__all__ = [
    "SHORT_DIGITS",
    "Intent",
    "Intents",
    "Unreplayed",
    "caller_in",
    "child_ident",
    "child_name",
    "name_bytes",
]

SHORT_DIGITS = 16  # hexadecimal digits of a digest in an intent, of its inputs or its attempt
# The identity of a durable node: its own digest, from this byte on the start of its putter's
# identity, and from the next one on its name.
PUTTER_START, NAME_START = 11, 16
MAX_NAME_BYTES = 80
MAX_REPORTED_NAMES = 10

logger = logging.getLogger("anabranch.store")


def child_ident(putter: bytes, own: bytes, name: bytes) -> bytes:
    """Return the identity of a durable node, from its own digest, its putter's and its name.

    So the children of a putter can be found and named, though they have no row but their outcome.
    """
    return own[:PUTTER_START] + putter[: NAME_START - PUTTER_START] + name


def name_bytes(name: str) -> bytes:
    """Return the part of an identity that is the name."""
    return name.encode("utf-8", "replace")[:MAX_NAME_BYTES]


def child_name(ident: bytes) -> str:
    """Return the name in an identity, "" if it has none."""
    return ident[NAME_START:].decode(errors="replace")


class Intent(NamedTuple):
    """A recorded effect: the call with which it was begun."""

    ident: bytes
    seq: int
    name: str
    inputs: str  # their digest; "" in journals of earlier releases
    by: str  # the caller in its attempt
    at: str  # the caller's name; "" in journals of earlier releases
    key: str | None


class Intents:
    """The effects that earlier executions have begun; the run began at the time `began`."""

    def __init__(self, began: float) -> None:
        self.names: set[str] = set()
        self.by_caller: defaultdict[str, dict[bytes, Intent]] = defaultdict(dict)
        self._by_call: defaultdict[tuple[str, str], dict[bytes, Intent]] = defaultdict(dict)
        # By a node in its attempt: the node, and the one above it in its attempt. A node above
        # which there is no entry is a root.
        self.above: dict[str, tuple[str, str]] = {}
        # The nodes of all these, and those that this execution has put.
        self.nodes: set[bytes] = set()
        self.put: dict[bytes, Node[Any]] = {}
        # Those that a node which has completed did not make again.
        self.lost: set[bytes] = set()
        # By a node in its attempt: the numbers and times of the intents to which its own task led,
        # and what this execution has reached by then: the effect, or the node below that made it.
        self.led_to: defaultdict[str, deque[tuple[int, float, bytes, bool]]] = defaultdict(deque)
        # The time of the last one that this execution has reached.
        self._led_last: dict[str, float] = {}
        self._began = began
        # Below nodes that may be tried again, by call: the attempt that last began each effect.
        self.begun: defaultdict[str, dict[bytes, str]] = defaultdict(dict)
        # By effect: the attempt that last took it over from an earlier one.
        self.taken_over: dict[bytes, str] = {}

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
            self.nodes.update(bytes.fromhex(ident) for ident, _ in links)
            self._link(links)
        if "of" in value:
            self.begun[value["of"][:SHORT_DIGITS]][row.ident] = value["in"][:SHORT_DIGITS]
        below = call
        unseen = [*value.get("unseen", ()), *repeat(0, len(links))]
        for level, (ident, now) in enumerate(links[: value.get("led", 0)]):
            # A node that had a row by then, and had not been seen to end, ends after it.
            number = min(unseen[level] or row.seq, row.seq)
            self.led_to[now].append((number, row.time, below, level > 0))
            below = bytes.fromhex(ident)

    def add_takeover(self, row: Row) -> None:
        """Add a row that says which effect of an earlier attempt a call is."""
        value = json.loads(row.value)
        self.taken_over[bytes.fromhex(value["effect"])] = value["in"][:SHORT_DIGITS]

    def _link(self, links: list[tuple[str, str]]) -> None:
        """Note the nodes above a caller, itself first."""
        for (ident, now), (_, above) in zip(links, [*links[1:], ("", "")], strict=True):
            self.above.setdefault(now, (ident, above))

    def name_caller(self, caller: NodeScope) -> str:
        """Return the names of a caller and of the nodes above it, for an intent.

        They end at the first node that an earlier intent names. So an intent stays small however
        deep its caller is.
        """
        names: list[str] = []
        for scope in caller.up():
            names.append(_name_of(scope))
            if scope.is_root or scope.now.hex() in self.above:
                break
        by = " ".join(names)
        self._link(_links(by))
        return by

    def first_left(self, now: bytes, claimed: set[bytes]) -> tuple[float, float]:
        """Return the number of the first intent that the own task of a node still has to reach.

        And the seconds between the intent before, or the beginning of the run, and that one. The
        task reaches them one after the other, so it did not need what had not ended by then. The
        number is infinity if there is none.
        """
        key = now.hex()
        left = self.led_to.get(key)
        while left:
            number, when, what, is_node = left[0]
            if what not in (self.put if is_node else claimed):
                return number, when - self._led_last.get(key, self._began)
            self._led_last[key] = when
            left.popleft()
        return inf, 0.0

    def path(self, by: str) -> list[list[str]]:
        """Return a caller and all nodes above it; empty if the journal does not say that."""
        path: list[list[str]] = []
        while by in self.above:
            ident, above = self.above[by]
            path.append([ident, by])
            by = above
        return path

    def put_on(self, path: list[list[str]]) -> list[tuple[Node[Any], str]]:
        """Return the nodes of a path that this execution has put, each with its attempt."""
        nodes = [(self.put.get(bytes.fromhex(ident)), now) for ident, now in path]
        return [(node, now) for node, now in nodes if node is not None]

    def like(self, by: str, name: str, inputs: str) -> Iterator[Intent]:
        """Yield those that a new effect may be: moved, renamed or with other inputs."""
        same_call = self._by_call.get((name, inputs), {})
        yield from (each for each in same_call.values() if each.by != by)
        for each in self.by_caller.get(by, {}).values():
            if each.name == name or each.inputs == inputs:
                yield each


def _name_of(scope: NodeScope) -> str:
    """Return the name of a node in its attempt: its identity, and the attempt if not the first."""
    ident, now = scope.ident, scope.now
    if now == ident:
        return ident.hex()
    return f"{ident.hex()}:{scope.attempt if now == digest(ident, scope.attempt) else 'end'}"


def _links(by: str) -> list[tuple[str, str]]:
    """Return the identity of each node that is named so, without and with its attempt."""
    links: list[tuple[str, str]] = []
    for each in by.split():
        ident, _, attempt = each.partition(":")
        now = bytes.fromhex(ident)
        if attempt:
            now = digest(now, int(attempt) if attempt.isdigit() else attempt)
        links.append((ident, now.hex()))
    return links


def caller_in(intent: dict[str, Any]) -> str:
    """Return the caller of an intent, in its attempt."""
    return _links(intent["by"])[0][1]


class Unreplayed:
    """Recorded entries that this execution has not replayed yet, grouped by parent node."""

    def __init__(self, ledger: JournalState) -> None:
        self._ledger = ledger
        # By the part of the putter's identity that theirs have: the names by identity.
        self._recorded: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
        # By root: the rounds whose putters, at or below it, put them again.
        self._rounds: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
        rounds: set[bytes] = set()
        for row in ledger.of_kind("root"):
            rounds.add(row.ident)
            written = json.loads(row.value)
            if "path" in written and ledger.roots.puts_again(written):
                root = bytes.fromhex(written["path"][-1][0])
                self._rounds[root][row.ident] = child_name(row.ident)
        for ident in [each for each in ledger.by_ident if each not in ledger.claimed]:
            if len(ident) > NAME_START and ident not in rounds and ledger.outcome(ident):
                self._recorded[ident[PUTTER_START:NAME_START]][ident] = child_name(ident)
        for by, intents in ledger.intents.by_caller.items():
            names = {each.ident: each.name for each in intents.values()}
            self._recorded[_putter_part(bytes.fromhex(by))].update(names)

    def unreplayed(self, putter: bytes) -> list[str]:
        """Return the names of what a putter has put and done, and not replayed so far."""
        recorded = self._recorded.get(_putter_part(putter), {})
        return [name for ident, name in recorded.items() if ident not in self._ledger.claimed]

    def report(self, putter: bytes, path: str) -> None:
        """Report, in the log and in a row, what a putter that has ended did not replay."""
        self._report(putter, path, self._recorded.pop(_putter_part(putter), {}))

    def report_rounds(self, root: bytes, putter: bytes, path: str) -> None:
        """Report the rounds that were not put again at or below a root that is over."""
        self._report(putter, path, self._rounds.pop(root, {}))

    def _report(self, putter: bytes, path: str, recorded: dict[bytes, str]) -> None:
        ledger = self._ledger
        left = [ident for ident in recorded if not self._is_replayed(ident)]
        effects = [ident.hex() for ident in left if len(ident) == NAME_START]  # have no name there
        gone = Counter(recorded[ident] for ident in left)
        for name in [*gone]:
            gone.pop(f"call:{name}", None)  # the node of `durable.call` with that effect
        if not gone or ledger.find(putter, "gone") is not None:
            return
        names = [f"{name} ({n} times)" if n > 1 else name for name, n in gone.items()]
        if len(names) > MAX_REPORTED_NAMES:
            names[MAX_REPORTED_NAMES:] = [f"{len(names) - MAX_REPORTED_NAMES} others"]
        value = {"by": path, "what": names, "effects": effects}
        ledger.record(putter, "gone", value, find=True)
        ledger.intents.lost.update(map(bytes.fromhex, effects))
        logger.warning(
            "the run %r goes on without what its journal has below %s and its code does not come"
            " to any more: %s",
            *(ledger.run_id, path, ", ".join(names)),
        )

    def _is_replayed(self, ident: bytes) -> bool:
        ledger = self._ledger
        if ident in ledger.claimed:
            return True
        # The result of a `durable.call` names its effect, which may have moved with its key.
        if not child_name(ident).startswith("call:"):
            return False
        row = ledger.find(ident, "result")
        return row is not None and bytes.fromhex(json.loads(row.value)) in ledger.claimed


def _putter_part(putter: bytes) -> bytes:
    return putter[: NAME_START - PUTTER_START]
