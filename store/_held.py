"""Nodes whose cancel is in the journal: they do nothing, and end when they are cancelled again.

Else one would end at once where it is put, before that for which it was cancelled comes again:
whoever waits for the first of several would then go another way than in the first life.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

from ..commander import Node
from ..commander.scope import scope_of
from ..commander.waiting import waits_for

if TYPE_CHECKING:
    from ._ledger import Ledger
    from ._scope import NodeScope

__all__ = ["Stuck", "end_again"]

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
    while not (scope.is_root or node.parent is None or node.parent in Stuck(ledger, doomed=True)):
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST)
    for each in [each for each, why in ledger.doomed.items() if why == decision]:
        each.cancel(decision.reason)
    await asyncio.get_running_loop().create_future()


def _is_to_be_given_up(node: Node[Any], waiter: Node[Any]) -> bool:
    """Say whether the body of `waiter` still gives up its wait for `node`, as it did before."""
    scope, around = (cast("NodeScope | None", scope_of(each)) for each in (node, waiter))
    wait = None if scope is None else scope.given_up
    if scope is None or around is None or wait is None or wait["by"] != around.now.hex():
        return False
    return scope.ledger.loop.time() <= scope.ledger.start + LATE * wait["after"] + 1


class Stuck:
    """The nodes that cannot go on before an effect does that is held.

    With `doomed`, nodes that wait to be cancelled again count among these; with `locks`, those that
    wait for a lock.
    """

    def __init__(self, ledger: Ledger, *, doomed: bool = False, locks: bool = False) -> None:
        self._known = dict.fromkeys(ledger.doomed if doomed else (), True)
        self._futures = ledger.held
        self._locks = locks

    def __contains__(self, node: object) -> bool:
        if node not in self._known:
            self._find(cast("Node[Any]", node))
        return self._known[cast("Node[Any]", node)]

    def _find(self, node: Node[Any]) -> None:
        """Find out about a node and all that it waits for, without recursion: chains are long."""
        stack = [node]
        seen: set[Node[Any]] = set()
        moving: list[Node[Any]] = []
        waiters: defaultdict[Node[Any], list[Node[Any]]] = defaultdict(list)
        while stack:
            each = stack.pop()
            if each in seen:
                continue
            seen.add(each)
            if each in self._known:
                below = list[Node[Any]]() if self._known[each] else None
            elif each.state == "joining":
                below = list(each.children)
            else:
                below = waits_for(each, self._futures, locks=self._locks)
                if below and any(_is_to_be_given_up(other, each) for other in below):
                    below = None
            if below is None:
                moving.append(each)
                continue
            stack += below
            for other in below:
                waiters[other].append(each)
        while moving:
            self._known[moving[-1]] = False
            moving += [each for each in waiters.pop(moving.pop(), ()) if each not in self._known]
        for each in seen:  # what waits in a circle is stuck
            self._known.setdefault(each, True)
