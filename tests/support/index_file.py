"""Read the contents of an index file with SQL, without the package's reader."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from anabranch.knowledge._store import separate_words

__all__ = ["has_current_words", "stored_pieces"]


def stored_pieces(path: Path) -> dict[str, list[str]]:
    """Return the piece texts of each document by its file name."""
    statement = """select source.name, piece.text from source
        left join piece on piece.source = source.id order by piece.id"""
    found: dict[str, list[str]] = {}
    with closing(sqlite3.connect(path)) as sql:
        for name, text in sql.execute(statement):
            found.setdefault(Path(name).name, []).append(text)
        (lost,) = sql.execute(
            "select count(*) from piece where source not in (select id from source)"
        ).fetchone()
    assert lost == 0
    return found


def has_current_words(path: Path) -> bool:
    """Return whether the word index equals a new one of the same pieces."""
    seen = "select doc, term, col, offset from temp.{} order by 1, 2, 3, 4"
    with closing(sqlite3.connect(path)) as sql:
        (made,) = sql.execute("select sql from sqlite_schema where name = 'words'").fetchone()
        sql.execute(made.replace("words", "temp.fresh", 1))
        for number, *texts in sql.execute("select id, heading, text from piece").fetchall():
            sql.execute(
                "insert into temp.fresh (rowid, heading, text) values (?, ?, ?)",
                (number, *map(separate_words, texts)),
            )
        sql.execute("create virtual table temp.old using fts5vocab('main', 'words', 'instance')")
        sql.execute("create virtual table temp.new using fts5vocab('temp', 'fresh', 'instance')")
        old, new = (sql.execute(seen.format(each)).fetchall() for each in ("old", "new"))
    return old == new
