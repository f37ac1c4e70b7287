"""Malformed server data gives a delta or an error of the family, and no other result.

The corpus has cases that were observed or invented. The generator inserts JSON of any shape at any
place of valid chunks and responses.
"""

import copy
import json
import time
from collections.abc import Callable
from functools import reduce
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fork import run_body
from support.paths import DATA

from anabranch.commander import BackendError, BadResponse
from anabranch.dispatch import Hermes, fork
from anabranch.dispatch.assembly import Assembly, Branches
from anabranch.messages import (
    Delta,
    Message,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    Usage,
    delta_from_chunk,
    error_from_wire,
    message_from_response,
)

CORPUS: dict[str, dict[str, Any]] = json.loads((DATA / "hostile_chunks.json").read_text())
DEEP: Any = reduce(lambda inner, _: [inner], range(100_000), cast("Any", []))


def outcome(chunk: Any) -> Delta | BackendError | None:
    try:
        return delta_from_chunk(chunk)
    except BackendError as error:
        return error


class Out:
    """A consumer of deltas that works as a fork does and stores all output."""

    def __init__(self, to_user: str | None = "to_user") -> None:
        self.texts: list[str] = []
        self.calls: list[Any] = []
        self.pieces: list[ToolCallDelta] = []
        branches = Branches(
            self.texts.append, self.texts.append, self.calls.append, self.pieces.extend
        )
        self._assembly = Assembly(branches, to_user)

    def read(self, deltas: list[Delta]) -> Message:
        for delta in deltas:
            self._assembly.feed([delta])
        for call in self._assembly.end():
            self._assembly.refuse(call)
        return self._assembly.message()

    def said(self) -> str:
        """All output of the branches, as one text."""
        pieces = [f"{each.id}{each.name}{each.arguments}" for each in self.pieces]
        return "".join([*self.texts, *pieces, *map(str, self.calls)])


@pytest.mark.contract("F3")
@pytest.mark.parametrize("case", CORPUS)
def test_each_payload_of_the_corpus_gives_what_stands_beside_it(case: str) -> None:
    """A delta, no output, or an error with a short text that names the expected value."""
    found = outcome(CORPUS[case]["chunk"])

    assert type(found).__name__.removesuffix("Type") == CORPUS[case]["gives"]
    if isinstance(found, BadResponse):
        assert "should be" in str(found) or "several choices" in str(found)
    if isinstance(found, BackendError):
        assert len(str(found)) < 500
    if isinstance(found, Delta):
        Out().read([found])


CHUNK: dict[str, Any] = {
    "object": "chat.completion.chunk",
    "error": None,
    "usage": {"prompt_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 1}},
    "x_groq": {"usage": None},
    "choices": [
        {
            "index": 0,
            "finish_reason": None,
            "delta": {
                "content": [{"type": "text", "text": "Hi"}],
                "reasoning_content": "Hm",
                "refusal": None,
                "function_call": {"name": "f", "arguments": "{}"},
                "tool_calls": [
                    {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}
                ],
            },
        }
    ],
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 0.5, 1e308, float("nan"), float("inf"), 10**400, "", "x"),
    *("0", "\ud83d", "\n", "{}", "x" * 10_000, "²", [], {}, [None], [[]], [{}], {"": None}),
    *({"error": 1}, ["a", 1, {}], {"message": []}, {"text": 1, "type": "text"}, DEEP),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = cast("list[Any]", [*value] if isinstance(value, dict) else [*range(len(value))])
    found: list[tuple[Any, ...]] = []
    for key in keys:
        found.append((*path, key))
        if isinstance(value[key], (dict, list)):
            found += places(value[key], (*path, key))
    return found


def hostile(chance: Random) -> dict[str, Any]:
    """Return a chunk with another value at one to three of its places."""
    chunk = copy.deepcopy(CHUNK)
    for _ in range(chance.randint(1, 3)):
        *way, last = chance.choice(places(chunk) or [("choices",)])
        holder: Any = chunk
        for key in way:
            holder = holder[key]
        value = chance.choice(VALUES)
        holder[last] = value if value is DEEP else copy.deepcopy(value)
        if value is DEEP:
            break
    return chunk


@pytest.mark.contract("F3")
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32).map(Random))
def test_any_payload_gives_a_delta_or_an_error_of_the_family(chance: Random) -> None:
    """The resulting message can be serialized, sent and shown."""
    chunks = [hostile(chance) for _ in range(3)]
    found = [outcome(chunk) for chunk in chunks]

    out = Out()
    message = out.read([each for each in found if isinstance(each, Delta)])

    out.said().encode()
    json.dumps([message.to_wire(), message.to_record()], ensure_ascii=False).encode()
    message.model_dump_json()
    for each in found:
        str(each).encode()
    for chunk in chunks:
        response = {**chunk, "choices": chunk["choices"]}
        choices: Any = response["choices"]
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            choice = cast("dict[str, Any]", choices[0])
            choice["message"] = choice.pop("delta", None)
        try:
            message_from_response(response).model_dump_json()
        except BackendError as error:
            str(error).encode()


@pytest.mark.contract("F3")
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32).map(Random))
def test_any_error_object_is_an_error_of_the_family(chance: Random) -> None:
    """With any fields, with or without a status."""
    keys = ["message", "code", "type", "status", "detail"]
    fields: dict[str, Any] = {key: chance.choice(VALUES) for key in chance.sample(keys, 3)}

    error = error_from_wire(chance.choice([fields, *VALUES]), chance.choice([None, 418, 503]))

    assert isinstance(error, BackendError)
    assert error.status is None or 100 <= error.status <= 999
    str(error).encode()


@pytest.mark.contract("F3")
@pytest.mark.parametrize("item", [1, "x", None, [], object(), type("S", (), {"model_dump": 1})()])
async def test_what_is_neither_a_delta_nor_a_chunk_is_a_bad_response(item: object) -> None:
    """Whatever object a source yields."""
    with pytest.raises(BadResponse, match="chat-completions chunks"):
        await run_body(lambda node: fork(node, [item]).message)


@pytest.mark.contract("F3")
def test_a_usage_that_is_not_clean_is_taken_as_far_as_it_can_be() -> None:
    """Fractions are rounded, other values count as 0, and the reply succeeds."""
    usage = {"prompt_tokens": 1.6, "completion_tokens": None, "prompt_tokens_details": 3}
    assert Usage.from_wire(usage) == Usage(input_tokens=2)
    assert Usage.from_wire({"prompt_tokens": "1"}) == Usage(input_tokens=1)
    odds: list[Any] = [float("nan"), float("inf"), -1, "one", [], 10**400, {}]
    for odd in odds:
        assert Usage.from_wire({"prompt_tokens": odd, "completion_tokens": 5}).total_tokens == 5


@pytest.mark.contract("F3")
def test_arguments_nested_too_deep_are_a_faulty_call_from_any_place() -> None:
    """F3: as text a `ToolCallError`, as an object a `BadResponse`; never a `RecursionError`."""
    for depth in (99, 101, 5_000, 200_000):
        raw = '{"x": ' + "[" * depth + "]" * depth + "}"
        out = Out()
        message = out.read([Delta(tool_calls=[ToolCallDelta(0, "a", "f", raw)], done=True)])
        assert isinstance(out.calls[0], ToolCall if depth < 100 else ToolCallError)
        assert message.tool_calls[0].raw == raw
    chunk = copy.deepcopy(CHUNK)
    chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] = {"x": DEEP}
    with pytest.raises(BadResponse, match="arguments should be"):
        delta_from_chunk(chunk)


# --- the call that a piece belongs to


Piece = tuple[int, str | None, str | None, str]  # index, id, name, arguments


def pieces(*each: Piece) -> list[Delta]:
    return [Delta(tool_calls=[ToolCallDelta(*one)]) for one in each] + [Delta(done=True)]


def calls(*each: Piece) -> list[tuple[str, Any]]:
    out = Out()
    message = out.read(pieces(*each))
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    return [(c.name, c.arguments if isinstance(c, ToolCall) else c.raw) for c in out.calls]


@pytest.mark.contract("F3")
@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("call_id", ["a", None])
@pytest.mark.parametrize("second", ["f", "g"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_second_call_of_the_same_index_and_id_is_a_call(
    index: int, call_id: str | None, second: str, cut: bool
) -> None:
    """F3: whether its head arrives with its arguments or before them. No call is lost."""
    rest = ["", '{"x": ', "2}"] if cut else ['{"x": 2}']
    heads = [(index, call_id, second, rest[0])]

    found = calls(
        (index, call_id, "f", '{"x": 1}'), *heads, *((index, None, None, p) for p in rest[1:])
    )

    assert found == [("f", {"x": 1}), (second, {"x": 2})]


@pytest.mark.contract("F3")
@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("call_id", ["a", None])
@pytest.mark.parametrize("more", ["", "\n", " \t", "}"])
def test_a_head_repeated_after_the_arguments_does_not_run_the_tool_again(
    index: int, call_id: str | None, more: str
) -> None:
    """F3: also if no arguments, white space, or an extra brace follow the head."""
    head = (index, call_id, "f", '{"x": 1}')

    assert calls(head, (index, call_id, "f", more), (index, None, None, " ")) == [("f", {"x": 1})]


@pytest.mark.contract("F3")
def test_a_call_in_the_text_and_one_of_the_wire_are_not_mixed() -> None:
    """F3: also if both have index 0, and neither is complete when the other begins."""
    out: list[Any] = []
    assembly = Assembly(Branches(calls=out.append), None, [Hermes()])
    assembly.feed([Delta('<tool_call>{"name": "f", "arguments": {')])
    assembly.feed([Delta(tool_calls=[ToolCallDelta(0, "a", "g", '{"x"')])])
    assembly.feed([Delta('"y": 1}}</tool_call>')])
    assembly.feed([Delta(tool_calls=[ToolCallDelta(0, None, None, ": 2}")], done=True)])

    assert [(call.name, call.arguments) for call in out] == [("f", {"y": 1}), ("g", {"x": 2})]


MANY = 6_000


HEADS: list[Callable[[int], Piece]] = [
    lambda n: (-1, f"id{n}", "f", "{}"),
    lambda n: (-1, None, f"f{n}", "{}"),
    lambda n: (-1, f"id{n % 7}", "f", '{"to_user": "Hi"}'),
    lambda n: (n, "id", "f", "{}"),
    lambda n: (n, f"id_{n + MANY // 2}" if n < MANY // 2 else "id", "f", "{}"),
    lambda n: (n, None, "f", '{"to_user": "'),
    lambda _: (0, None, "f", ""),
    lambda n: (0, None, f"{n}", ""),
    lambda n: (0, "a", "f", "\n" if n else "{}"),
    lambda _: (-1, None, None, "{}"),
]


@pytest.mark.contract("F4")
@pytest.mark.parametrize("heads", HEADS)
def test_many_calls_cost_their_number(heads: Callable[[int], Piece]) -> None:
    """F4: with or without indices and ids. At quadratic cost it would take 5 s or more."""
    start = time.process_time()

    Out().read(pieces(*map(heads, range(MANY))))

    assert time.process_time() - start < 4


# --- halves of surrogate pairs

HALVES = [
    "\ud83d",
    "\ude00",
    "\ud83d\ude00",
    "\\ud83d",
    "\\ude00",
    "\\uD83D\\uDE00",
    "a",
    "é",
    "😀",
]


def clean(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@pytest.mark.contract("F1")
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(HALVES), max_size=8), st.integers(0, 2**32).map(Random))
def test_no_half_of_a_surrogate_pair_comes_out_anywhere(halves: list[str], chance: Random) -> None:
    """F1 and F2: pairs are joined at every cut, and a lone half becomes U+FFFD."""
    raw = "".join(halves)
    text = "".join(each for each in halves if "\\" not in each)
    arguments = f'{{"to_user": "{raw}", "x": "{raw}"}}'
    size = chance.randint(1, 9)

    def cut(whole: str) -> list[str]:
        return [whole[start : start + size] for start in range(0, len(whole), size)]

    deltas = [Delta(reasoning=each) for each in cut(text)]
    deltas += [Delta(each) for each in cut(text)]
    deltas += [Delta(tool_calls=[ToolCallDelta(0, "i\ud83d", "f\ude00")])]
    deltas += [Delta(tool_calls=[ToolCallDelta(0, None, None, each)]) for each in cut(arguments)]
    deltas += [Delta(refusal=each) for each in cut(text)]
    out = Out()

    message = out.read([*deltas, Delta(finish_reason="\ud83d")])

    out.said().encode()
    json.dumps(message.to_record(), ensure_ascii=False).encode()
    assert (message.content or "", message.reasoning or "") == (clean(text), clean(text))
    assert (message.refusal or "") == clean(text)
    (call,) = out.calls
    # Literal halves are joined before JSON escapes are decoded.
    whole = json.loads(clean(arguments))["x"]
    assert call.arguments == {"x": clean(whole)}
    assert Message.from_wire(message.to_record()) == message


@pytest.mark.contract("F1")
@pytest.mark.parametrize("wire", [CHUNK["choices"][0]["delta"], {"content": "a\ud83d"}])
def test_a_message_that_did_not_stream_is_as_clean(wire: dict[str, Any]) -> None:
    """Content, reasoning and arguments, in every reader of wire messages."""
    calls = [{"id": "a", "function": {"name": "f", "arguments": '{"x": "\\ud83d\ud83d"}'}}]
    wire = {"role": "assistant", "reasoning": "\ude00", **wire, "tool_calls": calls}

    message = Message.from_wire(wire)

    message.model_dump_json().encode()
    assert message.tool_calls[0].arguments == {"x": "\ufffd\ufffd"}
