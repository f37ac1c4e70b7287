"""The examples of docs/dispatch.md run unchanged."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.paths import ROOT

from anabranch import Commander, Conversation, Message, ToolCall, fork, handler, tool
from anabranch.commander import Node
from anabranch.dispatch import Format
from anabranch.dispatch.formats import FORMATS
from anabranch.handlers import call_tools
from anabranch.messages import Delta
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("F1")

TEXT = (ROOT / "docs/dispatch.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


async def source() -> AsyncIterator[Delta]:
    for text in ("Hi ((it", ' is late)) there\n-> f {"x"', ": 1}\n-> \n."):
        yield Delta(text)
    yield Delta(finish_reason="stop")


async def test_a_turn_works_as_the_page_shows_it() -> None:
    """The text is shown, the tool runs, and the model gets its result."""
    shown: list[str] = []

    @tool
    def add(a: int, b: int) -> int:
        return a + b

    @handler
    async def show(node: Node[Any], text: AsyncIterator[str]) -> None:
        shown.extend([each async for each in text])

    names: dict[str, Any] = {"handler": handler, "fork": fork, "show": show}
    names["call_tools"] = call_tools
    exec(BLOCKS[0], names)
    call = Message(
        role="assistant", tool_calls=[ToolCall(id="c", name="add", arguments={"a": 1, "b": 2})]
    )
    backend = ScriptedBackend(call, "Three.")
    conversation = Conversation()
    conversation.add(Message(role="user", content="1 + 2?"))

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(names["respond"](backend, conversation, [add]))

    assert "".join(shown) == "Three."
    assert [each.content for each in conversation.messages] == ["1 + 2?", None, "3", "Three."]


async def test_a_format_and_a_splitter_of_ones_own_work_as_the_page_shows_them() -> None:
    """The format yields a call, the splitter a branch, and the user sees the text around both."""
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
    """Its docstring is included."""
    (block,) = [each for each in BLOCKS if "class Arrow" in each]

    assert len([line for line in block.splitlines() if line.strip()]) <= 10


def test_the_page_names_every_format() -> None:
    """With every exported format, and its name on the command line."""
    from anabranch import dispatch

    formats = {
        each.__name__ for each in Format.__subclasses__() if hasattr(dispatch, each.__name__)
    }
    assert formats >= {"Hermes", "ReAct", "BareJSON"}
    for name in formats | FORMATS.keys():
        assert f"`{name}`" in TEXT
    assert {make.__name__ for make in FORMATS.values()} == formats
