"""The real engine in an actor of a Ray cluster: the same suite, and the actor's end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.conformance import HELLO, Subject, cases, show
from support.leaks import child_processes, has_exited
from support.paths import TESTS
from support.vllm import (
    ARGUMENTS,
    LONG_REPLY,
    MODEL,
    ControlledBackend,
    close_engine,
    control,
    drop_last,
    measure_half_reply,
)

from anabranch import WorkerLost, connect
from anabranch.backends import Backend, Timeouts
from anabranch.cluster import Engine, RayBackend, serve
from anabranch.commander import ModelNotFound


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of one node on this machine."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = str(TESTS)  # where the actor finds `support.vllm`
    asyncio.run(close_engine())  # there is no room for two
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def served(cluster: None) -> Iterator[Engine]:
    """The small model, loaded in an actor."""
    engine = asyncio.run(_served())
    yield engine
    asyncio.run(engine.close())


async def _served() -> Engine:
    return await serve("llm", partial(ControlledBackend, MODEL, engine=ARGUMENTS, temperature=0.0))


async def ask(order: str) -> int:
    """Let the actor report about itself."""
    message = await connect("ray:llm", **control(order)).complete(HELLO)
    return int(message.content or "")


class RaySubject(Subject):
    """The model in its actor. Its text is free, so replies cannot be scripted."""

    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "text": {},
        "one call": {},
        "too long": control("long"),
        "drop": {**control("drop"), **LONG_REPLY},
    }

    async def backend(self, case: str, **settings: Any) -> Backend:
        if case == "whole timeout":
            settings["timeouts"] = Timeouts(
                whole=await measure_half_reply(connect("ray:llm", **LONG_REPLY))
            )
        backend = connect("ray:llm", **self.settings.get(case, LONG_REPLY), **settings)
        self.stack.push_async_callback(backend.aclose)
        return backend

    async def left(self) -> None:
        assert await ask("count") == 0


@pytest.mark.parametrize(("kind", "case"), drop_last(cases("vllm on ray")))
@pytest.mark.usefixtures("served")
async def test_vllm_on_ray_shows(kind: str, case: str, tmp_path: Path) -> None:
    """It passes each case, or declares why it cannot."""
    await show(RaySubject(tmp_path), case, seconds=120)


@pytest.mark.usefixtures("served")
async def test_an_engine_that_died_in_its_actor_is_started_anew() -> None:
    """By the next request, as in this process. Runs after the case that kills it."""
    async with asyncio.timeout(300):
        assert (await connect("ray:llm").complete(HELLO)).content


@pytest.mark.usefixtures("served")
async def test_an_actor_that_is_killed_takes_the_engine_along() -> None:
    """Its text has arrived; no process of vLLM remains, and its memory is free."""
    pid = await ask("pid")
    below = child_processes(pid)
    assert below
    said = 0
    with pytest.raises(WorkerLost, match="went away"):
        async with aclosing(connect("ray:llm", **LONG_REPLY).stream(HELLO)) as deltas:
            async for _ in deltas:
                said += 1
                os.kill(pid, signal.SIGKILL)
    assert said
    assert all(map(has_exited, {pid, *below}))


@pytest.mark.usefixtures("cluster")
async def test_a_model_that_is_not_there_is_refused_when_it_is_served() -> None:
    """With the error that this process would raise, and the name stays free."""
    for _ in range(2):
        with pytest.raises(ModelNotFound, match="nobody/no-such-model"):
            await serve("other", "vllm:nobody/no-such-model", engine=ARGUMENTS)


def test_the_backend_is_one_of_ray() -> None:
    """Otherwise the suite above would have tested another one."""
    assert isinstance(connect("ray:llm"), RayBackend)
