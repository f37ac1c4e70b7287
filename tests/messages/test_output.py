"""Typed output: schemas that servers accept, and values of complete and of growing replies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from anabranch import ConfigurationError
from anabranch.messages.output import GrowingOutput, OutputSchema


class City(BaseModel):
    name: str
    people: int = 0


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    colour: Literal["red", "blue"]


class Branch(BaseModel):
    name: str
    below: list[Branch] = []


VALUES: list[tuple[Any, Any]] = [
    (City, City(name="Paris", people=2)),
    (Point, Point(1, 2)),
    (Options, {"colour": "red"}),
    (list[City], [City(name="Rome")]),
    (City | Point, Point(3)),
    (int, 12),
    (str, "a"),
    (bool, True),
    (Literal["yes", "no"], "yes"),
    (dict[str, int], {"a": 1}),
    (Branch, Branch(name="a", below=[Branch(name="b")])),
    (City | None, None),
    (tuple[int, str], (1, "a")),
]
WITH_VALUES = pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda each: str(each)[:30])


@WITH_VALUES
def test_a_value_comes_back_however_it_was_asked_for(kind: Any, value: Any) -> None:
    """As JSON, or as a field of an object for servers that accept only objects."""
    schema = OutputSchema[Any](kind)
    text = TypeAdapter[Any](kind).dump_json(value).decode()
    wrapped = text if schema.is_object else f'{{"response": {text}}}'
    assert schema.parse(text) == value
    assert schema.parse(wrapped, is_wrapped=True) == value
    assert schema.parse(text, is_wrapped=True) == value
    assert schema.parse(f"Here:\n```json\n{text}\n```\nDone.") == value


@WITH_VALUES
def test_the_schema_of_a_request_is_that_of_an_object(kind: Any, value: Any) -> None:
    """Strict if all keys are known. Then each object requires all its keys and allows no others."""
    sent = OutputSchema[Any](kind).response_format()["json_schema"]
    schema: dict[str, Any] = sent["schema"]
    assert schema["type"] == "object"
    if sent.get("strict"):
        for each in objects(schema):
            assert each["required"] == [*each["properties"]]
            assert each["additionalProperties"] is False
    else:
        assert kind == dict[str, int] or kind == tuple[int, str]


def objects(schema: Any) -> list[dict[str, Any]]:
    below = schema.values() if isinstance(schema, dict) else schema
    found = [each for value in below if isinstance(value, dict | list) for each in objects(value)]
    if isinstance(schema, dict) and schema.get("type") == "object":
        found.append(schema)
    return found


@WITH_VALUES
@given(data=st.data())
def test_a_growing_value_is_at_each_moment_a_beginning_of_the_complete_one(
    kind: Any, value: Any, data: st.DataObject
) -> None:
    """At every cut into pieces. The last read returns the complete value."""
    schema = OutputSchema[Any](kind)
    text = TypeAdapter[Any](kind).dump_json(value).decode()
    if wraps := not schema.is_object and data.draw(st.booleans()):
        text = f'{{"response": {text}}}'
    growing = GrowingOutput[Any](schema, is_wrapped=wraps)
    found = None
    for piece in pieces(text, data):
        growing.add(piece)
        found = growing.read() or found
    assert found is not None
    assert found[0] == value


def pieces(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text)))) | {len(text)})
    return [text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]


class Counting(OutputSchema[Any]):
    chars = 0

    def parse_partial(self, text: str, *, is_wrapped: bool = False) -> Any:
        self.chars += len(text)
        return super().parse_partial(text, is_wrapped=is_wrapped)


@pytest.mark.parametrize("size", [10, 1000])
def test_reading_a_long_text_piece_by_piece_costs_its_length(size: int) -> None:
    """All reads of 1 MB in 100,000 pieces process about the length of the text."""
    text = json.dumps({"name": "a", "below": [{"name": "b" * 90} for _ in range(10_000)]})
    assert len(text) > 1_000_000
    schema = Counting(Branch)
    growing = GrowingOutput[Any](schema)
    reads = 0
    for start in range(0, len(text), size):
        growing.add(text[start : start + size])
        reads += growing.read() is not None
    assert reads > 15
    assert schema.chars < 2.2 * len(text)


@pytest.mark.parametrize("kind", [object(), lambda: 1, type("Own", (), {})])
def test_a_type_without_a_schema_is_refused(kind: Any) -> None:
    """One error names `output_type`."""
    with pytest.raises(ConfigurationError, match="output_type must be a type"):
        OutputSchema(kind)


def test_a_reply_of_another_attempt_begins_again() -> None:
    """The text of the failed attempt is dropped."""
    growing = GrowingOutput(OutputSchema[City](City))
    growing.add('{"name": "Ro')
    assert growing.read() == (City(name="Ro"),)
    growing.clear()
    assert growing.read() is None
    growing.add('{"name": "Paris"}')
    assert growing.read() == (City(name="Paris"),)
