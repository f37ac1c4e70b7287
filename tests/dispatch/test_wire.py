"""Servers' chunks of chat completions in all their forms, as a fork reads them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.commander import BadResponse, Commander, Node
from anabranch.dispatch import fork
from anabranch.handlers import handler
from anabranch.messages import Message, ToolCall, ToolCallError, Usage, message_from_response


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def piece(arguments: str | None = None, index: int = 0, **head: Any) -> dict[str, Any]:
    function = {key: head.pop(key) for key in ("name",) if key in head}
    if arguments is not None:
        function["arguments"] = arguments
    return {"index": index, "function": function, **head}


@handler
async def forked(node: Node[Any], source: Any) -> tuple[str, str, list[Any], Message]:
    reply = fork(node, source, to_user="to_user")
    message = await reply.message
    text = "".join([each async for each in reply.text])
    thought = "".join([each async for each in reply.reasoning])
    return text, thought, [each async for each in reply.tool_calls], message


async def read(source: Any) -> tuple[str, str, list[Any], Message]:
    async with asyncio.timeout(10), Commander() as commander:
        return await commander.run(forked(source))


@pytest.mark.contract("F3")
async def test_a_legacy_function_call_is_a_call_with_the_id_call_0() -> None:
    """Its name comes first, its arguments follow in pieces."""
    chunks = [
        chunk(role="assistant", content=None, function_call={"name": "f", "arguments": ""}),
        chunk(function_call={"arguments": '{"to_user": "Hi'}),
        chunk(function_call={"arguments": '", "x": 1}'}),
        chunk("function_call"),
    ]

    text, _, calls, _ = await read(chunks)

    assert text == "Hi"
    assert [(c.id, c.name, c.arguments) for c in calls] == [("call_0", "f", {"x": 1})]


@pytest.mark.contract("F1")
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
async def test_reasoning_has_a_branch_and_a_field(key: str) -> None:
    """Under both names that servers use."""
    chunks = [chunk(**{key: "Hm"}), chunk(**{key: "m."}), chunk(content="So."), chunk("stop")]

    text, thought, _, message = await read(chunks)

    assert (text, thought) == ("So.", "Hmm.")
    assert (message.content, message.reasoning) == ("So.", "Hmm.")


PIECES = st.lists(
    st.tuples(st.sampled_from(["text", "thinking"]), st.text("ab é😀", max_size=3)), max_size=6
)


@pytest.mark.contract("F3")
@given(st.lists(PIECES, max_size=4), st.booleans())
async def test_reasoning_in_parts_of_the_content(replies: list[Any], nested: bool) -> None:
    """As Mistral's models send it, in chunks and in a complete message.

    It is not part of the text.
    """

    def part(kind: str, text: str) -> dict[str, Any]:
        inner = [{"type": "text", "text": text}] if nested else text
        return {"type": kind, kind: text if kind == "text" else inner}

    contents = [[part(*piece) for piece in reply] for reply in replies]
    said = {
        kind: "".join(text for reply in replies for each, text in reply if each == kind)
        for kind in ("text", "thinking")
    }

    chunks = [chunk(content=each) for each in contents]
    *_, message = await read([*chunks, chunk("stop")])
    content = [part for each in contents for part in each]
    response = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    complete = message_from_response(response)

    for each in message, complete:
        assert (each.content or "", each.reasoning or "") == (said["text"], said["thinking"])


@pytest.mark.contract("F3")
@pytest.mark.parametrize("thinking", [1, {"text": "a"}, ["a"], [{"type": "text"}], None])
async def test_parts_of_reasoning_that_are_none(thinking: object) -> None:
    """Malformed parts are refused as `BadResponse`, or add no reasoning."""
    part = {"type": "thinking", "thinking": thinking}
    try:
        *_, message = await read([chunk(content=[part]), chunk("stop")])
    except BadResponse:
        return
    assert message.reasoning is None


@pytest.mark.contract("F2")
async def test_a_refusal_is_read_by_the_user() -> None:
    """It also has a separate field."""
    text, _, _, message = await read([chunk(refusal="I "), chunk(refusal="won't."), chunk("stop")])

    assert text == message.refusal == "I won't."
    assert message.content is None


@pytest.mark.contract("F1")
async def test_several_choices_are_refused() -> None:
    """Two in one chunk, or a second one by its index."""
    two = {"choices": [chunk()["choices"][0], chunk()["choices"][0]]}
    second = {"choices": [{"index": 1, "delta": {"content": "x"}}]}
    for bad in (two, second):
        with pytest.raises(BadResponse, match="several choices"):
            await read([chunk(content="a"), bad, chunk("stop")])


@pytest.mark.contract("F1")
async def test_type_and_an_empty_content_on_every_delta_change_nothing() -> None:
    """A first chunk without choices makes no difference either."""
    chunks = [
        {"choices": [], "prompt_filter_results": []},
        chunk(content="", tool_calls=[piece("", id="a", type="function", name="f")]),
        chunk(content="", tool_calls=[piece('{"x"', type="function")]),
        chunk(content="", tool_calls=[piece(": 1}", type="function")]),
        chunk("stop", content=""),
    ]

    text, _, calls, message = await read(chunks)

    assert text == ""
    assert [(c.id, c.arguments) for c in calls] == [("a", {"x": 1})]
    assert message.content is None


@pytest.mark.contract("F1")
async def test_the_message_is_that_of_the_endpoint_without_streaming() -> None:
    """Field for field, with usage and finish reason. Interleaved calls are in their order."""
    written = ['{"to_user": "One", "x": 1}', '{"y": [2, {"z": null}]}']
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": f"f{n}", "arguments": each}}
        for n, each in enumerate(written)
    ]
    said = {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm."}
    whole = {
        "choices": [{"index": 0, "message": {**said, "tool_calls": calls}, "finish_reason": "x"}],
        "usage": usage,
    }
    chunks = [chunk(role="assistant"), chunk(reasoning_content="Hm."), chunk(content="Let me")]
    chunks += [chunk(content=" see."), chunk(tool_calls=[piece("", 0, id="c0", name="f0")])]
    chunks += [chunk(tool_calls=[piece("", 1, id="c1", name="f1")])]
    for at in range(0, max(map(len, written)), 3):
        both = [piece(each[at : at + 3], n) for n, each in enumerate(written) if each[at:]]
        chunks.append(chunk(tool_calls=both))
    chunks += [chunk("x"), {"choices": [], "usage": usage}]

    text, _, found, message = await read(chunks)

    assert message == message_from_response(whole)
    assert message.usage == Usage(
        input_tokens=9, output_tokens=4, cached_input_tokens=2, reasoning_tokens=1
    )
    assert text == "Let me see.\nOne"
    assert [c.arguments for c in found] == [{"y": [2, {"z": None}]}, {"x": 1}]


@pytest.mark.contract("F3")
async def test_an_interrupted_reply_leaves_a_message_that_any_provider_takes() -> None:
    """The broken call becomes one with empty arguments, so a tool message can answer it."""
    chunks = [chunk(tool_calls=[piece('{"x": ', id="a", name="f")]), chunk("length")]

    _, _, (error,), message = await read(chunks)

    assert isinstance(error, ToolCallError)
    assert error.id == message.to_wire()["tool_calls"][0]["id"]
    assert message.to_wire()["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.contract("F1")
async def test_the_openai_sdks_chunks_are_read_from_async_and_blocking_streams() -> None:
    """Its own classes, from both of its clients."""
    from openai.types.chat import ChatCompletionChunk

    head = {"id": "r", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    chunks = [
        chunk(role="assistant", content="Hi"),
        chunk(tool_calls=[piece('{"x": 1}', id="a", name="f", type="function")]),
        chunk("tool_calls"),
    ]
    made = [ChatCompletionChunk.model_validate({**head, **each}) for each in chunks]

    async def asynchronous() -> AsyncIterator[Any]:
        for each in made:
            yield each

    def blocking() -> Iterator[Any]:
        yield from made

    for source in (asynchronous(), blocking()):
        text, _, (call,), _ = await read(source)
        assert text == "Hi"
        assert isinstance(call, ToolCall)
        assert call.arguments == {"x": 1}
