"""The copy of a state that an orchestrator makes for each answer."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr

from anabranch import Agent
from anabranch.agents import Namespace, Orchestrator, State
from anabranch.agents.orchestration._state import restore, snapshot
from anabranch.testing import ScriptedBackend


class Box(BaseModel):
    model_config = ConfigDict(extra="allow")
    inside: Any = None
    _private: Any = PrivateAttr(default=None)


class Item(BaseModel):
    inside: Any = None
    number: int = 0


class Notes(Namespace):
    one: Any = None
    two: Any = None


class NotesState(State):
    notes_of: Notes = Notes()
    lines: list[Any] = []  # noqa: RUF012 - pydantic copies it
    table: dict[Any, Any] = {}  # noqa: RUF012 - pydantic copies it


def boxed(inside: Any) -> Box:
    box = Box(inside=inside, added=inside)
    box._private = inside
    return box


plain = st.none() | st.booleans() | st.integers(0, 2) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2) | st.tuples(st.integers()), inner, max_size=3)
        | st.tuples(inner, inner)
        | inner.map(boxed)
        | st.lists(inner.map(lambda each: Item(inside=each)), max_size=3)
        | st.lists(st.builds(Item, inside=plain, number=st.integers()), max_size=3)
        | st.dictionaries(st.text(max_size=1), st.builds(Item, inside=plain), max_size=3)
        | inner.map(lambda each: [Item(inside=each)] * 2)
        | inner.map(lambda each: [each, each])
        | st.lists(st.dictionaries(st.text(max_size=2), plain), max_size=3)
        | st.dictionaries(st.text(max_size=1), plain).map(lambda each: [each, {}, each])
    ),
    max_leaves=10,
)


def shape(value: Any, seen: dict[int, int]) -> Any:
    """Return the value with its types, and the parts that are one object."""
    if type(value) in (str, int, float, bool, type(None)):
        return (type(value), value)
    if id(value) in seen and not isinstance(value, tuple):
        return ("again", seen[id(value)])
    number = seen.setdefault(id(value), len(seen))
    if isinstance(value, BaseModel):
        held = (vars(value), value.__pydantic_extra__, value.__pydantic_private__)
        kind: Any = (type(value), frozenset(value.model_fields_set))
        return (number, kind, [shape_of(each, seen) for each in held])
    return (number, type(value), shape_of(value, seen))


def shape_of(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, dict):
        return [(shape(key, seen), shape(each, seen)) for key, each in value.items()]
    return None if value is None else [shape(each, seen) for each in value]


def change(value: Any) -> None:
    """Change everything changeable in a value, in place."""
    if isinstance(value, BaseModel):
        for each in (vars(value), value.__pydantic_extra__, value.__pydantic_private__):
            for part in [*(each or {}).values()]:
                change(part)
        value.__pydantic_fields_set__.add("changed")
    elif isinstance(value, dict):
        for part in value.values():
            change(part)
        value["changed"] = True
    elif isinstance(value, list | tuple):
        for part in value:
            change(part)
        if isinstance(value, list):
            value.append("changed")


@given(values, values, st.lists(values, max_size=3), st.booleans())
def test_a_state_is_what_it_was_at_a_snapshot(
    one: Any, two: Any, lines: list[Any], shared: bool
) -> None:
    """With its types, and with one object for two places, as deepcopy does."""
    state = NotesState(notes_of=Notes(one=one, two=one if shared else two))
    state.lines[:] = lines
    state.table.update(enumerate(lines))
    expected = shape([state.notes_of, state.lines, state.table], {})
    earlier = snapshot(state)
    for part in (state.notes_of, state.lines, state.table):
        change(part)
    state.agent = "changed"
    restore(state, earlier)
    assert shape([state.notes_of, state.lines, state.table], {}) == expected


class Logging(Namespace):
    lines: list[str] = []  # noqa: RUF012 - pydantic copies it
    numbers: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it
    rows: list[dict[str, Any]] = []  # noqa: RUF012 - pydantic copies it
    items: list[Item] = []  # noqa: RUF012 - pydantic copies it
    named: dict[str, Item] = {}  # noqa: RUF012 - pydantic copies it


class LoggingState(State):
    log: Logging = Logging()


async def calls_of_an_answer(length: int) -> int:
    """Return the number of Python function calls of one answer with a state of this size."""
    state = LoggingState()
    state.log.lines = [f"line {number}" for number in range(length)]
    state.log.numbers = {f"line {number}": number for number in range(length)}
    state.log.rows = [{"number": number, "text": "x"} for number in range(length)]
    state.log.items = [Item(number=number) for number in range(length)]
    state.log.named = {f"item {number}": Item(inside="x") for number in range(length)}
    agent = Agent(ScriptedBackend(otherwise="ok"), name="a")
    orchestrator = Orchestrator(
        [agent], lambda obs, state: None if state.transitions else "a", state
    )
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        # Only the functions that make the copy, without those of the loop.
        calls += event == "call" and frame.f_code.co_filename.endswith(("_state.py", "copy.py"))

    sys.setprofile(count)
    try:
        await orchestrator.forward("Go.")
    finally:
        sys.setprofile(None)
    assert orchestrator.state.log.lines == [f"line {number}" for number in range(length)]
    return calls


@pytest.mark.parametrize("length", [10, 5000])
async def test_an_answer_calls_no_function_for_each_item_of_the_state(length: int) -> None:
    """C code copies lists, tables, rows and models of plain values."""
    assert await calls_of_an_answer(length) == await calls_of_an_answer(1)


@pytest.mark.parametrize("collects", [True, False])
def test_a_snapshot_leaves_the_collector_as_it_was(collects: bool) -> None:
    """Also where a value cannot be copied."""
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        snapshot(LoggingState())
        assert gc.isenabled() == collects
        with pytest.raises(TypeError):
            snapshot(NotesState(lines=[(each for each in ())]))
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
