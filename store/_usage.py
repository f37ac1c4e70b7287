"""The usage of a node or a reply as JSON, which a later execution counts again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..commander import Node
from ..commander.durable import charge_again, charges_of
from ..messages import Usage

if TYPE_CHECKING:
    from ._writer import Row

__all__ = ["charge", "taken", "usage_of"]


def taken(row: Row) -> list[tuple[str, Usage]]:
    """Return the usage in a row of a reply (`reply`, `broken` or `spent`), by account."""
    value = json.loads(row.value)
    said = value["said"] if row.kind == "broken" else value
    return [(account, Usage(**usage)) for account, usage in said["taken"]]


def usage_of(node: Node[Any]) -> dict[str, Any]:
    """Return the usage of the replies below `node`, by account."""
    return {
        account: usage.model_dump(mode="json", exclude_defaults=True)
        for account, usage in charges_of(node).items()
        if isinstance(usage, Usage)
    }


def charge(usage: dict[str, Any], node: Node[Any]) -> None:
    """Charge `node` with the result of `usage_of`."""
    for account, taken in usage.items():
        charge_again(account, Usage(**taken), node)
