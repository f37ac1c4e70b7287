"""Usage of a subtree: charges, limits and CPU time.

Charges and limits apply to a node and all nodes above it. The walk upwards does not stop at the
tree's root: it continues at the commander's outer node, whose body entered the commander.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator
from contextlib import suppress
from threading import RLock
from time import thread_time
from types import coroutine
from typing import TYPE_CHECKING, Any

from ._events import publish
from ._frames import mark_driver
from ._options import NodeLimits
from ._record import Record, enclosing, record_of
from .private import running_loop

if TYPE_CHECKING:
    from ._commander import Tree
    from ._event import EventKind
    from ._node import Node

__all__ = ["charge", "charge_as", "cpu_note", "limits_around", "measured", "payer", "payers"]

# A commander in a thread also charges its outer node, which runs on another thread's loop.
_charging = RLock()


def payer() -> Node[Any] | None:
    """Return the node that pays for usage in this context; None outside of a tree."""
    return next(enclosing(), None)


def payers(node: Node[Any] | None) -> Iterator[Node[Any]]:
    """Yield the nodes that pay for the usage of `node`: itself, then all above it.

    After a commander follow its outer node and all nodes above that. Outside of a tree, yield
    nothing.
    """
    while node is not None and record_of(node).tree:
        yield node
        record = record_of(node)
        node = record.tree.outer if record.parent_node is None else record.parent_node


def charge(account: str, amount: Any, node: Node[Any] | None = None, *, event: bool = True) -> None:
    """Add `amount`, of any type with `+`, to `account` of the current node and all above it.

        charge("my-service", 3)

    `node` replaces the current node. Backends charge the usage of each reply to the account of its
    model. A commander inside of another node's body also charges that node and all above it.
    Outside of a tree this does nothing. Each tree's listeners get an event of kind `charged`; with
    `event=False` those of the node's own tree do not.
    """
    payer_here = payer() if node is None else node
    own = None if event or payer_here is None else record_of(payer_here).tree
    charge_as("charged", account, amount, payer_here, own)


def charge_as(
    kind: EventKind, account: str, amount: Any, node: Node[Any] | None, without: Tree | None = None
) -> None:
    """Charge `node` and publish an event of this kind in each tree, except in `without`."""
    published = without
    # Under the lock, because reading an amount and writing the sum are two steps.
    with _charging:
        for each in payers(node):
            record = record_of(each)
            if record.charges is None:
                record.charges = {}
            before = record.charges.get(account)
            record.charges[account] = amount if before is None else before + amount
            is_next_tree = record.tree is not published
            published = record.tree
            if is_next_tree and record.tree.listeners:
                loop = record.tree.loop
                if loop is running_loop():
                    publish(record, kind, {account: amount})
                else:  # a thread that works for the node: only the loop's own thread publishes
                    with suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(publish, record, kind, {account: amount})


def limits_around(node: Node[Any] | None = None) -> list[NodeLimits]:
    """Return the limits of the current node, or `node`, and of all nodes charged with it."""
    every = payers(payer() if node is None else node)
    return [limits for each in every if (limits := record_of(each).limits) is not None]


# --- CPU time, for a commander that measures it


@mark_driver
@coroutine
def measured(record: Record, work: Awaitable[Any]) -> Generator[Any, Any, Any]:
    """Await `work` and add the CPU seconds of its steps to `record`."""

    async def wait() -> Any:
        return await work

    body = wait()
    step: Any = body.send
    argument: Any = None
    try:
        while True:
            # Around each step, not around the whole: between steps other tasks use this thread.
            begun = thread_time()
            try:
                on = step(argument)
            except StopIteration as end:
                return end.value
            finally:
                record.cpu = (record.cpu or 0.0) + thread_time() - begun
            try:
                yield on
                step, argument = body.send, None
            except GeneratorExit:  # not for `body.throw`: `finally` closes the body
                raise
            except BaseException as error:  # noqa: BLE001 - the body gets it
                step, argument = body.throw, error
    finally:
        argument = None  # its traceback refers to this frame: break the cycle
        body.close()


def cpu_note(seconds: float | None) -> str:
    """Return the text for a node's CPU time; "" if it is not measured."""
    return "" if seconds is None else f", {seconds:.3f} s CPU"
