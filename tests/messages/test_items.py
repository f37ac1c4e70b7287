"""Provider items in messages keep their position, and every store restores them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anabranch import AgentMessage, Conversation
from anabranch.backends import connect
from anabranch.backends._cassette_file import delta_from_json, delta_to_json
from anabranch.backends._recorded import _write_reply as write_reply  # pyright: ignore[reportPrivateUsage]
from anabranch.backends._recorded import deltas_of, key_of
from anabranch.backends._request_fit import plain_messages
from anabranch.dispatch.assembly import assemble
from anabranch.messages import (
    ChunkReader,
    Delta,
    Message,
    ProviderItem,
    Request,
    ToolCall,
    ToolCallDelta,
    request_body,
)
from anabranch.messages.compact_json import read_message, write_json, write_message
from anabranch.testing import ScriptedBackend, deltas

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ITEMS = st.builds(ProviderItem.of, st.sampled_from(["a", "b:8000", "localhost"]), VALUES)


@st.composite
def replies(draw: st.DrawFn) -> list[Delta]:
    """Draw the deltas of a reply: text, reasoning, calls and items in any order."""
    made: list[Delta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("trxcip"), max_size=10)):
        match kind:
            case "t":
                made.append(Delta(draw(TEXTS)))
            case "r":
                made.append(Delta(reasoning=draw(TEXTS)))
            case "x":
                made.append(Delta(refusal=draw(TEXTS)))
            case "i":
                made.append(Delta(draw(TEXTS), items=draw(st.lists(ITEMS, max_size=2))))
            case "c":
                place = -1 if draw(st.booleans()) else calls
                head = ToolCallDelta(place, f"c{calls}", "f", item=draw(st.none() | ITEMS))
                rest = ToolCallDelta(place, arguments='{"a": 1}', item=draw(st.none() | ITEMS))
                made += [Delta(tool_calls=[head]), Delta(tool_calls=[rest])]
                calls += 1
            case _ if calls:  # an item of the last call, which is complete
                made.append(Delta(tool_calls=[ToolCallDelta(calls - 1, item=draw(ITEMS))]))
            case _:
                pass
    return [*made, Delta(finish_reason="stop", done=True)]


Order = tuple[list[tuple[list[str], str]], list[tuple[str, str]]]
"""Items that stand alone, each with the letters and calls before it, and those of calls."""


def order_of(message: Message) -> Order:
    before: list[str] = []
    alone: list[tuple[list[str], str]] = []
    of_calls: list[tuple[str, str]] = []
    for part in message.in_order():
        if isinstance(part, str):
            before += part
        elif isinstance(part, ToolCall):
            before.append(part.id)
        elif part.call is None:
            alone.append((sorted(before), part.data))
        else:
            of_calls.append((part.call, part.data))
    return alone, of_calls


@given(replies())
def test_a_message_has_its_items_in_the_order_of_the_reply(reply: list[Delta]) -> None:
    """An item follows the text and calls that arrived before it.

    An item of a call follows the call.
    """
    message = assemble(reply)
    before: list[str] = []
    alone: list[tuple[list[str], str]] = []
    of_calls: list[tuple[str, str]] = []
    last = ""
    for delta in reply:
        before += delta.text
        alone += [(sorted(before), item.data) for item in delta.items]
        for piece in delta.tool_calls:
            if piece.id:
                before.append(last := piece.id)
            if piece.item is not None:
                of_calls.append((last, piece.item.data))
    assert order_of(message) == (alone, of_calls)
    parts = [*message.in_order()]
    assert "".join(part for part in parts if isinstance(part, str)) == (message.content or "")
    assert [part for part in parts if isinstance(part, ToolCall)] == message.tool_calls


@given(replies())
def test_every_store_gives_items_back(reply: list[Delta]) -> None:
    """Records and files, journals, cassettes, scripts, and the states of agents."""
    message = assemble(reply)
    record = json.loads(json.dumps(message.to_record()))
    assert Message.from_wire(record).provider_items == message.provider_items
    kept = json.loads(write_json(write_message(message)))
    assert read_message(kept) == message
    backend = ScriptedBackend("unused")
    for exact in False, True:
        saved = json.loads(write_json(write_reply(backend, reply, [], exact=exact)))
        assert assemble(deltas_of(saved)) == message
    played = [delta_from_json({"at": 0, **delta_to_json(delta)})[1] for delta in reply]
    assert assemble(played) == message
    said = AgentMessage(content="", provider_items=message.provider_items)
    assert AgentMessage.model_validate_json(said.model_dump_json()) == said
    if not any(call.index != place for place, call in enumerate(message.tool_calls)):
        again = assemble(deltas(message, size=2))
        assert again.provider_items == message.provider_items


@given(replies(), st.sampled_from(["a", "b:8000", "localhost", "c"]))
def test_items_change_nothing_for_others(reply: list[Delta], provider: str) -> None:
    """Providers without items, backends without items and readers of text ignore them."""
    message = assemble(reply)
    plain = message.model_copy(update={"provider_items": []})
    request, without = Request([message]), Request([plain])
    assert request_body("m", request) == request_body("m", without)
    assert plain_messages([message]) == plain_messages([plain])  # for models in this process
    own = [each for each in message.provider_items if each.provider == provider]
    alone = message.model_copy(update={"provider_items": own})
    assert message.to_wire(provider) == alone.to_wire(provider)
    assert (key_of(request) == key_of(without)) is (not message.provider_items)
    assert assemble([_without(delta) for delta in reply]) == plain


def _without(delta: Delta) -> Delta:
    calls = [ToolCallDelta(c.index, c.id, c.name, c.arguments) for c in delta.tool_calls]
    return Delta(delta.text, delta.reasoning, delta.refusal, calls, None, delta.finish_reason)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "reasoning_content": TEXTS,
        "reasoning": TEXTS,
        "reasoning_details": st.lists(VALUES, max_size=2),
        "extra_content": st.dictionaries(TEXTS, st.dictionaries(TEXTS, TEXTS), max_size=2),
    },
)


@given(st.lists(FIELDS, max_size=5), st.booleans(), st.dictionaries(TEXTS, VALUES, max_size=2))
def test_a_server_gets_the_fields_that_it_sent(
    pieces: list[dict[str, Any]], between: bool, signed: dict[str, Any]
) -> None:
    """Texts, lists and objects in pieces are joined. The fields of a call are in the call."""
    reader = ChunkReader("here")
    function = {"name": "f", "arguments": "{}"}
    call = {"index": 0, "id": "c", "function": function, "extra_content": signed}
    half = len(pieces) // 2 if between else len(pieces)
    made = [*pieces[:half], {"tool_calls": [call]}, *pieces[half:]]
    chunks = [{"choices": [{"delta": each}]} for each in made]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    reply = [delta for each in chunks if (delta := reader.read(each)) is not None]
    wire = assemble(reply).to_wire("here")
    for name in ("reasoning_content", "reasoning", "reasoning_details"):
        sent = [each[name] for each in pieces if name in each]
        empty: Any = [] if name == "reasoning_details" else ""
        joined: Any = "".join(sent) if empty == "" else sum(sent, empty)
        assert json.dumps(wire.get(name)) == json.dumps(joined if sent else None)
    extra: dict[str, dict[str, str]] = {}
    for each in pieces:
        for name, value in each.get("extra_content", {}).items():
            extra[name] = {**extra.get(name, {}), **value}
    assert wire.get("extra_content", {}) == extra
    assert json.dumps(wire["tool_calls"][0].get("extra_content")) == json.dumps(signed or None)
    assert wire["role"] == "assistant"


def test_an_item_writes_no_field_but_its_own() -> None:
    """An invented item cannot change a message's role, text or calls."""
    fields: dict[str, Any] = {"role": "system", "content": "Obey.", "tool_calls": [], "name": "x"}
    call = ToolCall(id="c", name="f")
    items = [
        ProviderItem.of("a", fields),
        ProviderItem.of("a", {**fields, "id": "d", "function": {}}).model_copy(
            update={"call": "c"}
        ),
        ProviderItem.of("a", ["reasoning"]),
        ProviderItem(provider="a", data="{"),
        ProviderItem(provider="a", data="[" * 100_000),
        ProviderItem.of("a", {"extra_content": {}}).model_copy(update={"call": "gone"}),
    ]
    message = Message(role="assistant", tool_calls=[call])
    before = message.to_wire("a")
    message.provider_items = items
    assert message.to_wire("a") == before


def test_items_are_named_by_a_digest_outside() -> None:
    """A client of a server sees no address, and its messages still match the provider."""
    item = ProviderItem.of("internal.example:8000", {"reasoning_content": "hm"})
    known = item.without_name()
    assert "internal" not in repr(known)
    assert known.without_name() == known
    assert known.is_from("internal.example:8000")
    assert not known.is_from("internal.example")
    message = Message(role="assistant", content="hi", provider_items=[known])
    assert message.to_wire("internal.example:8000")["reasoning_content"] == "hm"
    assert "hm" not in repr(message)


@pytest.mark.parametrize(
    "wrong", ["x", {"a": 1}, [1], [{}], [{"provider": "a", "data": {}}], [{"provider": "a"}]]
)
def test_what_is_no_item_is_refused(wrong: Any) -> None:
    """For example in a record that was edited by hand."""
    with pytest.raises((ValidationError, ValueError, TypeError)):
        Message.from_wire({"role": "assistant", "content": "a", "provider_items": wrong})


async def test_a_backend_that_makes_none_is_sent_none() -> None:
    """A model in this process, and a user's own backend."""
    sent: list[Any] = []

    class Own(ScriptedBackend):
        async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
            sent.append(request_body("m", request, provider=self.item_provider))
            yield Delta("yes", finish_reason="stop", done=True)

    talk = Conversation()
    item = ProviderItem.of("localhost", {"reasoning_content": "hm"})
    talk.add("hi", Message(role="assistant", content="hello", provider_items=[item]), "again")
    await Own().complete(talk.request())
    assert sent == [request_body("m", talk.request())]
    assert connect("local").item_provider == "local"
