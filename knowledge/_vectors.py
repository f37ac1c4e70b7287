"""Searching vectors: exactly, all of them, by the cosine of the angle to the one that is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..commander.errors import MissingExtra

__all__ = ["Vectors", "pack_vector"]

CHUNK = 4096  # vectors that are compared in float64 at once


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra("searching by vectors", "knowledge") from error
    return numpy


def pack_vector(vector: Sequence[float]) -> bytes:
    """Return a vector of length one in the same direction, as float32 in little endian.

    Raises `ValueError` for one that is empty, has no direction or is not of finite numbers.
    """
    np = _numpy()
    found = np.asarray(vector, dtype=np.float64)
    largest = np.abs(found).max() if found.ndim == 1 and found.size else 0.0
    if not np.isfinite(largest) or largest == 0.0:
        raise ValueError("a vector must be a list of finite numbers that are not all 0")
    found = found / largest  # whose squares are neither too large for a float nor all 0
    return (found / np.linalg.norm(found)).astype("<f4").tobytes()


class Vectors:
    """The vectors of all pieces in memory: four bytes for each number."""

    def __init__(self, rows: Iterable[tuple[int, bytes]], size: int) -> None:
        np = _numpy()
        numbers: list[int] = []
        data = bytearray()
        for number, vector in rows:
            numbers.append(number)
            data += vector
        self._numbers = np.asarray(numbers, dtype=np.int64)
        self._rows = np.frombuffer(data, dtype="<f4").reshape(len(numbers), size)

    def nearest(self, vector: bytes, most: int) -> list[int]:
        """Return the pieces nearest to a vector of `pack_vector`, the nearest first.

        Of equal ones the first that was put in comes first. The order is that of float64: float32
        only leaves out those that are certainly not among the nearest.
        """
        np = _numpy()
        count = min(most, len(self._numbers))
        if not count:
            return []
        asked = np.frombuffer(vector, dtype="<f4")
        rough = self._rows @ asked
        doubt = 2 * len(asked) * np.finfo(np.float32).eps  # more than float32 can be wrong by
        close = np.flatnonzero(rough >= np.partition(rough, -count)[-count] - doubt)
        exact = np.empty(len(close))
        for start in range(0, len(close), CHUNK):
            rows = self._rows[close[start : start + CHUNK]].astype(np.float64)
            exact[start : start + CHUNK] = (rows * asked).sum(axis=1)
        best = np.argsort(-exact, kind="stable")[:count]
        return self._numbers[close[best]].tolist()
