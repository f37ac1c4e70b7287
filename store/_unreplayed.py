"""Recorded effects and nodes that this execution has not replayed yet.

The journal has an intent for each effect: the row that was written before its call. An intent names
the caller and the nodes above it, each in its attempt.
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
from ._checksums import Row
from ._json import digest

if TYPE_CHECKING:
    from ._execution import Execution
    from ._scope import NodeScope

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

SHORT_DIGITS = 16  # hexadecimal digits of the shortened digests in an intent
# The identity of a durable node has its own digest, from `PUTTER_START` on the first bytes of its
# putter's identity, and from `NAME_START` on its name.
PUTTER_START, NAME_START = 11, 16
MAX_NAME_BYTES = 80
MAX_REPORTED_NAMES = 10

logger = logging.getLogger("anabranch.store")


def child_ident(putter: bytes, own: bytes, name: bytes) -> bytes:
    """Return the identity of a durable node, from its own digest, its putter's and its name.

    So the children of a putter can be found and named, although their outcome is their only row.
    """
    return own[:PUTTER_START] + putter[: NAME_START - PUTTER_START] + name


def name_bytes(name: str) -> bytes:
    """Return a name as the last part of an identity."""
    return name.encode("utf-8", "replace")[:MAX_NAME_BYTES]


def child_name(ident: bytes) -> str:
    """Return the name in an identity, "" if it has none."""
    return ident[NAME_START:].decode(errors="replace")


class Intent(NamedTuple):
    """A recorded effect, as the row before its call describes it."""

    ident: bytes
    seq: int
    name: str
    inputs: str  # the digest of its inputs; "" in journals of earlier releases
    by: str  # the caller in its attempt
    at: str  # the caller's name; "" in journals of earlier releases
    key: str | None


class Intents:
    """The effects that earlier executions have begun; the run began at the time `began`."""

    def __init__(self, began: float) -> None:
        self.names: set[str] = set()
        self.by_caller: defaultdict[str, dict[bytes, Intent]] = defaultdict(dict)
        self._by_call: defaultdict[tuple[str, str], dict[bytes, Intent]] = defaultdict(dict)
        # By attempt of a node: the node, and the attempt of the node above it. A node whose parent
        # has no entry is a root.
        self.above: dict[str, tuple[str, str]] = {}
        # The identities of all these nodes, and by identity those that this execution has put.
        self.node_idents: set[bytes] = set()
        self.nodes_by_ident: dict[bytes, Node[Any]] = {}
        # The effects that a node did not replay before it completed.
        self.lost_effects: set[bytes] = set()
        # By attempt of a node: the intents that the task of its body reached, in order. Each has
        # its number, its time, the identity of the effect or of the child that called it, and
        # whether that is a child.
        self.led_to: defaultdict[str, deque[tuple[int, float, bytes, bool]]] = defaultdict(deque)
        # By attempt of a node: the time of the last of these that this execution has reached.
        self._led_last: dict[str, float] = {}
        self._began = began
        # Below retried nodes, by digest of equal calls: the attempt that last began each effect.
        self.attempts_by_call: defaultdict[str, dict[bytes, str]] = defaultdict(dict)
        # By effect: the attempt that last took it over from an earlier one.
        self.takeovers: dict[bytes, str] = {}

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
            self.node_idents.update(bytes.fromhex(ident) for ident, _ in links)
            self._link(links)
        if "of" in value:  # its caller is below a retried node, whose attempts share equal calls
            self.attempts_by_call[value["of"][:SHORT_DIGITS]][row.ident] = value["in"][
                :SHORT_DIGITS
            ]
        below = call
        unseen = [*value.get("unseen", ()), *repeat(0, len(links))]
        for level, (ident, now) in enumerate(links[: value.get("led", 0)]):
            # A node whose outcome was recorded by then, but not seen, ends after this effect.
            number = min(unseen[level] or row.seq, row.seq)
            self.led_to[now].append((number, row.time, below, level > 0))
            below = bytes.fromhex(ident)

    def add_takeover(self, row: Row) -> None:
        """Add a row that says which effect of an earlier attempt a call took over."""
        value = json.loads(row.value)
        self.takeovers[bytes.fromhex(value["effect"])] = value["in"][:SHORT_DIGITS]

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
            if scope.is_root or scope.attempt_ident.hex() in self.above:
                break
        by = " ".join(names)
        self._link(_links(by))
        return by

    def first_unreached(self, now: bytes, claimed: set[bytes]) -> tuple[float, float]:
        """Return the number of the first intent that a node's own task still has to reach.

        And the seconds since the intent before it, or since the run began. The task reaches them
        one after the other, so it did not depend on nodes that ended later. The number is infinity
        if there is none.
        """
        key = now.hex()
        left = self.led_to.get(key)
        while left:
            number, when, what, is_node = left[0]
            if what not in (self.nodes_by_ident if is_node else claimed):
                return number, when - self._led_last.get(key, self._began)
            self._led_last[key] = when
            left.popleft()
        return inf, 0.0

    def path(self, by: str) -> list[list[str]]:
        """Return the path of a caller; empty if the journal is too old to have it."""
        path: list[list[str]] = []
        while by in self.above:
            ident, above = self.above[by]
            path.append([ident, by])
            by = above
        return path

    def find_nodes(self, path: list[list[str]]) -> list[tuple[Node[Any], str]]:
        """Return the nodes of a path that this execution has put, with their recorded attempts."""
        nodes = [(self.nodes_by_ident.get(bytes.fromhex(ident)), now) for ident, now in path]
        return [(node, now) for node, now in nodes if node is not None]

    def find_candidates(self, by: str, name: str, inputs: str) -> Iterator[Intent]:
        """Yield the intents that a new effect may be: moved, renamed or with other inputs."""
        same_call = self._by_call.get((name, inputs), {})
        yield from (each for each in same_call.values() if each.by != by)
        for each in self.by_caller.get(by, {}).values():
            if each.name == name or each.inputs == inputs:
                yield each


def _name_of(scope: NodeScope) -> str:
    """Return the name of a node in an intent: its identity, and its attempt after the first."""
    ident, now = scope.ident, scope.attempt_ident
    if now == ident:
        return ident.hex()
    return f"{ident.hex()}:{scope.attempt if now == digest(ident, scope.attempt) else 'end'}"


def _links(by: str) -> list[tuple[str, str]]:
    """Return for each node in the names of an intent: its identity, and that in its attempt."""
    links: list[tuple[str, str]] = []
    for each in by.split():
        ident, _, attempt = each.partition(":")
        now = bytes.fromhex(ident)
        if attempt:
            now = digest(now, int(attempt) if attempt.isdigit() else attempt)
        links.append((ident, now.hex()))
    return links


def caller_in(intent: dict[str, Any]) -> str:
    """Return the identity in its attempt of an intent's caller."""
    return _links(intent["by"])[0][1]


class Unreplayed:
    """Recorded entries that this execution has not replayed yet, grouped by parent node."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        # By the part of the putter's identity in theirs: the names of its entries by identity.
        self._recorded: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
        # By root: the rounds that nodes at or below it must put again.
        self._rounds: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
        rounds: set[bytes] = set()
        for row in execution.rows_of_kind("root"):
            rounds.add(row.ident)
            written = json.loads(row.value)
            if "path" in written and execution.roots.is_put_again(written):
                root = bytes.fromhex(written["path"][-1][0])
                self._rounds[root][row.ident] = child_name(row.ident)
        for ident in [each for each in execution.rows_by_ident if each not in execution.reached]:
            if len(ident) > NAME_START and ident not in rounds and execution.find_outcome(ident):
                self._recorded[ident[PUTTER_START:NAME_START]][ident] = child_name(ident)
        for by, intents in execution.intents.by_caller.items():
            names = {each.ident: each.name for each in intents.values()}
            self._recorded[_putter_part(bytes.fromhex(by))].update(names)

    def names_below(self, putter: bytes) -> list[str]:
        """Return the names of the entries of a putter that are not replayed yet."""
        recorded = self._recorded.get(_putter_part(putter), {})
        return [name for ident, name in recorded.items() if ident not in self._execution.reached]

    def report(self, putter: bytes, path: str) -> None:
        """Report the entries that a putter has not replayed at its end: in the log and in a row."""
        self._report(putter, path, self._recorded.pop(_putter_part(putter), {}))

    def report_rounds(self, root: bytes, putter: bytes, path: str) -> None:
        """Report the rounds that were not put again at or below a root that is over."""
        self._report(putter, path, self._rounds.pop(root, {}))

    def _report(self, putter: bytes, path: str, recorded: dict[bytes, str]) -> None:
        execution = self._execution
        left = [ident for ident in recorded if not self._is_replayed(ident)]
        # Identities of effects do not contain a name.
        effects = [ident.hex() for ident in left if len(ident) == NAME_START]
        counts = Counter(recorded[ident] for ident in left)
        for name in [*counts]:
            counts.pop(f"call:{name}", None)  # the node of `durable.call` with that effect
        if not counts or execution.find(putter, "gone") is not None:
            return
        names = [f"{name} ({n} times)" if n > 1 else name for name, n in counts.items()]
        if len(names) > MAX_REPORTED_NAMES:
            names[MAX_REPORTED_NAMES:] = [f"{len(names) - MAX_REPORTED_NAMES} others"]
        value = {"by": path, "what": names, "effects": effects}
        execution.record(putter, "gone", value, find=True)
        execution.intents.lost_effects.update(map(bytes.fromhex, effects))
        logger.warning(
            "the run %r continues, but its code did not replay these recorded entries below %s: %s",
            *(execution.run_id, path, ", ".join(names)),
        )

    def _is_replayed(self, ident: bytes) -> bool:
        execution = self._execution
        if ident in execution.reached:
            return True
        # The result of a `durable.call` names its effect, which may have moved with its key.
        if not child_name(ident).startswith("call:"):
            return False
        row = execution.find(ident, "result")
        return row is not None and bytes.fromhex(json.loads(row.value)) in execution.reached


def _putter_part(putter: bytes) -> bytes:
    return putter[: NAME_START - PUTTER_START]
