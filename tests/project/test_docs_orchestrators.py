"""The code and tables of docs/orchestrators.md and docs/from-other-frameworks.md are correct."""

import ast
import asyncio
import builtins
import re
from contextlib import suppress
from importlib import import_module
from inspect import CO_COROUTINE
from types import FunctionType
from typing import Any, get_args

import pytest
from support.paths import ROOT

import anabranch
from anabranch.agents.errors import Limit
from anabranch.testing import ScriptedBackend

PAGE = (ROOT / "docs" / "orchestrators.md").read_text(encoding="utf-8")
TABLES = (ROOT / "docs" / "from-other-frameworks.md").read_text(encoding="utf-8")
AGENTS = ["agents", "agents.layers", "agents.conversation", "agents.orchestration", "agents.errors"]
ROOMS = [
    *AGENTS,
    *("backends", "cluster", "commander", "dispatch", "handlers", "jobs", "knowledge", "store"),
    "tools",
]


async def test_every_block_about_orchestrators_runs() -> None:
    """In the order of the page."""
    names: dict[str, Any] = {
        "__builtins__": builtins,
        "__name__": "__main__",
        "backend": ScriptedBackend("Heads!", "heads", "A poem."),
        "actor": ScriptedBackend("Action: push", "Action: pull", "Action: pull"),
    }
    async with asyncio.timeout(60):
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            code = compile(block, "orchestrators.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = FunctionType(code, names)()
            if code.co_flags & CO_COROUTINE:
                await result
    assert names["poem"].content == "A poem."
    assert names["result"].status == "over"


def test_every_limit_is_explained() -> None:
    """The table lists the limits that end a run."""
    assert set(get_args(Limit)) <= set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))


def here(rows: str) -> list[str]:
    """Return the code names of the column about Anabranch."""
    lines = re.findall(r"^\| (?!there)(?!---).*\|$", rows, re.MULTILINE)
    return sorted({name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[2])})


def test_there_is_a_table_for_each_of_the_four() -> None:
    """Each row has a counterpart in Anabranch."""
    parts = re.split(r"^## ", TABLES, flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in parts] == [
        "Agere",
        "Lagent",
        "Byzer-Agent",
        "TinyAgentSmith",
        "OpenAI Agents SDK",
        "Pydantic AI",
    ]
    assert all(len(here(part)) >= 12 for part in parts)


@pytest.mark.parametrize("name", here(TABLES))
def test_what_is_said_to_be_here_is_here(name: str) -> None:
    """Each name can be imported, and each example is a file."""
    if name.startswith("examples/"):
        assert (ROOT / name).is_file()
        return
    first, *rest = name.split(".")
    places = [anabranch, *(import_module(f"anabranch.{room}") for room in ROOMS)]
    value = None
    for place in places:
        with suppress(AttributeError, ImportError):  # the latter says where the name is
            value = getattr(place, first)
            break
    for part in rest:
        value = getattr(value, part)
