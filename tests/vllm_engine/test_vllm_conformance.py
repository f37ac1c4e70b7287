"""The conformance suite of all backends, on the real vLLM engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.conformance import Subject, cases, show
from support.vllm import (
    LONG_REPLY,
    Killer,
    drop_last,
    measure_half_reply,
    running,
    unfinished,
    vllm,
)

from anabranch.backends import Backend, Timeouts
from anabranch.backends._vllm_engine import VLLMEngine


class VLLMSubject(Subject):
    """The small model on vLLM. Its text is free, so replies cannot be scripted."""

    settings: ClassVar[dict[str, dict[str, Any]]] = {
        "text": {},
        "one call": {},
        "unknown model": {"model": "nobody/no-such-model"},
        "too long": {"chat_template": "{{ 'many words ' * 2000 }}"},
    }

    def __init__(self, folder: Path, engine: VLLMEngine) -> None:
        super().__init__(folder)
        self.engine = engine

    async def backend(self, case: str, **settings: Any) -> Backend:
        if case == "whole timeout":
            settings["timeouts"] = Timeouts(whole=await measure_half_reply(vllm(**LONG_REPLY)))
        backend = vllm(**self.settings.get(case, LONG_REPLY), **settings)
        self.stack.push_async_callback(backend.aclose)
        if case == "drop":
            self.stack.enter_context(Killer(running(self.engine)))
        return backend

    async def left(self) -> None:
        assert unfinished(running(self.engine)) == 0


@pytest.mark.parametrize(("kind", "case"), drop_last(cases("vllm")))
async def test_vllm_shows(kind: str, case: str, engine: VLLMEngine, tmp_path: Path) -> None:
    """It passes each case, or declares why it cannot."""
    await show(VLLMSubject(tmp_path, engine), case, seconds=120)
