"""The number of random cases and their first seed, which two variables set for a test run.

`ANABRANCH_SEED` (default 0) is where every random test begins: hypothesis, the random trees and
the seeded loops; the same seed plays the same examples. `ANABRANCH_LONG=1`, as `make test-all` has
it, adds the tests marked `long` and plays more examples of others.
"""

from __future__ import annotations

import os

__all__ = ["LONG", "SEED", "example_count", "seeds"]

SEED = int(os.environ.get("ANABRANCH_SEED", "0"))
LONG = os.environ.get("ANABRANCH_LONG") == "1"


def example_count(usual: int, long: int) -> int:
    """Return how many examples of something are played in this run."""
    return long if LONG else usual


def seeds(count: int) -> range:
    """Return `count` seeds for loops and trees, different ones for each `ANABRANCH_SEED`."""
    return range(SEED * 1_000_000, SEED * 1_000_000 + count)
