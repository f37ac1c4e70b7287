"""What a subtree has spent: amounts are added to a node and to each of its ancestors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._record import CURRENT

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["charge", "spent"]


def charge(account: str, amount: Any) -> None:
    """Add `amount`, of any type with `+`, to `account` of the current node and its ancestors.

    Backends charge the usage of each reply to the account of its model. Outside a tree it does
    nothing. Finished nodes hand nothing over: their ancestors have had it all along.
    """
    node: Node[Any] | None = CURRENT.get(None)
    while node is not None:
        if node._n_spent is None:
            node._n_spent = {}
        before = node._n_spent.get(account)
        node._n_spent[account] = amount if before is None else before + amount
        node = node._n_parent


def spent(node: Node[Any]) -> dict[str, Any]:
    """Return what has been charged at and below `node`, by account."""
    return dict(node._n_spent or {})
