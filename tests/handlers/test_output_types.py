"""Random types and values: each value comes back from `respond` and `complete`, in every mode."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Annotated, Any, Literal, NotRequired, cast

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, create_model
from support.scripted_server import Reply, ScriptedServer, calls, text
from typing_extensions import TypedDict

from anabranch import Commander, Conversation, Message, ToolCall, connect
from anabranch.handlers import respond
from anabranch.messages import OutputMode, Request
from anabranch.testing import ScriptedBackend


class Tree(BaseModel):
    label: str
    below: list[Tree] = []


class Renamed(BaseModel):
    kind: Literal["renamed"] = "renamed"
    inner: int = Field(alias="the inner")


class Plain(BaseModel):
    kind: Literal["plain"] = "plain"
    text: str | None = None


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Options(TypedDict):
    colour: Literal["red", "blue"]
    size: int | None


class Few(TypedDict):
    size: NotRequired[int]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = TEXT | st.just("to_user")
NUMBERS = st.integers(-(2**53), 2**53)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TREES = st.recursive(
    st.builds(Tree, label=TEXT),
    lambda below: st.builds(Tree, label=TEXT, below=st.lists(below, max_size=2)),
    max_leaves=3,
)

Kind = tuple[Any, st.SearchStrategy[Any]]
"""A type, and its values."""

LEAVES: list[Kind] = [
    (int, NUMBERS),
    (float, FLOATS),
    (str, TEXT),
    (bool, st.booleans()),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Annotated[int, Field(ge=0, le=9, description="a digit")], st.integers(0, 9)),
    (Tree, TREES),
    (Renamed, st.builds(Renamed, **{"the inner": NUMBERS})),
    (Plain, st.builds(Plain, text=st.none() | TEXT)),
    (Point, st.builds(Point, NUMBERS, FLOATS)),
    (Options, st.sampled_from([{"colour": "red", "size": None}, {"colour": "blue", "size": 2}])),
    (
        Annotated[Plain | Renamed, Field(discriminator="kind")],
        st.builds(Plain, text=TEXT) | st.builds(Renamed, **{"the inner": NUMBERS}),
    ),
]


def larger(kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def model(fields: list[Kind]) -> Kind:
        names = {f"field_{n}": kind for n, kind in enumerate(fields)}
        made: Any = create_model("Made", **{n: (kind, ...) for n, (kind, _) in names.items()})
        return made, st.builds(made, **{name: values for name, (_, values) in names.items()})

    def data_class(fields: list[Kind]) -> Kind:
        made = dataclasses.make_dataclass("Data", [(f"f{n}", k) for n, (k, _) in enumerate(fields)])
        return made, st.builds(made, *(values for _, values in fields))

    return st.one_of(
        kinds.map(lambda kind: (list[kind[0]], st.lists(kind[1], max_size=3))),
        kinds.map(lambda kind: (dict[str, kind[0]], st.dictionaries(KEYS, kind[1], max_size=2))),
        kinds.map(lambda kind: (kind[0] | None, st.none() | kind[1])),
        st.tuples(kinds, kinds).map(lambda two: (two[0][0] | two[1][0], two[0][1] | two[1][1])),
        st.tuples(kinds, kinds).map(
            lambda two: (tuple[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))
        ),
        st.lists(kinds, min_size=1, max_size=3).map(model),
        st.lists(kinds, min_size=1, max_size=3).map(data_class),
    )


KINDS = st.recursive(st.sampled_from(LEAVES), larger, max_leaves=4)


def require_closed(schema: Any) -> None:
    """Check that each object in a strict schema requires all its keys, and allows no others."""
    if isinstance(schema, dict):
        fields = cast("dict[str, Any]", schema)
        if fields.get("type") == "object":
            assert fields["required"] == [*fields["properties"]]
            assert fields["additionalProperties"] is False
        assert "$ref" not in fields or len(fields) == 1
        for each in fields.values():
            require_closed(each)
    elif isinstance(schema, list):
        for each in cast("list[Any]", schema):
            require_closed(each)


def model_of(kind: Any, value: Any) -> Any:
    """Return a model that writes `value` in the way in which the request asks for it."""
    plain = TypeAdapter(kind).dump_python(value, mode="json", by_alias=True)

    def answer(request: Request) -> Message:
        if request.tools:
            (tool,) = request.tools
            arguments = plain if fits(plain, tool.parameters) else {"response": plain}
            jsonschema.validate(arguments, tool.parameters)
            return Message(
                role="assistant",
                tool_calls=[ToolCall(id="c0", name=tool.name, arguments=arguments)],
            )
        asked: Any = request.options.get("response_format")
        schema = asked["json_schema"]["schema"] if asked else None
        if kind is str and schema is None:
            return Message(role="assistant", content=plain)
        is_plain = schema is None or fits(plain, schema)
        written = plain if is_plain else {"response": plain}
        if asked:
            jsonschema.validate(written, schema)
            if asked["json_schema"].get("strict"):
                require_closed(schema)
        content = json.dumps(written)
        return Message(role="assistant", content=content)

    return answer


def fits(value: Any, schema: Any) -> bool:
    """Return whether the schema is for the value itself, and not for an object around it."""
    return [*schema.get("properties", ())] != ["response"] or not schema


@settings(max_examples=60)
@given(data=st.data(), kind=KINDS, mode=st.sampled_from(["text", "schema", "grammar", "tool"]))
def test_each_value_comes_back_in_each_mode(
    data: st.DataObject, kind: Kind, mode: OutputMode
) -> None:
    """It equals the value that pydantic reads from its JSON."""
    output_type, values = kind
    value = data.draw(values)
    adapter = TypeAdapter[Any](output_type)
    expected = adapter.validate_json(adapter.dump_json(value, by_alias=True))

    async def main() -> None:
        backend = ScriptedBackend(otherwise=model_of(output_type, value))
        if data.draw(st.booleans()):
            message = await backend.complete(
                Request([]), output_type=output_type, output_mode=mode, output_retries=0
            )
        else:
            async with Commander() as commander:
                message = await commander.run(
                    respond(
                        backend,
                        Conversation(),
                        output_type=output_type,
                        output_mode=mode,
                        output_retries=0,
                    )
                )
        assert message.output == expected
        assert type(message.output) is type(expected)

    asyncio.run(main())


CASES: list[tuple[Any, str, str]] = [
    (Renamed, '{"kind": "renamed", "the inner": 3}', "object"),
    (list[Point], '[{"x": 1, "y": 0.5}]', "array"),
    (Plain | Renamed, '{"kind": "plain", "text": null}', "union"),
    (Few, "{}", "object"),
    (Tree, '{"label": "a", "below": [{"label": "b", "below": []}]}', "object"),
]


@pytest.mark.parametrize("mode", ["text", "schema", "grammar", "tool"])
@pytest.mark.parametrize(("kind", "written", "shape"), CASES, ids=lambda each: str(each)[:20])
async def test_the_wire_has_the_request_of_each_mode(
    kind: Any, written: str, shape: str, mode: OutputMode
) -> None:
    """And its reply, in pieces, has the value."""
    wrapped = written if shape == "object" else f'{{"response": {written}}}'
    replies: dict[OutputMode, Reply] = {
        "text": text(*written),
        "grammar": text(written),
        "schema": text(*wrapped),
        "tool": calls(("final_answer", wrapped)),
    }
    request = Request([Message(role="user", content="Go.")])
    async with (
        ScriptedServer(replies[mode]) as server,
        connect(server.url, model="tiny") as backend,
    ):
        message = await backend.complete(request, output_type=kind, output_mode=mode)

    assert message.output == TypeAdapter[Any](kind).validate_json(written)
    assert message.output_text == (wrapped if mode in ("schema", "tool") else written)
    body = server.requests[0].body
    fields = body.keys() - {"model", "messages", "stream", "stream_options"}
    if mode == "tool":
        (tool,) = body["tools"]
        assert body["tool_choice"] == {"type": "function", "function": {"name": "final_answer"}}
        assert tool["function"]["parameters"]["type"] == "object"
    elif mode != "text":
        schema = body["response_format"]["json_schema"]
        assert schema.get("strict", False) is (mode == "schema" or shape == "object")
    assert fields == {
        "text": set[str](),
        "tool": {"tools", "tool_choice"},
    }.get(mode, {"response_format"})
    prompts = [each["role"] for each in body["messages"]]
    assert prompts == (["system", "user"] if mode in ("text", "grammar") else ["user"])
