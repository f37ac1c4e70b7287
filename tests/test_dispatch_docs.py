"""The examples of docs/dispatch.md are run as they stand."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from anabranch import Commander, fork, handler
from anabranch.dispatch import Delta, Format

TEXT = (Path(__file__).parent.parent / "docs/dispatch.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


async def source() -> AsyncIterator[Delta]:
    for text in ("Hi ((it", ' is late)) there\n-> f {"x"', ": 1}\n-> \n."):
        yield Delta(text)
    yield Delta(finish_reason="stop")


async def test_a_format_and_a_splitter_of_ones_own_work_as_the_page_shows_them() -> None:
    """A call from the one, a branch from the other, and the text around both."""
    names: dict[str, Any] = {"Format": Format, "fork": fork}
    for block in BLOCKS[1:]:
        exec(block, names)

    async with asyncio.timeout(5), Commander() as commander:
        message, aside = await commander.run(handler(names["respond"])(source()))

    assert aside == "it is late"
    assert message.content == "Hi  there\n."
    (call, broken) = message.tool_calls
    assert (call.name, call.arguments) == ("f", {"x": 1})
    assert broken.error is not None


def test_a_format_of_ones_own_takes_ten_lines() -> None:
    """With its docstring."""
    (block,) = [each for each in BLOCKS if "class Arrow" in each]

    assert len([line for line in block.splitlines() if line.strip()]) <= 10


def test_the_page_names_every_format() -> None:
    """Those that the package exports."""
    from anabranch import dispatch

    formats = {
        each.__name__ for each in Format.__subclasses__() if hasattr(dispatch, each.__name__)
    }
    assert formats >= {"Hermes", "ReAct", "BareJSON"}
    for name in formats:
        assert f"`{name}`" in TEXT
