"""Recorded effects and nodes that this execution has not replayed yet.

The journal writes an intent before each effect: a row with the name of the effect, its caller and
the nodes above the caller. The attempt identity of a node names it in one attempt of its retries;
for the first attempt it equals the identity. The putter of a node is the node that put it.
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
# The identity of a durable node consists of bytes of its digest, then, at `PUTTER_START`, the first
# bytes of its putter's identity, and at `NAME_START` its name.
PUTTER_START, NAME_START = 11, 16
MAX_NAME_BYTES = 80
MAX_REPORTED_NAMES = 10

logger = logging.getLogger("anabranch.store")


def child_ident(putter: bytes, own: bytes, name: bytes) -> bytes:
    """Return the identity of a durable node, from its digest, its putter's identity and its name.

    The only row of such a node is its outcome. Its identity is enough to find its putter and name.
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
    by: str  # the attempt identity of the caller, in hexadecimal digits
    at: str  # the caller's name; "" in journals of earlier releases
    key: str | None


class Intents:
    """The effects that earlier executions have begun; the run began at the time `began`."""

    def __init__(self, began: float) -> None:
        self.names: set[str] = set()
        self.by_caller: defaultdict[str, dict[bytes, Intent]] = defaultdict(dict)
        self._by_call: defaultdict[tuple[str, str], dict[bytes, Intent]] = defaultdict(dict)
        # By a node's attempt identity: its identity, and the attempt identity of the node above it.
        # A node whose parent is not a key here is a root.
        self.above: dict[str, tuple[str, str]] = {}
        # The identities of the callers and of the nodes above them. By identity: those of these
        # nodes that this execution has put.
        self.node_idents: set[bytes] = set()
        self.nodes_by_ident: dict[bytes, Node[Any]] = {}
        # Effects that cannot be replayed any more, because their node has completed without them.
        self.lost_effects: set[bytes] = set()
        # By a node's attempt identity: the effects that the task of its body began, in order. The
        # task may have put a child that began the effect. Each entry has the number of the
        # intent's row, its time, the identity of the effect or of that child, and whether it is a
        # child.
        self.led_to: defaultdict[str, deque[tuple[int, float, bytes, bool]]] = defaultdict(deque)
        # By a node's attempt identity: the time of its last entry that this execution has reached.
        self._led_last: dict[str, float] = {}
        self._began = began
        # For callers below a node with `retry=`. By the digest of a call's name and inputs, and by
        # effect: the attempt that last began the effect.
        self.attempts_by_call: defaultdict[str, dict[bytes, str]] = defaultdict(dict)
        # By effect: the last attempt whose call uses this effect of an earlier attempt as its own.
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
        if "of" in value:  # below a node with `retry=`: later attempts may use the effect
            self.attempts_by_call[value["of"][:SHORT_DIGITS]][row.ident] = value["in"][
                :SHORT_DIGITS
            ]
        below = call
        unseen = [*value.get("unseen", ()), *repeat(0, len(links))]
        for level, (ident, now) in enumerate(links[: value.get("led", 0)]):
            # The body may begin an effect after a child's outcome was recorded, but before it has
            # seen that outcome. In the replay such a child must also end after this effect.
            number = min(unseen[level] or row.seq, row.seq)
            self.led_to[now].append((number, row.time, below, level > 0))
            below = bytes.fromhex(ident)

    def add_takeover(self, row: Row) -> None:
        """Add a row that says which effect of an earlier attempt a call took over."""
        value = json.loads(row.value)
        self.takeovers[bytes.fromhex(value["effect"])] = value["in"][:SHORT_DIGITS]

    def _link(self, links: list[tuple[str, str]]) -> None:
        """Store the node above each of these nodes: a caller first, then its ancestors."""
        for (ident, now), (_, above) in zip(links, [*links[1:], ("", "")], strict=True):
            self.above.setdefault(now, (ident, above))

    def name_caller(self, caller: NodeScope) -> str:
        """Return the names of a caller and of the nodes above it, for an intent.

        Stops at the first node whose ancestors an earlier intent names. So an intent stays small
        even if its caller is deep in the tree.
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
        """Return the row number of the next recorded intent of a body, and its delay in seconds.

        `now` is the node's attempt identity, `claimed` the effects that this execution has reached.
        The delay is the recorded time since the intent before it, or since the run began. The body
        began this effect without waiting for nodes that ended after this row. Without a further
        intent the number is infinity.
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
        """Return the identity and the attempt identity of a caller and of each node above it.

        The path is empty if an earlier release wrote the intent without it.
        """
        path: list[list[str]] = []
        while by in self.above:
            ident, above = self.above[by]
            path.append([ident, by])
            by = above
        return path

    def find_nodes(self, path: list[list[str]]) -> list[tuple[Node[Any], str]]:
        """Return the nodes of a path that this execution has put, with their attempt identities."""
        nodes = [(self.nodes_by_ident.get(bytes.fromhex(ident)), now) for ident, now in path]
        return [(node, now) for node, now in nodes if node is not None]

    def find_candidates(self, by: str, name: str, inputs: str) -> Iterator[Intent]:
        """Yield the intents that may belong to a new effect whose code was changed.

        The change may have moved the call to another caller, renamed it or changed its inputs.
        """
        same_call = self._by_call.get((name, inputs), {})
        yield from (each for each in same_call.values() if each.by != by)
        for each in self.by_caller.get(by, {}).values():
            if each.name == name or each.inputs == inputs:
                yield each


def _name_of(scope: NodeScope) -> str:
    """Return the name of a node in an intent: its identity, and a suffix after the first attempt.

    The suffix is the number of the attempt, or "end" while the final callbacks of the node run.
    """
    ident, now = scope.ident, scope.attempt_ident
    if now == ident:
        return ident.hex()
    return f"{ident.hex()}:{scope.attempt if now == digest(ident, scope.attempt) else 'end'}"


def _links(by: str) -> list[tuple[str, str]]:
    """Return the identity and the attempt identity of each node in the names of an intent."""
    links: list[tuple[str, str]] = []
    for each in by.split():
        ident, _, attempt = each.partition(":")
        now = bytes.fromhex(ident)
        if attempt:
            now = digest(now, int(attempt) if attempt.isdigit() else attempt)
        links.append((ident, now.hex()))
    return links


def caller_in(intent: dict[str, Any]) -> str:
    """Return the attempt identity of the caller in an intent's JSON."""
    return _links(intent["by"])[0][1]


class Unreplayed:
    """Recorded entries that this execution has not replayed yet, grouped by parent node."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        # By the part of a putter's identity that its children's identities contain: the names of
        # its children and effects, by identity.
        self._recorded: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
        # By the identity of a root: the rounds that the root or a node below it must put again.
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
        """Report the rounds that an ended root and the nodes below it did not put again."""
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
        # The result of a `durable.call` names its effect. A call with a key may have replayed that
        # effect below another node.
        if not child_name(ident).startswith("call:"):
            return False
        row = execution.find(ident, "result")
        return row is not None and bytes.fromhex(json.loads(row.value)) in execution.reached


def _putter_part(putter: bytes) -> bytes:
    return putter[: NAME_START - PUTTER_START]
