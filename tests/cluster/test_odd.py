"""A remote job's outcome arrives, whatever the code of its result or failure does."""

from __future__ import annotations

import asyncio
import random

import pytest
from support.ray_broken_objects import Frozen, Odd, Owing
from support.seeds import SEED

from anabranch import Commander
from anabranch.cluster import Ray, remote
from anabranch.cluster._payload import dump, dump_error, load, load_error
from anabranch.commander.remote import type_name


class Kept(Frozen, ValueError):
    """A frozen exception."""


@pytest.mark.usefixtures("nodes")
async def test_a_failure_arrives_whatever_its_own_code_does() -> None:
    """Unchanged, or as a `RuntimeError` with its name; later jobs run."""
    chance = random.Random(SEED)
    async with Commander() as commander:
        for seed in chance.sample(range(1_000_000), 100):
            job = commander.put_job(Odd(seed), on=Ray(num_cpus=0), policy="isolate")
            (error,) = await asyncio.gather(job, return_exceptions=True)
            assert isinstance(error, BaseException)
            stands_in = type_name(error) == "RuntimeError" and "Odd" in error.args[0]
            assert stands_in or type_name(error) == "Odd", f"seed {seed}: {type_name(error)}"
            assert job.state == "failed", f"seed {seed}"


@pytest.mark.usefixtures("nodes")
async def test_a_charge_that_cannot_be_sent_fails_its_job() -> None:
    """It fails at once, without waiting for a report that never comes."""
    async with Commander() as commander:
        with pytest.raises(TypeError, match="cannot pickle"):
            await commander.run(Owing(), on=Ray(num_cpus=0))


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_an_agent_that_would_end_what_makes_it_fails(kind: type[BaseException]) -> None:
    """It is a failure here, not a cancel; the agent's name is free again."""

    def leave(name: str) -> None:
        raise kind(name)

    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: bob"):
            await remote(leave, "bob")


def test_a_frozen_failure_is_sent_with_its_cause() -> None:
    """Like others, with a note of its place."""
    error = Kept("whole")
    object.__setattr__(error, "__cause__", KeyError("cause"))
    arrived = load_error(load(dump(dump_error(error, "there"))))
    assert type(arrived) is Kept
    assert arrived.args == ("whole",)
    assert repr(arrived.__cause__) == "KeyError('cause')"
    assert arrived.__notes__[0].startswith("there:")
