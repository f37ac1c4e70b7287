"""Checks of the durable-run contracts against the rows and the notes of an execution.

Each check is a function named after its contract; `require_contracts` calls all of them. The kills
in `killed_executions.py` test D2 and D7. `Disk.do` checks D3: no effect without an intent.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from anabranch.store._journal_file import Row
from anabranch.store.errors import JournalMismatch
from support.killed_executions import Execution, require_consistent
from support.memory_journal import RUN_ID
from support.random_programs import SECRET

__all__ = ["require_contracts", "require_same_rows"]

ENDS = ("result", "failure")


def _cancelled(execution: Execution, rows: int) -> set[bytes]:
    """Return the identities of the nodes that the first `rows` rows cancel."""
    found = [
        json.loads(row.value)["whom"] for row in execution.rows[:rows] if row.kind == "cancelled"
    ]
    return {bytes.fromhex(ident) for whom in found for ident in whom}


def _at_or_above(scope: Any) -> list[bytes]:
    """Return the identities of a node and its ancestors."""
    return [] if scope is None else [scope.ident, *_at_or_above(scope.parent)]


def d4_what_has_ended_does_not_run_again(execution: Execution) -> None:
    for what, rows, scope in execution.disk.seen:
        if what == "body":
            ended = [row for row in execution.rows[:rows] if row.kind in ENDS]
            assert scope.ident not in {row.ident for row in ended}, scope.ident


def d6_what_is_recorded_ends_in_the_order_of_the_journal(execution: Execution) -> None:
    seq = {row.ident: row.seq for row in execution.rows[: execution.before] if row.kind in ENDS}
    put: dict[bytes, int] = {}
    ended: dict[bytes, list[tuple[int, int]]] = {}
    for moment, (what, _, scope) in enumerate(execution.disk.seen):
        if scope is None or scope.parent is None or scope.ident not in seq:
            continue
        if what == "put":
            put[scope.ident] = moment
        elif what == "end" and scope.ident in put:
            before = ended.setdefault(scope.parent.ident, [])
            # A node that was put after this one ended could not delay it.
            late = [n for n, moment in before if n > seq[scope.ident] and moment > put[scope.ident]]
            assert not late, f"{seq[scope.ident]} after {late}"
            before.append((seq[scope.ident], moment))


def d8_no_code_has_changed(execution: Execution) -> None:
    assert not isinstance(execution.error, JournalMismatch)
    assert execution.state != "parked"


def d9_a_transaction_is_done_with_its_row(execution: Execution) -> None:
    done = Counter(
        json.loads(row.value)[2][1][0][0] for row in execution.rows if row.kind == "transaction"
    )
    tables = execution.disk.tables
    if done:
        paid = tables.execute("select value from paid").fetchall()
        assert Counter(each for (each,) in paid) == done


def d10_a_timer_is_set_once(execution: Execution) -> None:
    waits = Counter(row.ident for row in execution.rows if row.kind == "waits")
    assert max(waits.values(), default=1) == 1


def d11_a_recorded_cancel_stays(execution: Execution) -> None:
    for what, rows, scope in execution.disk.seen:
        if what == "body":
            assert not _cancelled(execution, rows) & {*_at_or_above(scope)}, scope.ident


def d12_a_letter_is_taken_once(execution: Execution) -> None:
    letters = [json.loads(row.value)["id"] for row in execution.rows if row.kind == "letter"]
    taken = Counter(each for each in letters if each is not None)
    assert max(taken.values(), default=1) == 1


def d17_a_message_costs_what_it_says(execution: Execution) -> None:
    for row in execution.rows:
        assert row.kind != "message" or len(row.value) < 500


def d18_no_secret_is_written(execution: Execution) -> None:
    run = execution.disk.runs.get(RUN_ID)
    for data in [*(row.value for row in execution.rows), b"" if run is None else run.inputs]:
        assert SECRET.encode() not in data


CONTRACTS: list[Callable[[Execution], None]] = [
    each for name, each in [*globals().items()] if name[:1] == "d" and name[1:2].isdigit()
]


def require_contracts(execution: Execution) -> None:
    """Raise unless a finished execution fulfills all contracts."""
    require_consistent(execution)
    for contract in CONTRACTS:
        contract(execution)


def require_same_rows(first: Execution, execution: Execution) -> None:
    """Raise unless each node ended alike in both executions (D5). Random values may differ."""
    for kind in ENDS:
        one, other = (
            {r.ident: _said(r) for r in each.rows if r.kind == kind} for each in (first, execution)
        )
        for ident in one.keys() | other.keys():
            # A plain node's failure is recorded only if it cancelled nodes that were still running.
            if kind == "result" or (ident in one and ident in other):
                assert one.get(ident) == other.get(ident), (
                    f"{one.get(ident)}, then {other.get(ident)}"
                )


def _said(row: Row) -> str:
    """Return a result or a failure without the parts that differ in each execution."""
    value = json.loads(row.value)
    if row.kind == "failure":
        del value["notes"]  # they contain paths, as some messages do
    return re.sub('"said [^"]*"', "said", re.sub(r"#\d+\b", "#", json.dumps(value)))
