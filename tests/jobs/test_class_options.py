"""Options of a job class: attributes, class keywords, and refused ones."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.commander import Commander, Retry, run
from anabranch.commander.durable import put_options_of
from anabranch.commander.remote import SubtreeCommander
from anabranch.jobs import Job
from anabranch.store import Durable

WAYS = st.sampled_from(["none", "attribute", "keyword", "field", "method"])
RETRIES = (None, Retry(attempts=2), Retry(attempts=5))
TIMEOUTS = (None, 1.5, 20)
VALUES = st.tuples(st.sampled_from(RETRIES), st.sampled_from(TIMEOUTS))


@given(chain=st.lists(st.tuples(WAYS, WAYS, VALUES), max_size=4), put=VALUES)
def test_a_job_has_the_options_of_its_put_else_those_of_the_nearest_class(
    chain: list[Any], put: Any
) -> None:
    """Attributes and keywords are equivalent. Fields and methods are never options."""
    kind: Any = Job
    expected: dict[str, Any] = {"retry": None, "timeout": None}
    for *ways, values in chain:
        body: dict[str, Any] = {"__annotations__": {}, "__module__": __name__}
        keywords: dict[str, Any] = {}
        for name, way, value in zip(expected, ways, values, strict=True):
            match way:
                case "attribute":
                    body[name] = expected[name] = value
                case "keyword":
                    keywords[name] = expected[name] = value
                case "field":
                    body[name] = "mine"
                    body["__annotations__"][name] = str
                case "method":
                    body[name] = lambda self: None
                case _:
                    pass
        kind = type(kind)("Drawn", (kind,), body, **keywords)
    job = kind()
    given_options = dict(zip(expected, put, strict=True))
    expected |= {name: value for name, value in given_options.items() if value is not None}

    async def main() -> None:
        async with Commander(slow_after=None) as commander:
            commander.put_job(job, **given_options).cancel()
            assert (put_options_of(job).retry, put_options_of(job).timeout) == (*expected.values(),)

    asyncio.run(main())


def test_a_class_s_options_hold_wherever_its_jobs_start() -> None:
    """Run, put, awaited, and retried in a durable run."""
    tries: list[str] = []

    class Flaky(Job[str], retry=Retry(attempts=3)):
        async def task(self) -> str:
            tries.append("try")
            if len(tries) % 3:
                raise ValueError
            return "made it"

    class Asks(Job[str]):
        async def task(self) -> str:
            return await self.put_job(Flaky()) + await Flaky()

    class Kept(Durable[str]):
        retry = Retry(attempts=3)

        async def task(self) -> str:
            return await Flaky.task(self)  # type: ignore[arg-type]

    assert run(Flaky()) == "made it"
    assert run(Asks()) == "made it" * 2
    assert run(Kept(), journal=":memory:", run_id="kept") == "made it"
    assert len(tries) == 12


def test_a_class_s_timeout_ends_its_jobs() -> None:
    """As that of a put does."""

    class Hangs(Job[None]):
        timeout: ClassVar[float] = 0.01

        async def task(self) -> None:
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(Hangs())


@pytest.mark.parametrize(
    ("base", "keyword", "says"),
    [
        (Job, "retires", "did you mean retry="),
        (Durable, "timout", "did you mean timeout="),
        (Durable, "versoin", "did you mean version="),
        (Job, "version", "it takes name, on, policy, retry, timeout"),
        (Commander, "polcy", "did you mean policy="),
    ],
)
def test_an_unknown_class_keyword_is_refused_with_the_nearest_name(
    base: Any, keyword: str, says: str
) -> None:
    """When the class is made, not when a job is put."""
    with pytest.raises(TypeError, match=rf"Mine has no class keyword '{keyword}': {says}"):
        type(base)("Mine", (base,), {}, **{keyword: 1})


def test_a_keyword_of_another_base_is_left_to_that() -> None:
    """Before or after `Job` in the bases."""
    colors: list[str] = []

    class Colored:
        def __init_subclass__(cls, *, color: str = "", **kwargs: Any) -> None:
            colors.append(color)
            super().__init_subclass__(**kwargs)

    class After(Job[None], Colored, color="red"):
        pass

    class Before(Colored, Job[None], color="blue"):
        pass

    assert colors == ["red", "blue"]
    with pytest.raises(TypeError, match=r"Wrong has no class keyword 'colour': did you mean color"):

        class Wrong(Colored, Job[None], colour="red"):
            pass


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("retry", 3, "Wrong: retry must be a Retry, a Restart or None, not 3"),
        ("timeout", "10", "Wrong: timeout must be a number of seconds or None, not '10'"),
        ("timeout", float("nan"), "timeout must be a number"),
    ],
)
def test_a_value_that_is_no_option_is_refused(name: str, value: object, says: str) -> None:
    """As an attribute and as a keyword."""
    with pytest.raises(TypeError, match=says):
        type(Job)("Wrong", (Job,), {name: value})
    with pytest.raises(TypeError, match=says):
        type(Job)("Wrong", (Job,), {}, **{name: value})


async def test_elsewhere_a_job_makes_one_attempt() -> None:
    """The process that put it counts attempts and time."""
    tries: list[int] = []

    class Fails(Job[None], retry=Retry(attempts=3), timeout=10):
        async def task(self) -> None:
            tries.append(1)
            raise ValueError

    job = Fails()
    async with SubtreeCommander("Commander", slow_after=None) as commander:
        commander.put_numbered(job, number=7, below=1000, policy="fail_fast")
    assert (tries, job.state) == ([1], "failed")
