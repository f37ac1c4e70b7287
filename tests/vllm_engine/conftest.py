"""The suite of the real vLLM engine. `run.sh` gives it a model; else it says it did not run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from _vllm import MODEL, close_engine, keep_engine

from anabranch.backends._vllm_engine import Engine

_HERE = Path(__file__).parent


@pytest.fixture
async def engine() -> Engine:
    """The shared engine, loaded."""
    async with asyncio.timeout(600):
        return await keep_engine()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MODEL:
        return
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="vLLM: not run"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum("vLLM: not run" in str(report.longrepr) for report in skipped):
        terminalreporter.section("vLLM: NOT RUN")
        terminalreporter.line(f"{count} tests of the real engine did not run: make test-vllm")


def pytest_sessionfinish() -> None:
    asyncio.run(close_engine())
