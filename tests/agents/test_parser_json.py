"""JSON in replies that were cut off or refused, or follow reasoning; strict schemas."""

import copy
import json
import pickle
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

from anabranch import Agent, BadResponse, Message, connect
from anabranch.agents import JsonParser, Namespace, Orchestrator, PromptedAgent, State
from anabranch.agents.orchestration import JsonEngineer, Prompts
from anabranch.messages import Request, request_body
from anabranch.messages.output import OutputSchema
from anabranch.store._json import canonical
from anabranch.testing import ScriptedBackend

values = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=2), below),
    max_leaves=6,
)
FRAMES = ["{}", " {}\n", "```json\n{}\n```", "So:\n```\n{}\n```\nIt is so.", "Well, {} it is."]
ANY = JsonParser[Any](Any)


class City(BaseModel):
    name: str
    people: int = 0


class Fault(BaseModel):
    why: str


# --- cut off


@given(values, st.sampled_from(FRAMES), st.sampled_from([None, 2]), st.data())
def test_of_a_reply_that_was_cut_anywhere_all_of_the_value_is_read_or_none(
    value: Any, frame: str, indent: int | None, data: st.DataObject
) -> None:
    """No incomplete number, and no value inside another."""
    reply = frame.replace("{}", json.dumps(value, indent=indent))
    cut = reply[: data.draw(st.integers(0, len(reply)))]
    try:
        found = ANY.parse_cut(cut)
    except ValueError:
        return
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (City, '{"name": "Paris"}'),
        (City, '{"name": "Paris"}\n\nParis is the capi'),
        (City, 'Here:\n```json\n{"name": "Paris"}\n```\nParis is the capi'),
        (list[str], '["Paris"] and'),
        (str, '"Paris"'),
        (int, "```\n12\n```"),
    ],
)
def test_what_is_complete_is_read_whatever_was_cut_behind_it(kind: Any, reply: str) -> None:
    """Also where the last character of the answer reached the maximum length."""
    assert JsonParser[Any](kind).parse_cut(reply) == JsonParser[Any](kind).parse(reply)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (int, "12"),
        (City, '{"cities": [{"name": "Paris", "people": 1}, {"na'),
        (City, '```json\n{"name": "Paris"}\n```\nNo:\n```json\n{"name": "Ro'),
        (City, '<think>Perhaps {"name": "Paris"}'),
        (bool, "true"),
    ],
)
async def test_an_agent_uses_nothing_of_a_reply_that_was_cut_off(
    kind: Any, reply: str, reason: str
) -> None:
    """It asks again where that may help."""
    cut = Message(role="assistant", content=reply, finish_reason=reason)
    backend = ScriptedBackend(cut, cut, cut)
    agent = Agent(backend, name="sage", output_format=JsonParser[Any](kind))
    words = "cut off .*raise max_tokens" if reason == "length" else "content filter stopped"
    with pytest.raises(BadResponse, match=words):
        await agent("?")
    assert len(backend.requests) == (3 if reason == "length" else 1)
    if reason == "length":
        assert "cut off" in (backend.requests[1].messages[-1].content or "")


async def test_a_refusal_is_told_with_its_reason_and_not_asked_for_again() -> None:
    """In the model's own words."""
    backend = ScriptedBackend(Message(role="assistant", refusal="I must not say."))
    agent = Agent(backend, name="sage", output_format=JsonParser(City))
    with pytest.raises(BadResponse, match=r"sage gave .*the model refused: I must not say\."):
        await agent("?")
    assert len(backend.requests) == 1


class Names(Namespace):
    city: str = ""


class Named(State):
    names: Names = Names()


class Asks(JsonEngineer[Named, City]):
    def values(self, obs: str | None, state: Named) -> dict[str, Any]:
        return {}

    def accept(self, said: City, state: Named) -> None:
        state.names.city = said.name


def asking(backend: ScriptedBackend, folder: Path) -> Orchestrator[Named]:
    (folder / "asks.md").write_text("Name a city. {form}")
    agent = PromptedAgent("asks", Asks("asks", City, Prompts(folder)), backend)
    return Orchestrator([agent], lambda _, s: None if s.agent else "asks", Named())


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (Message(role="assistant", refusal="I must not say."), "refused: I must not say"),
        (Message(role="assistant", content='{"na', finish_reason="content_filter"), "filter"),
    ],
)
async def test_an_engineer_asks_nothing_again_that_stays_as_it_is(
    last: Message, why: str, tmp_path: Path
) -> None:
    """The answer has not happened; the same call asks once more."""
    backend = ScriptedBackend(last, '{"name": "Rome"}')
    orchestrator = asking(backend, tmp_path)
    with pytest.raises(BadResponse, match=f"asks gave no usable answer: .*{why}"):
        await orchestrator.forward()
    assert len(backend.requests) == 1
    assert orchestrator.state == Named()

    await orchestrator.forward()
    assert orchestrator.state.names.city == "Rome"
    assert backend.requests[0].messages == backend.requests[1].messages


async def test_a_refusal_is_known_as_such() -> None:
    """Also from an agent without a parser."""
    backend = ScriptedBackend(Message(role="assistant", refusal="No."), "Yes.")
    agent = Agent(backend)
    answers = [await agent("?", session_id=1), await agent("??", session_id=1)]
    assert [(each.text, each.extra.get("refusal")) for each in answers] == [
        ("No.", "No."),
        ("Yes.", None),
    ]


async def test_an_engineer_uses_nothing_of_a_reply_that_was_cut_off(tmp_path: Path) -> None:
    """It signals an error, and the model answers again."""
    cut = '{"cities": [{"name": "Paris"}, {"na'
    backend = ScriptedBackend(
        Message(role="assistant", content=cut, finish_reason="length"), '{"name": "Rome"}'
    )
    orchestrator = asking(backend, tmp_path)
    await orchestrator.forward()
    assert orchestrator.state.names.city == "Rome"


# --- reasoning


@given(values, values, st.sampled_from(FRAMES[:4]), st.booleans())
def test_json_in_the_reasoning_is_not_the_answer(
    thought: Any, value: Any, frame: str, opened: bool
) -> None:
    """At any length, and also where the template has its opening mark."""
    thoughts = f"Perhaps {json.dumps([thought, thought])}?\n```\n{json.dumps(thought)}\n```"
    reply = (
        f"{'<think>' if opened else ''}{thoughts}</think>{frame.replace('{}', json.dumps(value))}"
    )
    if "```" not in json.dumps([thought, value]):
        assert ANY.parse(reply) == value


@pytest.mark.parametrize(
    "reply", ['<think>{"name": "Paris"}', '<think>{"name": "Paris"}</think>I do not know.']
)
def test_reasoning_alone_is_no_answer(reply: str) -> None:
    """Whatever its content."""
    with pytest.raises(ValueError, match="not JSON"):
        JsonParser(City).parse(reply)


def test_marks_in_the_answer_are_text() -> None:
    """They start no reasoning."""
    reply = '{"name": "<think>a</think>", "people": 1}'
    assert JsonParser(City).parse(reply) == City(name="<think>a</think>", people=1)


# --- strict schemas


class Side(Enum):
    HEADS = "heads"
    TAILS = "tails"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    born: date | None = None


class Tree(BaseModel):
    name: Annotated[str, Field(examples=["ash"])] = "oak"
    below: list["Tree"] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


STRICT: list[Any] = [
    (int, 7),
    (str | None, None),
    (Literal["a", "b"], "a"),
    (Side, Side.HEADS),
    (list[City], [City(name="Paris")]),
    (City | None, None),
    (City | Fault, Fault(why="none")),
    (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(kind="dog")),
    (Annotated[int, Field(ge=1, le=9)], 3),
    (Tree, Tree(below=[Tree()])),
    (date, date(2026, 1, 2)),
]
LOOSE: list[Any] = [dict[str, int], Any, tuple[int, str], Open, Annotated[str, Field(max_length=3)]]


def objects(schema: Any) -> list[Any]:
    """Yield all mappings of a schema."""
    if isinstance(schema, list):
        return [found for each in cast("list[Any]", schema) for found in objects(each)]
    if not isinstance(schema, dict):
        return []
    below = cast("dict[str, Any]", schema).values()
    return [cast("Any", schema), *(found for each in below for found in objects(each))]


def fits(schema: Any, value: Any, root: Any) -> bool:
    """Return whether a strict schema allows a value, without bounds and formats."""
    if "$ref" in schema:
        found = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return fits(found, value, root)
    if "anyOf" in schema:
        return any(fits(each, value, root) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind: str = schema["type"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}
    if not isinstance(value, kinds[kind]):
        return False
    made: Any = cast("Any", value)
    if kind == "object":
        parts = schema["properties"]
        same = made.keys() == parts.keys()
        return same and all(fits(parts[key], each, root) for key, each in made.items())
    return kind != "array" or all(fits(schema["items"], each, root) for each in made)


def sent(model: Any) -> Any:
    return JsonParser[Any](model, constrain=True).options()["response_format"]["json_schema"]


create: Any = create_model


@given(st.lists(st.tuples(st.sampled_from(STRICT), st.booleans()), min_size=1, max_size=6))
def test_a_constrained_schema_is_strict_and_allows_the_same_values(fields: Any) -> None:
    """Each object has exactly its properties, as strict servers require."""
    parts = {
        f"f{n}": (kind, value if optional else ...)
        for n, ((kind, value), optional) in enumerate(fields)
    }
    model = create("Drawn", **parts)
    asked = sent(model)
    schema = asked["schema"]
    assert asked["strict"] is True
    assert schema["type"] == "object"
    for each in objects(schema):
        assert not {"default", "oneOf", "discriminator", "examples"} & each.keys()
        if each.get("type") == "object":
            assert each["additionalProperties"] is False
            assert each["required"] == [*each["properties"]]
    value = model(**{f"f{n}": value for n, ((_, value), _) in enumerate(fields)})
    written = value.model_dump(mode="json")
    assert fits(schema, written, schema)
    assert not fits(schema, {**written, "more": 1}, schema)
    assert JsonParser[Any](model).parse(json.dumps(written)) == value


@pytest.mark.parametrize("kind", LOOSE)
def test_what_no_strict_schema_can_say_is_sent_as_it_is(kind: Any) -> None:
    """As before: the server does what it can."""
    for model in (kind, create("Drawn", part=(kind, ...))):
        asked = sent(model)
        assert "strict" not in asked
        assert asked["schema"] == OutputSchema[Any](model).schema


def test_a_model_that_contains_itself_is_strict() -> None:
    """Its root is written out; inner ones are references."""
    asked = sent(Tree)
    assert (asked["strict"], asked["schema"]["type"]) == (True, "object")
    assert fits(asked["schema"], Tree(below=[Tree()]).model_dump(), asked["schema"])


async def test_what_earlier_releases_recorded_is_found(tmp_path: Any) -> None:
    """The recorded schema identifies a request; the server gets the strict one."""
    parser = JsonParser(City, constrain=True)
    new = parser.options()
    schema = {"name": "City", "schema": OutputSchema(City).schema}
    old: Any = {"response_format": {"type": "json_schema", "json_schema": schema}}
    assert canonical(new) == canonical(old)
    assert canonical(pickle.loads(pickle.dumps(new))) == canonical(copy.deepcopy(new))

    file, backend = tmp_path / "a.jsonl", ScriptedBackend('{"name": "Paris"}')
    recording = connect(f"cassette:{file}", record=backend)
    await Agent(recording, output_format=JsonParser(City), **old)("The capital?")
    playing = Agent(connect(f"cassette:{file}"), output_format=parser)
    assert (await playing("The capital?")).output == City(name="Paris")

    body = request_body("m", Request([Message(role="user", content="?")], options=new))
    assert json.loads(json.dumps(body))["response_format"] == new["response_format"]
    assert new["response_format"]["json_schema"]["strict"] is True
