"""The vLLM backend around the engine; `tests/vllm_engine` runs the engine itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.vllm import ControlledBackend, control

from anabranch.backends import connect
from anabranch.backends._vllm_reply import ReplyReader, check_options, marked_call, structural_tag
from anabranch.commander import ConfigurationError, MissingExtra
from anabranch.dispatch.assembly import assemble
from anabranch.messages import Delta, Message, Request


@dataclass
class Tool:
    """A tool's schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


TOOLS = [Tool("add"), Tool("add_all"), Tool('odd "name"\u00e9')]
REPLIES = [
    "Hello.",
    "a < b, <tool> and <tool_cal",
    marked_call("add", '{"a": 1}'),
    "Wait.\n" + marked_call("add", '{"a": {"b": {}}}') + "\n" + marked_call("add_all", "{}") + "\n",
    marked_call('odd "name"\u00e9', '{"text": "</tool_call> }\\n</tool_call> <tool_call>"}'),
    "<think>\nTwo.</think>\n\nIt is 2.",
    "<think>never closed </thin",
    " <thought> is no mark",
    marked_call("add", "{}") + "\n\nDone.",
]


def _read(pieces: Iterable[str], **settings: Any) -> Message:
    reader = ReplyReader(TOOLS, **settings)
    deltas = [delta for piece in pieces for delta in reader.read(piece)]
    deltas += reader.end()
    assert all(delta != Delta() for delta in deltas)
    message = assemble(deltas)
    assert all(call.id.startswith("call_") for call in message.tool_calls)
    for call in message.tool_calls:
        call.id = ""
    return message


@given(st.sampled_from(REPLIES), st.lists(st.integers(0, 120), max_size=8))
def test_a_reply_reads_the_same_however_it_is_cut(reply: str, cuts: list[int]) -> None:
    """Together, the deltas have the complete text."""
    edges = [0, *sorted(min(cut, len(reply)) for cut in cuts), len(reply)]
    pieces = [reply[a:b] for a, b in pairwise(edges)]

    assert _read(pieces) == _read([reply])


def test_marked_calls_become_tool_calls() -> None:
    """The text around them stays, without the line breaks next to them."""
    message = _read([REPLIES[3]])

    assert message.content == "Wait.\n"
    assert [(c.name, c.arguments) for c in message.tool_calls] == [
        ("add", {"a": {"b": {}}}),
        ("add_all", {}),
    ]


def test_marks_inside_a_string_are_part_of_the_string() -> None:
    """JSON escapes line breaks, so arguments cannot contain the end of a call."""
    (call,) = _read([REPLIES[4]]).tool_calls

    assert call.arguments == {"text": "</tool_call> }\n</tool_call> <tool_call>"}


def test_reasoning_is_kept_apart() -> None:
    """Whether the reply or the prompt opens it."""
    opened = Message(role="assistant", content="It is 2.", reasoning="\nTwo.")
    assert _read([REPLIES[5]]) == opened
    assert _read(["\nTwo.</think>It is 2."], thinking=True) == opened


def test_a_call_cut_off_is_not_made_whole() -> None:
    """A part of the end mark does not become arguments."""
    whole = marked_call("add", '{"a": 1}')
    (call,) = _read([whole[:-5]]).tool_calls
    (broken,) = _read([whole.partition("1}")[0]]).tool_calls

    assert (call.raw, call.error) == ('{"a": 1}', None)
    assert broken.raw == '{"a": '
    assert broken.error


def test_text_passes_without_tools_whatever_it_holds() -> None:
    """Marks only count if a tool may be called."""
    reader = ReplyReader([])

    assert [delta.text for delta in reader.read(REPLIES[2])] == [REPLIES[2]]


def test_the_grammar_offers_what_tool_choice_allows() -> None:
    """Text and calls, only calls, or one call of one tool."""
    auto = json.loads(structural_tag(TOOLS, "auto", parallel=True))["format"]
    required = json.loads(structural_tag(TOOLS, "required", parallel=True))["format"]
    choice = {"type": "function", "function": {"name": "add"}}
    named = json.loads(structural_tag(TOOLS, choice, parallel=True))["format"]

    assert (auto["type"], len(auto["tags"]), auto["stop_after_first"]) == (
        "triggered_tags",
        3,
        False,
    )
    assert (required["at_least_one"], len(required["tags"])) == (True, 3)
    assert (len(named["tags"]), named["stop_after_first"]) == (1, True)


@pytest.mark.parametrize("choice", ["any", {"type": "function", "function": {"name": "missing"}}])
def test_a_tool_choice_that_is_none_is_refused(choice: Any) -> None:
    """The message names it."""
    with pytest.raises(ConfigurationError, match=r"any|missing"):
        structural_tag(TOOLS, choice, parallel=True)


def test_an_engine_argument_among_the_options_is_refused() -> None:
    """The message says where to pass it."""
    with pytest.raises(ConfigurationError, match=r"tensor_parallel_size.*engine=\{\}"):
        check_options({"temperature": 0, "tensor_parallel_size": 2})


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_extra_is_named() -> None:
    """When the backend is made, not at its first use."""
    with pytest.raises(MissingExtra, match=r"anabranch\[vllm\]"):
        connect("vllm:Qwen/Qwen3-8B")


async def test_a_test_on_ray_gives_its_orders_in_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an option that every backend passes on; the engine is not asked."""
    monkeypatch.setattr("anabranch.backends._vllm.find_spec", lambda _: True)
    processor = SimpleNamespace(get_num_unfinished_requests=lambda: 3)
    engine = SimpleNamespace(output_processor=processor)
    monkeypatch.setattr("support.vllm.running", lambda _: engine)
    monkeypatch.setattr(ControlledBackend, "prepare", ControlledBackend.aclose)
    monkeypatch.setattr(ControlledBackend, "_running", lambda _: None)
    request = Request([Message(role="user", content="Hello")], options=control("count"))

    assert (await ControlledBackend("m").complete(request)).content == "3"
