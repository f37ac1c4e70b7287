"""What a run's journal has, and the run does not come to any more: code has changed under it."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._ledger import Ledger

__all__ = ["Gone", "child_ident", "child_name", "name_bytes"]

DIGEST, OWN = 11, 16  # where the putter's part of a child's identity begins, and where the name
LONGEST = 80  # bytes of a name
MOST = 10  # names in one report

logger = logging.getLogger("anabranch.store")


def child_ident(putter: bytes, own: bytes, name: bytes) -> bytes:
    """Return who a durable node is: `own` of it, of whoever puts it, and what it is called.

    So what one putter has put is found, and can be named, though no row says anything but outcomes.
    """
    return own[:DIGEST] + putter[: OWN - DIGEST] + name


def name_bytes(name: str) -> bytes:
    """Return what stands in an identity for a name."""
    return name.encode("utf-8", "replace")[:LONGEST]


def child_name(ident: bytes) -> str:
    """Return what a node is called, "" if its identity does not say it."""
    return ident[OWN:].decode(errors="replace")


class Gone:
    """Knows what earlier lives have put and done, and this one not so far, by who did."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # The names of nodes and effects by identity, of each putter: by the part of the putter's
        # identity that theirs have (`child_ident`).
        self._recorded: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
        # By root: the rounds whose putters, at or below it, come to their puts again.
        self._rounds: defaultdict[bytes, dict[bytes, str]] = defaultdict(dict)
        rounds: set[bytes] = set()
        for row in ledger.of_kind("root"):
            rounds.add(row.ident)
            written = json.loads(row.value)
            if "path" in written and ledger.roots.puts_again(written):
                root = bytes.fromhex(written["path"][-1][0])
                self._rounds[root][row.ident] = child_name(row.ident)
        for ident in [each for each in ledger.by_ident if each not in ledger.claimed]:
            if len(ident) > OWN and ident not in rounds and ledger.outcome(ident) is not None:
                self._recorded[ident[DIGEST:OWN]][ident] = child_name(ident)
        for by, intents in ledger.intents.by_caller.items():
            names = {each.ident: each.name for each in intents.values()}
            self._recorded[bytes.fromhex(by)[: OWN - DIGEST]].update(names)

    def unreplayed(self, putter: bytes) -> list[str]:
        """Return the names of what a putter has put and done, and did not come to so far."""
        recorded = self._recorded.get(putter[: OWN - DIGEST], {})
        return [name for ident, name in recorded.items() if ident not in self._ledger.claimed]

    def report(self, putter: bytes, path: str) -> None:
        """Say what a putter that has ended did not come to, in the log and in a row."""
        self._report(putter, path, self._recorded.pop(putter[: OWN - DIGEST], {}))

    def report_rounds(self, root: bytes, putter: bytes, path: str) -> None:
        """Say which rounds were not put again at or below a root, whose callbacks are over."""
        self._report(putter, path, self._rounds.pop(root, {}))

    def _report(self, putter: bytes, path: str, recorded: dict[bytes, str]) -> None:
        ledger = self._ledger
        left = [ident for ident in recorded if not self._is_replayed(ident)]
        effects = [ident.hex() for ident in left if len(ident) == OWN]  # nodes have a name there
        gone = Counter(recorded[ident] for ident in left)
        for name in [*gone]:
            gone.pop(f"call:{name}", None)  # the node of `durable.call` with that effect
        if not gone or ledger.find(putter, "gone") is not None:
            return
        names = [f"{name} ({n} times)" if n > 1 else name for name, n in gone.items()]
        if len(names) > MOST:
            names[MOST:] = [f"{len(names) - MOST} others"]
        value = {"by": path, "what": names, "effects": effects}
        ledger.append(putter, "gone", json.dumps(value).encode(), find=True)
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
        # The node of a `durable.call` says which effect it was: that may have moved, with its key.
        if not child_name(ident).startswith("call:"):
            return False
        row = ledger.find(ident, "result")
        return row is not None and bytes.fromhex(json.loads(row.value)) in ledger.claimed
