"""Other stores of vectors, each with the same vectors, asked for the nearest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class SqliteVec:
    """The extension of SQLite: exact, in its own table."""

    name = "sqlite-vec"

    def __init__(self, folder: Path, vectors: Any) -> None:
        import apsw  # type: ignore[import-not-found] - as some Pythons load no extension
        import sqlite_vec  # type: ignore[import-not-found]

        folder.mkdir()
        self._sql: Any = apsw.Connection(str(folder / "sqlite-vec.db"))
        self._sql.enable_load_extension(True)
        self._sql.load_extension(sqlite_vec.loadable_path())
        distance = "distance_metric=cosine"
        table = f"create virtual table v using vec0(vector float[{vectors.shape[1]}] {distance})"
        self._sql.execute(table)
        rows = ((number, each.tobytes()) for number, each in enumerate(vectors))
        with self._sql:
            self._sql.executemany("insert into v (rowid, vector) values (?, ?)", rows)

    def nearest(self, vector: Any, most: int) -> list[int]:
        statement = "select rowid from v where vector match ? and k = ? order by distance"
        return [row for (row,) in self._sql.execute(statement, (vector.tobytes(), most))]

    def close(self) -> None:
        self._sql.close()


class LanceDb:
    """LanceDB without an index, which is exact."""

    name = "lancedb"

    def __init__(self, folder: Path, vectors: Any) -> None:
        os.environ.setdefault("LANCE_LOG", "error")
        import lancedb  # type: ignore[import-not-found]

        rows = [{"number": number, "vector": each} for number, each in enumerate(vectors)]
        self._table: Any = lancedb.connect(folder).create_table("v", rows)

    def nearest(self, vector: Any, most: int) -> list[int]:
        asked = self._table.search(vector).distance_type("cosine").select(["number"]).limit(most)
        return [row["number"] for row in asked.to_list()]

    def close(self) -> None:
        pass


class Chroma:
    """Chroma with its default index, HNSW, which is not exact."""

    name = "chromadb"

    def __init__(self, folder: Path, vectors: Any) -> None:
        import chromadb  # type: ignore[import-not-found]
        from chromadb.config import Settings  # type: ignore[import-not-found]

        settings = Settings(anonymized_telemetry=False)
        client: Any = chromadb.PersistentClient(str(folder), settings)
        space = {"hnsw": {"space": "cosine"}}
        self._found: Any = client.create_collection("vectors", configuration=space)
        for start in range(0, len(vectors), 5_000):
            some = vectors[start : start + 5_000]
            self._found.add(ids=[f"{start + each}" for each in range(len(some))], embeddings=some)

    def nearest(self, vector: Any, most: int) -> list[int]:
        given = self._found.query(query_embeddings=[vector], n_results=most, include=[])
        return [int(each) for each in given["ids"][0]]

    def close(self) -> None:
        pass


OTHERS: list[Any] = [SqliteVec, LanceDb, Chroma]
