"""Exact search of all vectors by cosine similarity, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..commander.errors import MissingExtra

__all__ = ["Vectors", "pack_vector"]

# Vectors that are compared in float64 at once.
CHUNK_VECTORS = 4096


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra("searching by vectors", "knowledge") from error
    return numpy


def pack_vector(vector: Sequence[float]) -> bytes:
    """Return a vector scaled to length one, as little-endian float32.

    Raises `ValueError` for an empty vector, a zero vector, or one with numbers that are not finite.
    """
    np = _numpy()
    values = np.asarray(vector, dtype=np.float64)
    largest = np.abs(values).max() if values.ndim == 1 and values.size else 0.0
    if not np.isfinite(largest) or largest == 0.0:
        raise ValueError("a vector must be a list of finite numbers that are not all 0")
    values = values / largest  # scaled so that the squares neither overflow nor become 0
    return (values / np.linalg.norm(values)).astype("<f4").tobytes()


class Vectors:
    """The vectors of all pieces of documents in memory, four bytes for each number."""

    def __init__(self, rows: Iterable[tuple[int, bytes]], size: int) -> None:
        np = _numpy()
        numbers: list[int] = []
        data = bytearray()
        for number, vector in rows:
            numbers.append(number)
            data += vector
        self._numbers = np.asarray(numbers, dtype=np.int64)
        self._rows = np.frombuffer(data, dtype="<f4").reshape(len(numbers), size)

    def nearest(self, vector: bytes, limit: int) -> list[int]:
        """Return the numbers of the pieces nearest to a packed vector, the nearest first.

        Pieces with equal similarity keep their order. The order is exact in float64; float32 only
        excludes pieces that cannot be among the nearest.
        """
        np = _numpy()
        count = min(limit, len(self._numbers))
        if not count:
            return []
        query = np.frombuffer(vector, dtype="<f4")
        rough = self._rows @ query
        error_bound = (
            2 * len(query) * np.finfo(np.float32).eps
        )  # more than the rounding error of float32
        close = np.flatnonzero(rough >= np.partition(rough, -count)[-count] - error_bound)
        exact = np.empty(len(close))
        for start in range(0, len(close), CHUNK_VECTORS):
            rows = self._rows[close[start : start + CHUNK_VECTORS]].astype(np.float64)
            exact[start : start + CHUNK_VECTORS] = (rows * query).sum(axis=1)
        best = np.argsort(-exact, kind="stable")[:count]
        return self._numbers[close[best]].tolist()
