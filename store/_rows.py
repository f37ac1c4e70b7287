"""The rows of a run as a life finds them: by identity, by kind, and what they say together.

A life only adds rows. What a `resumed` row takes away is taken away when the rows are loaded.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple, get_args

from ._json import digest
from ._seal import Row
from ._unreplayed import SHORT, Intents

__all__ = ["FIRST", "Cancel", "Rows", "clock_at_end", "last_clock"]

# The rows that say that something has failed; and those that are taken away of what runs again.
ENDS = ("failure", "failed", "broken", "letter")
FORGOTTEN = ("failure", "aborted", "letter", "waits", "because", "over", "usage")

# The kinds of rows that `of_kind` finds.
Indexed = Literal["root", "reply", "broken", "spent", "message", "gave", "cancelled"]

FIRST = digest("root")
"""Who the first root of every run is."""


class Cancel(NamedTuple):
    """A recorded cancel: the number of its row, one decision whatever it ended; and why."""

    number: int
    reason: str
    by: list[list[str]]  # the path of the node that has decided it
    after: float  # the seconds that this took, in its life


class Rows:
    """What a run's journal has, in memory: the rows of earlier lives, and of this one."""

    def __init__(self, rows: list[Row]) -> None:
        # The number of the last row of an earlier life.
        self.before = rows[-1].seq if rows else 0
        # By identity; the only one there is, as of most, or all of them, oldest first.
        self.by_ident: dict[bytes, Row | list[Row]] = {}
        # Those that are asked for by their kind.
        self._kinds: dict[str, list[Row]] = {kind: [] for kind in get_args(Indexed)}
        self.intents = Intents()
        # Of effects below nodes that may be tried again: in which attempt each was begun last, and
        # which attempt has last taken it from an earlier one.
        self.begun: defaultdict[str, dict[bytes, str]] = defaultdict(dict)
        self.taken_effects: dict[bytes, str] = {}
        # The letters that were taken in earlier lives.
        self.taken: set[int] = set()
        # The questions whose answers a `resumed` row has taken away: they are asked anew.
        self.unanswered: set[bytes] = set()
        # Whom a recorded cancel has ended, by which decision and why.
        self.cancelled: dict[bytes, Cancel] = {}
        by_ident = self.by_ident
        for row in rows:
            if row.kind == "result" and (ident := row.ident) not in by_ident:  # as most are
                by_ident[ident] = row
            else:
                self._load(row)

    def rows(self, ident: bytes) -> Sequence[Row]:
        """Return all rows of an identity, oldest first."""
        found = self.by_ident.get(ident, ())
        return (found,) if isinstance(found, Row) else found

    def find(self, ident: bytes, kind: str) -> Row | None:
        """Return the last row of this kind; None if there is none."""
        for row in reversed(self.rows(ident)):
            if row.kind == kind:
                return row
        return None

    def every(self, ident: bytes, kind: str) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [row for row in self.rows(ident) if row.kind == kind]

    def of_kind(self, kind: Indexed) -> list[Row]:
        """Return all rows of this kind, oldest first."""
        return [*self._kinds[kind]]

    def first_row(self, root: bytes) -> float:
        """Return the number of the row with which a root began; a new one is after all there is."""
        row = self.find(root, "root")
        return row.seq if row is not None else 0 if root == FIRST else inf

    def root_idents(self) -> list[bytes]:
        """Return who the roots are, of all lives, in the order in which they were put."""
        return [FIRST, *(row.ident for row in self.of_kind("root"))]

    def failed_roots(self) -> list[bytes]:
        """Return the roots that have failed."""
        outcomes = [(each, self.outcome(each)) for each in self.root_idents()]
        return [each for each, row in outcomes if row is not None and row.kind == "failure"]

    def is_over(self, root: bytes) -> bool:
        """Say whether nothing of a root is left to do, its final callbacks included."""
        return self.find(root, "over") is not None

    def runs_again(self, path: list[list[str]], start: int = 0) -> bool:
        """Say whether the bodies of a path run again in this life, from number `start` on."""
        ways = [(bytes.fromhex(who), bytes.fromhex(now)) for who, now in path]
        return not self.is_over(ways[-1][0]) and all(
            self.outcome(who) is None
            and who not in self.cancelled
            and now == self.attempt(who)[1]
            and self.find(now, "aborted") is None
            for who, now in ways[start:]
        )

    def attempt(self, ident: bytes) -> tuple[int, bytes]:
        """Return which attempt of a node is to be made, by earlier lives, and who it is in that."""
        number = len(self.every(ident, "attempt")) + 1
        return number, ident if number == 1 else digest(ident, number)

    def outcome(self, ident: bytes) -> Row | None:
        """Return a node's result or failure, which its final callbacks may have changed."""
        for row in reversed(self.rows(ident)):
            if row.kind in ("result", "failure"):
                return row
        return None

    def _add(self, row: Row) -> None:
        """Let this life find a row."""
        before = self.by_ident.get(row.ident)
        if before is None:
            self.by_ident[row.ident] = row
        elif isinstance(before, list):
            before.append(row)
        else:
            self.by_ident[row.ident] = [before, row]
        if row.kind in self._kinds:
            self._kinds[row.kind].append(row)

    def _load(self, row: Row) -> None:
        if row.kind == "partial":
            return  # for who looks at the run: no life goes on from it
        if row.kind == "resumed":
            self._forget_failures()
            self.intents.led_to.clear()  # what runs again may go another way
            return
        self._add(row)
        if row.kind == "intent":
            self.intents.add(row)
            intent = json.loads(row.value)
            if "of" in intent:
                self.begun[intent["of"][:SHORT]][row.ident] = intent["in"][:SHORT]
        elif row.kind == "takes":
            takes = json.loads(row.value)
            self.taken_effects[bytes.fromhex(takes["effect"])] = takes["in"][:SHORT]
        elif row.kind == "gone":
            self.intents.lost.update(map(bytes.fromhex, json.loads(row.value).get("effects", ())))
        elif row.kind in ("letter", "refused"):
            self.taken.add(json.loads(row.value)["id"])
        elif row.kind == "cancelled":
            self._note_cancel(row.seq, row.value)

    def _note_cancel(self, number: int, data: bytes) -> None:
        cancel = json.loads(data)
        decision = Cancel(number, cancel["reason"], cancel["by"], cancel["after"])
        for ident in cancel["whom"]:
            self.cancelled.setdefault(bytes.fromhex(ident), decision)

    def _forget_failures(self) -> None:
        """Take away the failures that made roots fail, and the cancels that followed from them.

        A failure that somebody's code has caught stays: what was done then stands on it.
        """
        left, gone = self.failed_roots(), set[bytes]()
        first: dict[bytes, float] = {}  # of what made each of them fail, the number of a row
        while left:
            ident = left.pop()
            if ident in gone:
                continue
            gone.add(ident)
            causes = [
                bytes.fromhex(each)
                for row in self.every(ident, "because")
                for each in json.loads(row.value)
            ]
            rows = [row for each in causes for kind in ENDS for row in self.every(each, kind)]
            first[ident] = min((row.seq for row in rows), default=inf)
            left += causes
        for ident in gone:
            if ident in self.by_ident:
                if self.find(ident, "letter") is not None:
                    self.unanswered.add(ident)
                rows = [row for row in self.rows(ident) if row.kind not in FORGOTTEN]
                self.by_ident[ident] = [_resumed(row) for row in rows]
        for ident in self.by_ident:  # what runs again has all of its time
            if self.find(ident, "began") is not None:
                self.by_ident[ident] = [row for row in self.rows(ident) if row.kind != "began"]
        for row in self.of_kind("cancelled"):
            cancel = json.loads(row.value)
            by = bytes.fromhex(cancel["by"][0][0])
            if by in gone and (cancel["failed"] or row.seq > first[by]):
                for ident in map(bytes.fromhex, cancel["whom"]):
                    self.cancelled.pop(ident, None)
                self._kinds["cancelled"].remove(row)


def last_clock(rows: list[Row]) -> float:
    """Return what a run's clock said when the last of these rows was written that says it."""
    said = [row.value for row in rows if row.kind in ("began", "attempt", "clock")]
    return json.loads(said[-1])["clock"] if said else 0.0


def clock_at_end(rows: list[Row], claimed_at: int, clock: float, claimed: float) -> float:
    """Return what a run's clock said at the last row of an owner that died.

    The owner claimed it after the row `claimed_at`, at the time `claimed`, when it said `clock`. A
    row of the kind "clock" says it anew, as the clock of the wall was set.
    """
    own = [row for row in rows if row.seq > claimed_at]
    for row in own:
        if row.kind == "clock":
            clock, claimed = json.loads(row.value)["clock"], row.time
    return clock + max(0.0, own[-1].time - claimed) if own else clock


def _resumed(row: Row) -> Row:
    """Return what is left of a row of what runs again.

    The end of an effect is that of no attempt: it has ended, and is in no doubt. What a reply that
    failed has taken is spent.
    """
    if row.kind == "failed":
        return row._replace(value=json.dumps({**json.loads(row.value), "by": ""}).encode())
    if row.kind == "broken":
        return row._replace(kind="spent", value=json.dumps(json.loads(row.value)["said"]).encode())
    return row
