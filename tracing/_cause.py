"""Which differences only follow from others: each thing that happened is told once."""

from __future__ import annotations

from typing import Any

from ._match import Pair
from ._trace import TraceError, TraceNode

__all__ = ["drop_what_follows"]

# What the failure of a node below makes of a node: of a call, its answer too.
FAILURE = ("state", "error", "status", "result", "size of result")
# A child's state that follows from its parent's.
ENDS = {("cancelled", "cancelled"), ("cancelled", "failed"), ("lost", "lost")}


def drop_what_follows(pairs: list[Pair], what: dict[int, dict[str, Any]]) -> None:
    """Take out of `what`, the differences of pairs by their places, those that only follow."""
    _drop_failures(pairs, what)
    _drop_ends(pairs, what)


def _drop_failures(pairs: list[Pair], what: dict[int, dict[str, Any]]) -> None:
    """A failure is told where it happened, and not in the nodes above which it failed too.

    Where a call of a tool was another one, or the same with other arguments, it is told of that.
    """
    # The nodes whose failure is told, and at which pair: their own, or that from which it came.
    told: dict[TraceNode, int | None] = {}
    for at in range(len(pairs) - 1, -1, -1):
        here, pair = what.get(at), pairs[at]
        if here is None:
            continue
        both = pair.before is not None and pair.after is not None
        if both and not here.keys() & {"state", "error", "status"}:
            continue
        bad = [node for node in pair[:2] if node is not None and node.is_bad]
        if not bad:
            continue
        places = [_origin(node, told) for node in bad]
        if not both or None in places:
            places = [at] * len(bad)
        elif any(node.tool for node in bad) and not here.keys() <= set(FAILURE):
            for place in places:
                _leave_out(what, place, ("state", "error"))
            places = [at] * len(bad)
        else:
            _leave_out(what, at, FAILURE)
        told.update(zip(bad, places, strict=True))


def _leave_out(what: dict[int, dict[str, Any]], at: int | None, names: tuple[str, ...]) -> None:
    if at is not None and at in what:
        what[at] = {name: value for name, value in what[at].items() if name not in names}


def _origin(node: TraceNode, told: dict[TraceNode, int | None]) -> int | None:
    """Return where the failure of a node is told, if that came from one of its children."""
    inner = {_key(each) for each in (node.error, *node.error.of)} if node.error else ()
    for child in node.children:
        # A call that has failed gives an answer all the same, which has no error.
        if child in told and child.error and (_key(child.error) in inner or node.status):
            return told[child]
    return None


def _key(error: TraceError) -> tuple[str, str, str]:
    return error.type, error.at, error.message


def _drop_ends(pairs: list[Pair], what: dict[int, dict[str, Any]]) -> None:
    """A cancel, and the death of a process, are told of the topmost nodes that they have ended."""
    changed: dict[int, tuple[str, str]] = {}
    for at, pair in enumerate(pairs):
        if pair.before is None or pair.after is None or "state" not in (here := what.get(at, {})):
            continue
        changed[at] = here["state"]
        if (above := changed.get(pair.above)) and (
            set(zip(here["state"], above, strict=True)) & ENDS
        ):
            what[at] = {name: value for name, value in here.items() if name != "state"}
