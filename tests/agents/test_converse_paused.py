"""A slow reader of a conversation: unread text is stored once."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any, Literal, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.conversing_agents import silent_user
from support.seeds import SEED

from anabranch import Agent, AgentMessage, StreamInterrupted
from anabranch.agents import ConversableAgent, GroupChat, ReplyResult, reply
from anabranch.agents.integration import audible_scope
from anabranch.messages import Delta
from anabranch.testing import ScriptedBackend, pause, run_seeded

Kind: TypeAlias = Literal["model", "function", "elsewhere", "group", "layer"]
KINDS: list[Kind] = ["model", "function", "elsewhere", "group", "layer"]


class StreamingAgent(ConversableAgent):
    """Answers with texts from a reply function, or as an agent in another process."""

    def __init__(
        self, texts: list[str], finished: asyncio.Event, error: Exception | None, elsewhere: bool
    ) -> None:
        super().__init__("bob", max_consecutive_auto_reply=1)
        self.texts = texts
        self.finished = finished
        self.error = error
        self.elsewhere = elsewhere

    @reply
    async def tell(self, message: AgentMessage) -> ReplyResult:
        try:
            return await (self._parts() if self.elsewhere else self.stream_reply(self._each()))
        finally:
            self.finished.set()

    async def _each(self) -> AsyncIterator[str]:
        for text in self.texts:
            await asyncio.sleep(0)
            yield text
        if self.error is not None:
            raise self.error

    async def _parts(self) -> str:
        scope, said = audible_scope(), ""
        assert scope is not None
        about: dict[str, Any] = {"sender": "bob", "receiver": "user"}
        async for text in self._each():
            state = "streaming" if said else "begin"
            said += text
            part = AgentMessage(content=said, extra={"delta": text}, stream_state=state, **about)
            scope.publish(part)
        return said


def stream(kind: Kind, texts: list[str], finished: asyncio.Event, error: Exception | None) -> Any:
    """Start to read a conversation with a bob who answers these texts."""
    end = Delta(finish_reason="stop") if error is None else error
    backend = ScriptedBackend([*texts, end], size=None)
    bob: Any = ConversableAgent("bob", backend, max_consecutive_auto_reply=1)

    def finish(_: object, answer: AgentMessage, session_id: object) -> None:
        finished.set()

    bob.after_agent(finish)
    if kind in ("function", "elsewhere"):
        bob = StreamingAgent(texts, finished, error, elsewhere=kind == "elsewhere")
    if kind == "group":
        bob = GroupChat("bob", [ConversableAgent("inner", backend)], max_turns=1)
    if kind != "layer":
        return silent_user().stream_chat(bob, "Go.")

    class Layer(Agent):
        async def forward(self, *messages: Any, **options: Any) -> str:
            return (await silent_user().initiate_chat(bob, "Go.")).text

    return Layer(name="layer").stream("Go.")


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=12),
    st.lists(st.integers(0, 20), max_size=6),
    st.booleans(),
    st.integers(0, 2**20),
)
def test_whenever_a_reader_pauses_it_misses_nothing(
    kind: Kind, texts: list[str], pauses: list[int], fails: bool, seed: int
) -> None:
    """Each part has the text so far, and the text since the part before."""
    fails = fails and kind != "elsewhere"

    async def main() -> None:
        error = StreamInterrupted("the line is dead") if fails else None
        left, states, text = list(pauses), list[str](), ""
        try:
            async for part in stream(kind, texts, asyncio.Event(), error):
                if left:
                    await pause(left.pop(0))
                if part.sender not in ("bob", "inner") or "delta" not in part.extra:
                    continue
                text = "" if part.stream_state == "begin" else text
                text += part.extra["delta"]
                states.append(part.stream_state)
                assert (part.content, part.receiver is not None) == (text, True)
        except StreamInterrupted:
            assert fails
            states[-1:] = [] if states[-1:] == ["failed"] else ["never ended"]
        assert text == "".join(texts)
        assert "failed" not in states
        assert states[:1] in ([], ["begin"])
        assert set(states[1:]) <= {"streaming"}

    run_seeded(main, seed=SEED + seed)


@pytest.mark.parametrize("kind", ["model", "function", "elsewhere"])
async def test_a_paused_reader_costs_no_more_than_the_text(kind: Kind) -> None:
    """2,000 parts with the text so far would be 60 MB; the reader then gets the rest."""
    texts, finished, parts = ["abcdef" * 5] * 2_000, asyncio.Event(), list[AgentMessage]()
    reading = stream(kind, texts, finished, None)
    parts.append(await anext(reading))
    parts.append(await anext(reading))
    assert parts[-1].stream_state == "begin"
    tracemalloc.start()
    try:
        await finished.wait()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    parts += [part async for part in reading]
    assert kept < 10_000_000
    assert len(parts) <= 5
    assert parts[-1].content == "".join(texts)
