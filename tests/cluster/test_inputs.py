"""Large inputs are sent once for all their jobs, and Ray's own objects are sent by Ray."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from support.ray_agents import Bob
from support.ray_jobs import Give, Measure, Resolve

from anabranch import Commander
from anabranch.cluster import Ray, remote

pytestmark = pytest.mark.usefixtures("nodes")

PLACES = [Ray(num_cpus=0, resources={name: 1}) for name in ("left", "right")]

MAKERS: list[Callable[[random.Random], Any]] = [
    lambda chance: chance.randbytes(2_000_000),
    lambda chance: "ä" * 1_500_000 + str(chance.random()),
    lambda chance: bytearray(chance.randbytes(2_000_000)),
    lambda chance: [chance.random() for _ in range(200_000)],
    lambda chance: {"nested": [chance.randbytes(700_000), chance.randbytes(700_000)]},
]


def check(value: Any) -> int:
    """Return what `Measure` says of a value."""
    return zlib.crc32(repr(value).encode())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the values that are put into Ray's store."""
    import ray

    found: list[Any] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: found.append(value) or put(value))
    return found


@pytest.mark.parametrize("seed", range(len(MAKERS)))
async def test_equal_large_inputs_are_sent_once(seed: int, sent: list[Any]) -> None:
    """Each job gets a complete, separate copy."""
    make = MAKERS[seed]
    values = [make(random.Random(seed)), make(random.Random(seed)), make(random.Random(-1 - seed))]
    async with Commander() as commander:
        jobs = [
            commander.put_job(Measure(value, number), on=PLACES[number % 2], claim=True)
            for number, value in enumerate(values * 3)
        ]
        for job in jobs:
            assert await job == (check(job.value), job.number)
    assert len(sent) == 2


async def test_a_large_input_is_as_it_was_when_the_job_was_put(sent: list[Any]) -> None:
    """Later changes here have no effect."""
    value = [float(number) for number in range(200_000)]
    async with Commander() as commander:
        jobs: list[Any] = []
        for number in range(2):
            value[0] = -1.0 - number
            jobs.append(commander.put_job(Measure(value, number), on=PLACES[0], claim=True))
        expected = check([-1.0, *value[1:]]), check(value)
        assert tuple([(await job)[0] for job in jobs]) == expected
    assert len(sent) == 2


async def test_what_is_rays_own_is_sent_in_a_field() -> None:
    """References and handles, at any depth, reach the job unchanged."""
    import ray

    async with remote(Bob, "bob") as bob, Commander() as commander:
        _, actor = await bob.locate()
        reference = ray.put("what it refers to")
        value = {"reference": [reference, reference], "large": b"x" * 2_000_000, "actor": actor}
        for place in PLACES:
            said, host = await commander.run(Resolve(value), on=place)
            assert said == ["what it refers to"] * 2
            assert host == bob.host


async def test_what_is_rays_own_is_refused_where_ray_does_not_send_it() -> None:
    """Otherwise the receiver would wait forever."""
    import ray

    reference = ray.put(1)
    with pytest.raises(TypeError, match=r"'introduces' of Bob .* ObjectRef of Ray's"):
        remote(Bob, "bob", introduces=reference)
    async with Commander() as commander, asyncio.timeout(60):
        with pytest.raises(TypeError, match=r"that cannot be sent back: .* ObjectRef of Ray's"):
            await commander.run(Give("reference"), on=PLACES[0])
