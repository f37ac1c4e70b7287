"""S25: the vector part is exact."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import example_count

np = pytest.importorskip("numpy")

from anabranch.knowledge import _vectors  # noqa: E402 - it needs what the line above looks for
from anabranch.knowledge._vectors import Vectors, pack_vector  # noqa: E402


def floats(vector):
    return [float(each) for each in np.frombuffer(vector, dtype="<f4")]


def brute(rows, asked, most):
    """Compare each row in a loop; of equal ones the lower number comes first."""
    cosines = [math.fsum(a * b for a, b in zip(row, asked, strict=True)) for _, row in rows]
    order = sorted(range(len(rows)), key=lambda place: (-cosines[place], rows[place][0]))
    return [rows[place][0] for place in order[:most]], sorted(cosines, reverse=True)


numbers = st.floats(-1e6, 1e6, allow_subnormal=False) | st.integers(-3, 3)
vectors = st.integers(1, 6).flatmap(
    lambda size: st.lists(
        st.lists(numbers, min_size=size, max_size=size).filter(any), min_size=1, max_size=40
    )
)


@settings(max_examples=example_count(200, 5000))
@given(vectors, st.integers(1, 50), st.booleans())
def test_the_nearest_are_those_of_a_loop_over_all(made, most, doubled):
    """Also among equal ones, and among those that float32 cannot distinguish."""
    packed = [pack_vector(vector) for vector in made * (2 if doubled else 1)]
    rows = [(number, floats(vector)) for number, vector in enumerate(packed, 10)]
    found = Vectors(enumerate(packed, 10), len(made[0])).nearest(packed[0], most)
    expected, cosines = brute(rows, rows[0][1], most)
    if found != expected:  # only where float64 itself cannot tell them apart
        assert len(set(found)) == len(expected)
        here = dict(rows)
        for place, number in enumerate(found):
            own = math.fsum(a * b for a, b in zip(here[number], rows[0][1], strict=True))
            assert own == pytest.approx(cosines[place], abs=1e-14)


def test_equal_vectors_come_in_the_order_of_their_numbers():
    """Independent of the partition."""
    vector = pack_vector([0.1, 0.7, -0.3])
    held = Vectors(((number, vector) for number in range(1, 10_000)), 3)
    assert held.nearest(vector, 50) == list(range(1, 51))


def test_vectors_that_float32_cannot_tell_apart_are_in_order(monkeypatch):
    """A million ones around the same direction: the nearest is found, in chunks."""
    monkeypatch.setattr(_vectors, "CHUNK_VECTORS", 7)
    rng = np.random.default_rng(0)
    base = rng.normal(size=256)
    rows = [(number, pack_vector(base + 1e-6 * rng.normal(size=256))) for number in range(1, 301)]
    asked = pack_vector(base)
    expected, _ = brute([(number, floats(row)) for number, row in rows], floats(asked), 20)
    assert Vectors(rows, 256).nearest(asked, 20) == expected


def test_random_vectors_of_a_usual_size():
    """The order equals that of a loop."""
    rng = np.random.default_rng(1)
    rows = [(number, pack_vector(rng.normal(size=384))) for number in range(1, 2001)]
    asked = pack_vector(rng.normal(size=384))
    expected, _ = brute([(number, floats(row)) for number, row in rows], floats(asked), 50)
    assert Vectors(rows, 384).nearest(asked, 50) == expected


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [[1.0]], 1.0])
def test_a_vector_without_a_direction_is_refused(bad):
    """So are invalid ones, and those whose length is not a finite number."""
    with pytest.raises(ValueError, match="finite numbers"):
        pack_vector(bad)


def test_numbers_of_any_size_have_a_direction():
    """Even if their squares overflow."""
    assert floats(pack_vector([1e308, -1e308])) == floats(pack_vector([1e-300, -1e-300]))


def test_nothing_is_near_where_nothing_is():
    """An empty index returns nothing."""
    assert Vectors([], 3).nearest(pack_vector([1, 2, 3]), 5) == []
