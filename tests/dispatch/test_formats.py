"""Calls and branches written as text, cut into deltas of every size, with text around them."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from anabranch.commander import Commander
from anabranch.dispatch import (
    BareJSON,
    FencedCode,
    Format,
    Hermes,
    InternLMInterpreter,
    InternLMPlugin,
    Llama,
    Mistral,
    ReAct,
    Think,
    fork,
)
from anabranch.dispatch.assembly import Assembly, Branches
from anabranch.handlers import handler
from anabranch.messages import Delta, Message, ToolCall, ToolCallError

pytestmark = pytest.mark.contract("F1")

SIZES = (1, 2, 3, 5, 8, 13, 10_000)
FORMATS = [
    Hermes(),
    Mistral(),
    Llama(),
    InternLMPlugin(),
    InternLMInterpreter(),
    FencedCode(),
    ReAct(),
    Think(),
]
X = {"x": 1}

Seen = tuple[str, list[Any], str, Message]


def read(
    text: str, size: int, formats: list[Format], finish_reason: str = "stop", others: Any = None
) -> Seen:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Any] = []
    branches = Branches(texts.append, thoughts.append, calls.append, others=others or {})
    assembly = Assembly(branches, "to_user", formats)
    for start in range(0, len(text), size):
        assembly.feed([Delta(text[start : start + size])])
    assembly.feed([Delta(finish_reason=finish_reason)])
    for call in assembly.end():
        assembly.refuse(call)
    named = [(c.name, c.arguments) if isinstance(c, ToolCall) else c for c in calls]
    return "".join(texts), named, "".join(thoughts), assembly.message()


# The model's text, the text for the user, the calls.
CASES: dict[str, tuple[str, str, list[Any]]] = {
    "no marker": ("a < b, [TOOL], `x`, <tool", "a < b, [TOOL], `x`, <tool", []),
    "hermes": (
        'Hi <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call> there',
        "Hi  there",
        [("f", X)],
    ),
    "hermes, two calls": (
        '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>\n',
        "",
        [("f", X), ("g", {})],
    ),
    "hermes, arguments first": (
        '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>',
        "",
        [("f", X)],
    ),
    "hermes, the close in a string": (
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>.',
        ".",
        [("f", {"x": "</tool_call>"})],
    ),
    "hermes, arguments as a string": (
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        "",
        [("f", X)],
    ),
    "hermes, no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", {})]),
    "hermes, null arguments": (
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        "",
        [("f", {})],
    ),
    "hermes, not closed": ('<tool_call>{"name": "f", "arguments": {"x": 1}}', "", [("f", X)]),
    "hermes, to_user": (
        'Hi<tool_call>{"name": "f", "arguments": {"x": 1, "to_user": "Wa\\u0069t"}}</tool_call>.',
        "Hi\nWait\n.",
        [("f", X)],
    ),
    "hermes, a name in escapes": (
        '<tool_call>{"n\\u0061me": "\\u0066", "arguments": {"x": 1}}</tool_call>',
        "",
        [("f", X)],
    ),
    "mistral, a list": (
        'Hi[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]',
        "Hi",
        [("f", X), ("g", {})],
    ),
    "mistral, names and objects": (
        '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}',
        "",
        [("f", X), ("g", {})],
    ),
    "mistral, a name and an object": (
        '[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g[CALL_ID]9[ARGS]{}',
        "",
        [("f", X), ("g", {})],
    ),
    "llama, an object": (
        '<|python_tag|>{"name": "f", "parameters": {"x": 1}}',
        "",
        [("f", X)],
    ),
    "llama, several objects": (
        '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", X), ("g", {})],
    ),
    "llama, code": (
        "See:<|python_tag|>print(1)\nprint({})",
        "See:",
        [("code_interpreter", {"code": "print(1)\nprint({})"})],
    ),
    "internlm plugin": (
        'Hi<|action_start|><|plugin|>\n{"name": "f", "parameters": {"x": 1}}<|action_end|>\n',
        "Hi",
        [("f", X)],
    ),
    "internlm interpreter": (
        "Hi<|action_start|><|interpreter|>\n```python\nprint('`')\n```<|action_end|>\n",
        "Hi",
        [("interpreter", {"code": "print('`')"})],
    ),
    "internlm interpreter, no fence": (
        "<|action_start|><|interpreter|>print(1)<|action_end|>",
        "",
        [("interpreter", {"code": "print(1)"})],
    ),
    "fence": (
        'Run:\n```python\nprint("```\\n")\n  x = 1\n```\nDone.',
        "Run:\n\nDone.",
        [("python", {"code": 'print("```\\n")\n  x = 1'})],
    ),
    "fence, empty": ("```python\n```", "", [("python", {"code": ""})]),
    "fence, another language": ("```sql\nx\n```\n", "```sql\nx\n```\n", []),
    "fence, not at the start of a line": ("a ```python\nx", "a ```python\nx", []),
    "fence, all of Unicode": (
        "```python\n'é😀\u2028\\'\n```",
        "",
        [("python", {"code": "'é😀\u2028\\'"})],
    ),
    "fence, not closed": ("```python\nx = 1", "", [("python", {"code": "x = 1"})]),
    "react": (
        'Thought: look\nAction: f\nAction Input: {"x": 1}\nObservation: 3',
        "Thought: look\n 3",
        [("f", X)],
    ),
    "react, at the end": ('Action: f\nAction Input:\n{"x": 1}\n', "", [("f", X)]),
    "react, not at the start of a line": ("No Action: here", "No Action: here", []),
    "think": ("<think>a < b</think>So", "So", []),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_calls_written_as_text_are_found_and_the_text_around_them_is_shown(
    case: str, size: int
) -> None:
    """In every format and at every cut. No part of a marker reaches the user."""
    text, shown, calls = CASES[case]

    told, found, thoughts, message = read(text, size, FORMATS)

    assert (told, found) == (shown, calls)
    assert [c.name for c in message.tool_calls] == [name for name, _ in calls]
    assert thoughts == ("a < b" if case == "think" else "")


LOOKS_LIKE = [
    "The <tool_call> tag holds a call.",
    "It ends with <tool_call>",
    "It ends with </tool_call>",
    "a <tool_call> b </tool",
    "[TOOL_CALLS] is a token",
    "Action: walk the dog.\nOwner: Bob",
    "Action:\nnone",
    f"Action: {'x' * 300}",
    "Then <|action_start|>",
    "``` and [TOOL_ and <|pyth",
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", LOOKS_LIKE)
def test_text_that_only_looks_like_a_marker_is_shown_in_the_end(text: str, size: int) -> None:
    """A marker without a call, and the beginning of a marker at the end of the reply."""
    told, found, _, message = read(text, size, FORMATS)

    assert (told, found) == (text, [])
    assert message.content == text


@pytest.mark.parametrize("size", SIZES)
def test_a_call_after_what_only_looks_like_one_is_found(size: int) -> None:
    """The text held back is searched again."""
    text = 'Action: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'

    assert read(text, size, FORMATS)[:2] == ("Action: ", [("f", X)])


BROKEN: dict[str, tuple[str, str]] = {
    "hermes, no JSON": ("<tool_call>oops</tool_call> Sorry.", " Sorry."),
    "hermes, broken JSON": ("<tool_call>{'name': 'f'}</tool_call> Sorry.", " Sorry."),
    "hermes, broken arguments": (
        '<tool_call>{"name": "f", "arguments": oops}</tool_call> Sorry.',
        " Sorry.",
    ),
    "hermes, no name": ('<tool_call>{"arguments": {"x": 1}}</tool_call>.', "."),
    "hermes, neither": ('<tool_call>{"x": 1}</tool_call>.', "."),
    "hermes, cut in the arguments": ('<tool_call>{"name": "f", "arguments": {"x": ', ""),
    "hermes, cut before the arguments": ('<tool_call>{"name": "f", "arg', ""),
    "hermes, cut in the name": ('<tool_call>{"name": "f', ""),
    "mistral, cut": ('[TOOL_CALLS][{"name": "f", "arguments": {', ""),
    "react, no object": ("Action: f\nAction Input: Paris\nObservation: 3", " 3"),
    "react, no input": ("Action: f\n", ""),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", BROKEN)
def test_a_body_that_is_no_call_is_an_error_in_its_place(case: str, size: int) -> None:
    """The model gets the error. The user sees only the text after the body."""
    text, shown = BROKEN[case]

    told, found, _, message = read(text, size, FORMATS)

    (error,) = found
    assert told == shown
    assert isinstance(error, ToolCallError)
    assert message.tool_calls[0].error is not None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text",
    ["```python\nprint(", "<|python_tag|>print(", "<|action_start|><|interpreter|>print("],
)
def test_code_of_a_reply_that_was_stopped_is_not_run(text: str, size: int) -> None:
    """Truncated code may still be valid code."""
    (error,) = read(text, size, FORMATS, "length")[1]

    assert isinstance(error, ToolCallError)


@pytest.mark.parametrize("size", SIZES)
def test_bare_json_is_a_call_only_at_the_start_and_with_a_name_and_arguments(size: int) -> None:
    """All other JSON is shown unchanged."""
    call = '\n{"name": "f", "parameters": {"x": 1, "to_user": "Hi"}}'
    assert read(call, size, [BareJSON()])[:2] == ("Hi", [("f", X)])
    several = '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]'
    assert read(several, size, [BareJSON()])[:2] == ("", [("f", X), ("g", {})])
    for text in ('{"a": 1} and', '{"name": "f"}', "[1, 2]", "{oops", '{"name": "f", ', " hi {}"):
        assert read(text, size, [BareJSON(), *FORMATS])[:2] == (text, [])


def test_a_call_is_handed_on_before_its_close_and_its_to_user_at_once() -> None:
    """Calls in text stream like calls in the wire's own fields."""
    texts: list[str] = []
    calls: list[Any] = []
    branches = Branches(text=texts.append, calls=calls.append)
    assembly = Assembly(branches, "to_user", [Hermes()])

    assembly.feed([Delta('Hi<tool_call>{"name": "f", "arguments": {"to_user": "On')])
    assert texts == ["Hi", "\nOn"]
    assembly.feed([Delta('e", "x": 1}')])
    assert texts[2:] == ["e"]
    assert [c.arguments for c in calls] == [X]


def test_text_is_held_back_only_as_long_as_it_may_begin_a_marker() -> None:
    """All other text arrives with its delta."""
    texts: list[str] = []
    assembly = Assembly(Branches(text=texts.append), None, [Hermes()])

    for text, shown in (("a <", "a "), ("tool", ""), ("box", "<toolbox"), ("<", ""), ("b", "<b")):
        before = len(texts)
        assembly.feed([Delta(text)])
        assert "".join(texts[before:]) == shown


class Arrow(Format):
    """`-> name {...}` on a separate line."""

    open, close, at_line_start = "-> ", "\n", True

    def read(self, body: str) -> Iterator[tuple[str, str]]:
        name, _, arguments = body.partition(" ")
        if not name:
            raise ValueError("no name")
        yield name, arguments


class Aside(Format):
    """`((...))`: text for a separate branch."""

    open, close, branch = "((", "))", "aside"


@pytest.mark.parametrize("size", SIZES)
def test_a_format_of_ones_own_takes_a_few_lines(size: int) -> None:
    """It needs markers and a function from the body to calls.

    The model gets a `ValueError` of it.
    """
    told, found, _, _ = read('Hi\n-> f {"x": 1}\n-> g \n-> \n.', size, [Arrow()])

    assert told == "Hi\n."
    assert found[:2] == [("f", X), ("g", {})]
    assert isinstance(found[2], ToolCallError)


@pytest.mark.parametrize("size", SIZES)
def test_a_branch_of_ones_own_takes_three_lines(size: int) -> None:
    """The text between the markers goes to the branch and not to the user."""
    aside: list[str] = []
    told = read("a((b)c))d((e", size, [Aside()], others={"aside": aside.append})[0]

    assert (told, "".join(aside)) == ("ad", "b)ce")


async def test_branches_of_formats_are_read_by_name() -> None:
    """An unknown branch raises `LookupError`."""

    async def source() -> AsyncIterator[Delta]:
        yield Delta("a((b))<think>c</think>")
        yield Delta(done=True)

    @handler
    async def body(node: Any) -> list[str]:
        reply = fork(node, source(), formats=[Aside(), Think()])
        with pytest.raises(LookupError, match="aside"):
            reply.branch("other")
        message = await reply.message
        assert (message.content, message.reasoning) == ("a", "c")
        names = ("text", "aside", "reasoning")
        return ["".join([text async for text in reply.branch(name)]) for name in names]

    async with Commander() as commander:
        assert await commander.run(body()) == ["a", "b", "c"]


def test_formats_that_cannot_be_told_apart_are_refused() -> None:
    """When the fork is made, and not only when a reply is ambiguous."""

    class Longer(Format):
        open = "<tool_call>!"

    with pytest.raises(ValueError, match="begins two formats"):
        read("", 1, [Hermes(), Longer()])
    with pytest.raises(NotImplementedError, match="read"):
        read("<tool_call>!x", 100, [Longer()])


ONE = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.contract("F4")
@pytest.mark.parametrize("size", [4, 10_000_000])
@pytest.mark.parametrize(
    ("before", "flood"),
    [
        ("", "<"),
        ("", "`"),
        ("x", "{"),
        ("", "["),
        ("", " "),
        ("", "\nAct"),
        (ONE, " "),
        ("", ONE),
        (ONE[:-12], " "),
        ("<tool_call>", " "),
        ("<tool_call>", "<tool_call>"),
        ("<tool_call>", "</tool_call"),
        ('<tool_call>{"name": "f", "arguments": {"to_user": "', "\\n"),
        ("[TOOL_CALLS]", " "),
        ('[TOOL_CALLS][{"name": "f"}', " "),
        ("[TOOL_CALLS]", "x"),
        ("Action: f\nAction Input: {}", " "),
        ("", "\nAction: "),
        ("```python\n", "\n``"),
        ("<think>", "</thin"),
        ("<|action_start|><|interpreter|>", "``` "),
    ],
)
def test_a_flood_of_what_may_begin_a_marker_costs_its_length(
    before: str, flood: str, size: int
) -> None:
    """F4: at quadratic cost, 200,000 characters would take minutes."""
    text = before + flood * (200_000 // len(flood))

    read(text, size, [*FORMATS, BareJSON()])
