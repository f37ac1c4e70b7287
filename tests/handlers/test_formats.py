"""Calls written as text, from `respond` to the chat, over a real server."""

import asyncio
from typing import Any

import pytest
from support.media_files import PIXEL
from support.scripted_server import Reply, ScriptedServer, text

from anabranch import BackendUnavailable, Commander, Conversation, Message, ToolCall, connect, tool
from anabranch.backends import Backend, Fallback
from anabranch.dispatch import FencedCode, Format, Hermes, Mistral, ReAct, Think
from anabranch.handlers import View, respond
from anabranch.jobs import ChatJob, ResponseJob
from anabranch.testing import ScriptedBackend

ARGUMENTS = '{"place": "Rome"}'
WRITTEN: dict[str, tuple[Format, str]] = {
    "hermes": (
        Hermes(),
        f'Let me see. <tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>',
    ),
    "mistral": (Mistral(), f"Let me see. [TOOL_CALLS]look[ARGS]{ARGUMENTS}"),
    "react": (ReAct(), f"Let me see.\nAction: look\nAction Input: {ARGUMENTS}\n"),
}


class Quiet(View):
    """Stores the text."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def failed(self, error: Exception) -> None:
        raise error


class OneTurn(ChatJob):
    """A chat of one turn."""

    async def read(self) -> str | None:
        return None if len(self.conversation) > 1 else "What is in Rome?"


@tool(read_only=True)
async def look(place: str) -> str:
    """Look somewhere."""
    return f"seen {place}"


@tool(read_only=True)
async def python(code: str) -> str:
    """Run code."""
    return f"ran {code}"


def cut(written: str) -> Reply:
    """Answer with text in pieces of five characters, so that marks are split."""
    return text(*(written[at : at + 5] for at in range(0, len(written), 5)))


async def ask(
    how: str, backend: Backend, conversation: Conversation, view: View, formats: Any
) -> None:
    """Let the model answer, in one of the possible ways."""
    async with asyncio.timeout(10), backend, Commander() as commander:
        if how == "respond":
            await commander.run(respond(backend, conversation, [look], view, formats=formats))
        else:
            job = {"ResponseJob": ResponseJob, "ChatJob": OneTurn}[how]
            await commander.run(job(backend, conversation, [look], view, formats=formats))


async def exchange(
    backend: ScriptedBackend, conversation: Conversation, *tools: Any, **options: Any
) -> Message:
    async with asyncio.timeout(10), Commander() as commander:
        return await commander.run(respond(backend, conversation, tools, Quiet(), **options))


@pytest.mark.parametrize("by_backend", [False, True], ids=["given", "by the backend"])
@pytest.mark.parametrize("how", ["respond", "ResponseJob", "ChatJob"])
@pytest.mark.parametrize("name", WRITTEN)
async def test_a_call_in_the_text_is_run(name: str, how: str, by_backend: bool):
    """The caller or the backend may set the format."""
    style, written = WRITTEN[name]
    view, conversation = Quiet(), Conversation()
    conversation.add("What is in Rome?")
    known: dict[str, Any] = {"formats": [style]} if by_backend else {}
    async with ScriptedServer(cut(written), text("Done.")) as server:
        backend = connect(server.url, model="m", **known)
        await ask(how, backend, conversation, view, None if by_backend else [style])

    called, result, answer = conversation.messages[-3:]
    assert view.text.split() == ["Let", "me", "see.", "Done."]
    assert [(c.name, c.arguments) for c in called.tool_calls] == [("look", {"place": "Rome"})]
    assert (called.content or "").strip() == "Let me see."
    assert (result.role, result.content, answer.content) == ("tool", "seen Rome", "Done.")


async def test_a_model_that_knows_its_format_is_asked_as_any_other():
    """Tools, calls and results go over the wire, for the server's template."""
    backend = ScriptedBackend(WRITTEN["hermes"][1], "Done.", formats=[Hermes(), Think()])
    conversation = Conversation()
    conversation.add("Hi")
    await exchange(backend, conversation, look)

    asked = backend.requests[1]
    assert [each.name for each in asked.tools] == ["look"]
    assert [message.role for message in asked.messages] == ["user", "assistant", "tool"]
    assert asked.messages[1].tool_calls


async def test_a_model_that_does_not_is_told_by_its_prompt():
    """The prompt describes tools and calls; calls and results are text that any server takes."""
    backend = ScriptedBackend(WRITTEN["react"][1], "Done.")
    conversation = Conversation("Be brief.")
    conversation.add("What is in Rome?")
    await exchange(backend, conversation, look, formats=[ReAct()])

    asked = backend.requests[1]
    system, *said = asked.messages
    assert not asked.tools
    assert (system.content or "").startswith("Be brief.\n\nYou can use these tools:\n- look: Look")
    assert "place (string)" in (system.content or "")
    assert [message.to_wire() for message in said] == [
        {"role": "user", "content": "What is in Rome?"},
        {
            "role": "assistant",
            "content": f"Let me see.\n\nAction: look\nAction Input: {ARGUMENTS}",
        },
        {"role": "user", "content": "Observation: seen Rome"},
    ]
    assert conversation.messages[0].content == "Be brief."


async def test_any_format_may_tell_the_model_of_the_tools():
    """For a server without tools; a developer message comes before the instruction."""

    class Told(Hermes):
        instruction = "Write <tool_call>. There are:\n{tools}"

    backend = ScriptedBackend(WRITTEN["hermes"][1], "Done.")
    conversation = Conversation()
    conversation.add(Message(role="developer", content="Be brief."), "Hi")
    await exchange(backend, conversation, look, formats=[Told()])

    asked = backend.requests[1].messages
    assert asked[0].role == "developer"
    assert (asked[0].content or "").startswith(
        "Be brief.\n\nWrite <tool_call>. There are:\n- look:"
    )
    assert (asked[2].content or "").splitlines() == [
        "Let me see. ",
        f'<tool_call>{{"name": "look", "arguments": {ARGUMENTS}}}</tool_call>',
    ]


async def test_results_and_what_the_user_says_next_are_one_message():
    """Many templates require alternating roles. Images of a result are included."""
    call = ToolCall(id="a", name="look", arguments={"place": "x"})
    conversation = Conversation()
    conversation.add(
        Message(role="assistant", tool_calls=[call, call.model_copy(update={"id": "b"})]),
        Message(role="tool", tool_call_id="a", content="1", parts=[PIXEL]),
        Message(role="tool", tool_call_id="b", content="2"),
        "And now?",
    )
    backend = ScriptedBackend("Done.")
    await exchange(backend, conversation, look, formats=[ReAct()])

    last = backend.requests[0].messages[-1]
    assert (last.role, last.content) == ("user", "Observation: 1\nObservation: 2\nAnd now?")
    assert last.parts == [PIXEL]


async def test_a_format_for_one_tool_leaves_the_others_to_the_wire():
    """Fenced code goes to the interpreter; results of other calls follow these directly."""
    both = Message(
        role="assistant",
        content="```python\n1 + 1\n```",
        tool_calls=[ToolCall(id="a", name="look", arguments={"place": "x"}, index=7)],
    )
    backend = ScriptedBackend(both, "Done.")
    conversation = Conversation()
    conversation.add("Hi")
    await exchange(backend, conversation, look, python, formats=[FencedCode()])

    asked = backend.requests[1]
    assert [each.name for each in asked.tools] == ["look"]
    assert "```python\n...\n```" in (asked.messages[0].content or "")
    assert [message.role for message in asked.messages[1:]] == ["user", "assistant", "tool", "user"]
    assert asked.messages[2].content == "```python\n1 + 1\n```"
    assert [each.name for each in asked.messages[2].tool_calls] == ["look"]
    assert [message.content for message in asked.messages[3:]] == [
        "seen x",
        "Observation: ran 1 + 1",
    ]


async def test_a_model_that_has_to_answer_is_told_of_no_tools():
    """In the request after its last round."""
    backend = ScriptedBackend(WRITTEN["react"][1], "Done.")
    await exchange(backend, Conversation(), look, max_rounds=1, formats=[ReAct()])

    assert [message.role for message in backend.requests[1].messages] == ["assistant", "user"]


async def test_no_formats_are_read_if_none_are_wanted():
    """An empty list replaces the backend's formats."""
    backend = ScriptedBackend(WRITTEN["hermes"][1], formats=[Hermes()])
    message = await exchange(backend, Conversation(), look, formats=[])

    assert message.content == WRITTEN["hermes"][1]


async def test_a_backend_that_knows_its_model_completes_with_calls():
    """Also a backend that asks others; a format's own branch is dropped."""

    class Aside(Format):
        open, close, branch = "((", "))", "aside"

    model = ScriptedBackend(otherwise=f"((hm)){WRITTEN['hermes'][1]}", formats=[Hermes(), Aside()])
    down = ScriptedBackend(otherwise=BackendUnavailable("down"), formats=[Hermes()])
    for backend in model, Fallback([down, model]):
        message = await backend.complete(Conversation().request())
        assert [call.name for call in message.tool_calls] == ["look"]
        assert message.content == "Let me see. "


async def test_a_class_of_formats_is_no_format():
    """The error names the missing part, before the model is asked."""
    with pytest.raises(TypeError, match=r"a format must be an instance, as Hermes\(\)"):
        await exchange(ScriptedBackend("x"), Conversation(), formats=[Hermes])
