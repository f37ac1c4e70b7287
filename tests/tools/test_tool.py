"""A function becomes a tool: its schema, its arguments, its result."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from datetime import date
from functools import wraps
from types import CoroutineType
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError, validate_call
from pydantic.fields import FieldInfo
from support.media_files import PIXEL
from support.waiting import run_turns, wait_until

from anabranch import Commander, ToolCall
from anabranch.commander.errors import ToolError
from anabranch.handlers import call_tools
from anabranch.messages import Part
from anabranch.tools import Illustrated, Tool, Toolkit, tool


class Place(BaseModel):
    city: str
    country: str = "France"


@dataclass
class Point:
    x: float
    y: float = 0.0


@tool(read_only=True, timeout=20)
async def weather(location: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Get the current weather in a given location.

    It is an example.

    Args:
        location: A city,
            such as Paris.
        unit (str): The scale.

    Returns:
        A sentence.
    """
    return f"18 {unit} in {location}"


def test_a_bare_decorator_takes_name_description_and_defaults_from_the_function():
    """`@tool` alone makes a tool that changes things, without a limit of time."""

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert (add.name, add.description) == ("add", "Add two numbers.")
    assert (add.read_only, add.timeout, add.approve) == (False, None, False)
    assert add(1, 2) == 3


def test_options_win_over_what_the_function_says():
    """name=, description= and the rest are the tool's."""

    def max_of(a: int, b: int) -> int:
        """Not this."""
        return max(a, b)

    made = tool(name="plus", description="Sum.", read_only=True, timeout=1, approve=True)(max_of)

    assert (made.name, made.description, made.timeout) == ("plus", "Sum.", 1)
    assert made.read_only
    assert made.approve


def test_the_schema_comes_from_signature_and_docstring():
    """Types, defaults and descriptions reach the schema; titles do not."""
    assert (
        weather.description == "Get the current weather in a given location.\n\nIt is an example."
    )
    assert weather.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["location"],
        "properties": {
            "location": {"type": "string", "description": "A city, such as Paris."},
            "unit": {
                "type": "string",
                "enum": ["celsius", "fahrenheit"],
                "default": "celsius",
                "description": "The scale.",
            },
        },
    }


def test_a_tool_without_parameters_has_an_empty_object():
    """The wire wants an object with properties, even none."""

    @tool
    def ping() -> str:
        return "pong"

    assert ping.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert ping.description == ""


def test_an_annotated_description_wins_over_the_docstring():
    """`Field(description=)` and constraints are part of the schema."""

    @tool
    def roll(sides: Annotated[int, Field(description="How many.", ge=2)] = 6) -> int:
        """Roll a die.

        Args:
            sides: not this.
        """
        return sides

    described = roll.parameters["properties"]["sides"]
    assert described["description"] == "How many."
    assert (described["minimum"], described["default"]) == (2, 6)


async def test_arguments_become_what_the_annotations_say():
    """Models, dataclasses, dates, lists and optional values arrive as such."""
    seen: dict[str, Any] = {}

    @tool
    async def keep(
        place: Place, points: list[Point], day: date | None = None, copy: str = "", schema: int = 1
    ) -> None:
        seen.update(place=place, points=points, day=day, copy=copy, schema=schema)

    await keep.run({"place": {"city": "Nice"}, "points": [{"x": 1}], "day": "2026-11-21"})

    assert seen["place"] == Place(city="Nice")
    assert seen["points"] == [Point(1.0)]
    assert seen["day"] == date(2026, 11, 21)
    assert (seen["copy"], seen["schema"]) == ("", 1)


async def test_keyword_parameters_take_any_name():
    """`**kwargs` opens the schema."""

    @tool
    async def note(title: str, **more: Any) -> dict[str, Any]:
        return {"title": title, **more}

    assert await note.run({"title": "a", "colour": "red"}) == '{"title":"a","colour":"red"}'
    assert "additionalProperties" not in note.parameters or note.parameters["additionalProperties"]


async def test_the_result_is_text():
    """Strings are unchanged; models, dataclasses, dicts, lists, dates and None become JSON."""

    async def result(value: Any) -> str:
        async def give() -> Any:
            return value

        return await Tool(give).run({})

    assert await result("plain é") == "plain é"
    assert await result(Place(city="Nice")) == '{"city":"Nice","country":"France"}'
    assert await result(Point(1.0)) == '{"x":1.0,"y":0.0}'
    assert await result({"a": [1, None, "é"]}) == '{"a":[1,null,"é"]}'
    assert await result(date(2026, 1, 2)) == '"2026-01-02"'
    assert await result(None) == "null"
    assert await result(ValueError("odd")) == '"odd"'


async def test_a_plain_function_runs_in_a_worker_thread():
    """The loop's own thread stays free."""

    @tool
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await where.run({}) == "false"
    assert where() is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "location: Field required"),
        ({"location": 3}, "location: Input should be a valid string (got 3)"),
        ({"location": "x", "unit": "kelvin"}, "unit: Input should be 'celsius' or 'fahrenheit'"),
        ({"location": "x", "colour": 1}, "colour: Extra inputs are not permitted (got 1)"),
    ],
)
async def test_a_wrong_argument_is_named(arguments: dict[str, Any], said: str):
    """The model reads which argument is wrong, why, and its value."""
    with pytest.raises(ToolError, match="wrong arguments: ") as raised:
        await weather.run(arguments)

    assert said in str(raised.value)
    assert "pydantic" not in str(raised.value)


async def test_every_fault_of_a_nested_argument_is_named():
    """All faults come at once, with their place."""

    @tool
    async def go(places: list[Place]) -> None: ...

    with pytest.raises(ToolError) as raised:
        await go.run({"places": [{"city": 1}, {}]})

    assert "places.0.city: Input should be a valid string (got 1)" in str(raised.value)
    assert "places.1.city: Field required" in str(raised.value)


async def test_a_method_is_a_tool_of_its_object():
    """`self` is not a parameter; two objects do not share state."""

    class Counter:
        def __init__(self) -> None:
            self.total = 0

        @tool(name="count")
        async def add(self, by: int = 1) -> int:
            """Count on."""
            self.total += by
            return self.total

    one, two = Counter(), Counter()

    assert await one.add.run({"by": 2}) == "2"
    assert await two.add.run({}) == "1"
    assert one.add.name == "count"
    assert list(one.add.parameters["properties"]) == ["by"]
    assert (one.total, two.total) == (2, 1)


async def test_a_bound_method_and_a_static_method_are_tools():
    """`Tool(obj.method)` and `@staticmethod` above `@tool` work."""

    class Box:
        def get(self, key: str) -> str:
            return key.upper()

        @staticmethod
        @tool
        def double(x: int) -> int:
            return 2 * x

    assert await Tool(Box().get).run({"key": "a"}) == "A"
    assert await Box.double.run({"x": 2}) == "4"


@pytest.mark.parametrize("approve", [False, True])
async def test_static_and_class_methods_are_tools_of_a_toolkit(approve: bool):
    """They run as in Python, and a toolkit's settings do not affect the class."""

    class Box(Toolkit):
        @staticmethod
        @tool
        def double(x: int) -> int:
            return 2 * x

        @classmethod
        @tool
        def label(cls, x: int) -> str:
            return f"{cls.__name__} {x}"

        @tool
        def show(self, x: int) -> int:
            return x

    class Crate(Box):
        pass

    box, crate = Box(), Crate()
    crate.approve = approve
    assert {name: each.approve for name, each in crate.methods.items()} == dict.fromkeys(
        ("double", "label", "show"), approve
    )
    assert not any(each.approve for each in box.tools)
    assert all(list(each.parameters["properties"]) == ["x"] for each in box.tools)
    given = [[await each.run({"x": 2}) for each in kit.tools] for kit in (box, crate)]
    assert given == [["4", "Box 2", "2"], ["4", "Crate 2", "2"]]


async def test_what_the_function_raises_comes_out():
    """Outside a conversation a tool's own exception is the caller's."""

    @tool
    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await fail.run({})


def test_a_function_that_cannot_be_called_by_name_is_refused():
    """The message says which parameter."""
    with pytest.raises(TypeError, match=r"only.*'a: int' must not be positional only"):

        @tool
        def only(a: int, /) -> None: ...

    with pytest.raises(TypeError, match=r"'\*rest'"):

        @tool
        def many(*rest) -> None: ...


def test_what_cannot_be_a_tool_is_refused_when_it_is_decorated():
    """Classes, generators, static methods above, types without a schema, and a wrong `retry`."""
    with pytest.raises(TypeError, match="not <class"):
        tool(Place)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not yield"):

        @tool
        def numbers():
            yield 1

    with pytest.raises(TypeError, match="a lambda must have name="):
        tool(lambda: 1)
    assert Tool(lambda: 1, name="one").name == "one"
    with pytest.raises(TypeError, match="below @classmethod"):
        tool(classmethod(len))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"len: retry must be a Retry or None, not 3"):
        tool(retry=3)(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="next to the function"):
        tool(staticmethod(len))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"odd.*schema"):

        @tool
        def odd(lock: threading.Event) -> None: ...

    with pytest.raises(TypeError, match=r"calls.*a model sends JSON"):

        @tool
        def calls(function: Callable[[int], int]) -> None: ...

    with pytest.raises(TypeError, match=r"kinds.*a model sends JSON"):

        @tool
        def kinds(kind: type) -> None: ...

    with pytest.raises(TypeError, match=r"patterns.*regex"):

        @tool
        def patterns(text: Annotated[str, Field(pattern="(")]) -> None: ...


def test_a_type_that_cannot_be_resolved_is_named():
    """A forward reference to a local type cannot work."""
    with pytest.raises(TypeError, match="Nowhere"):

        @tool
        def lost(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_an_unresolvable_return_annotation_is_no_obstacle():
    """Only parameters need a schema."""

    @tool
    def fine(x: int) -> "Nowhere": ...  # type: ignore[name-defined]  # noqa: F821

    assert fine.parameters["properties"] == {"x": {"type": "integer"}}


def test_a_tool_shows_its_signature():
    """The repr is for people."""
    assert repr(weather).startswith("<Tool weather(location: str, unit: ")


NAMES = st.sampled_from("abcd")


@given(st.dictionaries(NAMES, st.booleans()), st.booleans(), st.sets(NAMES))
def test_a_schema_from_elsewhere_names_what_the_function_takes(
    taken: dict[str, bool], any_other: bool, named: set[str]
) -> None:
    """All required parameters and no unknown ones; the error lists the difference."""
    parts = [name if needed else f"{name}=None" for name, needed in taken.items()]
    any_other = any_other or not parts
    scope: dict[str, Any] = {"__name__": "scope"}
    star = "" if not parts else "*, "
    exec(f"def add({star}{', '.join([*parts, *(['**more'] if any_other else [])])}): ...", scope)
    schema = {"properties": {name: {} for name in named}}
    unknown = set() if any_other else named - taken.keys()
    missing = {name for name, needed in taken.items() if needed} - named
    if not unknown and not missing:
        made = Tool(scope["add"], parameters=schema)
        assert made.function(**made.check(dict.fromkeys(named, 1))) is None
        return
    with pytest.raises(TypeError, match=r"^tool add: parameters ") as refused:
        Tool(scope["add"], parameters=schema)
    said = str(refused.value)
    assert {name for name in "abcd" if repr(name) in said} == unknown | missing
    assert ("does not take" in said, "needs" in said) == (bool(unknown), bool(missing))


async def test_a_tool_may_return_images_and_files() -> None:
    """Alone or in a list; the model reads descriptions of images, and the words of texts."""

    @tool
    def look(many: bool) -> object:
        """Look."""
        return ["seen:", PIXEL, Part.from_bytes(b"words", name="a.txt")] if many else PIXEL

    one, several = await look.run({"many": False}), await look.run({"many": True})
    assert isinstance(one, Illustrated)
    assert isinstance(several, Illustrated)
    assert (str(one), one.parts) == (PIXEL.about, (PIXEL,))
    assert str(several) == f'seen:\n{PIXEL.about}\n<file name="a.txt">\nwords\n</file>'
    assert several.parts == (PIXEL,)


async def test_a_field_as_a_default_is_read_as_pydantic_reads_it() -> None:
    """Its default, bounds, description and alias hold, and a plain call gets the default too."""

    @tool
    def search(
        query: str = Field(description="What to look for."),
        limit: int = Field(default=10, ge=1, le=50, description="How many."),
        tags: list[str] = Field(default_factory=list, alias="labels"),  # noqa: B008 - it is tested
    ) -> list[Any]:
        """Search.

        Args:
            query: not this.
        """
        return [query, limit, tags]

    assert search.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {
                "type": "integer",
                "default": 10,
                "minimum": 1,
                "maximum": 50,
                "description": "How many.",
            },
            "labels": {"type": "array", "items": {"type": "string"}},
        },
    }
    assert await search.run({"query": "a"}) == '["a",10,[]]'
    assert await search.run({"query": "a", "limit": 3, "labels": ["b"]}) == '["a",3,["b"]]'
    with pytest.raises(ToolError, match=r"limit: .* less than or equal to 50 \(got 51\)"):
        await search.run({"query": "a", "limit": 51})
    assert search("a") == ["a", 10, []]
    assert search("a", 3, tags=["b"]) == ["a", 3, ["b"]]
    with pytest.raises(TypeError, match="needs the argument 'query'"):
        search(limit=3)
    given = {"properties": {"query": {"type": "string"}}}
    assert await Tool(search.function, parameters=given).run({"query": "a"}) == '["a",10,[]]'
    with pytest.raises(TypeError, match=r"lacks \['query'\]"):
        Tool(search.function, parameters={"properties": {"limit": {}}})


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "ge": st.integers(-3, 3),
        "le": st.integers(-3, 9),
        "alias": st.sampled_from(["x", "copy"]),
        "strict": st.booleans(),
        "validate_default": st.booleans(),
    },
)
DEFAULTS = st.one_of(
    st.just({}),
    st.builds(lambda value: {"default": value}, st.integers(-5, 12) | st.just("4")),
    st.just({"default_factory": lambda: 4}),
)


@given(
    annotated=st.none() | st.tuples(FIELDS, DEFAULTS),
    default=st.none() | st.integers(-5, 12) | st.tuples(FIELDS, DEFAULTS),
    arguments=st.dictionaries(
        st.sampled_from(["n", "x", "copy"]), st.integers(-5, 12) | st.sampled_from(["3", "a"])
    ),
)
def test_a_call_takes_what_validate_call_takes(
    annotated: tuple[dict[str, Any], dict[str, Any]] | None, default: Any, arguments: Any
) -> None:
    """However the field is declared: in `Annotated`, as a default, or both."""

    def count(n: Any) -> Any:
        return n

    if annotated is not None:
        count.__annotations__["n"] = Annotated[int, Field(**annotated[0], **annotated[1])]
    else:
        count.__annotations__["n"] = int
    if default is not None:
        if isinstance(default, tuple):
            default = Field(**default[0], **default[1])
        count.__defaults__ = (default,)

    try:
        validated = validate_call(count)
    except TypeError:  # a default and a factory for one
        with pytest.raises(TypeError):
            Tool(count)
        return
    made = Tool(count)
    try:
        expected = validated(**arguments)
    except ValidationError:
        with pytest.raises(ToolError, match="wrong arguments"):
            made.check(arguments)
    else:
        assert made.check(arguments) == {"n": expected}
        assert not isinstance(expected, FieldInfo)


def wrapped(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Wrap an async function in a plain one, as many decorators do."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


async def _each(call: ToolCall) -> AsyncGenerator[ToolCall]:
    yield call


async def test_what_a_plain_wrapper_returns_is_awaited() -> None:
    """Alone, in a tree, and from an async function that returns another awaitable."""

    async def double(x: int) -> int:
        await run_turns(2)
        return 2 * x

    async def later(x: int) -> Any:
        return double(x)

    def much_later(x: int) -> Any:
        return later(x)

    for function in wrapped(double), wrapped(wrapped(double)), later, much_later:
        made = Tool(function)
        assert await made.run({"x": 2}) == "4"
        async with Commander() as commander:
            call = ToolCall(id="1", name=made.name, arguments={"x": 3})
            (result,) = await commander.run(call_tools(_each(call), [made]))
            assert (result.content, result.status) == ("6", "ok")


async def test_a_result_that_would_have_to_be_iterated_is_a_failure() -> None:
    """Its text would be a memory address."""

    async def numbers() -> AsyncGenerator[int]:
        yield 1

    @tool
    def listed() -> Any:
        return numbers()

    with pytest.raises(TypeError, match="not an async_generator"):
        await listed.run({})


async def test_what_an_awaited_wrapper_raises_is_the_tools_failure() -> None:
    """It is raised where the call is awaited, not lost in the thread."""

    @tool
    @wrapped
    async def fail() -> None:
        await run_turns(1)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await fail.run({})


@pytest.mark.parametrize("late", [False, True], ids=["before the cancel", "after the cancel"])
async def test_a_coroutine_of_a_cancelled_call_is_closed(late: bool) -> None:
    """Whether its thread returns it before or after the cancel; else Python warns about it."""
    entered, go_on, returned = threading.Event(), threading.Event(), threading.Event()
    made: list[CoroutineType[Any, Any, None]] = []

    async def work() -> None:
        raise AssertionError("nobody awaits it")

    def start() -> Any:
        entered.set()
        if late:
            go_on.wait()
        made.append(work())
        returned.set()
        return made[0]

    running = asyncio.create_task(Tool(start).run({}))
    await wait_until((entered if late else returned).is_set)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    go_on.set()
    await wait_until(lambda: made and made[0].cr_frame is None)
    made.clear()
    gc.collect()
