"""Parameters of tools that the call's `context=` fills."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch as ab
from anabranch import Commander, Context, ContextError, Node, Retry, handler, tool
from anabranch.messages import ToolCall
from anabranch.tools import Done, InvalidArguments, Tool, Toolkit
from anabranch.tools.calls import NO_PERSON, start_call


@dataclass
class User:
    name: str


class Admin(User):
    pass


class Named(Protocol):
    name: str


class Row(TypedDict):
    name: str


ADA = User("ada")


async def call(tool: Tool[..., Any], arguments: dict[str, Any], **options: Any) -> Any:
    @handler
    async def work(self: Node[Any]) -> Any:
        return await tool.run_raw(arguments)

    async with Commander() as commander:
        return await commander.run(work(), **options)


@tool
def plain(ctx: Context[User], city: str) -> str:
    """Find.

    Args:
        ctx: not for the model
        city: where
    """
    return f"{ctx.value.name} in {city}"


@tool
async def at_the_end(city: str, who: ab.Context[User]) -> str:
    return f"{who.value.name} in {city}"


@tool
def bare(city: str, *, ctx: Context) -> str:
    return f"{ctx.value.name} in {city}"


@tool
def annotated(city: str, ctx: Annotated[Context[User], "of the request"]) -> str:
    return f"{ctx.value.name} in {city}"


@tool
def optional(city: str, ctx: Context[User] | None = None) -> str:
    return f"{ctx.value.name if ctx else 'all'} in {city}"


class Methods:
    @tool
    def method(self, city: str, ctx: Context[User]) -> str:
        return f"{ctx.value.name} in {city}"

    @staticmethod
    @tool
    def static(city: str, ctx: Context[User]) -> str:
        return f"{ctx.value.name} in {city}"

    @classmethod
    def of_class(cls, city: str, ctx: Context[User]) -> str:
        return f"{ctx.value.name} in {city}"


class Kit(Toolkit):
    @tool
    async def find(self, ctx: Context[User], city: str) -> str:
        return f"{ctx.value.name} in {city}"


EVERY = [
    plain,
    at_the_end,
    bare,
    annotated,
    optional,
    Methods().method,
    Methods.static,
    Tool(Methods.of_class),
]
EVERY += [Kit().find]


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
async def test_the_model_does_not_see_the_parameter_and_the_call_gets_it(each: Tool[..., Any]):
    assert list(each.parameters["properties"]) == ["city"]
    assert each.parameters["required"] == ["city"]
    assert "ontext" not in json.dumps(each.parameters)
    assert await call(each, {"city": "Oslo"}, context=ADA) == "ada in Oslo"


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
async def test_a_model_cannot_give_a_context(each: Tool[..., Any]):
    (name,) = {*inspect.signature(each.function).parameters} - {"self", "cls", "city"}
    for value in ("admin", {"value": {"name": "admin"}}):
        with pytest.raises(InvalidArguments, match=f"{name}: Extra inputs are not permitted"):
            await call(each, {"city": "Oslo", name: value}, context=ADA)


async def test_nor_if_the_tool_takes_any_name():
    @tool
    def any_name(ctx: Context[Any], **rest: Any) -> str:
        return f"{ctx.value} {rest}"

    @tool(parameters={"type": "object", "properties": {"city": {"type": "string"}}})
    def of_schema(ctx: Context[Any], **rest: Any) -> str:
        return f"{ctx.value} {rest}"

    for each in (any_name, of_schema):
        assert await call(each, {"city": "Oslo"}, context=1) == "1 {'city': 'Oslo'}"
        with pytest.raises(InvalidArguments, match="ctx: Extra inputs are not permitted"):
            await call(each, {"city": "Oslo", "ctx": 2}, context=1)


def test_a_direct_call_takes_a_context():
    assert plain(Context(ADA), "Oslo") == "ada in Oslo"
    assert plain(ctx=Context(Admin("eve")), city="Oslo") == "eve in Oslo"
    assert optional("Oslo") == "all in Oslo"


async def test_a_parameter_with_a_default_needs_no_context():
    assert await call(optional, {"city": "Oslo"}) == "all in Oslo"


async def test_without_a_context_the_error_names_the_tool():
    with pytest.raises(ContextError, match=r"the tool plain has the parameter 'ctx' .*context="):
        await call(plain, {"city": "Oslo"})


async def test_a_value_of_another_class_is_an_error():
    assert await call(plain, {"city": "Oslo"}, context=Admin("eve")) == "eve in Oslo"
    for wrong in ("ada", None, {"name": "ada"}):
        with pytest.raises(ContextError, match="the tool plain needs a context of type User"):
            await call(plain, {"city": "Oslo"}, context=wrong)


async def test_values_that_cannot_be_checked_are_passed():
    @tool
    def of_protocol(ctx: Context[Named]) -> str:
        return ctx.value.name

    @tool
    def of_row(ctx: Context[Row]) -> str:
        return ctx.value["name"]

    @tool
    def of_generic(ctx: Context[dict[str, str]]) -> str:
        return ctx.value["name"]

    @tool
    def of_number(ctx: Context[float]) -> str:
        return str(ctx.value)

    @tool
    def of_either(ctx: Context[User | None]) -> str:
        return "nobody" if ctx.value is None else ctx.value.name

    assert await call(of_protocol, {}, context=ADA) == "ada"
    assert await call(of_row, {}, context={"name": "ada"}) == "ada"
    assert await call(of_generic, {}, context={"name": "ada"}) == "ada"
    assert await call(of_number, {}, context=1) == "1"
    assert await call(of_either, {}, context=None) == "nobody"
    assert await call(of_either, {}, context=ADA) == "ada"
    with pytest.raises(ContextError, match="User or NoneType"):
        await call(of_either, {}, context=1)


async def test_reconcile_may_have_the_parameter_too():
    def look_up(city: str, effect_key: str, ctx: Context[User]) -> Done:
        return Done(f"{ctx.value.name} in {city} by {effect_key}")

    @tool(reconcile=look_up)
    def book(city: str, ctx: Context[User]) -> str:
        return city

    @handler
    async def work(self: Node[Any]) -> Any:
        return await book.run_reconcile({"city": "Oslo"}, "k")

    async with Commander() as commander:
        assert await commander.run(work(), context=ADA) == Done("ada in Oslo by k")


async def test_the_failure_of_a_call_without_a_context_is_not_a_result():
    calls: list[None] = []

    @tool(retry=Retry(attempts=3))
    def often(ctx: Context[User]) -> str:
        return ""

    @tool(retry=Retry(attempts=3))
    def late() -> str:
        calls.append(None)
        return str(ab.current_context(User).value)

    async def ask(*_: object) -> Any:
        return NO_PERSON

    for each in (often, late):

        @handler
        async def work(self: Node[Any], each: Any = each) -> Any:
            return await start_call(self, ToolCall(id="1", name=each.name), each, ask)

        async with Commander() as commander:
            with pytest.raises(ContextError):
                await commander.run(work())
    assert len(calls) == 1


# --- random signatures

TYPES = {"str": "x", "int": 3, "list[int]": [1], "bool": True, "str | None": None}
CONTEXTS = ["Context", "Context[Any]", "Context[User]", "ab.Context[User | int]"]
CONTEXTS += ["Annotated[Context[User], 'x']", "'Context[User]'"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"),
            st.sampled_from([*TYPES, *CONTEXTS]),
            st.sampled_from(["", "*"]),
        ),
        unique_by=lambda each: each[0],
        max_size=6,
    ),
    st.booleans(),
    st.booleans(),
)
async def test_no_schema_contains_a_context(
    drawn: list[tuple[str, str, str]], is_async: bool, is_postponed: bool
):
    named = [each for each in drawn if each[2] == ""] + [each for each in drawn if each[2] == "*"]
    parts = [f"{name}: {kind}" for name, kind, star in named if star == ""]
    if len(parts) < len(named):
        parts += ["*", *(f"{name}: {kind}" for name, kind, star in named if star == "*")]
    code = f"{'async ' * is_async}def f({', '.join(parts)}):\n    return dict(locals())\n"
    code = "from __future__ import annotations\n" * is_postponed + code
    names: dict[str, Any] = {"Context": Context, "ab": ab, "Annotated": Annotated, "User": User}
    names["Any"] = Any
    exec(compile(code, "f.py", "exec", dont_inherit=True), names)
    made = tool(names["f"])
    given = {name: TYPES[kind] for name, kind, _ in named if kind in TYPES}
    assert {*made.parameters["properties"]} == {*given}
    assert [*made.parameters.get("required", [])] == [n for n, kind, _ in named if kind in TYPES]
    found = await call(made, given, context=ADA)
    for name, kind, _ in named:
        if kind in TYPES:
            assert found[name] == TYPES[kind]
        else:
            assert found[name].value is ADA
