"""What a subtree has spent, and what bounds it: both go up the tree, and on beyond a commander."""

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

# A commander may be entered in a thread below a node of another loop, which it charges too.
_charging = RLock()


def payer() -> Node[Any] | None:
    """Return the node that pays for what is spent here; None outside a tree."""
    return next(enclosing(), None)


def payers(node: Node[Any] | None) -> Iterator[Node[Any]]:
    """Yield `node`, all above it, and beyond each commander the node in which it was entered.

    All these pay for what `node` spends. Outside a tree there are none.
    """
    while node is not None and record_of(node).tree:
        yield node
        record = record_of(node)
        node = record.tree.outer if record.parent_node is None else record.parent_node


def charge(account: str, amount: Any, node: Node[Any] | None = None, *, event: bool = True) -> None:
    """Add `amount`, of any type with `+`, to `account` of the current node and its ancestors.

    `node` takes the place of the current node. Backends charge the usage of each reply to the
    account of its model. Beyond a commander, the node in which that was entered pays too. Outside
    a tree it does nothing. Finished nodes hand nothing over: their ancestors have had it all along.
    Those who listen are told by an event of kind `charged`, one in each tree; with `event` False
    those of the node's own tree are not.
    """
    payer_here = payer() if node is None else node
    own = None if event or payer_here is None else record_of(payer_here).tree
    charge_as("charged", account, amount, payer_here, own)


def charge_as(
    kind: EventKind, account: str, amount: Any, node: Node[Any] | None, told: Tree | None = None
) -> None:
    """Charge `node`; all trees are told by an event of this kind, but for the one that has it."""
    with _charging:
        for each in payers(node):
            record = record_of(each)
            if record.charges is None:
                record.charges = {}
            before = record.charges.get(account)
            record.charges[account] = amount if before is None else before + amount
            news = record.tree is not told
            told = record.tree
            if news and record.tree.listeners:
                loop = record.tree.loop
                if loop is running_loop():
                    publish(record, kind, {account: amount})
                else:  # it was spent in a thread that works for the node
                    with suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(publish, record, kind, {account: amount})


def limits_around(node: Node[Any] | None = None) -> list[NodeLimits]:
    """Return what bounds the current node, or `node`: its own limits and those of all who pay."""
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
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is for the body
                step, argument = body.throw, error
    finally:
        argument = None  # or it and this frame, which its traceback holds, would be a circle
        body.close()


def cpu_note(seconds: float | None) -> str:
    """Say how much CPU time a node has taken; nothing if it is not measured."""
    return "" if seconds is None else f", {seconds:.3f} s CPU"
