"""The wires as pure functions from a run's log to frames, for random logs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from anabranch.messages import Usage
from anabranch.serve._http import frame
from anabranch.serve._openai_chat import ChatChunks, chat_completion
from anabranch.serve._openai_responses import ResponseEvents
from anabranch.serve._run_log import Entry

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = Usage(input_tokens=3, output_tokens=4).to_wire()
TEXTS = st.text(min_size=1, max_size=8)

said = st.builds(
    lambda text, speech: ("text", {"text": text, "speech": speech}), TEXTS, st.sampled_from("abc")
)
broken = st.just(("broken", {}))
called = st.integers(0, 2).map(
    lambda n: ("called", {"call": str(n), "id": "c", "name": "tool", "arguments": "{}"})
)
answered = st.builds(
    lambda n, status: ("answered", {"call": str(n), "text": "gave", "status": status}),
    st.integers(0, 2),
    st.sampled_from(["ok", "failed", "invalid"]),
)
asked = st.just(("asked", {"question": 1, "name": "tool", "arguments": "{}", "id": "c"}))
requested = st.just(("requested", {"id": "c", "name": "tool", "arguments": "{}", "index": 0}))
ends = st.one_of(
    st.sampled_from(["ok", "length", "content_filter", "tool_calls"]).map(
        lambda status: ("completed", {"usage": USAGE, "status": status})
    ),
    st.just(("failed", {"usage": USAGE, "code": "server_error", "message": "it failed"})),
    st.just(("cancelled", {"usage": USAGE, "code": "cancelled", "message": "cancelled"})),
)


def _log(middle: list[Any], end: Any) -> list[Entry]:
    """Make a log with unique names of calls."""
    seen: set[str] = set()
    kept: list[Any] = []
    for kind, data in middle:
        if kind == "called":
            if data["call"] in seen:
                continue
            seen.add(data["call"])
        kept.append((kind, data))
    return [Entry(number, kind, data) for number, (kind, data) in enumerate([*kept, end], 1)]


logs = st.builds(
    _log,
    st.lists(st.one_of(said, said, said, broken, called, answered, asked, requested), max_size=12),
    ends,
)


def _events(log: list[Entry]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    made = ResponseEvents("resp_1", "writer", 1, {})
    return [event for entry in log for event in made.feed(entry)], made.response


@given(logs)
def test_events_are_numbered_without_a_gap_and_read_by_the_sdk(log: list[Entry]) -> None:
    """S10: the same log gives the same events, from 0 on, each of a type that the SDK knows."""
    events, response = _events(log)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events == _events(log)[0]
    for event in events:
        EVENTS.validate_python(event)
    Response.model_validate(response)


@given(logs)
def test_a_message_is_the_sum_of_its_deltas(log: list[Entry]) -> None:
    """S10: each item is added once and done once."""
    events, response = _events(log)
    texts: dict[str, str] = {}
    begun, done = [], []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                begun.append(event["item"]["id"])
            case "response.output_item.done":
                done.append(event["item"]["id"])
            case "response.output_text.delta":
                texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
            case _:
                pass
    messages = {item["id"]: item for item in response["output"] if item["type"] == "message"}
    assert texts == {name: item["content"][0]["text"] for name, item in messages.items()}
    assert begun == [item["id"] for item in response["output"]]
    assert sorted(done) == sorted(begun)
    assert all(item["status"] != "in_progress" for item in response["output"])


@given(logs)
def test_the_arguments_of_a_call_are_the_sum_of_its_deltas(log: list[Entry]) -> None:
    """S9: for all calls; their items begin without arguments, as OpenAI's do."""
    events, response = _events(log)
    said: dict[str, str] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added" if "arguments" in event["item"]:
                assert event["item"]["arguments"] == ""
                said[event["item"]["id"]] = ""
            case kind if kind.endswith("arguments.delta"):
                said[event["item_id"]] += event["delta"]
            case kind if kind.endswith("arguments.done"):
                assert event["arguments"] == said[event["item_id"]]
            case _:
                pass
    calls = {item["id"]: item["arguments"] for item in response["output"] if "arguments" in item}
    assert said == calls


@given(logs)
def test_the_fast_path_writes_the_same_frames(log: list[Entry]) -> None:
    """S9: the frame of a delta that only adds text equals the usual one in each character."""
    chunks, others = (ChatChunks("chatcmpl-1", '"', 1, include_usage=True) for _ in "ab")
    events, usual = (ResponseEvents("resp_1", '"', 1, {}) for _ in "ab")
    for entry in log:
        whole = "".join(map(frame, others.feed(entry)))
        assert (chunks.continue_text(entry) or "".join(map(frame, chunks.feed(entry)))) == whole
        whole = "".join(frame(event, event=event["type"]) for event in usual.feed(entry))
        made = events.continue_text(entry)
        if made is None:
            made = "".join(frame(event, event=event["type"]) for event in events.feed(entry))
        assert made == whole
    assert events.response == usual.response


@given(logs)
def test_chunks_equal_the_complete_completion(log: list[Entry]) -> None:
    """S9: the same text, finish reason and usage."""
    chunks = ChatChunks("chatcmpl-1", "writer", 1, include_usage=True)
    made = [chunk for entry in log for chunk in chunks.feed(entry)]
    if log[-1].kind != "completed":
        assert "error" in made[-1]
        return
    for chunk in made:
        ChatCompletionChunk.model_validate(chunk)
    whole = chat_completion("chatcmpl-1", "writer", 1, log)
    ChatCompletion.model_validate(whole)
    choices = [chunk["choices"][0] for chunk in made[:-1]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == (whole["choices"][0]["message"]["content"] or "")
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert made[-1]["usage"] == whole["usage"]
