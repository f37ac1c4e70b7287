"""The programs and tables of docs/conversations.md are correct."""

import ast
import asyncio
import builtins
import re
from inspect import CO_COROUTINE
from types import FunctionType
from typing import Any, get_args

from support.paths import ROOT

from anabranch.agents.conversation import Status
from anabranch.testing import ScriptedBackend

PAGE = (ROOT / "docs" / "conversations.md").read_text(encoding="utf-8")


async def test_every_block_about_conversations_runs():
    """One after the other, as a reader would type them."""
    names: dict[str, Any] = {
        "__builtins__": builtins,
        "backend": ScriptedBackend(otherwise="I see."),
    }
    async with asyncio.timeout(60):
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            code = compile(block, "conversations.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = FunctionType(code, names)()
            if code.co_flags & CO_COROUTINE:
                await result
    assert names["team"].talks["user"].status == "turn_limit"
    assert len(names["talk"].talks["user"].messages) == 5


def test_every_status_is_explained():
    """The table has each status that ends a conversation."""
    explained = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert explained - {"status"} == set(get_args(Status)) - {"answered", "delivered"}
