"""States of orchestrators whose classes have changed since they were saved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch.agents import Namespace, State


class Item(Namespace):
    size: int
    colour: str = "red"


class Shelf(Namespace):
    items: list[Item] = []  # noqa: RUF012 - pydantic copies it
    by_name: dict[str, Item] = {}  # noqa: RUF012 - pydantic copies it
    best: int | Item | None = None
    numbers: dict[int, float] = {}  # noqa: RUF012 - pydantic copies it


class ShelfState(State):
    shelf: Shelf = Shelf()


items = st.builds(Item, size=st.integers(), colour=st.text(max_size=3))
shelves = st.builds(
    Shelf,
    items=st.lists(items, max_size=3),
    by_name=st.dictionaries(st.text(max_size=3), items, max_size=3),
    best=st.none() | st.integers() | items,
    numbers=st.dictionaries(st.integers(), st.floats(), max_size=3),
)


def objects(data: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the models in a saved state, except those of a union, with their paths."""
    shelf = data["shelf"]
    found = [((), data), (("shelf",), shelf)]
    found += [(("shelf", "items", n), each) for n, each in enumerate(shelf["items"])]
    return [*found, *((("shelf", "by_name", k), each) for k, each in shelf["by_name"].items())]


@given(shelves, st.integers(0, 99), st.data())
def test_fields_that_are_gone_are_dropped_and_reported(
    shelf: Shelf, steps: int, data: st.DataObject
) -> None:
    """At any place; the rest is unchanged."""
    state = ShelfState(shelf=shelf, steps=steps, agent="a")
    text = state.model_dump_json()
    for strict in (True, False):  # by their texts, as not-a-number equals nothing
        assert repr(ShelfState.load(text, strict=strict)) == repr((state, []))

    saved = json.loads(text)
    chosen = data.draw(st.lists(st.sampled_from(range(len(objects(saved)))), unique=True))
    expected: list[str] = []
    for number in chosen:
        path, model = objects(saved)[number]
        model["gone"] = {"size": 1}
        expected.append(".".join(map(str, (*path, "gone"))))
    old = json.dumps(saved)
    if expected:
        with pytest.raises(ValidationError):
            ShelfState.load(old)
    loaded, dropped = ShelfState.load(old, strict=False)
    assert repr(loaded) == repr(state)
    assert sorted(dropped) == sorted(expected)


def test_what_does_not_fit_any_more_has_its_default() -> None:
    """Also without a field, or with another type; fields beside it stay."""
    saved = {
        "steps": "many",
        "agent": "a",
        "shelf": {
            "items": [{"size": 1}, {"colour": "blue"}, 5, {"size": 4, "old": 1}],
            "by_name": {"x": {"size": "wide"}, "y": {"colour": "red"}},
            "best": {"colour": "red"},
            "numbers": {"1": 2, "one": 1, "3": "x", "4": "inf"},
        },
    }
    state, dropped = ShelfState.load(json.dumps(saved), strict=False)
    assert state.shelf.items == [Item(size=1), Item(size=4)]
    assert state.shelf.numbers == {1: 2.0, 4: float("inf")}
    assert state.shelf.by_name == {}
    assert (state.shelf.best, state.steps, state.agent) == (None, 0, "a")
    assert dropped == [
        "shelf.best",
        *("shelf.by_name.x.size", "shelf.by_name.y"),
        *("shelf.items.1", "shelf.items.2", "shelf.items.3.old"),
        *("shelf.numbers.3", "shelf.numbers.one", "steps", "shelf.by_name.x"),
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.fixed_dictionaries(
            {}, optional=dict.fromkeys(["size", "items", "by_name", "best", "numbers"], inner)
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*ShelfState.model_fields, "x"]), json_values))
def test_any_mapping_is_loaded_without_strict(saved: dict[str, Any]) -> None:
    """The result can be saved and loaded without a loss."""
    state, _ = ShelfState.load(json.dumps(saved), strict=False)
    again, dropped = ShelfState.load(state.model_dump_json(), strict=False)
    assert (repr(again), dropped) == (repr(state), [])


@pytest.mark.parametrize("wrong", ["", "{", "5", "[]", "null", '"x"'])
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_state_is_refused(wrong: str, strict: bool) -> None:
    """No part of it can be used."""
    with pytest.raises(ValidationError):
        ShelfState.load(wrong, strict=strict)
