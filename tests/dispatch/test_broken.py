"""Malformed calls in the text: the user sees no part of them, and the text after them is shown.

F1 for malformed endings: one bracket too many, trailing separators, a missing quote, a truncated
call, a missing end mark; in every format, and at every cut into deltas.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.dispatch import (
    BareJSON,
    Format,
    Hermes,
    InternLMInterpreter,
    InternLMPlugin,
    Llama,
    Mistral,
    ReAct,
)
from anabranch.dispatch.assembly import Assembly, Branches
from anabranch.messages import Delta, Message, ToolCall, ToolCallError

pytestmark = pytest.mark.contract("F1")

SIZES = (1, 2, 3, 5, 8, 13, 40)
PLUGIN = InternLMPlugin.open


def read(text: str, size: int, *formats: Format) -> tuple[str, list[Any], Message]:
    texts: list[str] = []
    calls: list[Any] = []
    assembly = Assembly(Branches(text=texts.append, calls=calls.append), "to_user", formats)
    for start in range(0, len(text), size):
        assembly.feed([Delta(text[start : start + size])])
    assembly.feed([Delta(finish_reason="stop")])
    for call in assembly.end():
        assembly.refuse(call)
    return "".join(texts), calls, assembly.message()


def named(calls: list[Any]) -> list[tuple[str, Any]]:
    return [(c.name, c.arguments) for c in calls if isinstance(c, ToolCall)]


@dataclass
class Way:
    """A way to write a call: the text before and after its JSON."""

    format: Format
    before: Callable[[str], str]
    after: str = ""
    whole: bool = True  # the JSON includes the name
    end_mark: bool = True  # `after` is an end mark

    def json(self, name: str, arguments: str) -> str:
        return f'{{"name": "{name}", "arguments": {arguments}}}' if self.whole else arguments


WAYS = {
    "Hermes": Way(Hermes(), lambda _: "<tool_call>", "</tool_call>"),
    "Hermes, lines": Way(Hermes(), lambda _: "<tool_call>\n", "\n</tool_call>\n"),
    "InternLMPlugin": Way(InternLMPlugin(), lambda _: PLUGIN, "<|action_end|>"),
    "Mistral, list": Way(Mistral(), lambda _: "[TOOL_CALLS][", "]", end_mark=False),
    "Mistral, name": Way(
        Mistral(), lambda name: f"[TOOL_CALLS]{name}[ARGS]", whole=False, end_mark=False
    ),
    "Llama": Way(Llama(), lambda _: "<|python_tag|>", end_mark=False),
    "ReAct": Way(
        ReAct(),
        lambda name: f"\nAction: {name}\nAction Input: ",
        "\nObservation:",
        whole=False,
    ),
}
TEXTS = ["", " ", " So it is. ", ' He said "hi", and "no". ', " x: y, [z] ", " é😀\n", " a < b "]
SOUND = ["", "", "bracket", "brackets", "separators"]
BROKEN = ["quote", "open quote", "brace", "cut"]


def damaged(chance: Random, body: str, damage: str) -> str:
    match damage:
        case "bracket":
            return body + chance.choice(["}", "]"])
        case "brackets":
            return body + " }]\n}"
        case "separators":
            return body + chance.choice([",", ";", " ,;", "};"])
        case "quote":
            return "".join(body.rsplit('"', 1))
        case "open quote":
            head, value, rest = body.rsplit('"', 2)
            return head + value + '"' + rest
        case "brace":
            return body.replace("}", "", body.count("}"))
        case "cut":
            return body[: chance.randint(body.index('"x"'), body.rindex('"'))]
        case _:
            return body


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32).map(Random))
@pytest.mark.parametrize("way", WAYS)
def test_however_a_call_is_damaged_text_and_calls_after_it_survive(
    way: str, chance: Random
) -> None:
    """F1: the cut makes no difference, no markup is shown, and each broken call is an error."""
    written = WAYS[way]
    text = shown = chance.choice(TEXTS)
    sound: list[tuple[str, Any]] = []
    broken = 0
    for index in range(chance.randint(1, 4)):
        value = chance.choice(["v", "a b", "{", "é😀", written.format.open.strip(), "</x>"])
        damage = chance.choice(SOUND + BROKEN)
        keys = [f'"to_user": "Said {index}"', f'"x": "{value}"']
        if damage in BROKEN:
            value = "v"
            keys[1] = '"x": "v"'
            if written.end_mark and damage != "cut":  # otherwise the text after is shown
                chance.shuffle(keys)
        arguments = f"{{{', '.join(keys)}}}"
        body = damaged(chance, written.json(f"f{index}", arguments), damage)
        text += written.before(f"f{index}") + body
        lost = damage in BROKEN and not written.end_mark
        closed = not (damage == "cut" and chance.random() < 0.5)
        text += written.after if closed else ""
        after = chance.choice(TEXTS) if closed else ""
        text += after
        if damage in BROKEN:
            broken += 1
        else:
            sound.append((f"f{index}", {"x": value}))
        shown += "" if lost else after

    whole = read(text, len(text) + 1, written.format)

    for size in chance.sample(SIZES, 3):
        cut = read(text, size, written.format)
        assert (cut[0], named(cut[1]), cut[2]) == (whole[0], named(whole[1]), whole[2])
    told, calls, _ = whole
    assert named(calls) == sound
    assert sum(isinstance(call, ToolCallError) for call in calls) == broken
    said = told
    for index in range(4):
        said = said.replace(f"Said {index}", "")
    assert "".join(said.split()) == "".join(shown.split())


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("tail", ["", "]", "}", "]]", "],", "};", " } ]"])
def test_bare_json_with_too_many_brackets_shows_the_text_after_it(tail: str, size: int) -> None:
    """F1: no character of the list or its separators is shown."""
    text = '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}' + tail + " So."

    told, calls, _ = read(text, size, BareJSON())

    assert told == " So."
    assert named(calls) == [("f", {"x": 1}), ("g", {})]


G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
HERMES: dict[str, tuple[str, str, list[Any], int]] = {
    "marks in a string that is closed": (
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call> <tool_call>{"}}</tool_call> So.',
        " So.",
        [("f", {"x": "</tool_call> <tool_call>{"})],
        0,
    ),
    "an end mark in a text for the user": (
        '<tool_call>{"name": "f", "arguments": {"to_user": "A </tool_call> b"}}</tool_call>',
        "A </tool_call> b",
        [("f", {})],
        0,
    ),
    "a text for the user without its quote": (
        '<tool_call>{"name": "f", "arguments": {"to_user": "Hi}}</tool_call> So ' + G + "!",
        "Hi\n So !",
        [("g", {})],
        1,
    ),
    "no quote, no end mark": (
        '<tool_call>{"name": "f", "arguments": {"x": "v}}\n' + G + " So.",
        " So.",
        [("g", {})],
        1,
    ),
    "a brace between the name and the arguments": (
        '<tool_call>{"name": "f"}, "arguments": {"x": 1}}</tool_call> So ' + G,
        " So ",
        [("g", {})],
        1,
    ),
    "something behind the object": (
        '<tool_call>{"name": "f", "arguments": {}} oops "</tool_call> So ' + G,
        " So ",
        [("f", {}), ("g", {})],
        0,
    ),
    "a missing end mark": (
        '<tool_call>{"name": "f", "arguments": {}} So ' + G + " it is",
        " So  it is",
        [("f", {}), ("g", {})],
        0,
    ),
    "a mark that is only named": (
        "The <tool_call> tag: " + G,
        "The <tool_call> tag: ",
        [("g", {})],
        0,
    ),
    "a mark that is never closed": ("The <tool_call> tag [x].", "The <tool_call> tag [x].", [], 0),
    "a quote missing at the end of the reply": (
        '<tool_call>{"name": "f", "arguments": {"to_user": "Hi}}</tool_call>',
        "Hi",
        [],
        1,
    ),
    "cut in a string that looks closed": (
        '<tool_call>{"name": "f", "arguments": {"x": "a</tool_call>", "y": 1',
        '", "y": 1',
        [],
        1,
    ),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 1000])
@pytest.mark.parametrize("case", HERMES)
def test_a_mark_in_a_string_counts_as_text_only_if_the_object_ends_well(
    case: str, size: int
) -> None:
    """F1: otherwise the call ended at the mark, and the rest is read as usual."""
    text, shown, sound, broken = HERMES[case]

    told, calls, _ = read(text, size, Hermes())

    assert told == shown
    assert named(calls) == sound
    assert len(calls) - len(sound) == broken


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_code_that_is_not_closed_ends_where_the_next_call_begins(size: int) -> None:
    """F1: also for the formats with code as the body."""
    plugin = PLUGIN + '{"name": "f", "parameters": {}}<|action_end|>'
    formats = [InternLMInterpreter(), InternLMPlugin()]

    told, calls, _ = read("So:" + InternLMInterpreter.open + "x = 1" + plugin + "!", size, *formats)
    assert (told, named(calls)) == ("So:!", [("interpreter", {"code": "x = 1"}), ("f", {})])
    told, calls, _ = read("<|python_tag|>x = 1<|python_tag|>y = 2", size, Llama())
    assert [call.arguments for call in calls] == [{"code": "x = 1"}, {"code": "y = 2"}]


@pytest.mark.contract("F4")
@pytest.mark.parametrize("size", [4, 10**7])
@pytest.mark.parametrize(
    "flood",
    [
        '<tool_call>{"x": "a</tool_call>',
        '<tool_call>{"</tool_call>',
        '<tool_call>{" ,</tool_call>',
        '<tool_call>{"x": "a',
        "<tool_call>{} x",
        "<tool_call> [TOOL_CALLS] ",
        "<tool_call>\n```python\n",
        '[TOOL_CALLS][{"x": "[TOOL_CALLS]',
        'Action: f\nAction Input: {"x": "\n',
        '<tool_call>{"x": "' + "}" * 1000,
        '{"name": "f", "arguments": {"x": "}',
    ],
)
def test_a_flood_of_broken_calls_costs_its_length(flood: str, size: int) -> None:
    """F4: text in doubt is read at most twice. At quadratic cost this test would take minutes."""
    head = '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>'
    formats = [Hermes(), Mistral(), Llama(), InternLMPlugin(), ReAct(), BareJSON()]
    for before in ("", head):
        read(before + flood * (30_000 // len(flood)), size, *formats)
