"""Remove runs in small transactions, so that other processes can write in between.

The first transaction removes the run itself and lists it in `anabranch_purge`, so no process sees
an incomplete run. Later transactions remove its rows. The next purge completes an interrupted one.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

__all__ = ["BATCH_SECONDS", "remove_some"]

BATCH_SECONDS = 0.05  # after which a transaction ends
KEY_SECONDS = 30 * 86400.0  # the key of a signal is stored so long, also without its run
MAX_RUNS = 100  # in a transaction
ROWS_PER_BATCH = 50  # after which the time is checked
LARGE_BYTES = 64 << 10  # a larger value is the last in its batch, as removing it is slow

# By table: an expression that is true or not null for a large row.
_IS_LARGE_SQL = {
    "anabranch_row": "digest",
    "anabranch_mail": f"length(value) > {LARGE_BYTES}",
}
_DELETE_BLOB = (
    "delete from anabranch_blob where digest = :digest"
    " and not exists (select 1 from anabranch_row where digest = :digest)"
)


def remove_some(
    sql: sqlite3.Connection, before: float, states: Sequence[str], prefix: str | None
) -> tuple[int, bool]:
    """Remove runs for `BATCH_SECONDS`; return how many, and whether more is left to remove."""
    until = time.monotonic() + BATCH_SECONDS
    placeholders = ", ".join("?" * len(states))
    keys = sql.execute(
        f"select id from anabranch_run where state in ({placeholders}) and updated < ?"  # noqa: S608
        " and (? is null or run_id >= ? and run_id < ? || char(0x10ffff)) limit ?",
        (*states, before, prefix, prefix, prefix, MAX_RUNS),
    ).fetchall()
    removed = 0
    while removed < len(keys) and time.monotonic() < until:
        sql.execute("insert into anabranch_purge values (?)", keys[removed])
        sql.execute("delete from anabranch_run where id = ?", keys[removed])
        removed += 1
    while time.monotonic() < until:
        run = sql.execute("select run from anabranch_purge limit 1").fetchone()
        if run is None:
            return removed, _forget_keys(sql) or len(keys) == MAX_RUNS
        if not any(_remove_rows(sql, table, run) for table in _IS_LARGE_SQL):
            sql.execute("delete from anabranch_purge where run = ?", run)
    return removed, True


def _remove_rows(sql: sqlite3.Connection, table: str, run: tuple[int]) -> bool:
    """Remove some rows of a run, at most one large one; return whether there were any."""
    found = sql.execute(
        f"select rowid, {_IS_LARGE_SQL[table]} from {table} where run = ? limit {ROWS_PER_BATCH}",  # noqa: S608
        run,
    ).fetchall()
    first_large = next((n for n, (_, large) in enumerate(found) if large), ROWS_PER_BATCH)
    some = found[: first_large + 1]
    delete = f"delete from {table} where rowid = ?"  # noqa: S608
    sql.executemany(delete, [(rowid,) for rowid, _ in some])
    if table == "anabranch_row" and some and some[-1][1] is not None:
        sql.execute(_DELETE_BLOB, {"digest": some[-1][1]})
    return bool(found)


def _forget_keys(sql: sqlite3.Connection) -> bool:
    """Remove old keys of signals of removed runs; return whether there may be more."""
    cursor = sql.execute(
        "delete from anabranch_key where digest in (select digest from anabranch_key where time < ?"
        " and run not in (select id from anabranch_run) limit ?)",
        (time.time() - KEY_SECONDS, MAX_RUNS),
    )
    return cursor.rowcount == MAX_RUNS
