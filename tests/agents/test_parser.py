"""Parsers: the values of replies, and the messages to a model about unusable replies."""

import asyncio
import json
from typing import Any, Generic, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from anabranch import Agent, BadResponse, Message, ToolCall
from anabranch.agents import JsonParser, StringParser, ToolParser
from anabranch.agents.layers import FencedCall, Parser, TextCall, ToolAction
from anabranch.dispatch import (
    BareJSON,
    FencedCode,
    Format,
    Hermes,
    InternLMInterpreter,
    ReAct,
    Think,
)
from anabranch.testing import ScriptedBackend

M = TypeVar("M")


class River(BaseModel):
    name: str
    length: int


class Page(BaseModel, Generic[M]):
    items: list[M]


NILE = '{"name": "Nile", "length": 6650}'


@pytest.mark.parametrize(
    "reply",
    [NILE, f" {NILE}\n", f"```json\n{NILE}\n```", f"Here [you] are: {NILE}. Is it {{good}}?"],
)
async def test_json_becomes_a_model(reply: str) -> None:
    """Also from a fence, or from among other text; the schema is in the prompt."""
    backend = ScriptedBackend(reply)
    agent = Agent(backend, "Know rivers.", output_format=JsonParser(River))

    answer = await agent("The longest?")

    assert answer.output == River(name="Nile", length=6650)
    assert answer.content == reply
    (system, _) = backend.requests[0].messages
    assert (system.content or "").startswith("Know rivers.\n\nAnswer with one JSON value")
    assert '"length"' in (system.content or "")


@pytest.mark.parametrize(
    ("kind", "reply", "value"),
    [
        (int, "```json\n5\n```", 5),
        (int, "It is\n```\n 5 ```.", 5),
        (str, '```json\n"yes"\n```', "yes"),
        (bool, "So:\n```json\ntrue\n```\nThat is all.", True),
        (type(None), "```json null```", None),
        (dict[str, int], 'As [1] says: {"a": 1}', {"a": 1}),
        (Any, 'As [1] says: {"a": 1}', {"a": 1}),
        (list[int], "As {it} says [1, 2].", [1, 2]),
        (dict[str, int], f'{"[1] " * 99}{"[sic] {no} " * 99}{{"a": 1}}', {"a": 1}),
        (dict[str, int], '{"a": [1]} is wrong, so {"a": 1}', {"a": 1}),
        (list[int], "```json\n[1]\n```\nsee [2], [2, 3]", [1]),
    ],
)
def test_json_is_found_where_it_stands(kind: Any, reply: str, value: Any) -> None:
    """A value in a fence; of several the one that fits, fences first, else the longest."""
    assert JsonParser[Any](kind).parse(reply) == value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=2), below),
        max_leaves=5,
    ),
    st.sampled_from(["{}", " {}\n", "```json\n{}\n```", "So:\n```\n{}\n```\nIs [it] {{so}}?"]),
)
def test_any_value_is_found_alone_and_in_a_fence(value: Any, frame: str) -> None:
    """For any JSON value."""
    written = json.dumps(value)
    if "```" not in written:
        assert JsonParser[Any](cast("Any", Any)).parse(frame.format(written)) == value


@pytest.mark.parametrize("depth", [150, 1_000, 100_000])
@pytest.mark.parametrize("kind", [Any, list[Any], River])
def test_deep_json_is_read_or_a_value_error(kind: Any, depth: int) -> None:
    """Alone or among text, parsed or loaded."""
    parser = JsonParser[Any](kind)
    for reply in ("[" * depth + "]" * depth, f"So: {'[' * depth}{']' * depth}."):
        try:
            value = parser.parse(reply)
        except ValueError:
            assert kind is River or depth > 150
        else:
            assert depth == 150
            assert parser.restore(value) == value
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    if depth > 150:
        with pytest.raises(ValueError):
            parser.restore(deep)


@given(st.integers(4_301, 6_000), st.sampled_from(["[{}]", '{{"length": {}}}', "[[1, {}"]))
def test_a_number_too_long_to_read_hides_no_json_beside_it(digits: int, frame: str) -> None:
    """The error is about the reply."""
    long = frame.format("1" * digits)
    parser = JsonParser(River)
    assert parser.parse(f"Of {long}: {NILE}") == River(name="Nile", length=6650)
    with pytest.raises(ValueError, match="the reply is not JSON"):
        parser.parse(f"Of {long}.")


def test_a_text_full_of_brackets_is_read_a_few_times_only(monkeypatch: Any) -> None:
    """However many values may begin in it."""
    read = 0
    raw_decode = json.JSONDecoder.raw_decode

    def count(self: json.JSONDecoder, text: str, at: int = 0) -> Any:
        nonlocal read
        try:
            return raw_decode(self, text, at)
        except json.JSONDecodeError as error:
            read += error.pos - at
            raise

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", count)
    text = "[1, " * 20_000
    with pytest.raises(ValueError, match="not JSON"):
        JsonParser(River).parse(text)
    assert read <= 22 * len(text)


create: Any = create_model


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Page[River], "Page_River"),
        (create("Größe und " + "x" * 99), "Gr_e_und_" + "x" * 55),
        (create("数"), "answer"),
    ],
)
def test_the_name_of_a_schema_is_one_that_servers_take(kind: Any, name: str) -> None:
    """At most 64 letters, digits, dashes and underscores."""
    sent = JsonParser[Any](kind, constrain=True).options()
    assert sent["response_format"]["json_schema"]["name"] == name


async def test_a_model_is_told_what_was_wrong_and_mends_it() -> None:
    """The memory has only the question and the usable answer."""
    backend = ScriptedBackend('{"name": "Nile"}', "Nile, 6650 km", NILE)
    agent = Agent(backend, output_format=JsonParser(River))

    answer = await agent("The longest?", session_id=0)

    assert answer.output.length == 6650
    first, second = (request.messages[-1].content for request in backend.requests[1:])
    assert "length: Field required" in (first or "")
    assert "the reply is not JSON" in (second or "")
    assert [message.content for message in agent.memory.get()] == ["The longest?", NILE]


async def test_a_model_that_never_mends_it_is_a_clear_error() -> None:
    """After the parser's retries; the memory has the last reply as failed."""
    backend = ScriptedBackend(otherwise="garbage {")
    agent = Agent(backend, name="sage", output_format=JsonParser(River, retries=1))

    with pytest.raises(BadResponse, match="sage gave no usable answer: the reply is not JSON"):
        await agent("?", session_id=0)

    assert len(backend.requests) == 2
    assert [m.stream_state for m in agent.memory.get()] == ["end", "failed"]


@pytest.mark.parametrize("garbage", ["[" * 100_000, '{"a":' * 50_000, "", "null", "{}", "[1, 2]"])
def test_garbage_is_a_value_error(garbage: str) -> None:
    """At any depth."""
    with pytest.raises(ValueError):
        JsonParser(River).parse(garbage)


async def test_the_server_may_be_asked_to_allow_nothing_else() -> None:
    """`constrain` sends the schema; an option of the call overrides it."""
    backend = ScriptedBackend("[1]", "[2]")
    agent = Agent(backend, output_format=JsonParser(list[int], constrain=True))

    assert (await agent("?")).output == [1]
    await agent("?", response_format={"type": "text"})

    schema = {"items": {"type": "integer"}, "type": "array"}
    assert backend.requests[0].options["response_format"]["json_schema"]["schema"] == schema
    assert backend.requests[1].options == {"response_format": {"type": "text"}}


async def test_a_string_is_stripped() -> None:
    """And its template is in the prompt."""
    agent = Agent(ScriptedBackend(" yes \n"), output_format=StringParser("Say yes or no."))

    assert (await agent("?")).output == "yes"
    assert agent.aggregate()[0].content == "Say yes or no."


# --- actions in text

CODE = ToolParser(TextCall("code", "```python\n", "\n```\n"))
text = st.text(st.sampled_from("ab \n`p"), max_size=20)


def test_a_reply_has_a_thought_and_perhaps_an_action() -> None:
    """As a plain dictionary."""
    assert CODE.parse("Let me see.\n```python\n6*7\n```\nIt is 42.") == {
        "tool_type": "code",
        "thought": "Let me see.\n",
        "action": {"name": "code", "parameters": {"text": "6*7"}},
        "status": "valid",
        "error": None,
    }
    assert CODE.parse("42.") == {
        "tool_type": None,
        "thought": "42.",
        "action": None,
        "status": "none",
        "error": None,
    }


@pytest.mark.parametrize(
    ("written", "tool", "parameters"),
    [
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "f", {"x": 1}),
        ('Action: f\nAction Input: {"x": 1}\nObservation: 2', "f", {"x": 1}),
        ("```python\n6*7\n```\nIt is 42.", "python", {"code": "6*7"}),
        ('```json\n{"name": "f", "parameters": {"x": 1}}\n```', "f", {"x": 1}),
        ("<|action_start|><|interpreter|>6*7<|action_end|>", "interpreter", {"code": "6*7"}),
    ],
)
def test_the_formats_of_the_fork_find_actions(
    written: str, tool: str, parameters: dict[str, Any]
) -> None:
    """They read the first one, and the text before it is the thought."""
    formats = Hermes(), ReAct(), FencedCode(), FencedCall(), InternLMInterpreter()
    action = ToolParser(*formats).parse(f"Hm.\n{written} <tool_call>")

    assert (action["thought"], action["status"]) == ("Hm.\n", "valid")
    assert action["action"] == {"name": tool, "parameters": parameters}
    assert action["tool_type"] == tool


def test_a_call_without_a_mark_begins_the_reply() -> None:
    """Other brackets are text, and so is a mark without a call."""
    parser = ToolParser(BareJSON(), ReAct())

    assert parser.parse(' {"name": "f", "arguments": {}}')["tool_type"] == "f"
    assert parser.parse('{"x": 1}')["status"] == "none"
    assert parser.parse("Action: I walk on.\nAction: f\nAction Input: {}")["tool_type"] == "f"


def test_a_call_in_the_reasoning_is_no_action() -> None:
    """It is only a thought; code gets back the end mark that was a stop word."""
    parser = ToolParser(Think(), FencedCode())
    text = "<think>Or:\n```python\n1\n```\n?</think>\n```python\n2\n"

    assert parser.parse(text)["action"]["parameters"] == {"code": "2"}
    assert parser.complete(text) == f"{text}```"
    assert parser.parse("<think>```python\n1\n```")["status"] == "none"


@settings(deadline=None)
@given(text, text, text, st.integers(0, 5))
def test_an_end_that_was_cut_is_no_part_of_the_action(
    thought: str, action: str, rest: str, left: int
) -> None:
    """A stop word removes the whole mark, another limit a part."""
    if "```python" in thought or "`" in action:
        return
    end = "\n```\n"
    cut = f"{thought}```python\n{action}{end[:left]}"
    whole = f"{thought}```python\n{action}{end}"
    if left:
        assert CODE.parse(cut)["action"]["parameters"] == {"text": action}
    assert CODE.parse(whole + rest)["action"]["parameters"] == {"text": action}
    assert CODE.complete(whole + rest) == whole
    assert CODE.complete(CODE.complete(cut)) == CODE.complete(cut)
    assert json.loads(json.dumps(CODE.parse(cut))) == CODE.parse(cut)


@pytest.mark.parametrize("parser", [CODE, ToolParser(FencedCall(), *CODE.formats)])
@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ("So:\n```python\nremove('a", "invalid"),
        ("So:\n```python\nremove('a')\n```", "valid"),
        ("So:\n```python\nremove('a')\n```\nThis remo", "valid"),
        ("So I would", "none"),
    ],
)
async def test_an_action_that_was_cut_off_cannot_be_used(
    parser: Parser[ToolAction], reply: str, status: str
) -> None:
    """At the reply's maximum length; a complete action in it can be used."""
    cut = Message(role="assistant", content=reply, finish_reason="length")
    action = (await Agent(ScriptedBackend(cut), output_format=parser)("?")).output

    assert action["status"] == status
    assert ("cut off" in (action["error"] or "")) is (status == "invalid")


marks = st.text(st.sampled_from("`\n e"), min_size=1, max_size=4)


@settings(deadline=None)
@given(
    st.one_of(
        marks.map(lambda end: TextCall("shell", "Action: ", end)),
        st.sampled_from([FencedCall(), Hermes(), ReAct(), FencedCode(), InternLMInterpreter()]),
    ),
    st.text(st.sampled_from("rm`\n e/{}"), max_size=12),
    st.data(),
)
def test_an_action_that_was_cut_anywhere_is_whole_or_invalid(
    form: Format, text: str, data: st.DataObject
) -> None:
    """With any end mark, also white space: no half of one runs."""
    arguments = {form.__dict__.get("_argument", "text"): text}
    call = ToolCall(id="1", name=form.tool or "shell", arguments=arguments)
    written = form.write(call)
    if isinstance(form, InternLMInterpreter):
        written = f"{form.open}{text}{form.close}"
    parser = ToolParser(form)
    whole = parser.parse(written)
    came = written[: data.draw(st.integers(0, len(written)))]
    mark = (form.close or "").rstrip()  # at the very end it is taken for the mark
    cut = parser.parse_cut(came)
    if cut["status"] == "valid" and not (mark and came.endswith(mark)):
        assert cut["action"] == whole["action"]


def test_an_action_whose_end_mark_is_white_space_is_not_run_when_it_is_cut() -> None:
    """Nor one with the beginning of the mark in its text."""
    shell = ToolParser(TextCall("shell", "Action: ", "\n"))
    assert shell.parse_cut("Action: rm -rf /data/cache")["status"] == "invalid"
    assert shell.parse_cut("Action: rm -rf /data/cache/old\n")["status"] == "valid"
    assert CODE.parse_cut("```python\nopen('\n```x')\nremove('a")["status"] == "invalid"


async def test_an_action_that_a_filter_cut_off_is_not_run() -> None:
    """As one that was too long is not."""
    cut = Message(role="assistant", content="```python\nremove('a", finish_reason="content_filter")
    agent = Agent(ScriptedBackend(cut), output_format=CODE)
    assert (await agent("?")).output["status"] == "invalid"


def test_what_validate_refuses_is_told() -> None:
    """With the action and the reason; it may return other arguments."""

    def read(arguments: dict[str, Any]) -> dict[str, Any]:
        return json.loads(arguments["text"])

    parser = ToolParser(TextCall("plugin", "<tool>", "</tool>"), validate=read)

    assert parser.parse('<tool>{"x": 1}</tool>')["action"]["parameters"] == {"x": 1}
    parsed = parser.parse("<tool>{x}</tool>")
    assert (parsed["status"], parsed["action"]["parameters"]) == ("invalid", {"text": "{x}"})
    assert "Expecting property name" in (parsed["error"] or "")


def test_of_several_formats_the_one_whose_action_stands_first_reads_it() -> None:
    """The others' marks are part of its text, or ignored."""
    parser = ToolParser(FencedCall(), FencedCode(tool="interpreter"), template="Act.")
    python = "Hm.\n```python\nprint('''```json\n{}''')\n```\n"

    assert parser.parse(python)["tool_type"] == "interpreter"
    assert parser.parse('```json\n{"name": "f"}\n```\n' + python)["tool_type"] == "f"
    assert parser.parse("Done.")["status"] == "none"
    assert parser.parse("```json\n[1]\n```")["status"] == "invalid"
    assert parser.instruction().startswith("Act.\n\nYou have these tools:")


async def test_parsing_holds_in_sessions_at_once() -> None:
    """A parser stores nothing of a reply."""

    def echo(request: Any) -> str:
        return f"```python\n{request.messages[-1].content}\n```"

    agent = Agent(ScriptedBackend(otherwise=echo, seed=3), output_format=CODE)
    answers = await asyncio.gather(*(agent(f"n{n}", session_id=n) for n in range(20)))

    assert [answer.output["action"]["parameters"]["text"] for answer in answers] == [
        f"n{n}" for n in range(20)
    ]
