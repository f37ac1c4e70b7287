"""What a subtree has spent: amounts are added to a node and to each of its ancestors."""

from __future__ import annotations

from typing import Any

from ._record import CURRENT, record_of

__all__ = ["charge"]


def charge(account: str, amount: Any) -> None:
    """Add `amount`, of any type with `+`, to `account` of the current node and its ancestors.

    Backends charge the usage of each reply to the account of its model. Outside a tree it does
    nothing. Finished nodes hand nothing over: their ancestors have had it all along.
    """
    node = CURRENT.get(None)
    record = None if node is None else record_of(node)
    while record is not None:
        if record.charges is None:
            record.charges = {}
        before = record.charges.get(account)
        record.charges[account] = amount if before is None else before + amount
        record = record.parent
