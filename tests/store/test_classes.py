"""Which classes can be durable; others are refused when the class is created."""

import dataclasses
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from anabranch import run
from anabranch.store import Durable, Live, NotStorable, live

pytestmark = pytest.mark.contract("D15")

T = TypeVar("T")


class Listed(Durable[list[T]], Generic[T]):
    value: int = 0

    async def task(self) -> list[T]:
        return VALUES[self.value]


class Numbers(Listed[int]): ...


class Below(Numbers):
    more: int = 0


class Pair(Durable[T], Generic[T]):
    async def task(self) -> T:
        return VALUES[2]


class Both(Pair[tuple[int, str]]): ...


VALUES: list[Any] = [[1, 2], ["a"], (1, "a")]


def made(annotation: Any, **namespace: Any) -> Any:
    """Create a class with one field, `x`."""

    async def task(self: Any) -> Any:
        return self.x

    names = {"__annotations__": {"x": annotation}, "__module__": __name__, "task": task}
    return type("Made", (Durable,), names | namespace)


@pytest.mark.parametrize(
    "annotation",
    [
        Live[str] | None,
        list[Live[str]],
        dict[str, tuple[int, Live[Any]]],
        "Live[str] | None",
    ],
    ids=str,
)
def test_a_field_that_is_partly_live(annotation: Any) -> None:
    """The whole field must be Live, or a part such as an API key would be stored."""
    with pytest.raises(NotStorable, match=r"Made\.x is only partly Live: write Live\[\.\.\.\]"):
        made(annotation, x=live())


@pytest.mark.parametrize(
    ("annotation", "default"),
    [(int, dataclasses.field(init=False, default=3)), (dataclasses.InitVar[int], 3)],
    ids=["init=False", "InitVar"],
)
def test_a_field_that_is_no_argument(annotation: Any, default: Any) -> None:
    """A run could not be resumed with it."""
    with pytest.raises(NotStorable, match=r"Made\.x has init=False"):
        made(annotation, x=default)


@pytest.mark.parametrize("annotation", ["", "int |", "1 +", "int[str]"])
def test_an_annotation_that_is_none(annotation: str) -> None:
    """The error names the class, whatever Python says about the annotation."""
    with pytest.raises(NotStorable, match="Made"):
        made(annotation)


def test_a_type_that_is_never_defined() -> None:
    """It may still be defined while the class is created, but not when a job starts."""
    kind = made("Nowhere")
    with pytest.raises(NotStorable, match=r"'Nowhere' is not defined.*Define that type in the mod"):
        run(kind(1), journal=":memory:", run_id="r")


@pytest.mark.parametrize("version", ["2", None, -1, 2**70, True, 1.5])
def test_a_version_is_a_number(version: Any) -> None:
    """A version that is read back as another value would park each of its runs."""
    with pytest.raises(TypeError, match="version= of Versioned must be an integer from 0 on"):

        class Versioned(Durable[str], version=version):  # pyright: ignore[reportUnusedClass]
            async def task(self) -> str:
                return ""


def test_a_job_that_is_another_each_time_it_is_made() -> None:
    """Its inputs would change in each execution."""

    class Counts(Durable[int]):
        number: int

        def __post_init__(self) -> None:
            self.number += 1

        async def task(self) -> int:
            return self.number

    with pytest.raises(NotStorable, match="change when it is created from them again"):
        run(Counts(1), journal=":memory:", run_id="r")


@pytest.mark.parametrize(
    ("job", "result"),
    [
        (Numbers(0), [1, 2]),
        (Numbers(1), NotStorable),
        (Below(0, 5), [1, 2]),
        (Both(), (1, "a")),
        (Listed(1), ["a"]),
        (Pair(), NotStorable),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_result_of_a_generic_class(job: Durable[Any], result: Any) -> None:
    """It is the annotation of the class, through all classes between; else plain JSON."""
    if result is not NotStorable:
        assert run(job, journal=":memory:", run_id="r") == result
        return
    with pytest.raises(NotStorable):
        run(job, journal=":memory:", run_id="r")


def test_a_value_that_does_not_fit_is_not_in_the_error() -> None:
    """It may be a key, and the error is recorded."""

    class Wrong(Durable[int]):
        async def task(self) -> Any:
            return {"key": "sk-0123456789abcdef"}

    with pytest.raises(NotStorable, match="Expected `int`") as error:
        run(Wrong(), journal=":memory:", run_id="r")
    assert "sk-" not in str(error.value)


def test_what_is_no_input_is_left_alone() -> None:
    """Class variables, attributes without an annotation, and fields with a factory."""

    class Mixed(Durable[str]):
        shared: ClassVar[object] = object()
        plain = 5
        items: list[int] = dataclasses.field(default_factory=list[int])
        _: dataclasses.KW_ONLY
        last: int = 2

        async def task(self) -> str:
            return f"{self.plain} {self.items} {self.last}"

    assert run(Mixed([1], last=3), journal=":memory:", run_id="r") == "5 [1] 3"


def test_a_field_that_would_hide_self_durable() -> None:
    """Durable calls would be impossible: it is refused when the class is created."""
    with pytest.raises(NotStorable, match=r"Hiding\.durable would hide self\.durable"):

        class Hiding(Durable[None]):
            durable: str = ""  # type: ignore[assignment]
