"""`settle`: wait for several nodes and return all their outcomes."""

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
    """Wait until all nodes have ended; return their results and failures, in the order given.

        found = await settle(*(researcher(each) for each in questions), at_least=3)

    Coroutines, and nodes that have not started, start now as children of the current node. A
    failure does not cancel the others or reach a policy: the returned list has the exception in its
    place, a `NodeCancelled` for a cancelled node. To end as soon as enough have completed, use the
    policy `quorum(n)`.

    Raises `QuorumNotMet` if fewer than `at_least` have completed; its `outcomes` are the list.
    Cancelling this cancels the nodes and waits for their end. If the current node is cancelled too,
    this waits only for its own children, since other nodes may wait for it.

    Raises `ValueError` for fewer awaitables than `at_least`, `TypeError` for an argument that
    cannot be awaited, such as a list, `LookupError` outside of a tree, `RuntimeError` for a node of
    another loop. In these cases no node has started.
    """
    if not 0 <= at_least <= len(awaitables):
        raise ValueError(f"at_least must be 0 to {len(awaitables)}, not {at_least!r}")
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
                    raise  # it cannot be awaited here
                outcomes.append(error)
    except asyncio.CancelledError:
        for node in nodes:
            if record_of(node).state not in DONE:
                node.cancel("what waited for it was cancelled")
        for node in nodes:
            # A node of another parent may wait for the current node. If that is cancelled too,
            # waiting for it here could never end.
            if node.parent is parent or record_of(parent).cancel_reason is None:
                await wait_shielded(observe(node))
            record = record_of(node)
            if record.state == "failed" and record.failure is not None:
                take_failure(record)  # so it does not reach a policy; the log has it
                log_lost(record, record.failure, "%s failed, and settle was cancelled")
        raise
    failures = [each for each in outcomes if isinstance(each, Exception)]
    completed = len(outcomes) - len(failures)
    if completed < at_least:
        raise QuorumNotMet(at_least, completed, failures, outcomes)
    return outcomes


class _Awaited(Node[T], internal=True, name="settle"):
    _node_is_work = True  # like a task of the body

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable
        if iscoroutine(awaitable):  # prevents the warning that it was never awaited
            self.at_terminate(lambda _: awaitable.close())

    async def task(self) -> T:
        return await self._awaitable
