"""The conformance suite of all backends, on the real vLLM engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from _conformance import CASES, Subject
from _vllm import kill, vllm

from anabranch.backends import Backend
from anabranch.backends._vllm_engine import Engine

_LONG = {"ignore_eos": True}  # a reply that lasts long enough to be broken off
_NO_SERVER = "the engine is in this process: there is no server to say so"


class VLLMSubject(Subject):
    """The small model on vLLM. It says what it likes, so replies cannot be dictated."""

    exceptions: ClassVar = {
        "several calls": "what the calls hold is the model's choice",
        "interleaved calls": "a model writes its calls one after the other",
        "connect timeout": "nothing is connected",
        "retries": _NO_SERVER,
        "nobody there": _NO_SERVER,
        "wrong key": _NO_SERVER,
        "rate limit": _NO_SERVER,
        "bad response": _NO_SERVER,
    }
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
        backend = vllm(**self.settings.get(case, _LONG), **settings)
        self.stack.push_async_callback(backend.aclose)
        if case == "drop":
            self.stack.enter_context(_Killer(self.engine))
        return backend

    async def left(self) -> None:
        assert self.engine._model is not None
        assert self.engine._model.llm.get_num_unfinished_requests() == 0


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


@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: case == "drop"))  # which is last
async def test_vllm_shows(case: str, engine: Engine, tmp_path: Path) -> None:
    """Each case, or declares why it cannot."""
    if case in VLLMSubject.exceptions:
        pytest.skip(f"declared: vllm: {case}: {VLLMSubject.exceptions[case]}")
    subject = VLLMSubject(tmp_path, engine)
    async with asyncio.timeout(120), subject.stack:
        await CASES[case](subject)


def test_what_is_declared_is_a_case() -> None:
    """Or the table would hide a wrong name."""
    assert set(VLLMSubject.exceptions) <= set(CASES)
