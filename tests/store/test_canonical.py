"""Inputs as a text: the same for equal data in every process, different for any other data."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import hashlib
import inspect
import io
import math
import os
import pickle
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, PrivateAttr, SecretStr
from support.broken_objects import ERRORS, Meta, make_error
from support.paths import TESTS
from support.seeds import SEED, example_count

from anabranch import Conversation, Job, Message, connect, handler, tool
from anabranch.store._json import MAX_NESTING, canonical, digest

pytestmark = pytest.mark.contract("D5")

# --- recipes: values that can be built twice, and compared without the code under test


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Size(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    RED = "RED"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: Any = 0
    y: Any = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any = 0
    y: Any = 0


class Model(BaseModel):
    x: Any = 0
    y: Any = 0
    _hidden: Any = PrivateAttr(default=None)


class Other(Model):
    pass


class Pair(NamedTuple):
    x: Any
    y: Any


class Text(str):
    pass


class Number(int):
    pass


class Table(dict[Any, Any]):
    pass


def a_function() -> None: ...


def another() -> None: ...


@handler
async def a_handler(node: Any) -> None: ...


@tool
def a_tool(text: str) -> str:
    """Return nothing."""
    return text


ZONES = [None, UTC, timezone(timedelta(hours=1)), ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")]

# A recipe has a callable and its arguments. It is hashable, and two recipes are equal exactly if
# they are written alike.
Recipe = tuple[Any, ...]


def plain(of: type, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Recipe]:
    return values.map(lambda value: (of.__name__, of, value))


def surrogates() -> st.SearchStrategy[str]:
    return st.text(st.characters(categories=("Cs",)) | st.sampled_from("a\U00010000é"), max_size=3)


def between(parts: tuple[int, int, int]) -> timedelta:
    return timedelta(*parts)


FLOATS = st.floats().map(lambda value: math.nan if math.isnan(value) else value)
MOMENTS = st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1))
LEAVES: st.SearchStrategy[Recipe] = st.one_of(
    st.just(("None", lambda _: None, 0)),
    plain(bool, st.booleans()),
    plain(int, st.integers(-3, 3) | st.integers() | st.sampled_from([10**30, -(10**30)])),
    # By their text: `0.0` and `-0.0` differ, and no NaN equals itself.
    plain(float, st.sampled_from(["1.0", "0.0", "-0.0"]) | FLOATS.map(repr)),
    plain(str, st.sampled_from(["", "1", "RED", "None", "$live", "1.0"]) | surrogates()),
    plain(bytes, st.binary(max_size=3)),
    plain(bytearray, st.binary(max_size=3)),
    plain(Text, st.sampled_from(["", "1"])),
    plain(Number, st.integers(-3, 3)),
    plain(Colour, st.sampled_from([1, "blue"])),
    plain(Size, st.just(1)),
    plain(Word, st.just("RED")),
    plain(Right, st.integers(0, 3)),
    plain(UUID, st.uuids().map(str)),
    plain(Decimal, st.sampled_from(["1", "1.0", "1E+3", "-0", "0", "NaN", "sNaN", "Infinity"])),
    plain(Fraction, st.fractions(max_denominator=9).map(str)),
    plain(complex, st.sampled_from(["1+2j", "1-2j", "0j"])),
    plain(Path, st.sampled_from(["a", "a/b", "/a", "\udcff"])),
    plain(PurePosixPath, st.sampled_from(["a", "a/b"])),
    plain(PureWindowsPath, st.sampled_from(["a", "a/b"])),
    plain(date, st.dates().map(lambda day: day.isoformat())).map(
        lambda recipe: ("date", date.fromisoformat, recipe[2])
    ),
    st.timedeltas().map(
        lambda gap: ("timedelta", between, (gap.days, gap.seconds, gap.microseconds))
    ),
)


def clocks() -> st.SearchStrategy[Recipe]:
    def make(kind: Any) -> Callable[[Any], Any]:
        return lambda it: kind.fromisoformat(it[0]).replace(tzinfo=ZONES[it[1]], fold=it[2])

    rest = (st.integers(0, len(ZONES) - 1), st.integers(0, 1))
    times = st.tuples(MOMENTS.map(lambda it: it.time().isoformat()), *rest)
    moments = st.tuples(MOMENTS.map(lambda it: it.isoformat()), *rest)
    return st.one_of(
        moments.map(lambda it: ("datetime", make(datetime), it)),
        times.map(lambda it: ("time", make(time), it)),
    )


NAMED = {
    each.__name__: each for each in (Point, Model, Colour, a_function, another, len, int, canonical)
}
OBJECTS = {each.__name__: each for each in (Point, Frozen, Model, Other, Pair)}
LISTS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "deque": collections.deque,
    "bounded deque": partial(collections.deque, maxlen=9),
}
DICTS = {each.__name__: each for each in (dict, Table, collections.Counter)}


def nested(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    some = st.lists(inner, max_size=3).map(tuple)
    keys = st.one_of(*(plain(of, values) for of, values in KEYS.items()))
    pairs = st.dictionaries(keys, inner, max_size=3).map(
        lambda found: tuple(sorted(found.items(), key=repr))
    )
    return st.one_of(
        st.tuples(st.sampled_from(sorted(LISTS)), st.just("list"), some),
        st.tuples(st.sampled_from(sorted(OBJECTS)), st.just("object"), st.tuples(inner, inner)),
        st.tuples(st.sampled_from(sorted(DICTS)), st.just("dict"), pairs),
        st.tuples(st.just("OrderedDict"), st.just("dict"), pairs),
    )


KEYS: dict[type, Any] = {
    str: st.sampled_from(["a", "b", "$set", "$dict", "é", "\ud800", "1"]),
    bytes: st.sampled_from([b"a", b"b"]),
    UUID: st.just(str(UUID(int=1))),
}
SETS = st.tuples(
    st.sampled_from(["set", "frozenset"]),
    st.just("set"),
    st.frozensets(st.one_of(*(plain(of, values) for of, values in KEYS.items())), max_size=4),
)
NAMES = st.sampled_from(sorted(NAMED)).map(lambda name: ("name", NAMED.get, name))
RECIPES = st.recursive(LEAVES | clocks() | SETS | NAMES, nested, max_leaves=6)


def build(recipe: Recipe, turn: Callable[[Any], Any] = tuple) -> Any:
    """Build the value; `turn` changes the order of unordered parts."""
    name, how, parts = recipe
    match how:
        case "list":
            return LISTS[name]([build(each, turn) for each in parts])
        case "object":
            x, y = (build(each, turn) for each in parts)
            return OBJECTS[name](x, y) if name == "Pair" else OBJECTS[name](x=x, y=y)
        case "dict":
            order: Any = tuple if name == "OrderedDict" else turn
            made = {build(key, turn): build(each, turn) for key, each in order(parts)}
            return collections.OrderedDict(made) if name == "OrderedDict" else fill(name, made)
        case "set":
            return {"set": set, "frozenset": frozenset}[name](
                [build(each, turn) for each in turn(sorted(parts, key=repr))]
            )
        case _:
            return how(parts)


def fill(name: str, made: dict[Any, Any]) -> Any:
    found: Any = DICTS[name]()
    for key, value in made.items():
        found[key] = value
    return found


def essence(recipe: Recipe) -> Any:
    """Return the names and parts of a recipe without the callable."""
    name, how, parts = recipe
    if how in ("list", "object"):
        return (name, tuple(essence(each) for each in parts))
    if how == "dict":
        return (name, tuple((essence(key), essence(each)) for key, each in parts))
    if how == "set":
        return (name, frozenset(essence(each) for each in parts))
    return (name, type(parts).__name__, parts)


@settings(max_examples=example_count(150, 5000))
@given(RECIPES)
def test_what_is_built_twice_has_one_text_which_says_everything(recipe: Recipe) -> None:
    """The order of sets and dicts does not matter."""
    text, whole = canonical(build(recipe))
    assert whole
    assert canonical(build(recipe, lambda parts: tuple(reversed(parts)))) == (text, True)
    text.encode()


@settings(max_examples=example_count(150, 5000))
@given(RECIPES, RECIPES)
def test_other_data_have_another_text(one: Recipe, two: Recipe) -> None:
    """Other types are other data."""
    same = essence(one) == essence(two)
    assert (canonical(build(one)) == canonical(build(two))) == same


@settings(max_examples=example_count(20, 300))
@given(st.lists(RECIPES, min_size=12, max_size=24))
def test_all_of_many_differ(recipes: list[Recipe]) -> None:
    """More pairs than pairwise draws can test: no two texts are equal."""
    texts = {essence(recipe): canonical(build(recipe))[0] for recipe in recipes}
    assert len(set(texts.values())) == len(texts)


CLOSE = [
    *(
        1,
        True,
        1.0,
        "1",
        b"1",
        1 + 0j,
        Decimal(1),
        Decimal("1.0"),
        Fraction(1),
        Size.ONE,
        Number(1),
    ),
    *(0.0, -0.0, False, None, "null", "", b"", bytearray(), Text("")),
    *([], (), set(), frozenset(), {}, collections.deque(), collections.deque(maxlen=1)),
    *(collections.OrderedDict(), collections.defaultdict(list), collections.defaultdict(set)),
    *(collections.Counter(), Table(), range(0), range(1)),
    *([1, 2], (1, 2), {1, 2}, Pair(1, 2), Point(1, 2), Frozen(1, 2), Model(x=1, y=2)),
    *(Other(x=1, y=2), {"x": 1, "y": 2}, Point(1, 3), Point(2, 1)),
    *({1: 2}, {"1": 2}, {True: 2}, {1.0: 2}, {b"1": 2}, {Number(1): 2}, {Size.ONE: 2}),
    *([[1], 2], [1, [2]], [1, 2, []], ["1,2"], [[1, 2]], [{"$tuple": [1]}], [(1,)]),
    *({"$set": [1]}, {"$dict": [["$set", [1]]]}, {"$str": "a"}, {"$live": "x"}, {"$": 1}),
    *({"$set": 1, "a": 2}, {"a": None}, {"a": {}}, {"a": []}, {"": {}}),
    *(math.inf, -math.inf, math.nan, "nan", "inf", 10**5000, 10**5000 + 1, 2**64, 2.0**64),
    *("\ud800\udc00", "\U00010000", "\ud800", "\\ud800", "é", "e\u0301"),
    *(Colour.RED, Colour.BLUE, "RED", Word.RED, Right.READ, Right.WRITE, Right(0), Right(3)),
    *(Colour, Point, int, str, len, a_function, another, canonical, a_handler, a_tool, "int"),
    *(UUID(int=0), str(UUID(int=0)), Path("a"), PureWindowsPath("a"), "a", "a/b", Path("a/b")),
    *(date(2020, 1, 1), datetime(2020, 1, 1), datetime(2020, 1, 1, fold=1), "2020-01-01"),
    *(time(), time(fold=1), time(tzinfo=UTC), timedelta(), timedelta(1), UTC),
    *(datetime(2020, 1, 1, tzinfo=zone) for zone in ZONES[1:]),
]


def test_what_is_nearly_the_same_differs() -> None:
    """Each of these differs from every other."""
    texts = [canonical(each) for each in CLOSE]
    assert all(whole for _, whole in texts)
    assert len({text for text, _ in texts}) == len(CLOSE)


class Live:
    pass


class Cached(BaseModel):
    x: int = 0

    @cached_property
    def costly(self) -> object:
        return object()


def holding_itself() -> list[Any]:
    circle: list[Any] = [1]
    circle.append({"again": circle})
    return circle


def a_circle_of_objects() -> Any:
    first, second = Point(), Point()
    first.x, second.x = second, first
    return [first, second, first]


class Loud:
    """An object whose every attribute raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError


@dataclasses.dataclass
class Broken:
    x: Any = 0

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError


T = TypeVar("T")


@dataclasses.dataclass
class Typed(Generic[T]):
    """A class with a live attribute, and instances without."""

    lock: ClassVar[Any] = threading.Lock()
    once: dataclasses.InitVar[int]

    def __post_init__(self, once: int) -> None:
        self.kept = once


class OwnZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


def zone_file() -> bytes:
    """Return the file of a time zone that is always at UTC."""
    return b"TZif" + bytes(32) + struct.pack(">ll", 1, 4) + bytes(6) + b"UTC\0"


class Shout(Job[None]):
    text: str


LIVE: dict[str, Callable[[], Any]] = {
    "object": object,
    "instance": Live,
    "lambda": lambda: lambda: 0,
    "local function": lambda: holding_itself.__get__(1),
    "partial": lambda: partial(int, 1),
    "bound": lambda: [].append,
    "lock": threading.Lock,
    "file": lambda: sys.stdout,
    "loop": asyncio.Semaphore,
    "conversation": Conversation,
    "backend": lambda: connect("http://localhost:9/v1", model="m", api_key="k-secret"),
    "secret": lambda: SecretStr("k-secret"),
    "job": lambda: Shout("a"),
    "local class": lambda: type("Inner", (), {}),
    "wrapped": lambda: a_tool.function,
    "bound tool": lambda: a_tool.__get__(Live()),
    "exception": lambda: ValueError("x"),
    "module": lambda: math,
    "iterator": lambda: iter([1]),
    "unnamed zone": lambda: ZoneInfo.from_file(io.BytesIO(zone_file())),
    "zone of another package": lambda: datetime(2020, 1, 1, tzinfo=OwnZone()),
    "circle": holding_itself,
    "circle of objects": a_circle_of_objects,
    "deep": lambda: deep(MAX_NESTING + 1),
    "very deep": lambda: deep(100_000),
    "deep set": lambda: deep(100_000, lambda inner: frozenset([inner])),
    "loud": Loud,
    "broken": Broken,
    "metaclass": lambda: Meta("Odd", (), {})(),
    "odd class": lambda: Meta("Odd", (), {}),
}  # fmt: skip


def deep(levels: int, put: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    found = put(1)
    for _ in range(levels - 1):
        found = put(found)
    return found


@pytest.mark.parametrize("name", LIVE)
def test_what_is_live_is_left_out_and_said_to_be(name: str) -> None:
    """The rest is written, and of the live object only the name of its type."""
    live = LIVE[name]()
    text, whole = canonical({"live": live, "data": 1})
    assert not whole
    assert "k-secret" not in text
    assert " at 0x" not in text
    assert len(text) < 10_000
    assert canonical({"live": live, "data": 1}) == (text, False)
    if name not in ("very deep", "deep set"):
        assert '"data":1' in text


@pytest.mark.parametrize("name", ERRORS)
def test_no_odd_object_breaks_it(name: str) -> None:
    """Exceptions are not data, except one that is a dataclass."""
    _, whole = canonical([make_error(name)])
    assert whole == (name == "Frozen")


def test_the_depth_that_is_written_does_not_depend_on_the_caller() -> None:
    """As long as Python's stack suffices."""

    def below(levels: int) -> tuple[str, bool]:
        return canonical(deep(MAX_NESTING - 1)) if levels == 0 else below(levels - 1)

    assert (
        below(0) == below(200) == (("[" * (MAX_NESTING - 1)) + "1" + "]" * (MAX_NESTING - 1), True)
    )
    here = len(inspect.stack(0))
    assert below(sys.getrecursionlimit() - here - 60)[1] is False  # and does not raise


@handler
async def pickled(node: Any) -> None:
    """Return nothing."""


def test_a_pickle_of_a_handler_changes_no_text() -> None:
    """Else the node would have another identity, and its effects other keys."""
    values = pickled, pickled._function, pickled()
    before = [canonical(each) for each in values]
    pickle.dumps([pickled, pickled()])
    assert [canonical(each) for each in values] == before


def test_what_is_derived_does_not_count_and_what_is_hidden_does() -> None:
    """A cached property is derived from the fields; a private attribute is not."""
    read = Cached()
    assert read.costly is not None
    assert canonical(read) == canonical(Cached())
    hidden = Model()
    hidden._hidden = 3
    assert canonical(hidden) != canonical(Model())
    hidden._hidden = threading.Lock()
    assert not canonical(hidden)[1]
    assert canonical(Typed(1)) == canonical(Typed[int](1))
    assert canonical(Typed(1))[1]
    assert canonical(Typed(1)) != canonical(Typed(2))
    message = Message(role="user", content="x")
    assert canonical(message) == canonical(message.model_copy())


def drawn() -> list[str]:
    """Return the texts of sets and dicts whose order depends on the hashes of this process."""
    draw = random.Random(SEED)
    words = [str(draw.random()) for _ in range(20)]
    sets: list[Any] = [frozenset(draw.sample(words, 5)) for _ in range(100)]
    sets += [{each: set(draw.sample(words, 3)) for each in draw.sample(sets, 3)} for _ in sets]
    # A test module has another name when it is imported.
    return [canonical(each)[0].replace(__name__, "here") for each in (*CLOSE, *sets)]


def test_another_process_writes_the_same() -> None:
    """With other hashes of strings, and so other orders of sets."""
    code = "from test_canonical import *; print(hashlib.md5(repr(drawn()).encode()).hexdigest())"
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    paths = os.pathsep.join([str(TESTS), os.path.dirname(__file__)])
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == hashlib.md5(repr(drawn()).encode()).hexdigest()


# --- digests

PARTS = st.lists(
    st.text(max_size=3) | st.binary(max_size=3) | st.integers() | surrogates(), max_size=4
)


@example([], [""])
@example(["a", "b"], ["ab"])
@example(["1"], [1])
@example([b"1"], ["1"])
@example([10**30], [1])
@settings(max_examples=example_count(60, 1000))
@given(PARTS, PARTS)
def test_a_digest_tells_its_parts_from_all_others(one: list[Any], two: list[Any]) -> None:
    """By their types, their ends and their order."""
    assert len(digest(*one)) == 16
    same = list(map(type, one)) == list(map(type, two)) and one == two
    assert (digest(*one) == digest(*two)) == same


def test_digests_stay_what_they_are() -> None:
    """Journals on disk have them."""
    assert digest("root", b"\x00", 7).hex() == "4b67d209ea45ad24e0c591cb6e439611"
