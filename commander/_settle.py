"""`settle`: wait for several nodes and return all their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any, TypeVar

from ._failure import log_lost, take_failure
from ._node import Node, current_node
from ._options import HandlerOptions
from ._policy import Retry, check_retry, check_timeout
from ._record import DONE, record_of, require_loop
from .errors import QuorumNotMet
from .waiting import observe, wait_shielded

__all__ = ["settle"]

T = TypeVar("T")


async def settle(
    *awaitables: Awaitable[T],
    at_least: int = 0,
    at_once: int | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
) -> list[T | Exception]:
    """Wait until all nodes have ended; return their results and failures, in the order given.

        jobs = [Summarize(url) for url in urls]
        found = await settle(*jobs, at_least=20, at_once=5, retry=Retry(attempts=3), timeout=60)

    Coroutines, and nodes that have not started, start as children of the current node: all at once,
    or in their order and at most `at_once` at a time. `retry` and `timeout` are options of each
    node, as in `put_job`. A failure does not cancel the others or reach a policy: the returned list
    has the exception in its place, a `NodeCancelled` for a cancelled node. To end as soon as enough
    have completed, use the policy `quorum(n)`.

    Raises `QuorumNotMet` if fewer than `at_least` have completed; its `outcomes` are the list.
    Cancelling this cancels the nodes and waits for their end. If the current node is cancelled too,
    this waits only for its own children, since other nodes may wait for it.

    Raises `ValueError` for fewer awaitables than `at_least`, or an `at_once` below 1; `TypeError`
    for an argument that cannot be awaited, such as a list, and for a `retry` or a `timeout` of
    something that cannot have it; `LookupError` outside of a tree: open a `Commander`, or use a
    job; `RuntimeError` for a node of another loop. In these cases no node has started.
    """
    if not 0 <= at_least <= len(awaitables):
        raise ValueError(f"at_least must be 0 to {len(awaitables)}, not {at_least!r}")
    if at_once is not None and not (isinstance(at_once, int) and at_once >= 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"at_once must be a whole number from 1 on, or None, not {at_once!r}")
    check_retry(retry)
    check_timeout(timeout)
    for each in awaitables:
        if not isawaitable(each):
            raise TypeError(f"settle waits for nodes and coroutines, not {each!r:.200}")
        if retry is not None and not isinstance(each, Node):
            raise TypeError(
                f"settle cannot retry {each!r:.200}, which runs only once. Pass a node, such as a"
                " job or agent.call(...)"
            )
    try:
        parent = current_node()
    except LookupError:
        raise LookupError(
            "settle needs a tree, and this code does not run in one: put it into a job, or into"
            " 'async with Commander():'"
        ) from None
    nodes = [each if isinstance(each, Node) else _Awaited(each) for each in awaitables]
    options: HandlerOptions = {"claim": True}
    if retry is not None:
        options["retry"] = retry
    if timeout is not None:
        options["timeout"] = timeout
    for node in nodes:
        record = record_of(node)
        if not record.tree:
            continue
        if len(options) > 1:
            raise TypeError(f"{node!r} has started: pass its retry= and timeout= where it is put")
        if record.state not in DONE:
            require_loop(record, "settle on its loop")

    def start(node: Node[T]) -> None:
        if record_of(node).tree:
            record_of(node).is_claimed = True
        else:
            (parent.put_job if node._node_is_queued else parent.call_handler)(node, **options)

    if at_once is None:
        for node in nodes:
            start(node)
    outcomes: list[T | Exception] = []
    try:
        if at_once is not None:
            await _start_in_turn(nodes, start, at_once)
        for node in nodes:
            try:
                outcomes.append(await node)
            except Exception as error:
                if record_of(node).state not in DONE:
                    raise  # it cannot be awaited here
                outcomes.append(error)
    except asyncio.CancelledError:
        started = [node for node in nodes if record_of(node).tree]
        for node in started:
            if record_of(node).state not in DONE:
                node.cancel("what waited for it was cancelled")
        for node in started:
            # A node of another parent may wait for the current node. If that is cancelled too,
            # waiting for it here could never end.
            if node.parent is parent or record_of(parent).cancel_reason is None:
                await wait_shielded(observe(node))
            record = record_of(node)
            if record.state == "failed" and record.failure is not None:
                take_failure(record)  # so it does not reach a policy; the log has it
                log_lost(record, record.failure, "%s failed, and settle was cancelled")
        raise
    finally:
        for node in nodes:
            if isinstance(node, _Awaited) and not record_of(node).tree:
                node.close()  # it never started, because of an error or a cancel
    failures = [each for each in outcomes if isinstance(each, Exception)]
    completed = len(outcomes) - len(failures)
    if completed < at_least:
        raise QuorumNotMet(at_least, completed, failures, outcomes)
    return outcomes


async def _start_in_turn(
    nodes: Sequence[Node[Any]], start: Callable[[Node[Any]], None], at_once: int
) -> None:
    """Start the nodes in their order, at most `at_once` at a time; return when all have ended.

    Each of `at_once` tasks awaits one node after the other. So the engine sees the waits, and a
    durable run replays their order.
    """
    waiting = iter(nodes)

    async def take_turns() -> None:
        for node in waiting:
            start(node)
            try:
                await node
            except Exception:  # `settle` itself awaits the node after this
                if record_of(node).state not in DONE:
                    raise  # it cannot be awaited here

    lanes = [asyncio.ensure_future(take_turns()) for _ in nodes[:at_once]]
    try:
        await asyncio.gather(*lanes)
    finally:
        for lane in lanes:
            lane.cancel()


class _Awaited(Node[T], internal=True, name="settle"):
    _node_is_work = True  # like a task of the body

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable
        if iscoroutine(awaitable):
            self.at_terminate(lambda _: awaitable.close())

    def close(self) -> None:
        """Prevent the warning that the coroutine was never awaited."""
        if iscoroutine(self._awaitable):
            self._awaitable.close()

    async def task(self) -> T:
        return await self._awaitable
