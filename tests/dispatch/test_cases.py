"""Replies that break other dispatchers, each cut into deltas of every size from one character."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.dispatch.assembly import Assembly, Branches
from anabranch.messages import Delta, Message, ToolCall, ToolCallDelta, ToolCallError

SIZES = (1, 2, 3, 4, 5, 7, 11, 1000)


@dataclass
class Seen:
    """The output of the branches."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    pieces: list[ToolCallDelta] = field(default_factory=list)
    message: Message | None = None

    def branches(self) -> Branches:
        return Branches(
            self.texts.append, self.thoughts.append, self.calls.append, self.pieces.extend
        )

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def arguments(self) -> list[Any]:
        return [c.arguments if isinstance(c, ToolCall) else c for c in self.calls]


def read(deltas: Sequence[Delta], to_user: str | None = "to_user") -> Seen:
    seen = Seen()
    assembly = Assembly(seen.branches(), to_user)
    for delta in deltas:
        assembly.feed([delta])
    for call in assembly.end():
        assembly.refuse(call)
    seen.message = assembly.message()
    return seen


def head(index: int = 0, name: str = "f", call_id: str | None = "id") -> Delta:
    return Delta(tool_calls=[ToolCallDelta(index, call_id, name)])


def more(arguments: str, index: int = 0) -> Delta:
    return Delta(tool_calls=[ToolCallDelta(index, arguments=arguments)])


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def call(arguments: str, size: int, finish_reason: str | None = "tool_calls") -> list[Delta]:
    pieces = [more(piece) for piece in cut(arguments, size)]
    return [head(), *pieces, Delta(finish_reason=finish_reason, done=finish_reason is None)]


# The arguments as a model may write them, the text for the user, the arguments of the tool.
SPELLINGS: dict[str, tuple[str, str, Any]] = {
    "first": ('{"to_user": "Hi", "a": 1}', "Hi", {"a": 1}),
    "last": ('{"a": 1, "to_user": "Hi"}', "Hi", {"a": 1}),
    "alone": ('{"to_user": "Hi"}', "Hi", {}),
    "absent": ('{"a": "to_user"}', "", {"a": "to_user"}),
    "empty": ('{"to_user": "", "a": 1}', "", {"a": 1}),
    "null": ('{"to_user": null, "a": 1}', "", {"a": 1}),
    "number": ('{"to_user": 12, "a": 1}', "", {"a": 1}),
    "number last": ('{"to_user": -1.5e3}', "", {}),
    "list": ('{"to_user": ["no", "}"], "a": 1}', "", {"a": 1}),
    "object": ('{"to_user": {"to_user": "no"}, "a": 1}', "", {"a": 1}),
    "space before the colon": ('{"to_user" : "Hi" , "a" :1}', "Hi", {"a": 1}),
    "space everywhere": ('\n{ \t"to_user"\r\n:\n "Hi"\n,\n"a":\t1 }\n', "Hi", {"a": 1}),
    "nested only": ('{"a": {"to_user": "no"}}', "", {"a": {"to_user": "no"}}),
    "nested beside a real one": (
        '{"a": [{"to_user": "no"}], "to_user": "yes"}',
        "yes",
        {"a": [{"to_user": "no"}]},
    ),
    "a value of that name": ('{"a": "to_user", "to_user": "x"}', "x", {"a": "to_user"}),
    "key in escapes": ('{"\\u0074o_\\u0075ser": "Hi", "a": 1}', "Hi", {"a": 1}),
    "a longer key": (
        '{"to_user2": "no", "xto_user": "no"}',
        "",
        {"to_user2": "no", "xto_user": "no"},
    ),
    "escaped quote in a key": ('{"a\\"": 1, "to_user": "Hi"}', "Hi", {'a"': 1}),
    "every escape": (
        '{"to_user": "\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u0000", "a": 1}',
        '"\\/\b\f\n\r\té\0',
        {"a": 1},
    ),
    "ends in a backslash": ('{"to_user": "a\\\\", "a": "b\\\\"}', "a\\", {"a": "b\\"}),
    "backslashes before quotes": ('{"to_user": "\\\\\\"\\\\\\\\", "a": 1}', '\\"\\\\', {"a": 1}),
    "surrogate pair": ('{"to_user": "\\ud83d\\ude00!", "a": 1}', "😀!", {"a": 1}),
    "two pairs": ('{"to_user": "\\uD83D\\uDE00\\uD83D\\uDE01"}', "😀😁", {}),
    "lone high half": ('{"to_user": "x\\ud83d", "a": 1}', "x\ufffd", {"a": 1}),
    "lone high half, then an escape": ('{"to_user": "\\ud83d\\n"}', "\ufffd\n", {}),
    "two high halves": ('{"to_user": "\\ud83d\\ud83d\\ude00"}', "\ufffd😀", {}),
    "lone low half": ('{"to_user": "\\ude00x"}', "\ufffdx", {}),
    "an escaped backslash before u": ('{"to_user": "\\\\ud83d"}', "\\ud83d", {}),
    "all of Unicode": ('{"to_user": "é漢😀\u2028", "a": "é漢😀"}', "é漢😀\u2028", {"a": "é漢😀"}),
    "brackets in strings": ('{"a": "}]{[", "to_user": "{}"}', "{}", {"a": "}]{["}),
    "deep": ('{"a": [[[{"b": {"c": []}}]]], "to_user": "Hi"}', "Hi", {"a": [[[{"b": {"c": []}}]]]}),
    "strings in nested values": (
        '{"a": ["\\"", "}", "\\\\"], "to_user": "Hi"}',
        "Hi",
        {"a": ['"', "}", "\\"]},
    ),
    "literals": ('{"a": true, "b": null, "to_user": "x"}', "x", {"a": True, "b": None}),
    "twice": ('{"to_user": "one", "to_user": "two"}', "one\ntwo", {}),
    "empty key": ('{"": 1, "to_user": "x"}', "x", {"": 1}),
    "empty object": ("{}", "", {}),
    "nothing": ("", "", {}),
    "only space": ("  \n", "", {}),
}


@pytest.mark.contract("F2")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", SPELLINGS)
def test_any_spelling_of_to_user_cut_anywhere_reaches_the_user_and_not_the_tool(
    case: str, size: int
) -> None:
    """F2: the user gets the decoded text, the tool the other arguments, the message both."""
    arguments, told, given = SPELLINGS[case]

    seen = read(call(arguments, size))

    assert seen.text == told
    assert seen.arguments == [given]
    assert seen.message is not None
    assert seen.message.tool_calls[0].text == (arguments if arguments.strip() else "{}")
    assert seen.message.content is None


FAULTY: dict[str, str] = {
    "cut in a string": '{"a": "x',
    "cut in an escape": '{"a": "x\\',
    "cut after a value": '{"a": 1',
    "cut in to_user": '{"to_user": "Hel',
    "a list": "[1, 2]",
    "a string": '"{}"',
    "null": "null",
    "not JSON": "{'a': 1}",
    "no colon": '{"a" 1}',
    "NaN": '{"a": NaN}',
    "unknown escape": '{"to_user": "\\q", "a": 1}',
    "a bad unicode escape": '{"to_user": "\\uzzzz", "a": 1}',
    "a raw newline": '{"a": "\n"}',
    "brackets crossed": '{"a": [}]}',
    "trailing comma": '{"a": 1,}',
}


@pytest.mark.contract("F3")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", FAULTY)
def test_a_call_that_is_not_a_json_object_is_an_error_in_its_place(case: str, size: int) -> None:
    """F3: it never runs. The error has its raw text, and the message can be sent back."""
    seen = read(call(FAULTY[case], size))

    (error,) = seen.calls
    assert isinstance(error, ToolCallError)
    assert (error.id, error.name, error.index, error.raw) == ("id", "f", 0, FAULTY[case])
    assert seen.message is not None
    sent = seen.message.to_wire()["tool_calls"][0]["function"]["arguments"]
    assert sent == "{}"
    assert seen.message.tool_calls[0].raw == FAULTY[case]


@pytest.mark.contract("F1")
def test_arguments_in_the_head_delta_count() -> None:
    """The first piece of a call may contain the id, the name and all arguments."""
    whole = Delta(tool_calls=[ToolCallDelta(0, "id", "f", '{"to_user": "Hi", "a": 1}')])

    seen = read([whole, Delta(finish_reason="tool_calls")])

    assert (seen.text, seen.arguments) == ("Hi", [{"a": 1}])


@pytest.mark.contract("F1")
def test_two_calls_in_one_delta_both_come_out() -> None:
    """One delta may contain pieces of several calls."""
    both = [ToolCallDelta(0, "a", "f", "{}"), ToolCallDelta(1, "b", "g", '{"x": 1}')]

    seen = read([Delta(tool_calls=both), Delta(finish_reason="tool_calls")])

    assert [(c.id, c.name, c.arguments) for c in seen.calls] == [
        ("a", "f", {}),
        ("b", "g", {"x": 1}),
    ]


@pytest.mark.contract("F1")
def test_interleaved_calls_are_kept_apart() -> None:
    """Pieces of calls may alternate. Each call is passed on when it is complete."""
    deltas = [head(0, "f", "a"), head(1, "g", "b")]
    for left, right in zip(cut('{"x": "one"}', 2), cut('{"y": "two"}', 2), strict=True):
        deltas += [more(left, 0), more(right, 1)]

    seen = read([*deltas, Delta(finish_reason="tool_calls")])

    assert [(c.name, c.arguments) for c in seen.calls] == [("f", {"x": "one"}), ("g", {"y": "two"})]


@pytest.mark.contract("F3")
def test_a_call_is_handed_on_with_the_delta_that_completes_it() -> None:
    """No later delta is needed to complete a call."""
    seen = Seen()
    assembly = Assembly(seen.branches(), None)
    for delta in (head(), more('{"a": '), more('{"b": 1}')):
        assembly.feed([delta])
    assert seen.calls == []

    assembly.feed([more("}")])

    assert seen.arguments == [{"a": {"b": 1}}]


@pytest.mark.contract("F2")
def test_text_in_to_user_arrives_with_the_delta_that_carried_it() -> None:
    """F2: only an unfinished escape sequence is held back."""
    seen = Seen()
    assembly = Assembly(seen.branches(), "to_user")
    steps = [
        ('{"to_user": "He', "He"),
        ("llo", "llo"),
        (" \\", " "),
        ("n\\u00", "\n"),
        ("e9", "é"),
        ("\\ud83d", ""),
        ("\\ude00", "😀"),
        ('!"', "!"),
        ("}", ""),
    ]
    assembly.feed([head()])
    for piece, told in steps:
        before = len(seen.texts)
        assembly.feed([more(piece)])
        assert "".join(seen.texts[before:]) == told


@pytest.mark.contract("F3")
def test_calls_without_ids_get_ids_that_are_unique_in_the_reply() -> None:
    """Tool results refer to ids. A generated id may not equal one that the server sends."""
    deltas = [head(0, "f", None), more("{}", 0), head(1, "g", None), more("{}", 1)]
    clash = [head(2, "h", "call_0"), more("{}", 2), head(3, "i", "call_0"), more("{}", 3)]

    seen = read([*deltas, *clash, Delta(finish_reason="tool_calls")])

    ids = [c.id for c in seen.calls]
    assert ids[:2] == ["call_0", "call_1"]
    assert len(set(ids)) == 4
    assert seen.message is not None
    assert [c.id for c in seen.message.tool_calls] == ids


@pytest.mark.contract("F3")
def test_servers_that_number_nothing_or_every_call_0_are_understood() -> None:
    """Only a piece with a name begins a call, because indices and ids are often wrong."""
    for index in (-1, 0):
        deltas = [
            Delta(tool_calls=[ToolCallDelta(index, "a", "f", '{"x"')]),
            Delta(tool_calls=[ToolCallDelta(index, None, None, ": 1}")]),
            Delta(tool_calls=[ToolCallDelta(index, "b", "f", '{"x": 2}')]),
            Delta(tool_calls=[ToolCallDelta(index, None, "f", '{"x": 3}')]),
        ]

        seen = read([*deltas, Delta(finish_reason="stop")])

        assert [c.arguments for c in seen.calls] == [{"x": 1}, {"x": 2}, {"x": 3}]
        assert [c.index for c in seen.calls] == [0, 1, 2]
        assert len({c.id for c in seen.calls}) == 3


@pytest.mark.contract("F3")
def test_ids_and_names_repeated_on_every_piece_make_one_call() -> None:
    """Some servers repeat the head with every piece, or send a new id each time."""
    repeated = [Delta(tool_calls=[ToolCallDelta(0, "a", "f", p)]) for p in cut('{"x": 1}', 2)]
    new_ids = [
        Delta(tool_calls=[ToolCallDelta(0, f"id{i}", None if i else "f", p)])
        for i, p in enumerate(cut('{"x": 1}', 2))
    ]
    for deltas in (repeated, new_ids):
        seen = read([*deltas, Delta(finish_reason="stop")])

        assert [(c.name, c.arguments) for c in seen.calls] == [("f", {"x": 1})]


@pytest.mark.contract("F3")
def test_a_name_cut_in_two_is_joined() -> None:
    """The name may also arrive in pieces."""
    deltas = [head(0, "get_", "a"), Delta(tool_calls=[ToolCallDelta(0, None, "time")]), more("{}")]

    assert read([*deltas, Delta(finish_reason="stop")]).calls[0].name == "get_time"


@pytest.mark.contract("F3")
def test_a_call_without_a_name_is_an_error() -> None:
    """It names no tool to run."""
    seen = read([more("{}"), Delta(finish_reason="stop")])

    assert isinstance(seen.calls[0], ToolCallError)
    assert "names no tool" in str(seen.calls[0])


@pytest.mark.contract("F3")
def test_finish_reason_stop_after_a_call_counts_the_call() -> None:
    """Many servers send "stop" where "tool_calls" is correct."""
    assert read(call('{"a": 1}', 3, "stop")).arguments == [{"a": 1}]


@pytest.mark.contract("F3")
def test_length_in_the_middle_of_a_call_is_an_error() -> None:
    """A truncated call never runs."""
    seen = read(call('{"a": "some te', 3, "length"))

    assert isinstance(seen.calls[0], ToolCallError)
    assert seen.message is not None
    assert seen.message.finish_reason == "length"


@pytest.mark.contract("F3")
def test_empty_arguments_are_an_object_unless_the_reply_was_stopped_before_them() -> None:
    """Empty means {} in a complete reply, and missing in one that ran out of tokens."""
    assert read(call("", 1, "stop")).arguments == [{}]
    assert read(call("", 1, None)).arguments == [{}]
    assert isinstance(read(call("", 1, "length")).calls[0], ToolCallError)


@pytest.mark.contract("F3")
def test_text_after_the_object_of_a_call_is_dropped() -> None:
    """The call has already been passed on, and the message must agree with it."""
    for size in SIZES:
        seen = read(call('{"a": 1} {"b": 2}', size))

        assert seen.arguments == [{"a": 1}]
        assert seen.message is not None
        assert seen.message.tool_calls[0].raw == '{"a": 1}'


@pytest.mark.contract("F2")
def test_texts_of_different_origin_are_separated_and_wait_for_each_other() -> None:
    """F2: a newline separates them. A text that starts while another is open waits for its end."""
    deltas = [
        Delta("Let me"),
        Delta(" see."),
        head(0, "f", "a"),
        head(1, "g", "b"),
        more('{"to_user": "One', 0),
        more('{"to_user": "Two', 1),
        Delta("Aside"),
        more(" one", 0),
        more(' two", "x": 1}', 1),
        more('"}', 0),
        Delta("."),
        Delta(finish_reason="tool_calls"),
    ]

    seen = read(deltas)

    assert seen.text == "Let me see.\nOne one\nTwo two\nAside."
    assert seen.message is not None
    assert seen.message.content == "Let me see.Aside."


@pytest.mark.contract("F2")
def test_reasoning_and_refusals_have_their_own_places() -> None:
    """Reasoning has a branch and a field. A refusal is shown to the user and has a field."""
    seen = read(
        [Delta(reasoning="Hm"), Delta(reasoning="m."), Delta(refusal="No."), Delta(done=True)]
    )

    assert "".join(seen.thoughts) == "Hmm."
    assert seen.text == "No."
    assert seen.message is not None
    assert (seen.message.reasoning, seen.message.refusal, seen.message.content) == (
        "Hmm.",
        "No.",
        None,
    )


@pytest.mark.contract("F1")
def test_surrogate_pairs_cut_between_deltas_are_joined() -> None:
    """Servers that escape their JSON may cut a pair in the middle."""
    seen = read([Delta("a\ud83d"), Delta("\ude00b"), Delta("\ud83d"), Delta(finish_reason="stop")])

    assert seen.text == "a😀b\ufffd"
    seen = read([head(), *[more(p) for p in ('{"a": "\ud83d', '\ude00"}')], Delta(done=True)])
    assert seen.arguments == [{"a": "😀"}]


@pytest.mark.contract("F1")
def test_half_a_surrogate_pair_before_a_call_is_not_said_after_it() -> None:
    """Once the call has begun, no delta can complete the pair."""
    seen = read([Delta("so \ud83d"), *call('{"to_user": "Hi"}', 4)])
    assert seen.text == "so \ufffd\nHi"
    assert seen.message is not None
    assert seen.message.content == "so \ufffd"


@pytest.mark.contract("F3")
def test_nesting_beyond_the_recursion_limit_is_an_error_not_a_crash() -> None:
    """The scanner is iterative.

    The recursion error of the JSON parser becomes an error of the call.
    """
    deep = '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}"

    assert isinstance(read(call(deep, 1000)).calls[0], ToolCallError)


@pytest.mark.contract("F2")
def test_to_user_can_be_turned_off() -> None:
    """With `to_user=None` all arguments go to the tool."""
    seen = read(call('{"to_user": "Hi"}', 2), to_user=None)

    assert (seen.text, seen.arguments) == ("", [{"to_user": "Hi"}])


@pytest.mark.contract("F3")
def test_arguments_handed_on_equal_those_in_the_message() -> None:
    """The message contains the arguments as sent, with the text for the user."""
    seen = read(call('{"to_user": "Hi", "a": [1, {"b": 2}]}', 4))

    assert seen.message is not None
    (sent,) = seen.message.tool_calls
    assert sent.arguments == {"to_user": "Hi", "a": [1, {"b": 2}]}
    assert json.loads(sent.text) == sent.arguments
