"""Nodes whose cancel is in the journal: they do nothing, and end when they are cancelled again.

Else one would end at once where it is put, before that for which it was cancelled comes again:
whoever waits for the first of several would then go another way than in the first life.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..commander.waiting import waits_only_for

if TYPE_CHECKING:
    from ..commander import Node
    from ._ledger import Ledger
    from ._scope import NodeScope

__all__ = ["end_again"]

LOOK, LONGEST = 0.01, 0.25  # seconds between two looks whether anybody else can go on
LATE = 2.0  # times as long as it took before, after which a cancel is not waited for any more


async def end_again(scope: NodeScope, node: Node[Any]) -> None:
    """Wait until `node` is cancelled; cancel it if its parent can go on by nothing else.

    Where the node that has decided it runs again, this waits as long as that may take: what runs
    by the clock cannot be seen. With `node` go the others of the same decision.
    """
    ledger, pause = scope.ledger, LOOK
    decision = ledger.doomed[node] = ledger.cancelled[scope.ident]
    if not scope.is_root and ledger.runs_again(decision.by):
        await asyncio.sleep(ledger.start + LATE * decision.after + 1 - ledger.loop.time())
    while not (scope.is_root or node.parent is None or node.parent in _Stuck(ledger)):
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST)
    for each in [each for each, why in ledger.doomed.items() if why == decision]:
        each.cancel(decision.reason)
    await asyncio.get_running_loop().create_future()


class _Stuck:
    """The nodes that can go on by nothing but what is held."""

    def __init__(self, ledger: Ledger) -> None:
        self._known = dict.fromkeys(ledger.doomed, True)
        self._futures: set[asyncio.Future[Any]] = set()
        for nodes, futures in ledger.held.values():
            self._known |= dict.fromkeys(nodes, True)
            self._futures |= futures

    def __contains__(self, node: object) -> bool:
        known: Any = node
        if known not in self._known:
            self._known[known] = True  # while it is looked at: what waits in a circle is stuck
            if known.state == "joining":
                self._known[known] = all(child in self for child in known.children)
            else:
                self._known[known] = waits_only_for(known, self, self._futures)
        return self._known[known]
