"""A tool with its own parameter `to_user` gets the value, and the user does not see it (F2)."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import Commander, Conversation, Message, ToolCall, tool
from anabranch.dispatch import Hermes
from anabranch.dispatch.assembly import Assembly, Branches
from anabranch.handlers import View, respond
from anabranch.messages import Delta, ToolCallDelta, has_parameter
from anabranch.testing import ScriptedBackend
from anabranch.tools import with_narration

pytestmark = pytest.mark.contract("F2")

RAN: list[str] = []


@tool(read_only=True)
async def notify(to_user: str = "everybody") -> str:
    """Send a note."""
    RAN.append(to_user)
    return f"sent to {to_user}"


@tool(read_only=True)
async def look(place: str) -> str:
    """Look somewhere."""
    return place


class Schema:
    """A tool with any schema."""

    description = ""

    def __init__(self, name: str, parameters: Any) -> None:
        self.name = name
        self.parameters = parameters


class Seen(View):
    """A writer that stores the text."""

    text = ""

    def write(self, text: str) -> None:
        self.text += text


@pytest.mark.parametrize("narrate", [False, True])
async def test_a_tool_gets_its_own_to_user_and_the_user_does_not_see_it(narrate: bool) -> None:
    """F2: in a narrated exchange and in a plain one.

    Other tools beside it are narrated as usual.
    """
    calls = [
        ToolCall(id="a", name="notify", arguments={"to_user": "bob"}),
        ToolCall(id="b", name="look", arguments={"place": "here", "to_user": "Looking"}, index=1),
    ]
    backend = ScriptedBackend(Message(role="assistant", tool_calls=calls), "Done.")
    conversation, view = Conversation(), Seen()
    conversation.add("Tell Bob")
    RAN.clear()

    async with Commander() as commander:
        await commander.run(respond(backend, conversation, [notify, look], view, narrate=narrate))

    assert RAN == ["bob"]
    assert view.text == "LookingDone."
    assert [each.content for each in conversation.messages[2:4]] == ["sent to bob", "here"]


def test_a_parameter_that_with_narration_adds_is_not_the_tools_own() -> None:
    """Only tools with their own parameter pass through `with_narration` unchanged."""
    odd = [Schema("f", {}), Schema("f", {"properties": None}), Schema("f", {"properties": []})]
    assert [has_parameter(each, "to_user") for each in [notify, look, *odd]] == [True] + [False] * 4
    offered = with_narration([notify, look, *odd[:2]])
    assert offered[0] is notify
    assert all("to_user" in each.parameters["properties"] for each in offered)
    assert [has_parameter(each, "to_user") for each in offered] == [True, False, False, False]


def written(chance: Random, name: str, said: str) -> tuple[str, str]:
    """Return a call as JSON arguments, and as text with its name before or after them."""
    arguments = chance.choice(
        [f'{{"to_user": "{said}", "x": 1}}', f'{{"x": 1, "to_user" : "{said}"}}']
    )
    pairs = [f'"name": "{name}"', f'"arguments": {arguments}']
    chance.shuffle(pairs)
    return arguments, f"<tool_call>{{{', '.join(pairs)}}}</tool_call>"


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(["keeps", "says"]), max_size=4), st.integers(0, 2**32).map(Random))
def test_the_cut_and_the_place_of_the_name_make_no_difference(
    names: list[str], chance: Random
) -> None:
    """F1 and F2: the name may come after the arguments, in pieces, or with them."""
    as_text = chance.random() < 0.5
    texts: list[str] = []
    calls: list[Any] = []
    branches = Branches(text=texts.append, calls=calls.append)
    assembly = Assembly(branches, "to_user", [Hermes()], {"keeps"})
    size = chance.randint(1, 20)

    for index, name in enumerate(names):
        arguments, text = written(chance, name, f"said {index}")
        whole = text if as_text else arguments
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        if as_text:
            assembly.feed([Delta(each) for each in pieces])
            continue
        late = chance.randint(0, len(pieces))
        for at, each in enumerate([*pieces, ""]):
            told = name if at == late else None
            assembly.feed([Delta(tool_calls=[ToolCallDelta(index, None, told, each)])])
    assembly.feed([Delta(done=True)])
    assert list(assembly.end()) == []

    assert "".join(texts) == "\n".join(f"said {i}" for i, n in enumerate(names) if n == "says")
    expected = [
        {"x": 1} | ({"to_user": f"said {i}"} if n == "keeps" else {}) for i, n in enumerate(names)
    ]
    assert [call.arguments for call in calls] == expected


def test_what_a_call_without_a_name_says_is_shown_at_the_end() -> None:
    """F2: the user gets the text although the call cannot run."""
    texts: list[str] = []
    assembly = Assembly(Branches(text=texts.append), "to_user", exempt={"keeps"})
    assembly.feed([Delta(tool_calls=[ToolCallDelta(0, "a", None, '{"to_user": "Hi"}')], done=True)])
    for call in assembly.end():
        assembly.refuse(call)

    assert texts == ["Hi"]
