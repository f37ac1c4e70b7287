"""The vLLM engine that the tests in `vllm_engine` share: loading it takes a minute on two cores."""

from __future__ import annotations

import os
from typing import Any

from anabranch.backends._vllm import VLLMBackend
from anabranch.backends._vllm_engine import Engine

__all__ = ["MODEL", "close_engine", "keep_engine", "kill", "processes", "vllm"]

MODEL = os.environ.get("ANABRANCH_VLLM_MODEL", "")
_ARGUMENTS = {
    "max_model_len": 1024,
    "enforce_eager": True,
    "dtype": "float32",
    "disable_log_stats": False,  # the tests read what the engine says of itself
}
_kept: Engine | None = None


def vllm(**settings: Any) -> VLLMBackend:
    """Make a backend with the shared engine."""
    settings = {"model": MODEL, "engine": _ARGUMENTS, "temperature": 0.0, **settings}
    return VLLMBackend(**settings)


async def keep_engine() -> Engine:
    """Return the shared engine, loaded; it is kept from closing with the test, unless it died."""
    global _kept
    if _kept is None or _kept.dead:
        _kept = Engine.open(vllm()._arguments)
    await _kept.loaded()
    return _kept


async def close_engine() -> None:
    """Give the shared engine back; another is made when it is asked for."""
    global _kept
    engine, _kept = _kept, None
    if engine is not None:
        await engine.close()


def processes(llm: Any) -> Any:
    """Return the engine's processes."""
    return llm.engine_core.resources.engine_manager.processes


def kill(llm: Any) -> None:
    """Kill the engine's processes; harmless once they are gone."""
    for process in processes(llm):
        process.kill()
