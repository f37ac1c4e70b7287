"""Images and files are sent to the models that take them, and to no others."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.asgi_requests import encode_body, send_request
from support.media_files import MP3, PDF, PIXEL, PNG, WAV

from anabranch import (
    Agent,
    AgentMessage,
    Commander,
    ConfigurationError,
    Conversation,
    Message,
    Part,
    ToolCall,
    tool,
)
from anabranch.agents import SummaryMemory
from anabranch.backends import Fallback, connect
from anabranch.backends._cassette import CassetteBackend
from anabranch.backends._estimate import Estimator
from anabranch.backends._local import LocalBackend
from anabranch.backends._request_fit import plain_chat, plain_messages
from anabranch.backends._vllm_reply import _PreparedRequest  # pyright: ignore[reportPrivateUsage]
from anabranch.commander.errors import BackendUnavailable
from anabranch.handlers import respond
from anabranch.messages import Request, request_body
from anabranch.serve import serve
from anabranch.store import Durable, Journal
from anabranch.store._json import canonical
from anabranch.testing import ScriptedBackend
from anabranch.tools import Illustrated, ToolResult
from anabranch.tracing import record

NOTE = "pixel.png (image/png, 70 bytes)"
ADDRESS = Part.from_url("https://pictures.test/cat.png")


def asking(*parts: Part, content: str = "What is this?") -> Request:
    return Request([Message(role="user", content=content, parts=list(parts))])


@pytest.mark.parametrize("part", [PIXEL, ADDRESS, Part.from_bytes(PDF), Part.from_bytes(MP3)])
async def test_a_model_that_cannot_take_a_part_says_so_before_the_request(part: Part) -> None:
    """Nothing is sent or loaded; every model takes text."""
    local = LocalBackend()
    blind = ScriptedBackend("Hm.", takes=())
    for backend in (local, blind):
        with pytest.raises(ConfigurationError, match="takes text alone"):
            await backend.complete(asking(part))
        with pytest.raises(ConfigurationError):
            backend.check_parts(asking(part).messages)
    assert blind.opened == 0
    assert (await blind.complete(asking(Part.from_bytes(b"text")))).content == "Hm."


async def test_what_a_server_takes_is_its_own_to_say() -> None:
    """The model behind an address is unknown, so everything is sent."""
    assert connect("http://127.0.0.1:1/v1", model="any").takes is None
    seeing = ScriptedBackend("A dot.", "A dot.", takes=["image"])
    await seeing.complete(asking(PIXEL))
    with pytest.raises(ConfigurationError, match="as an address: give its bytes"):
        await seeing.complete(asking(ADDRESS))
    anything = ScriptedBackend("A dot.")
    await anything.complete(asking(PIXEL, ADDRESS))
    assert anything.requests[0].messages[0].parts == [PIXEL, ADDRESS]


async def test_what_another_model_has_seen_is_a_note_to_one_that_cannot_see() -> None:
    """So the conversation can continue; only parts of the newest message are refused."""
    seeing, blind = ScriptedBackend("A dot."), ScriptedBackend("It was a dot.", takes=())
    agent = Agent(seeing, name="eye")
    await agent("What is this?", PIXEL, session_id="s")
    agent.backend = blind
    assert (await agent("And before?", session_id="s")).text == "It was a dot."
    first = blind.requests[0].messages[0]
    assert first.content == f"What is this?\n[{NOTE}, which you cannot see]"
    assert first.parts == []
    with pytest.raises(ConfigurationError):
        await agent("And this?", PIXEL, session_id="s")
    assert [each.text for each in agent.memory.messages("s")][-1] == "It was a dot."
    agent.backend = ScriptedBackend("Again a dot.")
    assert (await agent("And this?", PIXEL, session_id="s")).text == "Again a dot."


async def test_an_agent_hears_and_remembers_parts() -> None:
    """In one message with its text; saved, loaded, counted and summarized."""
    backend = ScriptedBackend("A dot.", "A summary.", "Yes.")
    memory = SummaryMemory(backend, max_tokens=1008)
    agent = Agent(backend, name="eye", memory=memory)
    said = AgentMessage(content="this", parts=[PIXEL])
    await agent("Look:", said, Part.from_bytes(b"a,b", name="t.csv"), session_id="s")
    (heard,) = backend.requests[0].messages
    assert heard.content == "Look:\nthis"
    assert [part.name for part in heard.parts] == ["pixel.png", "t.csv"]
    assert heard.whole_text == 'Look:\nthis\n\n<file name="t.csv">\na,b\n</file>'

    state = json.loads(json.dumps(agent.state_dict("s")))
    other = Agent(backend, name="eye", memory=SummaryMemory(backend, max_tokens=10**6))
    other.load_state_dict(state, "s")
    assert other.memory.messages("s") == agent.memory.messages("s")
    state["memory"][1]["parts"][0]["url"] = "file:///etc/passwd"
    with pytest.raises(ConfigurationError):
        other.load_state_dict(state, "s")

    await agent("Again?", session_id="s")  # an image has a thousand tokens: too many
    summed = backend.requests[1].messages[1].content or ""
    assert f"user: this\n[{NOTE}]" in summed


async def test_a_fallback_passes_over_those_that_cannot() -> None:
    """It asks the first backend that takes the part, or none."""
    blind, down = ScriptedBackend(takes=()), ScriptedBackend(BackendUnavailable("down"))
    seeing = ScriptedBackend("A dot.", takes=["image"])
    assert (await Fallback([blind, down, seeing]).complete(asking(PIXEL))).content == "A dot."
    assert (blind.opened, down.opened) == (0, 1)
    with pytest.raises(ConfigurationError):
        await Fallback([blind, seeing]).complete(asking(Part.from_bytes(PDF)))
    assert Fallback([blind, seeing]).takes == {"image"}
    assert Fallback([blind, down]).takes is None


async def test_what_a_tool_gives_and_a_model_cannot_take_is_a_note_to_it() -> None:
    """The call continues without the part, or with another model that takes it."""

    @tool
    def look() -> list[Part]:
        """Look."""
        return [PIXEL, Part.from_bytes(WAV, name="sea.wav")]

    call = Message(role="assistant", tool_calls=[ToolCall(id="1", name="look", arguments={})])
    backend = ScriptedBackend(call, "I saw it.", takes=["image"])
    agent = Agent(backend, tools=[look], tool_images=True)
    assert (await agent("Look.")).text == "I saw it."
    given = backend.requests[1].messages[-1]
    assert given.parts == [PIXEL]
    assert (given.content or "").endswith("[sea.wav (audio/wav, 20 bytes), which you cannot see]")
    hearing = ScriptedBackend("I heard it.", takes=["image", "audio"])
    result = ToolResult.of(ToolCall(id="1", name="look", arguments={}), Illustrated("", [PIXEL]))
    talk = Request([*backend.requests[1].messages[:-1], result], options={"tool_images": True})
    answer = await Fallback([ScriptedBackend("No.", takes=()), hearing]).complete(talk)
    assert answer.content == "I heard it."


async def test_a_cassette_finds_a_request_by_its_parts(tmp_path: Path) -> None:
    """Another image is another request; the file has digests of images, not their bytes."""
    file = tmp_path / "talk.jsonl"
    large = Part.from_bytes(PNG + bytes(10_000))
    other = Part.from_bytes(PNG + bytes(10_001))
    source = ScriptedBackend("small", "large", takes=["image"])
    async with CassetteBackend(file, record=source) as recorder:
        assert recorder.takes == {"image"}
        await recorder.complete(asking(PIXEL))
        await recorder.complete(asking(large))
    async with CassetteBackend(file) as player:
        assert (await player.complete(asking(large))).content == "large"
        assert (await player.complete(asking(PIXEL))).content == "small"
        with pytest.raises(Exception, match="has no reply to this request"):
            await player.complete(asking(other))
    assert file.stat().st_size < 3000


async def test_a_journal_keeps_an_image_once(tmp_path: Path) -> None:
    """Over many turns, the journal returns the messages and has the image once."""
    file = tmp_path / "notes.db"
    picture = Part.from_bytes(PNG + bytes(300_000), name="big.png")
    backend = ScriptedBackend(otherwise="A dot.")
    async with Journal(str(file)) as journal:
        agent = Agent(backend, name="eye", journal=journal)
        await agent("What is this?", picture, session_id="s")
        for _ in range(4):
            await agent("And now?", session_id="s")
    async with Journal(str(file)) as journal:
        agent = Agent(backend, name="eye", journal=journal)
        messages = await agent.recall("s")
        assert [part for each in messages for part in each.parts] == [picture]
        assert len(messages) == 11
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    assert file.stat().st_size < 1.5 * len(picture.url)


async def test_who_is_called_with_an_image_is_known_by_a_digest_of_it() -> None:
    """A call with another image, or another name of it, has another identity."""
    big, other = PNG + bytes(300_000), PNG + bytes(299_999) + b"1"
    parts = [Part.from_bytes(big), Part.from_bytes(big, name="a.png"), Part.from_bytes(other)]
    texts = [canonical([AgentMessage(content="", parts=[part])]) for part in parts]
    assert canonical([AgentMessage(content="", parts=[Part.from_bytes(big)])]) == texts[0]
    assert len({*texts}) == len(parts)
    assert all(whole and len(text) < 1000 for text, whole in texts)


def test_images_are_counted_in_limits() -> None:
    """As about a thousand tokens each; a text file as its text."""

    def tokens(*parts: Part) -> int:
        return Estimator().estimate(asking(*parts), {}).tokens

    assert tokens(PIXEL, ADDRESS) == tokens() + 2000
    assert tokens(Part.from_bytes(b"one word " * 400)) > tokens() + 800


def test_models_in_this_process_read_plain_chats_with_parts() -> None:
    """Neighbors with one role are joined, with their parts; text files become text."""
    messages = [
        Message(role="user", content="one", parts=[PIXEL]),
        Message(role="user", content="two", parts=[Part.from_bytes(b"a,b")]),
    ]
    (joined,) = plain_messages(messages)
    assert (joined.content, joined.parts) == ("one\ntwo\n\n<file>\na,b\n</file>", [PIXEL])
    assert plain_chat(messages) == [{"role": "user", "content": joined.content}]
    for template in ("", "<tool_call>"):
        question = _PreparedRequest.of(Request(messages), {}, template)
        wires = question.wire_messages()
        assert wires[0]["content"][1:] == [PIXEL.to_wire()]


URL, REPORT = PIXEL.url, Part.from_bytes(PDF).url
DATA = {"data": Part.from_bytes(MP3).to_wire()["input_audio"]["data"], "format": "mp3"}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "input_image", "image_url": URL, "detail": "auto"}, "image"),
        ({"type": "input_image", "image_url": "https://pictures.test/cat.png"}, "image"),
        ({"type": "image_url", "image_url": {"url": URL}}, "image"),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": REPORT},
            "file",
        ),
        ({"type": "file", "file": {"filename": "../a.png", "file_data": URL}}, "image"),
        ({"type": "input_audio", "input_audio": DATA}, "audio"),
        ({"type": "input_image", "image_url": "file:///etc/passwd"}, None),
        ({"type": "input_image", "image_url": "/etc/passwd"}, None),
        ({"type": "input_image", "image_url": "http://169.254.169.254/latest"}, None),
        ({"type": "input_image", "image_url": URL, "detail": "ultra"}, None),
        ({"type": "image_url", "image_url": {"url": URL, "detail": 1}}, None),
        ({"type": "input_image", "file_id": "file-1"}, None),
        ({"type": "input_file", "file_url": "https://pictures.test/a.pdf"}, None),
        ({"type": "input_file", "file_id": "file-1"}, None),
        ({"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}, None),
        ({"type": "file", "file": {"path": "/etc/passwd"}}, None),
        ({"type": "file", "file": "/etc/passwd"}, None),
        ({"type": "input_audio", "input_audio": {**DATA, "data": URL.partition(",")[2]}}, None),
    ],
)
async def test_served_models_and_agents_hear_parts(part: dict[str, Any], kind: str | None) -> None:
    """S17: bytes and https addresses reach the model; no path is read, nothing is fetched here."""
    backend = ScriptedBackend(otherwise="Seen.")
    server = serve({"model": backend, "agent": Agent(backend, name="agent")})
    said = [{"role": "user", "content": [{"type": "input_text", "text": "see"}, part]}]
    async with server.running():
        for model in "model", "agent":
            body = encode_body({"model": model, "input": said})
            answer = await send_request(server, "POST", "/v1/responses", body)
            assert answer.status == (400 if kind is None else 200)
    heard = [each.kind for asked in backend.requests for each in asked.messages[0].parts]
    assert heard == ([] if kind is None else [kind, kind])
    assert "passwd" not in repr(backend.requests)


@pytest.mark.parametrize("detail", ["low", "high", "original", "auto", None])
async def test_a_served_model_hears_how_closely_to_look(detail: str | None) -> None:
    """Each value of both wires reaches the model's request; "auto" leaves it to the model."""
    backend = ScriptedBackend(otherwise="Seen.")
    server = serve({"model": backend})
    chat = {"type": "image_url", "image_url": {"url": URL, "detail": detail}}
    item = {"type": "input_image", "image_url": URL, "detail": detail}
    said = [{"role": "user", "content": [part]} for part in (chat, item)]
    async with server.running():
        for path, name in (("chat/completions", "messages"), ("responses", "input")):
            body = encode_body({"model": "model", name: said})
            assert (await send_request(server, "POST", f"/v1/{path}", body)).status == 200
    own = {} if detail in ("auto", None) else {"detail": detail}
    for request in backend.requests:
        sent = [message["content"] for message in request_body("m", request)["messages"]]
        assert sent == [[{"type": "image_url", "image_url": {"url": URL, **own}}]] * 2


def test_a_conversation_is_asked_with_parts() -> None:
    """The parts are in an ordinary message."""
    conversation = Conversation()
    conversation.add(Message(role="user", content="What is this?", parts=[PIXEL]))
    assert conversation.request().messages[0].parts == [PIXEL]


async def test_an_agent_takes_messages_of_the_user_with_parts() -> None:
    """Also while it answers; messages of other roles are refused."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await go_on.wait()
        return "waited"

    call = ToolCall(id="1", name="wait")
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]), "Two dots.")
    agent = Agent(backend, name="eye", tools=[wait])
    said = Message(role="user", content="What is this?", parts=[PIXEL])
    async with Commander() as commander:
        answering = agent.call(said, session_id="s")
        commander.call_handler(answering)
        await started.wait()
        assert answering.steer(Message(role="user", content="and this?", parts=[ADDRESS]), PIXEL)
        go_on.set()
        assert (await answering).text == "Two dots."
    assert list(backend.requests[0].messages) == [said]
    heard = backend.requests[1].messages[3:]
    assert [part for each in heard for part in each.parts] == [ADDRESS, PIXEL]
    with pytest.raises(TypeError, match="must be a user's"):
        await agent(Message(role="assistant", content="no"))


async def test_a_recording_has_the_names_of_parts_and_never_their_bytes(tmp_path: Path) -> None:
    """S6: without content it has not even the names."""
    for content in (True, False):
        file = tmp_path / f"{content}.jsonl"
        async with Commander() as commander, record(commander, str(file), content=content):
            agent = Agent(ScriptedBackend("A dot."), name="eye")
            await commander.call_handler(agent.call("What is this?", PIXEL))
        recorded = file.read_text()
        assert (NOTE in recorded) is content
        assert PIXEL.url[-30:] not in recorded


async def test_a_durable_run_goes_on_with_the_image_that_it_was_asked_about(tmp_path: Path) -> None:
    """The stored reply is found by the image, and the model is not asked again."""
    file = str(tmp_path / "runs.db")
    large = Part.from_bytes(PNG + bytes(100_000))

    class Look(Durable[list[str]]):
        async def task(self) -> list[str]:
            talk = self.durable.conversation("talk")
            talk.add(Message(role="user", content="What is this?", parts=[large]))
            first = await respond(backend, talk)
            assert talk.messages[0].parts == [large]
            if fails:
                raise RuntimeError("cut")
            return [first.content or ""]

    fails, backend = True, ScriptedBackend("A dot.", takes=["image"])
    async with Journal(file) as journal:
        with pytest.raises(RuntimeError, match="cut"):
            await journal.run(Look(), run_id="look")
    fails, backend = False, ScriptedBackend("asked again", takes=["image"])
    async with Journal(file) as journal:
        await journal.resume("look")
        assert await journal.run(Look(), run_id="look") == ["A dot."]
    assert backend.requests == []
