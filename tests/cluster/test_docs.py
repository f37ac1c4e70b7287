"""The examples in docs/cluster-agents.md run unchanged."""

from __future__ import annotations

import ast
import asyncio
import re
from inspect import CO_COROUTINE
from types import FunctionType
from typing import Any

import pytest
from support.paths import ROOT

PAGE = ROOT / "docs" / "cluster-agents.md"


@pytest.mark.usefixtures("nodes")
async def test_every_block_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, as a reader would type them."""
    names: dict[str, Any] = {"__name__": "__main__"}  # whose classes Ray sends whole
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    results: list[str] = []
    async with asyncio.timeout(120):
        for block in blocks:
            code = compile(block, PAGE.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = FunctionType(code, names)()
            if code.co_flags & CO_COROUTINE:
                await result
            results.append(names["result"].text)
    assert results[0] == "I am Bob."
    assert "alice (to bob):\n\nWho are you?\n" in capsys.readouterr().out
    assert names["last"].content == "I am Bob."
    assert names["message"].content
