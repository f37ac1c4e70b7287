"""`settle`: wait for several, whatever becomes of each, and say whether enough have completed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isawaitable, iscoroutine
from typing import TypeVar

from ._failure import log_lost, take_failure
from ._node import Node, current_node
from ._record import DONE, record_of, require_loop
from .errors import QuorumNotMet
from .waiting import observe, wait_shielded

__all__ = ["settle"]

T = TypeVar("T")


async def settle(*awaitables: Awaitable[T], at_least: int = 0) -> list[T | Exception]:
    """Wait until all have ended; return their results and failures, in the order given.

        found = await settle(*(researcher(each) for each in questions), at_least=3)

    Nodes that have not started, and coroutines, start now, all at once, as children of the current
    node; nodes that run already are waited for. No failure cancels the others, or reaches a policy:
    it stands in its place in what is returned, as an exception; so does the `NodeCancelled` of one
    that was cancelled. To end as soon as enough have completed, use the policy `quorum(n)`.

    If fewer than `at_least` have completed at the end, raises `QuorumNotMet`, whose `outcomes` are
    what would have been returned. Cancelling this cancels all that it waits for, and waits for
    that; but where the current node is cancelled too, only for its own children, since others may
    wait for it. Raises `ValueError` if there are fewer than `at_least`, `TypeError` for what cannot
    be awaited, as a list of coroutines, `LookupError` outside a tree, `RuntimeError` for a node of
    another loop; then nothing has started.
    """
    if not 0 <= at_least <= len(awaitables):
        raise ValueError(f"at_least={at_least!r}: there are {len(awaitables)} to wait for")
    for each in awaitables:
        if not isawaitable(each):
            raise TypeError(f"settle waits for nodes and coroutines, not {each!r:.200}")
    parent = current_node()
    nodes = [each if isinstance(each, Node) else _Awaited(each) for each in awaitables]
    for node in nodes:
        record = record_of(node)
        if record.tree and record.state not in DONE:
            require_loop(record, "settle on its loop")
    for node in nodes:
        if record_of(node).tree:
            record_of(node).is_claimed = True
        else:
            (parent.put_job if node._node_is_queued else parent.call_handler)(node, claim=True)
    outcomes: list[T | Exception] = []
    try:
        for node in nodes:
            try:
                outcomes.append(await node)
            except Exception as error:
                if record_of(node).state not in DONE:
                    raise  # it may not be awaited here
                outcomes.append(error)
    except asyncio.CancelledError:
        for node in nodes:
            if record_of(node).state not in DONE:
                node.cancel("what waited for it was cancelled")
        for node in nodes:
            # One elsewhere may wait for the current node: if that is cancelled too, none waits.
            if node.parent is parent or record_of(parent).cancel_reason is None:
                await wait_shielded(observe(node))
            record = record_of(node)
            if record.state == "failed" and record.failure is not None:
                take_failure(record)  # it reaches no policy, and nobody gets the outcomes
                log_lost(record, record.failure, "%s failed, and settle was cancelled")
        raise
    failures = [each for each in outcomes if isinstance(each, Exception)]
    completed = len(outcomes) - len(failures)
    if completed < at_least:
        raise QuorumNotMet(at_least, completed, failures, outcomes)
    return outcomes


class _Awaited(Node[T], internal=True, name="settle"):
    _node_is_work = True  # as in a task of the body's

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable
        if iscoroutine(awaitable):  # one that never began must not warn that nobody awaited it
            self.at_terminate(lambda _: awaitable.close())

    async def task(self) -> T:
        return await self._awaitable
