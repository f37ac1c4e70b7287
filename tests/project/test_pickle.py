"""Messages, errors and backends are equal after a pickle round trip."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch import AgentMessage, Message, ToolCall, connect
from anabranch.agents import Answer
from anabranch.agents.errors import ConversationTooLong, UnknownAgent
from anabranch.backends import Limits, Retries, Timeouts
from anabranch.backends._http import HttpBackend
from anabranch.commander import errors as all_errors
from anabranch.commander.errors import (
    AnabranchError,
    BackendError,
    ConfigurationError,
    MissingExtra,
    NodeCancelled,
    NodeClosed,
    QuorumNotMet,
    RateLimited,
    StreamInterrupted,
    WorkerLost,
)
from anabranch.messages import Delta, Request, ToolCallDelta, Usage
from anabranch.store.errors import (
    JournalError,
    LeaseLost,
    NotStorable,
    RunBusy,
    RunExists,
    RunNotFound,
)


def sent(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def errors() -> Iterator[AnabranchError]:
    own: dict[type[AnabranchError], AnabranchError] = {
        NodeClosed: NodeClosed("a/b", "is closing"),
        NodeCancelled: NodeCancelled("a/b", "exit"),
        QuorumNotMet: QuorumNotMet(2, 1, [KeyError("x")]),
        WorkerLost: WorkerLost("a/b", "its machine went away"),
        MissingExtra: MissingExtra("Ray", "ray"),
        RateLimited: RateLimited("slow", retry_after=2.5),
        StreamInterrupted: StreamInterrupted(
            "gone", partial=Message(role="assistant", content="Hel")
        ),
        BackendError: BackendError("no", status=418),
    }
    for name in all_errors.__all__:
        kind = getattr(all_errors, name)
        yield own.get(kind) or kind("it failed")
    yield UnknownAgent("bob", ["alice"])
    yield ConversationTooLong(7)
    yield JournalError("runs.db", "is damaged", "put a copy in its place")
    yield LeaseLost("run")
    yield RunBusy("run", 7, 1e9)
    yield RunExists("run", "it has other inputs")
    yield RunNotFound("run", "runs.db")
    yield NotStorable("a socket")


@pytest.mark.parametrize("error", list(errors()), ids=lambda error: type(error).__name__)
def test_an_error_arrives_with_its_text_attributes_and_notes(error: AnabranchError) -> None:
    """Whatever its class takes."""
    error.add_note("in Commander/Job#1")
    arrived = sent(error)
    assert (type(arrived), str(arrived), repr(arrived)) == (type(error), str(error), repr(error))
    assert {name: repr(value) for name, value in vars(arrived).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }
    assert arrived.__notes__ == ["in Commander/Job#1"]


def test_messages_deltas_and_requests_arrive_equal() -> None:
    """Field for field."""
    call = ToolCall(id="1", name="add", arguments={"a": 1}, raw='{"a": 1}')
    usage = Usage(input_tokens=3, output_tokens=4)
    message = Message(role="assistant", content="x", tool_calls=[call], usage=usage)
    said = AgentMessage(content="x", sender="bob", receiver="alice", extra={"delta": "x"})
    for thing in (
        message,
        said,
        Answer(said, "terminated"),
        Delta("x", tool_calls=(ToolCallDelta(0, "1", "add", "{}"),), usage=usage),
        Request([message], options={"seed": 7}),
    ):
        assert sent(thing) == thing


def test_a_message_with_a_type_argument_arrives() -> None:
    """Its class was made inside a function, so pickle cannot find it by name."""
    arrived = sent(AgentMessage[dict[str, list[int]]](output={"a": [1]}, sender="bob"))
    assert arrived == AgentMessage(output={"a": [1]}, sender="bob")
    assert arrived.model_copy(update={"content": "x"}).content == "x"


def test_a_backend_is_made_again_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its key from the same variable in the new process."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-here-0123456789")
    backend = connect(
        "openai:tiny",
        base_url="http://127.0.0.1:1/v1?api-version=3",
        temperature=0,
        timeouts=Timeouts(whole=7),
        retries=Retries(attempts=1),
        limits=Limits(budget=3),
    )
    packed = pickle.dumps(backend)
    assert b"sk-here" not in packed
    monkeypatch.setenv("OPENAI_API_KEY", "sk-there-0123456789")
    arrived = pickle.loads(packed)
    assert (arrived.model, arrived.provider, arrived.base_url) == (
        "tiny",
        "openai",
        "http://127.0.0.1:1/v1?api-version=3",
    )
    assert arrived.default_options == {"temperature": 0}
    assert (arrived.timeouts.whole, arrived.retries.attempts, arrived.limits.budget) == (7, 1, 3)
    assert arrived.redact("sk-there-0123456789") == "***"
    assert sent(arrived).model == "tiny"  # and it can be pickled again


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("openai:tiny", {"api_key": "sk-secret-0123"}),
        ("http://127.0.0.1:1/v1", {"model": "tiny", "api_key": "sk-secret-0123"}),
        ("http://me:sk-secret-0123@127.0.0.1:1/v1", {"model": "tiny"}),
        ("openai:tiny", {"base_url": "http://127.0.0.1:1/v1?api-key=sk-secret-0123"}),
    ],
)
def test_a_key_does_not_travel(
    monkeypatch: pytest.MonkeyPatch, spec: str, settings: dict[str, Any]
) -> None:
    """The error gives an alternative and does not contain the key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other-0123")
    with pytest.raises(ConfigurationError, match="environment variable") as refused:
        pickle.dumps(connect(spec, **settings))
    assert "sk-" not in str(refused.value)


def test_a_backend_made_by_hand_is_refused() -> None:
    """Pickle cannot rebuild it."""
    with pytest.raises(ConfigurationError, match="connect"):
        pickle.dumps(HttpBackend("tiny", "http://127.0.0.1:1/v1", "sk-secret-0123"))
