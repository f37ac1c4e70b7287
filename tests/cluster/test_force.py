"""A cancelled job that does not end is killed after its grace period."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import pytest
from support.leaks import has_exited
from support.ray_jobs import Block, Double, Stand, read_notes

from anabranch import Commander, NodeCancelled
from anabranch.cluster import Ray

pytestmark = pytest.mark.usefixtures("nodes")

RIGHT = Ray(num_cpus=0, resources={"right": 1}, grace=0.5)
WHOLE = Ray(num_cpus=0, resources={"right": 100}, grace=0.5)


@pytest.mark.parametrize("how", ["sleep", "loop", "thread", "stubborn"])
async def test_a_body_that_does_not_listen_ends_at_its_timeout(
    how: str, file: str, noted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process ends, and its resources are free."""
    async with Commander() as commander:
        job = commander.put_job(Block(file, how), on=WHOLE, claim=True)
        pid = int((await noted("standing")).split()[1])
        late = commander.put_job(Block(file, how), on=RIGHT, timeout=0.1, claim=True)
        with caplog.at_level(logging.WARNING, "anabranch.cluster"):
            job.cancel("enough")
            with pytest.raises(NodeCancelled, match="enough"):
                await job
        assert await asyncio.to_thread(has_exited, pid)
        with pytest.raises(TimeoutError, match="was not done within"):
            await late
        assert await commander.run(Double(1), on=WHOLE) == 2
    assert f"{job.path} has not ended 0.5 s after its cancel" in caplog.text


async def test_a_worker_that_ray_cannot_end_is_given_up(
    file: str, noted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its body holds Python's global lock, and its node ends without it."""
    async with Commander() as commander:
        job = commander.put_job(Block(file, "match"), on=RIGHT, claim=True)
        pid = int((await noted("standing")).split()[1])
        job.cancel()
        try:
            with pytest.raises(NodeCancelled):
                await job
        finally:
            os.kill(pid, signal.SIGKILL)
    assert f"{job.path}: Ray cannot kill its worker" in caplog.text


async def test_what_cleans_up_within_its_grace_is_left_to_do_so(file: str, noted: Any) -> None:
    """However short its timeout was."""
    place = Ray(num_cpus=0, resources={"right": 1}, grace=60)
    async with Commander() as commander:
        job = commander.put_job(Stand(file), on=place, claim=True)
        await noted("standing")
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
        assert read_notes(file).endswith("cleaned\n")


async def test_what_a_job_has_sent_on_does_not_outlive_it(file: str, noted: Any) -> None:
    """A job below it that ignores the cancel ends too."""
    async with Commander() as commander:
        job = commander.put_job(Block(file, "below"), on=RIGHT, claim=True)
        pid = int((await noted("standing")).split()[1])
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
        assert await asyncio.to_thread(has_exited, pid)
