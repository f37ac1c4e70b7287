"""What a node has spent, as JSON, and charged again in a later life."""

from __future__ import annotations

from typing import Any

from ..commander import Node
from ..commander.scope import charge_again, spent
from ..messages import Usage

__all__ = ["charge", "usage_of"]


def usage_of(node: Node[Any]) -> dict[str, Any]:
    """Return what replies below `node` took, by account."""
    return {
        account: usage.model_dump(mode="json", exclude_defaults=True)
        for account, usage in spent(node).items()
        if isinstance(usage, Usage)
    }


def charge(usage: dict[str, Any], node: Node[Any]) -> None:
    """Charge `node` with what `usage_of` gave."""
    for account, taken in usage.items():
        charge_again(account, Usage(**taken), node)
