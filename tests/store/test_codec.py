"""Values of an annotation: an accepted value is read back unchanged, all else is refused (D18)."""

from __future__ import annotations

import collections
import dataclasses
import enum
import io
import ipaddress
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import IO, Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    VERSION,
    AliasChoices,
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    TypeAdapter,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from support.killed_executions import disk_after, execute_in_loop
from support.memory_journal import RUN_ID, journal_of
from support.seeds import example_count
from typing_extensions import TypedDict

from anabranch import Conversation, Message, ToolCall, tool
from anabranch.backends import Backend
from anabranch.store import Durable
from anabranch.store._codec import Codec
from anabranch.store._json import canonical
from anabranch.store.errors import JournalMismatch, NotStorable

pytestmark = pytest.mark.contract("D18")

T = TypeVar("T")


class Colour(enum.Enum):
    RED = ("r", 1)
    BLUE = b"\xff"


class Word(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float = 0.0
    y: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Span(Generic[T]):
    first: T
    last: T
    data: bytes = b""


@dataclasses.dataclass
class Wrap(Generic[T]):
    it: T


class Pair(NamedTuple):
    left: int
    right: str = ""


class Place(NamedTuple):
    height: float
    point: Point


class Rates(TypedDict):
    low: float
    all: list[float]


class Row(TypedDict, total=False):
    id: int
    when: datetime


class Base(BaseModel):
    data: bytes = b""
    ratio: float = 0.0


class Sub(Base):
    more: int = 0


class Box(BaseModel, Generic[T]):
    value: T
    tags: set[str] = Field(default_factory=set[str])


class Named(BaseModel):
    """Every kind of alias that pydantic allows for a field."""

    model_config = ConfigDict(extra="forbid")
    a: int = Field(default=1, alias="b")
    b_: int = Field(default=2, validation_alias=AliasChoices("x", "y"), serialization_alias="z")

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.a


class Tree(BaseModel):
    name: str = ""
    below: list[Tree] = Field(default_factory=list)  # pyright: ignore


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    size: int = 0


class Square(BaseModel):
    kind: Literal["square"] = "square"
    size: int = 0


# --- accepted values

FLOATS = st.floats(allow_nan=True)
TEXT = st.text(max_size=4)
ZONES = [None, UTC, timezone(timedelta(hours=-3, minutes=-30)), ZoneInfo("Europe/Berlin")]
MOMENTS = st.datetimes(timezones=st.sampled_from(ZONES), allow_imaginary=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT | st.sampled_from(["$set", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT | st.sampled_from(["$bytes", "$dict"]), inner, max_size=3)
    ),
    max_leaves=8,
)
SPANS = st.builds(Span, MOMENTS, MOMENTS, st.binary(max_size=3))
BASES = st.builds(Base, data=st.binary(max_size=3), ratio=FLOATS)

NUMBERS = st.integers(-3, 3) | st.sampled_from([-1.0, 0.0, 1.0, 2.5])
POINTS = st.builds(Point, NUMBERS, NUMBERS)
TREES = st.recursive(
    st.builds(Tree, name=TEXT),
    lambda inner: st.builds(Tree, below=st.lists(inner, max_size=2)),
    max_leaves=4,
)
CALLS = st.builds(
    ToolCall, id=TEXT, name=TEXT, arguments=st.dictionaries(TEXT, st.integers(), max_size=3)
)

KEPT: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "Any": (Any, JSON),
    "object": (object, JSON),
    "int": (int, st.integers() | st.just(10**5000)),
    "float": (float, FLOATS),
    "str": (str, TEXT),
    "bool": (bool, st.booleans()),
    "None": (None, st.none()),
    "bytes": (bytes, st.binary(max_size=4)),
    "bytes | str": (bytes | str, st.binary(max_size=4) | TEXT),
    "datetime": (datetime, MOMENTS),
    "datetime | str": (datetime | str, MOMENTS | MOMENTS.map(str)),
    "date": (date, st.dates()),
    "time": (time, st.times(timezones=st.sampled_from(ZONES))),
    "timedelta": (timedelta, st.timedeltas()),
    "Decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "UUID": (UUID, st.uuids()),
    "Path": (Path, st.sampled_from([Path("a"), Path("/a/b")])),
    "complex": (complex, st.complex_numbers(allow_nan=False)),
    "Fraction": (Fraction, st.fractions()),
    "Url": (AnyUrl, st.just(AnyUrl("http://localhost/a"))),
    "address": (ipaddress.IPv4Address, st.ip_addresses(v=4)),
    "Pattern": (re.Pattern[str], st.just(re.compile("a+"))),
    "Literal": (Literal["a", 1, True], st.sampled_from(["a", 1])),
    "Enum": (Colour, st.sampled_from(Colour)),
    "StrEnum": (Word, st.just(Word.RED)),
    "Optional": (Optional[int], st.none() | st.integers()),  # noqa: UP045 - as users write it
    "union": (int | float | str | None, st.integers() | FLOATS | TEXT | st.none()),
    "list": (list[Base | int], st.lists(BASES | st.integers(), max_size=3)),
    "bare list": (list, st.lists(JSON, max_size=2)),
    "tuple": (tuple[int, ...], st.lists(st.integers(), max_size=3).map(tuple)),
    "pair": (tuple[int, bytes], st.tuples(st.integers(), st.binary(max_size=2))),
    "Sequence": (Sequence[int], st.lists(st.integers()) | st.lists(st.integers()).map(tuple)),
    "set": (set[str], st.sets(TEXT)),
    "frozenset": (frozenset[bytes], st.frozensets(st.binary(max_size=2))),
    "dict": (dict[str, Any], st.dictionaries(TEXT | st.just("$set"), JSON, max_size=2)),
    "int keys": (dict[int, str], st.dictionaries(st.integers(), TEXT, max_size=2)),
    "tuple keys": (
        Mapping[tuple[int, bytes], str],
        st.dictionaries(st.tuples(st.integers(), st.binary(max_size=2)), TEXT, max_size=2),
    ),
    "deque": (collections.deque[int], st.lists(st.integers()).map(collections.deque)),
    "Counter": (collections.Counter[str], st.lists(TEXT).map(collections.Counter)),
    "dataclass": (Point, st.builds(Point, FLOATS, FLOATS)),
    "generic dataclass": (Span[datetime], SPANS),
    "parametrised": (Wrap[int], st.builds(lambda n: Wrap[int](n), st.integers())),
    "NamedTuple": (Pair, st.builds(Pair, st.integers(), TEXT)),
    "TypedDict": (Row, st.fixed_dictionaries({}, optional={"id": st.integers(), "when": MOMENTS})),
    "model": (Base, BASES),
    "subclass": (Base | Sub, BASES | st.builds(Sub, more=st.integers())),
    "generic model": (
        Box[Pair],
        st.builds(Box[Pair], value=st.builds(Pair, st.integers()), tags=st.sets(TEXT, max_size=3)),
    ),
    "aliases": (Named, st.builds(Named, b=st.integers(), x=st.integers())),
    "recursive model": (Tree, TREES),
    "float or int": (float, NUMBERS),
    "float | None": (float | None, NUMBERS | st.none()),
    "positive float": (Annotated[float, Field(gt=0)], st.integers(1, 9) | st.just(1.5)),
    "floats": (list[float], st.lists(NUMBERS)),
    "list of ints or of floats": (list[int] | list[float], st.lists(NUMBERS)),
    "tuple of floats": (tuple[float, ...], st.lists(NUMBERS).map(tuple)),
    "set of floats": (set[float], st.sets(NUMBERS)),
    "frozenset of floats": (frozenset[float], st.frozensets(NUMBERS)),
    "deque of floats": (collections.deque[float], st.lists(NUMBERS).map(collections.deque)),
    "float keys": (dict[float, float], st.dictionaries(NUMBERS, NUMBERS, max_size=3)),
    "pair keys": (
        dict[tuple[float, int], list[Point]],
        st.dictionaries(st.tuples(NUMBERS, st.integers()), st.lists(POINTS), max_size=2),
    ),
    "Mapping of floats": (Mapping[str, float], st.dictionaries(TEXT, NUMBERS, max_size=3)),
    "defaultdict of floats": (
        collections.defaultdict[str, float],
        st.dictionaries(TEXT, NUMBERS).map(lambda each: collections.defaultdict(float, each)),
    ),
    "dataclass of ints": (Point, POINTS),
    "frozen dataclass of ints": (Span[float], st.builds(Span, NUMBERS, NUMBERS)),
    "NamedTuple of ints": (Place, st.builds(Place, NUMBERS, POINTS)),
    "TypedDict of ints": (
        Rates,
        st.fixed_dictionaries({"low": NUMBERS, "all": st.lists(NUMBERS, max_size=2)}),
    ),
    "model of ints": (Base, NUMBERS.map(lambda each: Base.model_construct(ratio=each))),
    "models of ints": (
        Box[list[Base]],
        st.lists(NUMBERS.map(lambda each: Base.model_construct(ratio=each)), max_size=2).map(
            lambda bases: Box[list[Base]](value=bases)
        ),
    ),
    "tagged union": (Circle | Square, st.builds(Circle, size=st.integers()) | st.builds(Square)),
    "Message": (
        Message,
        st.builds(
            Message, role=st.just("user"), content=TEXT, tool_calls=st.lists(CALLS, max_size=2)
        ),
    ),
}


# Older versions of pydantic cannot serialize these, so they are refused.
WRITTEN_SINCE = {"address": (2, 13), "deque": (2, 14), "deque of floats": (2, 14)}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_taken_comes_back_as_it_was(name: str) -> None:
    """Of the same types at all levels, in the same order; other programs can read the text."""
    if tuple(map(int, VERSION.split(".")[:2])) < WRITTEN_SINCE.get(name, ()):
        pytest.skip(f"pydantic {VERSION} cannot write it")
    annotation, values = KEPT[name]
    codec = Codec(annotation, "the result of Order")

    @settings(max_examples=example_count(15, 500), database=None)
    @given(values)
    def check(value: Any) -> None:
        data = codec.encode(value)
        json.loads(data)
        back = codec.decode(data)
        assert canonical(back) == canonical(value)
        if canonical(value)[1] is False:
            assert back == value
        if annotation not in (Row, Rates):  # these have an order
            assert codec.encode(back) == data

    check()


def test_the_order_of_a_set_is_not_that_of_its_hashes() -> None:
    """Nor in a set within a set: another process writes the same bytes."""
    code = (
        "from anabranch.store._codec import Codec; words = [str(n) for n in range(50)];"
        "print(Codec(set[str], '').encode(set(words)).decode());"
        "print(Codec(set[frozenset[str]], '').encode({frozenset(words[n:n+9]) for n in range(20)}))"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(written) == 1


def test_an_integer_that_an_earlier_version_wrote_for_a_float_is_a_float() -> None:
    """As in the earlier execution: everything after it was done with a float."""
    for annotation, data, value in (
        (float, b"5", 5.0),
        (list[float], b"[1,2.5]", [1.0, 2.5]),
        (Point, b'{"x":1,"y":2.0}', Point(1.0, 2.0)),
    ):
        assert canonical(Codec(annotation, "").decode(data)) == canonical(value)


@tool(effect="keyed")
async def pay(price: float) -> str:
    """Pay."""
    return f"{price}"


class Priced(Durable[list[str]]):
    price: float
    prices: dict[str, float]

    async def task(self) -> list[str]:
        paid = [await self.durable.call(pay, price=self.price)]
        half = await self.durable.step(halved, self.price)
        paid.append(await self.durable.call(pay, price=half))
        paid += [await self.durable.call(pay, price=each) for each in self.prices.values()]
        return [f"{self.price} {half} {self.prices}", *paid]


def halved(price: float) -> float:
    return int(price // 2)


async def test_an_integer_for_a_float_is_the_same_input_after_every_kill() -> None:
    """Also if the run is resumed by its name, so that its job is made of stored inputs."""
    first = await execute_in_loop(Priced(5, {"a": 1, "b": 2.5}))
    assert first.result[0] == "5 2 {'a': 1, 'b': 2.5}"
    for rows in range(len(first.rows)):
        disk = disk_after(first, rows)
        async with journal_of(disk) as journal:
            assert await journal.take_up(RUN_ID) == first.result
        assert len(disk.rows[RUN_ID]) == len(first.rows)


# --- refused values


class Closed(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    file: io.TextIOBase | None = None


class Calling(BaseModel):
    then: Callable[[], int] | None = None


class Secret(BaseModel):
    key: SecretStr | None = None


@pytest.mark.parametrize(
    "annotation",
    [
        Callable[[], int], Callable, IO[str], io.TextIOBase, threading.Lock,
        Backend, Conversation, type[int], type, Iterator[int], Iterable[int], SecretStr,
        Exception, list[Callable[[], int]], dict[str, IO[bytes]], int | io.TextIOBase,
        Point | Callable[[], int], Callable[[], int] | None, Closed, Calling, Secret,
        list[Secret], tuple[int, Backend],
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_kept_is_refused_when_the_codec_is_made(annotation: Any) -> None:
    """The message names the field and the remedy."""
    with pytest.raises(NotStorable, match=r"^the field Order\.it: .*Live\[") as caught:
        Codec(annotation, "the field Order.it")
    assert isinstance(caught.value, TypeError)
    assert "\n" not in str(caught.value)


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int = 0


class Hiding(BaseModel):
    x: int = 0
    _hidden: int = PrivateAttr(default=0)


class Leaving(BaseModel):
    x: int = Field(default=0, exclude=True)


class Halving(BaseModel):
    x: int = 0

    @field_serializer("x")
    def half(self, value: int) -> int:
        return value // 2


class Growing(BaseModel):
    x: int = 0

    @field_validator("x")
    @classmethod
    def grow(cls, value: int) -> int:
        return value + 1


class Failing(BaseModel):
    x: int = 0

    @field_serializer("x")
    def fail(self, value: int) -> int:
        raise RuntimeError("no")


@dataclasses.dataclass
class Deeper(Point):
    z: float = 0.0


class Text(str):
    pass


def hiding() -> Hiding:
    made = Hiding()
    made._hidden = 3
    return made


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "3"), (int, True), (int, 1.0), (int, None), (int, Decimal(1)), (float, "1"),
        (float, True), (bool, 1), (str, 3), (str, b"a"), (str, Word.RED), (str, Text("a")),
        (bytes, "a"), (bytes, bytearray(b"a")), (Literal["a"], "b"), (Colour, ("r", 1)),
        (date, datetime(2020, 1, 1)), (datetime, "2020-01-01T00:00:00"), (UUID, str(UUID(int=1))),
        (list[int], (1,)), (tuple[int, ...], [1]), (list[int], {1}), (list[int], ["1"]),
        (dict[str, int], {1: 2}), (dict[str, int], collections.OrderedDict(a=1)),
        (set[int], frozenset([1])), (set[int], [1]), (Pair, (1, "")), (Base, {"data": b""}),
        (Base, Sub()), (list[Base], [Sub()]), (Box[Base], Box[Base](value=Sub())),
        (Point, Deeper()), (Point, {"x": 0.0, "y": 0.0}), (Box[int], Box(value=3)),
        (Base, Base.model_construct(ratio="x")),
        (Row, {"id": 1, "more": 2}), (Row, {"id": "1"}),
        (Any, (1,)), (Any, {1}), (Any, [(1,)]), (Any, {"a": {2}}), (Any, Point()), (Any, Base()),
        (Any, Pair(1)), (Any, b"a"), (Any, datetime(2020, 1, 1)), (Any, Word.RED),
        (Any, Text("a")), (Any, UUID(int=1)), (Any, Path("a")), (Any, Decimal(1)), (Any, object()),
        (Any, len), (Any, int), (Any, ValueError("a")), (object, (1,)), (T, (1,)),
        (Any, collections.OrderedDict(a=1)), (Any, collections.defaultdict(list)),
        (list, [Point()]), (dict, {"a": Base()}), (dict[str, Any], {"a": Base()}),
        (Hiding, hiding()), (Leaving, Leaving(x=3)), (Halving, Halving(x=3)),
        (Growing, Growing(x=3)), (Failing, Failing()), (Extra, Extra(more=Point())),  # pyright: ignore
        (Any, circle()), (list, circle()), (Any, deep()),
        (Tree, Tree.model_construct(below=[Sub()])),
    ],
)  # fmt: skip
def test_a_value_that_would_come_back_as_another_is_refused(annotation: Any, value: Any) -> None:
    """The message names the field, and no other error occurs."""
    codec = Codec(annotation, "the result of Order")
    with pytest.raises(NotStorable, match=r"^the result of Order: a value of the type "):
        codec.encode(value)


ANYTHING = st.recursive(
    JSON | NUMBERS | MOMENTS | st.binary(max_size=2) | BASES | st.builds(Sub) | st.builds(Point),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | TEXT | st.binary(max_size=1), inner, max_size=2)
        | st.builds(Pair, inner, inner)
        | st.builds(Span, inner, inner)
        | st.builds(Box[Any], value=inner)
    ),
    max_leaves=5,
)


@settings(max_examples=example_count(250, 5000))
@given(st.sampled_from(sorted(KEPT)), ANYTHING)
def test_nothing_is_changed_in_silence(name: str, value: Any) -> None:
    """Each value of any annotation is read back unchanged, or refused."""
    codec = CODECS.setdefault(name, Codec(KEPT[name][0], ""))
    try:
        data = codec.encode(value)
    except NotStorable:
        return
    back = codec.decode(data)
    assert canonical(back) == canonical(value)


CODECS: dict[str, Codec] = {}


# --- names that are defined later, and types that change


class Forward(BaseModel):
    later: Later | None = None  # noqa: F821 - it comes later


def test_a_name_that_is_not_known_yet_is_resolved_at_the_first_value() -> None:
    """In the module of the class with the annotation."""
    text = Codec("list[Later]", "the field Forward.later", Forward)
    nested = Codec(list["Later"], "", Forward)
    model = Codec(Forward, "")
    with pytest.raises(NotStorable, match="name 'Later' is not defined"):
        text.encode([])

    @dataclasses.dataclass
    class Later:
        x: int = 0

    globals()["Later"] = Later
    try:
        for codec in (text, nested):
            assert codec.decode(codec.encode([Later(3)])) == [Later(3)]
            with pytest.raises(NotStorable):
                codec.encode([{"x": 3}])
        made = Forward.model_validate({"later": {"x": 3}})
        assert model.decode(model.encode(made)) == made
    finally:
        del globals()["Later"]


def test_a_late_name_of_what_cannot_be_kept_is_refused_at_the_first_value() -> None:
    """Nothing has been written by then."""
    codec = Codec("Soon", "the field Order.it", Forward)
    globals()["Soon"] = Callable[[], int]
    try:
        with pytest.raises(NotStorable, match=r"^the field Order\.it: .*Live\["):
            codec.encode(len)
    finally:
        del globals()["Soon"]


@pytest.mark.parametrize(
    "data", [b'"a"', b"{}", b"", b"{", b'{"$dict":[[{},1]]}', b'{"$date":"x"}', b"\xff", b"null"]
)
def test_what_no_longer_fits_is_a_mismatch(data: bytes) -> None:
    """The code has changed since the run began, or the file was damaged."""
    with pytest.raises(JournalMismatch, match=r"^the field Order\.it: .* is not a valid"):
        Codec(dict[date, Pair] | int, "the field Order.it").decode(
            data if data != b"{}" else b"[1]"
        )


def classes(names: Sequence[str], defaults: bool) -> list[Any]:
    """Return annotations of classes with these fields."""
    default = 0 if defaults else ...
    model = create_model("Kept", **dict.fromkeys(names, (int, default)))  # type: ignore[call-overload]
    fields: list[Any] = [
        (name, int, dataclasses.field(default=0)) if defaults else (name, int) for name in names
    ]
    data = dataclasses.make_dataclass("Kept", fields)
    rows = TypedDict("Kept", dict.fromkeys(names, int), total=not defaults)  # type: ignore[misc]
    kinds: list[Any] = [model, data, rows]
    nested = [create_model("Around", it=(each, ...)) for each in kinds]
    within = [dict[str, list[each]] | None for each in kinds]
    return [*kinds, *nested, *within, tuple[model, int], model | str]


TAGS = st.sampled_from(["$exact", "$dict", "$int", "$tuple", "$bytes", "$", "a"])


@settings(max_examples=example_count(20, 300))
@given(*[st.sets(st.sampled_from("abcd"), min_size=1)] * 2)
def test_a_class_that_has_lost_a_field_is_refused(before: set[str], now: set[str]) -> None:
    """At any place in the value; a new field has its default."""
    values: list[Any] = [dict.fromkeys(sorted(before), 7)] * 3
    values += [{"it": each} for each in values[:3]] + [{"k": [each]} for each in values[:3]]
    values += [(values[0], 1), values[0]]
    pairs = zip(classes(sorted(before), False), classes(sorted(now), True), values, strict=True)
    for old, new, plain in pairs:
        data = Codec(old, "").encode(TypeAdapter(old).validate_python(plain))
        codec = Codec(new, "the result of Order")
        lost = before - now
        if not lost:
            codec.decode(data)
            continue
        with pytest.raises(JournalMismatch, match=f"the result of Order: .*field '{min(lost)}'"):
            codec.decode(data)
        codec.decode(data, foreign=True)


class Renamed(BaseModel):
    new: int = 0

    @model_validator(mode="before")
    @classmethod
    def rename(cls, value: Any) -> Any:
        return {"new": value["old"]} if "old" in value else value


def test_a_validator_may_read_what_a_class_was_before() -> None:
    """The author of the class has decided what happens to a removed field."""
    for annotation, data in ((Renamed, b'{"old":3}'), (list[Renamed], b'[{"old":3}]')):
        back = Codec(annotation, "").decode(data)
        assert (back if annotation is Renamed else back[0]) == Renamed(new=3)
    assert Codec(Extra, "").decode(b'{"x":1,"more":2}').more == 2


LOST = '{"total":1,"paid":2,"due":3}'
SOUND = '{"total":1,"due":3}'


class Mixed(BaseModel):
    own: Renamed
    others: list[Annotated[Smaller | Renamed, Field(union_mode="left_to_right")]] = []
    pairs: dict[int, tuple[Smaller, Renamed]] = {}


@pytest.mark.parametrize(
    "data",
    [
        '{"own":{"old":3},"others":[%s]}',
        '{"own":{"old":3},"others":[{"old":3},%s,{"old":2}]}',
        '{"own":{"new":3},"pairs":{"$dict":[[1,{"$tuple":[%s,{"old":3}]}]]}}',
    ],
)
def test_a_validator_speaks_for_its_own_class_alone(data: str) -> None:
    """Another class in the value that has lost a field is still refused."""
    codec = Codec(Mixed, "the result of Order")
    assert codec.decode((data % SOUND).encode()).own.new == 3
    with pytest.raises(JournalMismatch, match="field 'paid'"):
        codec.decode((data % LOST).encode())


class Shown(BaseModel):
    total: int

    @model_serializer(mode="wrap")
    def show(self, serializer: Any) -> Any:
        return serializer(self)


def test_a_class_with_a_serializer_of_its_own_is_checked_too() -> None:
    """A serializer around the whole class is not a validator."""
    codec = Codec(Shown, "the result of Order")
    assert codec.decode(codec.encode(Shown(total=1))) == Shown(total=1)
    with pytest.raises(JournalMismatch, match="field 'paid'"):
        codec.decode(LOST.replace(',"due":3', "").encode())


@given(st.recursive(st.none() | st.integers(), lambda inner: st.dictionaries(TAGS, inner)))
def test_keys_that_look_like_tags_are_keys(value: Any) -> None:
    """Any JSON of other programs may have such names."""
    for annotation in (Any, dict[str, Any] | int | None):
        codec = Codec(annotation, "")
        assert codec.decode(codec.encode(value)) == value


class Invoice(BaseModel):
    total: int
    paid: int = 0


class Smaller(BaseModel):
    total: int
    due: int = 100


def bill() -> Invoice:
    return Invoice(total=100, paid=100)


def smaller() -> Smaller:
    return Smaller(total=100)


smaller.__name__ = smaller.__qualname__ = "bill"
BILL: list[Callable[[], Any]] = [bill]


class Bills(Durable[int]):
    by_tool: bool

    async def task(self) -> int:
        if not self.by_tool:
            return (await self.durable.step(BILL[0], key="bill")).total
        return (await self.durable.call(tool(effect="keyed", name="bill")(BILL[0]))).total


@pytest.mark.parametrize(("by_tool", "rows"), [(False, 1), (True, 2), (True, 3)])
async def test_a_run_whose_result_has_lost_a_field_is_parked(
    by_tool: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one whose inputs have: the value is neither dropped nor invented.

    With the earlier class, the run continues.
    """
    first = await execute_in_loop(Bills(by_tool))
    disk = disk_after(first, rows)
    monkeypatch.setitem(globals(), "BILL", [smaller])
    with pytest.raises(JournalMismatch, match="field 'paid'"):
        await execute_in_loop(Bills(by_tool), disk)
    assert disk.runs[RUN_ID].state == "parked"
    assert len(disk.rows[RUN_ID]) == rows
    monkeypatch.undo()
    async with journal_of(disk) as journal:
        await journal.resume(RUN_ID)
        assert await journal.take_up(RUN_ID) == 100


def test_numbers_that_are_not_finite_are_plain_json() -> None:
    """`NaN` is not JSON, and other readers refuse it."""
    data = Codec(Any, "").encode([math.nan, math.inf, -math.inf])
    assert json.loads(data) == [{"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}]


def test_a_builtin_function_may_own_an_annotation() -> None:
    """Such a function lacks names for annotations."""
    assert Codec("int", "x", len).encode(3) == b"3"
