"""The pages about backends are correct, and their programs run."""

from __future__ import annotations

import ast
import asyncio
import re
from inspect import CO_COROUTINE, signature
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from support.conformance import CASES, EXCUSED
from support.paths import ROOT
from support.scripted_server import ScriptedServer, text

from anabranch.backends import Timeouts

PAGES = (
    "backends",
    "backends-limits",
    "backends-servers",
)  # a later one uses names of an earlier one
TEXT = "\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in PAGES)

RIVER = text('{"name": "Nile", "length_km": 6650}')
REPLIES = (*[text("Nile")] * 5, RIVER, text("Nile"))  # the sixth request is for typed output


async def test_every_block_of_the_pages_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, as a reader would type them, against the scripted server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    names: dict[str, Any] = {}
    async with asyncio.timeout(60), ScriptedServer(*REPLIES) as server:
        server.embeds = True
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            code = compile(block, "backends.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = FunctionType(code, names)()
            if code.co_flags & CO_COROUTINE:
                await result
            if "backend" in names:
                await names["backend"].aclose()
        assert (
            server.requests[4].body.items()
            >= {
                "temperature": 0,
                "max_tokens": 50,
                "moderation": "low",
                "plugins": [],
            }.items()
        )
    assert names["message"].content == "Nile"
    assert len(names["vectors"]) == 2


def test_the_pages_timeouts_are_the_defaults() -> None:
    """The page has the numbers of `Timeouts`."""
    names = signature(Timeouts).parameters
    assert f"Timeouts({', '.join(f'{n}={p.default:g}' for n, p in names.items())})" in TEXT


def test_the_table_of_conformance_is_right() -> None:
    """It has every backend and case; a dash marks an excused one."""
    head, _, *rows = TEXT.partition("| case |")[2].strip().splitlines()
    kinds = [cell.strip() for cell in head.strip("| ").split("|")]
    assert kinds == list(EXCUSED)
    shown = {cells[0]: cells[1:] for cells in (re.split(r" \| ", row.strip("| ")) for row in rows)}
    assert shown == {
        case: ["-" if case in EXCUSED[kind] else "✓" for kind in kinds] for case in CASES
    }
