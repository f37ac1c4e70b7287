"""The vLLM engine that the tests in `vllm_engine` share, since it takes a minute to load."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from typing import Any

from anabranch.backends import Backend
from anabranch.backends._vllm import VLLMBackend
from anabranch.backends._vllm_engine import VLLMEngine
from anabranch.messages import Delta, Message, Request
from support.conformance import HELLO

__all__ = [
    "ARGUMENTS",
    "LONG_REPLY",
    "MODEL",
    "ControlledBackend",
    "Killer",
    "close_engine",
    "control",
    "drop_last",
    "engine_processes",
    "keep_engine",
    "kill",
    "measure_half_reply",
    "running",
    "unfinished",
    "vllm",
]

MODEL = os.environ.get("ANABRANCH_VLLM_MODEL", "")
ARGUMENTS = {
    "max_model_len": 1024,
    "enforce_eager": True,
    "dtype": "float32",
    "gpu_memory_utilization": 0.5,  # the share of the machine's memory that must be free
    "disable_log_stats": False,  # the tests read the engine's statistics
}
LONG_REPLY = {"ignore_eos": True}  # long enough that a test can interrupt the reply

_kept: VLLMEngine | None = None


def vllm(**settings: Any) -> VLLMBackend:
    """Make a backend with the shared engine."""
    settings = {"model": MODEL, "engine": ARGUMENTS, "temperature": 0.0, **settings}
    return VLLMBackend(**settings)


async def keep_engine() -> VLLMEngine:
    """Return the shared engine, loaded. It stays open after a test; a dead one is replaced."""
    global _kept
    if _kept is None or _kept.dead:
        _kept = VLLMEngine.open(vllm()._arguments)
    await _kept.loaded()
    return _kept


async def close_engine() -> None:
    """Close the shared engine; the next `keep_engine` makes a new one."""
    global _kept
    engine, _kept = _kept, None
    if engine is not None:
        await engine.close()


def running(engine: VLLMEngine) -> Any:
    """Return the AsyncLLM of an engine that is loaded."""
    assert engine.model is not None
    return engine.model.llm


def unfinished(llm: Any) -> int:
    """Return the number of unfinished requests; vLLM 0.27 offers no public call for it."""
    return llm.output_processor.get_num_unfinished_requests()


def engine_processes(llm: Any) -> Any:
    """Return the engine's processes."""
    return llm.engine_core.resources.engine_manager.processes


def kill(llm: Any) -> None:
    """Kill the engine's processes; does nothing after they have exited."""
    for process in engine_processes(llm):
        process.kill()


class Killer:
    """Kills the engine's processes as soon as it has made a token."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def __enter__(self) -> None:
        self._before = self._llm._logger_ref[0]
        self._llm._logger_ref[0] = self

    def __exit__(self, *_: object) -> None:
        self._llm._logger_ref[0] = self._before

    def record(self, *, iteration_stats: Any, **_: Any) -> None:
        """Receive the statistics of one engine step; vLLM calls this."""
        if iteration_stats is not None and iteration_stats.num_generation_tokens:
            kill(self._llm)


async def measure_half_reply(backend: Backend) -> float:
    """Return the seconds until the middle of a reply on this machine."""
    clock = asyncio.get_running_loop().time
    async with backend:
        start = clock()
        times = [clock() - start async for _ in backend.stream(HELLO)]
    return (times[0] + times[-1]) / 2


def drop_last(cases: list[Any]) -> list[Any]:
    """Return the conformance cases, with the one that kills the engine last."""
    return sorted(cases, key=lambda each: "drop" in each.values)


def control(order: str) -> dict[str, Any]:
    """Return settings of `connect` that pass `order` to a `ControlledBackend`."""
    return {"extra": {"order": order}}


class ControlledBackend(VLLMBackend):
    """The small model in a Ray actor, with orders for actions that a test cannot reach there.

    "count" replies with the number of unfinished requests, "pid" with the process id. "drop" kills
    the engine in the middle of the reply. "long" replaces the question by one that is too long.
    """

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        options = {**request.options}
        order = options.pop("extra", {}).get("order")
        messages = [_TOO_LONG] if order == "long" else request.messages
        llm = running(self._running())
        if order in {"count", "pid"}:
            told = os.getpid() if order == "pid" else unfinished(llm)
            yield Delta(str(told), finish_reason="stop")
            return
        with Killer(llm) if order == "drop" else nullcontext():
            asked = Request(messages, request.tools, options)
            async with aclosing(super().attempt(asked)) as deltas:
                async for delta in deltas:
                    yield delta


_TOO_LONG = Message(role="user", content="many words " * 2000)
