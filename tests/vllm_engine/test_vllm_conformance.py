"""The conformance suite of all backends, on the real vLLM engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from _conformance import HELLO, Subject, cases, show
from _vllm import kill, vllm

from anabranch.backends import Backend, Timeouts
from anabranch.backends._vllm_engine import Engine

_LONG = {"ignore_eos": True}  # a reply that lasts long enough to be broken off


class VLLMSubject(Subject):
    """The small model on vLLM. It says what it likes, so replies cannot be dictated."""

    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "text": {},
        "one call": {},
        "unknown model": {"model": "nobody/no-such-model"},
        "too long": {"chat_template": "{{ 'many words ' * 2000 }}"},
    }

    def __init__(self, folder: Path, engine: Engine) -> None:
        super().__init__(folder)
        self.engine = engine

    async def backend(self, case: str, **settings: Any) -> Backend:
        if case == "whole timeout":
            settings["timeouts"] = Timeouts(whole=await _half_way())
        backend = vllm(**self.settings.get(case, _LONG), **settings)
        self.stack.push_async_callback(backend.aclose)
        if case == "drop":
            self.stack.enter_context(_Killer(self.engine))
        return backend

    async def left(self) -> None:
        assert self.engine._model is not None
        assert self.engine._model.llm.get_num_unfinished_requests() == 0


async def _half_way() -> float:
    """Return how many seconds a reply takes to its middle; it depends on the machine."""
    clock = asyncio.get_running_loop().time
    async with vllm(**_LONG) as backend:
        start = clock()
        times = [clock() - start async for _ in backend.stream(HELLO)]
    return (times[0] + times[-1]) / 2


class _Killer:
    """Kills the engine's processes as soon as it has made a token."""

    def __init__(self, engine: Engine) -> None:
        assert engine._model is not None
        self._llm = engine._model.llm

    def __enter__(self) -> None:
        self._before = self._llm._logger_ref[0]
        self._llm._logger_ref[0] = self

    def __exit__(self, *_: object) -> None:
        self._llm._logger_ref[0] = self._before

    def record(self, *, iteration_stats: Any, **_: Any) -> None:
        if iteration_stats is not None and iteration_stats.num_generation_tokens:
            kill(self._llm)


_IN_ORDER = sorted(cases("vllm"), key=lambda each: "drop" in each.values)  # which is last


@pytest.mark.parametrize(("kind", "case"), _IN_ORDER)
async def test_vllm_shows(kind: str, case: str, engine: Engine, tmp_path: Path) -> None:
    """Each case, or declares why it cannot."""
    await show(VLLMSubject(tmp_path, engine), case, seconds=120)
