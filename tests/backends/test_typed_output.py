"""`complete(output_type=)`, and the modes of typed output that a backend knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from anabranch import ConfigurationError, Message, OutputInvalid, Refused, ToolCall, connect
from anabranch.backends import Backend, Fallback
from anabranch.messages import OutputMode, Request
from anabranch.testing import ScriptedBackend


class City(BaseModel):
    name: str


QUESTION = Request([Message(role="user", content="Where?")])


def calling(**arguments: Any) -> Message:
    call = ToolCall(id="c0", name="final_answer", arguments=arguments)
    return Message(role="assistant", tool_calls=[call])


@pytest.mark.parametrize("mode", ["text", "schema", "grammar", "tool"])
async def test_a_reply_that_does_not_fit_is_asked_for_again(mode: OutputMode) -> None:
    """As `respond` does: the model reads its answer and the reason."""
    replies: tuple[Any, Any] = '{"name": 5}', '{"name": "Rome"}'
    if mode == "tool":
        replies = calling(name=5), calling(name="Rome")
    backend = ScriptedBackend(*replies)

    message = await backend.complete(QUESTION, output_type=City, output_mode=mode)

    assert message.output == City(name="Rome")
    *_, answer, reason = backend.requests[1].messages
    assert answer.role == "assistant"
    assert reason.role == ("tool" if mode == "tool" else "user")
    assert "name: Input should be a valid string" in (reason.content or "")


async def test_errors_are_those_of_respond() -> None:
    """A refusal is not asked again; a wrong answer is, `output_retries` times."""
    with pytest.raises(Refused, match="no way"):
        await ScriptedBackend(Message(role="assistant", refusal="no way")).complete(
            QUESTION, output_type=City
        )
    backend = ScriptedBackend(otherwise="Rome?")
    with pytest.raises(OutputInvalid, match=r"not a valid City.*Rome\?"):
        await backend.complete(QUESTION, output_type=City, output_retries=3)
    assert len(backend.requests) == 4


@pytest.mark.parametrize(
    ("modes", "chosen", "end"),
    [
        (
            ["text", "tool", "schema"],
            None,
            "in mode 'text'; if the server takes JSON schemas, pass output_mode='schema'",
        ),
        (["text", "tool", "schema"], "schema", "in mode 'schema' (output_mode=)"),
        (["schema", "tool"], None, "in mode 'schema' (output_mode=)"),
        (["tool", "text"], None, "in mode 'tool' (output_mode=)"),
        (["text"], None, "in mode 'text' (output_mode=)"),
    ],
)
async def test_an_invalid_output_names_the_mode(
    modes: list[OutputMode], chosen: OutputMode | None, end: str
) -> None:
    """For an unknown server the error suggests the mode that most servers support."""
    backend = ScriptedBackend("Rome?", output_modes=modes)
    with pytest.raises(OutputInvalid) as caught:
        await backend.complete(QUESTION, output_type=City, output_mode=chosen, output_retries=0)
    assert str(caught.value).endswith(f"The reply was 'Rome?', {end}")


async def test_complete_with_a_type_runs_no_tools() -> None:
    """`respond` does."""
    request = Request([], [ScriptedTool()])
    with pytest.raises(ConfigurationError, match="Use respond"):
        await ScriptedBackend("").complete(request, output_type=City)


class ScriptedTool:
    name = "look"
    description = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012 - constant


@pytest.mark.parametrize(
    ("spec", "modes"),
    [
        ("openai:gpt-5-mini", ["schema", "tool", "text"]),
        ("openai:gpt-3.5-turbo", ["tool", "text"]),
        ("openai:gpt-4", ["tool", "text"]),
        ("openai:gpt-4.1", ["schema", "tool", "text"]),
        ("mistral:mistral-small", ["schema", "tool", "text"]),
        ("groq:llama", ["tool", "text"]),
        ("https://api.openai.com/v1", ["schema", "tool", "text"]),
        ("http://localhost:1/v1", ["text", "tool", "schema", "grammar"]),
        ("local", ["grammar", "tool", "text"]),
    ],
)
def test_the_modes_follow_from_what_is_known(spec: str, modes: list[str]) -> None:
    """Of an unknown server every mode is possible, and text is the safest."""
    settings = {"model": "m"} if spec.startswith("http") else {}
    key = {} if spec == "local" else {"api_key": "sk-test"}

    assert list(connect(spec, **settings, **key).output_modes) == modes


def test_a_server_at_another_address_is_unknown() -> None:
    """Though the SDK of a hosted provider reaches it."""
    backend = connect("openai:m", base_url="http://localhost:1/v1", api_key="sk-test")

    assert backend.output_modes[0] == "text"


def scripted(*modes: OutputMode) -> Backend:
    return ScriptedBackend(output_modes=modes)


@pytest.mark.parametrize(
    ("backends", "modes"),
    [
        ([scripted("schema", "tool", "text")] * 2, ["schema", "tool", "text"]),
        (
            [scripted("schema", "tool", "text"), scripted("grammar", "tool", "text")],
            ["tool", "text"],
        ),
        ([scripted("schema", "tool", "text"), scripted("text")], ["text"]),
        (
            [scripted("schema", "tool", "text"), scripted("text", "tool", "schema", "grammar")],
            ["tool", "schema", "text"],
        ),
    ],
)
def test_a_fallback_asks_in_a_way_that_all_its_models_know(
    backends: list[Backend], modes: list[str]
) -> None:
    """The same request goes to each."""
    assert list(Fallback(backends).output_modes) == modes


async def test_an_impossible_mode_is_refused_with_the_possible_ones() -> None:
    """Before anything is sent."""
    backend = Fallback([ScriptedBackend("", output_modes=["tool", "text"])])

    with pytest.raises(ConfigurationError, match=r"'schema' is not possible.*Use 'tool' or 'text'"):
        await backend.complete(QUESTION, output_type=City, output_mode="schema")


@pytest.mark.parametrize("mode", ["text", "schema", "grammar", "tool"])
async def test_a_cassette_asks_as_the_recorded_backend_did(
    mode: OutputMode, tmp_path: Path
) -> None:
    """Without being told the mode again."""
    file = tmp_path / "replies.jsonl"
    reply = calling(name="Rome") if mode == "tool" else '{"name": "Rome"}'
    model = ScriptedBackend(reply, output_modes=[mode])
    recorder = connect(f"cassette:{file}", record=model)
    assert (await recorder.complete(QUESTION, output_type=City)).output == City(name="Rome")

    player = connect(f"cassette:{file}")

    assert (await player.complete(QUESTION, output_type=City)).output == City(name="Rome")
