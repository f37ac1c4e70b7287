"""Servers that repeat data: complete messages beside deltas, and calls that are sent again."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_server import DONE, Reply, chunk, event
from support.wire_backends import ASK, WireBackends, wire

from anabranch.commander import Commander, Node
from anabranch.dispatch import fork
from anabranch.dispatch.assembly import Assembly, Branches
from anabranch.handlers import handler
from anabranch.messages import Delta, Message, ProviderItem, ToolCallDelta

__all__ = ["wire"]  # the fixture

WHOLE = {"role": "assistant", "content": "Hi there", "reasoning_content": "Hm"}
CALL = {"index": 0, "id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}


def beside(message: Any, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Write a chunk with a message, and with a delta if `delta` is given."""
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"choices": [choice | delta]}


SAID = [
    {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]},
    {"choices": [{"index": 0, "delta": {"content": "Hi "}}]},
    {"choices": [{"index": 0, "delta": {"content": "there"}}]},
]
STREAMS: dict[str, list[dict[str, Any]]] = {
    "beside an empty delta": [*SAID, beside(WHOLE, "stop", delta={})],
    "beside a null delta": [*SAID, beside(WHOLE, "stop", delta=None)],
    "instead of a delta": [*SAID, beside(WHOLE, "stop")],
    "twice": [*SAID, beside(WHOLE), beside(WHOLE, "stop")],
    "alone": [beside(WHOLE, "stop")],
    "alone with a null delta": [beside(WHOLE, "stop", delta=None)],
    "behind a delta that says nothing": [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        beside(WHOLE, "stop", delta={}),
    ],
    "behind its usage": [
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
        beside(WHOLE, "stop", delta=None),
    ],
    "as it grows": [
        beside({**WHOLE, "content": "Hi"}),
        beside({**WHOLE, "content": "Hi the"}),
        beside(WHOLE, "stop"),
    ],
    "with each delta": [
        beside({"content": "Hi "}, delta={"reasoning_content": "Hm", "content": "Hi "}),
        beside({"content": "Hi there"}, delta={"content": "there"}),
        beside(WHOLE, "stop", delta={"role": "assistant", "content": ""}),
    ],
}


@pytest.mark.parametrize("in_one", [True, False])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_whole_message_adds_nothing_to_its_deltas(
    wire: WireBackends, name: str, *, in_one: bool
) -> None:
    """At any place, and cut in any way."""
    steps = [*map(event, STREAMS[name]), DONE]
    wire.server.script(Reply([b"".join(steps)] if in_one else steps))

    message = await wire.connect().complete(ASK)

    assert (message.content, message.reasoning) == ("Hi there", "Hm")


@handler
async def forked(node: Node[Any], source: Any) -> Message:
    return await fork(node, source).message


@pytest.mark.parametrize("name", STREAMS)
async def test_nor_to_the_chunks_of_another_library(name: str) -> None:
    """A fork handles them as a backend does."""
    async with asyncio.timeout(60), Commander() as commander:
        message = await commander.run(forked(STREAMS[name]))

    assert (message.content, message.reasoning) == ("Hi there", "Hm")


async def test_the_calls_of_a_whole_message_are_made_once(wire: WireBackends) -> None:
    """The deltas have already made these calls."""
    last = beside({"role": "assistant", "tool_calls": [CALL]}, "tool_calls", delta={})
    wire.server.script(Reply([chunk({"tool_calls": [CALL]}), event(last), DONE]))

    message = await wire.connect().complete(ASK)

    assert [(call.id, call.arguments) for call in message.tool_calls] == [("c", {"a": 1})]


async def test_a_call_that_is_sent_twice_is_made_once(wire: WireBackends) -> None:
    """If id, index and arguments are equal. Any other call counts separately."""
    twice = [chunk({"tool_calls": [CALL]})] * 2
    other = {**CALL, "function": {"name": "add", "arguments": '{"a": 2}'}}
    wire.server.script(
        Reply([*twice, chunk({"tool_calls": [other]}), chunk(finish="tool_calls"), DONE])
    )

    message = await wire.connect().complete(ASK)

    assert [call.arguments for call in message.tool_calls] == [{"a": 1}, {"a": 2}]
    assert len({call.id for call in message.tool_calls}) == 2


class Heard:
    """The output of the branches for a reply with these pieces of calls."""

    def __init__(self, pieces: list[ToolCallDelta], finish: str = "tool_calls") -> None:
        self.text: list[str] = []
        self.calls: list[Any] = []
        self.pieces: dict[int, str] = {}
        branches = Branches(self.text.append, calls=self.calls.append, pieces=self._note)
        assembly = Assembly(branches, to_user="to_user")
        for piece in pieces:
            assembly.feed([Delta(tool_calls=(piece,))])
        assembly.feed([Delta(finish_reason=finish)])
        for call in assembly.end():
            assembly.refuse(call)
        self.message = assembly.message()

    def _note(self, pieces: Any) -> None:
        for piece in pieces:
            self.pieces[piece.index] = self.pieces.get(piece.index, "") + piece.arguments


Call = tuple[str, dict[str, Any]]
arguments = st.fixed_dictionaries(
    {}, optional={"a": st.integers(0, 3), "to_user": st.sampled_from(["", "Hi", 'a "b" ☃'])}
)
calls = st.lists(st.tuples(st.sampled_from(["add", "look"]), arguments), min_size=1, max_size=4)


def pieces_of(index: int, call: Call, chance: Random) -> list[ToolCallDelta]:
    """Cut a call: one piece, or its head and then its arguments in pieces."""
    name, given = call
    item = ProviderItem.of("maker", {"signature": index})
    text = json.dumps(given, ensure_ascii=chance.random() < 0.5)
    place = chance.choice([index, index, -1])
    if chance.random() < 0.4:
        return [ToolCallDelta(place, f"c{index}", name, text, item=item)]
    cuts = sorted(chance.sample(range(len(text) + 1), min(3, len(text))))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    ident = f"c{index}" if place < 0 else None
    return [
        ToolCallDelta(place, f"c{index}", name, item=item),
        *(ToolCallDelta(place, ident, None, part) for part in parts),
    ]


@given(made=calls, seed=st.integers(0, 2**32))
def test_calls_that_are_sent_again_change_nothing(made: list[Call], seed: int) -> None:
    """Sent once or twice more, at every cut, after any other call."""
    chance = Random(seed)
    once = [pieces_of(index, call, chance) for index, call in enumerate(made)]
    again: list[list[ToolCallDelta]] = []
    for index, pieces in enumerate(once):
        again.append(pieces)
        for _ in range(chance.choice([0, 1, 1, 2])):
            at = chance.randrange(index + 1)
            again.append(pieces_of(at, made[at], chance))

    plain = Heard([piece for pieces in once for piece in pieces])
    heard = Heard([piece for pieces in again for piece in pieces])

    assert [(c.id, c.index, c.name, c.arguments) for c in heard.calls] == [
        (c.id, c.index, c.name, c.arguments) for c in plain.calls
    ]
    assert heard.text == plain.text
    ids = [(call.id, call.index, call.arguments) for call in heard.message.tool_calls]
    assert ids == [(call.id, call.index, call.arguments) for call in plain.message.tool_calls]
    assert heard.message.provider_items == plain.message.provider_items


def test_the_pieces_of_a_call_that_is_sent_again_are_passed_on_once() -> None:
    """Pieces of a repetition are dropped. If it turns out to differ, they are passed on."""
    head = ToolCallDelta(0, "c", "add")
    again = [head, ToolCallDelta(0, arguments='{"a": '), ToolCallDelta(0, arguments="1}")]
    other = [head, ToolCallDelta(0, arguments='{"a": '), ToolCallDelta(0, arguments="2}")]

    assert Heard([*again, *again]).pieces == {0: '{"a": 1}'}
    assert Heard([*again, *other]).pieces == {0: '{"a": 1}{"a": 2}'}


@pytest.mark.parametrize("finish", ["length", "tool_calls"])
def test_a_call_that_breaks_off_while_it_is_sent_again_is_not_made_twice(finish: str) -> None:
    """The fragment is ignored, unless it differs from the first call: then it is an error."""
    whole = [ToolCallDelta(0, "c", "add", '{"a": 1}'), ToolCallDelta(0, "c", "add")]

    again = Heard([*whole, ToolCallDelta(0, arguments='{"a"')], finish)
    other = Heard([*whole, ToolCallDelta(0, arguments='{"b"')], finish)

    assert [type(call).__name__ for call in again.calls] == ["ToolCall"]
    assert [type(call).__name__ for call in other.calls] == ["ToolCall", "ToolCallError"]
