"""The suite of the real vLLM engine. `run.sh` passes a model; otherwise it reports "not run"."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.optional_suites import report_skipped, skip_suite
from support.vllm import MODEL, close_engine, keep_engine

from anabranch.backends._vllm_engine import VLLMEngine


@pytest.fixture
async def engine() -> VLLMEngine:
    """The shared engine, loaded."""
    async with asyncio.timeout(600):
        return await keep_engine()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not MODEL:
        skip_suite(items, Path(__file__).parent, "vLLM")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_skipped(terminalreporter, "vLLM", "of the real engine did not run: make test-vllm")


def pytest_sessionfinish() -> None:
    asyncio.run(close_engine())
