"""The roots of a run: the job it began with, and rounds, put outside the tree of their putter.

A root that is not over is put in each life: by its putter if that comes to it again, by the run
if not, and when nothing else is left at the latest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..commander import ConfigurationError, Node
from .errors import JournalMismatch

if TYPE_CHECKING:
    from ._durable import Durable
    from ._ledger import Ledger
    from ._scope import NodeScope

__all__ = ["PutBy", "Roots"]


class PutBy(NamedTuple):
    """Who puts a round: the putter and those above it up to its root; its body, or a callback."""

    path: list[list[str]]
    body: bool


class _Round(NamedTuple):
    """A round that was put, and is no row yet."""

    scope: NodeScope
    node: Node[Any]
    key: str | None
    by: PutBy


class Roots:
    """The roots of one life of a run."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Those that are not over, and all that were put.
        self.running: dict[bytes, Node[Any]] = {}
        self.put: set[bytes] = set()
        # The rounds that were put and are no rows yet.
        self._new: dict[bytes, _Round] = {}

    def add(self, ident: bytes, node: Node[Any]) -> None:
        """Take note that a root is put."""
        self.running[ident] = node
        if ident in self._ledger.intents.nodes:
            self._ledger.intents.put[ident] = node
        self.put.add(ident)

    def add_round(self, scope: NodeScope, node: Node[Any], key: str | None, by: PutBy) -> None:
        """Take note that a round is put; it is kept as soon as its maker has said it all."""
        new = self._ledger.find(scope.ident, "root") is None
        if new:
            self._ledger.keys.refuse_inputs(cast("Durable[Any]", node)._node_write())
        self.add(scope.ident, node)
        if new:
            self._new[scope.ident] = _Round(scope, node, key, by)

    def keep(self, only: bytes | None = None) -> None:
        """Keep the rounds that were put, or `only` that one: it begins, or its putter ends."""
        if not self._new:
            return
        for ident in [only] if only in self._new else [*self._new] if only is None else []:
            new = self._new[ident]
            node = cast("Durable[Any]", new.node)
            written = {**node._node_write(), "key": new.key, "free": new.scope.free.hex()}
            written["retried"] = new.scope.retried
            written |= {"path": new.by.path, "body": new.by.body}
            try:
                written["put"] = node._node_write_put()
            except (ConfigurationError, JournalMismatch) as error:
                # Its own failure, when it begins.
                new.scope.refused = ConfigurationError(str(error))
                written["put"] = {"refused": str(error)}
            self._ledger.append(ident, "root", json.dumps(written).encode(), find=True)
            del self._new[ident]

    def puts_again(self, written: dict[str, Any]) -> bool:
        """Say whether the putter of a round comes to its put again in this life.

        A body does not that has ended or was cut short, in another attempt, or that is skipped.
        """
        # A callback runs also where the body is skipped.
        return self._ledger.runs_again(written["path"], 0 if written["body"] else 1)

    def end(self, scope: NodeScope) -> None:
        """Keep that a root and its final callbacks are over: no later life puts it."""
        ledger = self._ledger
        if not ledger.suspended and scope.kept and not ledger.is_over(scope.ident):
            self.keep()
            ledger.append(scope.ident, "over", find=True)

    def stop(self, reason: str) -> None:
        """Cancel all that runs of them."""
        for root in list(self.running.values()):
            root.cancel(reason)
