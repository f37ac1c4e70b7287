"""One exchange: text is shown, tools are called, and the conversation stays valid."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import (
    BackendUnavailable,
    BadResponse,
    Commander,
    Conversation,
    Message,
    ModelRetry,
    NodeCancelled,
    Retry,
    ToolCall,
    ToolError,
    tool,
)
from anabranch.handlers import View, call_tools, respond, show
from anabranch.messages import Delta, ToolCallDelta
from anabranch.testing import ScriptedBackend, deltas
from anabranch.tools import ToolResult


class Seen(View):
    """Records its calls, in order."""

    def __init__(self, yes: bool = False) -> None:
        self.log: list[str] = []
        self.text = ""
        self.wrote = asyncio.Event()
        self.ran = asyncio.Event()
        self.yes = yes

    def write(self, text: str) -> None:
        self.text += text
        self.wrote.set()

    def called(self, call: ToolCall) -> None:
        self.log.append(f"called {call.name}")

    def answered(self, result: ToolResult) -> None:
        self.log.append(f"{result.status} {result.content}")
        self.ran.set()

    async def approve(self, call: ToolCall) -> bool:
        return self.yes


def calling(*calls: tuple[str, dict[str, Any]], text: str | None = None) -> Message:
    made = [
        ToolCall(id=f"c{n}", name=name, arguments=arguments, index=n)
        for n, (name, arguments) in enumerate(calls)
    ]
    return Message(role="assistant", content=text, tool_calls=made)


@tool(read_only=True)
async def look(place: str) -> str:
    """Look somewhere."""
    return f"seen {place}"


@tool
async def send(text: str) -> str:
    """Send something."""
    return f"sent {text}"


async def exchange(
    backend: ScriptedBackend,
    conversation: Conversation,
    *tools: Any,
    view: View | None = None,
    **options: Any,
) -> Message:
    async with asyncio.timeout(10), Commander() as commander:
        return await commander.run(respond(backend, conversation, tools, view or Seen(), **options))


async def test_a_plain_answer_is_shown_and_kept():
    """Text arrives in pieces and is added to the conversation once."""
    view, conversation = Seen(), Conversation("Be brief.")
    conversation.add("Hi")

    message = await exchange(ScriptedBackend("Hello there"), conversation, view=view)

    assert view.text == message.content == "Hello there"
    assert [m.role for m in conversation] == ["system", "user", "assistant"]


async def test_tool_results_go_back_to_the_model():
    """Call, result, answer."""
    view, conversation = Seen(), Conversation()
    backend = ScriptedBackend(calling(("look", {"place": "Rome"}), text="Let me see."), "Done.")

    message = await exchange(backend, conversation, look, view=view)

    assert message.content == "Done."
    assert [m.role for m in conversation] == ["assistant", "tool", "assistant"]
    assert backend.requests[1].messages[-1].content == "seen Rome"
    assert backend.requests[1].messages[-1].tool_call_id == "c0"
    assert view.log == ["called look", "ok seen Rome"]
    assert [t.name for t in backend.requests[0].tools] == ["look"]


async def test_results_stand_in_the_order_of_the_calls():
    """Whichever tool ends first."""
    done = asyncio.Event()

    @tool(read_only=True)
    async def slow() -> str:
        await done.wait()
        return "slow"

    @tool(read_only=True)
    async def fast() -> str:
        done.set()
        return "fast"

    conversation = Conversation()
    backend = ScriptedBackend(calling(("slow", {}), ("send", {"text": "a"}), ("fast", {})), "ok")
    await exchange(backend, conversation, slow, send, fast)

    assert [m.content for m in conversation][1:4] == ["slow", "sent a", "fast"]


async def test_a_read_only_tool_starts_while_the_reply_streams_and_another_waits():
    """It starts when its call is complete; tools with effects wait for the complete reply."""
    looked, sent, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(read_only=True)
    async def peek() -> str:
        looked.set()
        return "peeked"

    @tool
    async def act() -> str:
        sent.set()
        return "acted"

    steps = deltas(calling(("act", {}), ("peek", {}), text="Now"))
    backend = ScriptedBackend([*steps[:-2], go_on, *steps[-2:]], "ok")
    conversation = Conversation()
    task = asyncio.create_task(exchange(backend, conversation, peek, act))
    async with asyncio.timeout(5):
        await looked.wait()
    assert not sent.is_set()
    go_on.set()
    await task

    assert sent.is_set()
    assert [m.content for m in conversation] == ["Now", "acted", "peeked", "ok"]


async def test_eager_tools_are_cancelled_if_the_reply_fails():
    """No tool with effects starts; the text is stored without calls."""
    running, stopped, acted = asyncio.Event(), asyncio.Event(), False

    @tool(read_only=True)
    async def peek() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @tool
    async def act() -> None:
        nonlocal acted
        acted = True

    steps = deltas(calling(("act", {}), ("peek", {}), text="Let me"))
    backend = ScriptedBackend([*steps[:-2], running, BackendUnavailable("gone")])
    conversation = Conversation()
    with pytest.raises(BackendUnavailable, match="gone"):
        await exchange(backend, conversation, peek, act)

    assert stopped.is_set()
    assert not acted
    assert [m.to_wire() for m in conversation] == [{"role": "assistant", "content": "Let me"}]


async def test_a_reply_that_fails_at_once_leaves_the_conversation_as_it_was():
    """So the turn can be retried."""
    conversation = Conversation()
    conversation.add("Hi")
    backend = ScriptedBackend(BackendUnavailable("down"), "Hello")

    with pytest.raises(BackendUnavailable):
        await exchange(backend, conversation, look)
    assert len(conversation) == 1
    await exchange(backend, conversation, look)

    assert conversation.messages[-1].content == "Hello"


async def test_an_interrupted_reply_keeps_what_it_said():
    """Cancelling the exchange stops the model; a provider accepts the partial answer."""
    view, conversation = Seen(), Conversation()
    backend = ScriptedBackend(["Once upon", asyncio.Event()])
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(respond(backend, conversation, (), view), claim=True)
        while view.text != "Once upon":
            view.wrote.clear()
            await view.wrote.wait()
        node.cancel("enough")
        with pytest.raises(NodeCancelled, match="enough"):
            await node

    assert backend.closed == 1
    assert [m.to_wire() for m in conversation] == [{"role": "assistant", "content": "Once upon"}]


async def test_interrupted_tools_leave_no_call_unanswered():
    """An ended call keeps its result, a running one is marked as interrupted."""
    view, conversation, hanging = Seen(), Conversation(), asyncio.Event()

    @tool
    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    backend = ScriptedBackend(calling(("hang", {}), ("look", {"place": "Rome"})))
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(respond(backend, conversation, (hang, look), view))
        await view.ran.wait()
        await hanging.wait()
        node.cancel()

    assert [m.tool_call_id for m in conversation] == [None, "c0", "c1"]
    assert "cancelled" in (conversation.messages[1].content or "")
    assert conversation.messages[2].content == "seen Rome"


@pytest.mark.parametrize(
    ("call", "status", "said"),
    [
        (("look", {}), "invalid", "Error: wrong arguments: place: Field required"),
        (("loook", {"place": "x"}), "invalid", "no tool 'loook'; the tools are: look, burst"),
        (("burst", {}), "failed", "Error: ValueError: boom"),
        (("refuse", {}), "failed", "Error: not today"),
        (("sleep", {}), "failed", "Error: sleep did not finish within 0.01 seconds"),
        (("thread", {}), "failed", "Error: thread did not finish within 0.01 seconds"),
    ],
)
async def test_what_goes_wrong_with_a_call_is_told_to_the_model(
    call: tuple[str, dict[str, Any]], status: str, said: str
):
    """It never raises and never ends the conversation."""
    release = threading.Event()

    @tool(read_only=True)
    async def burst() -> None:
        raise ValueError("boom")

    @tool
    async def refuse() -> None:
        raise ToolError("not today")

    @tool(timeout=0.01)
    async def sleep() -> None:
        await asyncio.Event().wait()

    @tool(timeout=0.01)
    def thread() -> None:
        release.wait(5)

    view, conversation = Seen(), Conversation()
    tools = (look, burst, refuse, sleep, thread)
    message = await exchange(
        ScriptedBackend(calling(call), "Sorry."), conversation, *tools, view=view
    )
    release.set()

    assert message.content == "Sorry."
    assert said in (conversation.messages[1].content or "")
    assert view.log[-1].startswith(status)


async def test_a_call_that_is_no_json_is_answered_and_never_run():
    """The error is its result."""
    broken = [
        Delta(tool_calls=(ToolCallDelta(0, id="c0", name="look", arguments='{"place": '),)),
        Delta(finish_reason="length"),
    ]
    view, conversation = Seen(), Conversation()
    await exchange(ScriptedBackend(broken, "Sorry."), conversation, look, view=view)

    assert [m.role for m in conversation] == ["assistant", "tool", "assistant"]
    assert conversation.messages[1].tool_call_id == "c0"
    assert view.log[0].startswith("invalid The call of look was not run")


async def test_a_model_that_keeps_calling_wrongly_is_told_to_answer():
    """After `repairs` wrong replies the request has tool_choice none."""
    wrong = calling(("look", {}))
    backend = ScriptedBackend(wrong, wrong, "I cannot.")
    conversation = Conversation()

    message = await exchange(backend, conversation, look, repairs=1)

    assert message.content == "I cannot."
    assert [r.options.get("tool_choice") for r in backend.requests] == [None, None, "none"]


async def test_a_model_that_calls_for_ever_is_stopped():
    """After `max_rounds`, and one more reply with calls."""
    conversation = Conversation()
    backend = ScriptedBackend(otherwise=calling(("look", {"place": "x"})))
    with pytest.raises(BadResponse, match="had to answer without tools"):
        await exchange(backend, conversation, look, max_rounds=3)

    assert len(backend.requests) == 4
    assert conversation.messages[-1].role == "tool"


async def test_narration_reaches_the_user_and_not_the_tool():
    """The schema offers `to_user`; its text is shown, the tool gets its own arguments."""
    view, conversation = Seen(), Conversation()
    call = calling(("look", {"to_user": "Looking.", "place": "Rome"}))
    backend = ScriptedBackend(call, "There.")
    await exchange(backend, conversation, look, view=view, narrate=True)

    offered = backend.requests[0].tools[0].parameters["properties"]
    assert list(offered) == ["to_user", "place"]
    assert "to_user" not in look.parameters["properties"]
    assert view.text.startswith("Looking.")
    assert view.log[-1] == "ok seen Rome"


async def test_options_reach_the_request():
    """In every round."""
    backend = ScriptedBackend(calling(("look", {"place": "x"})), "ok")
    await exchange(backend, Conversation(), look, temperature=0.5)

    assert [r.options["temperature"] for r in backend.requests] == [0.5, 0.5]


@pytest.mark.parametrize(("yes", "said"), [(True, "ok done"), (False, "failed Error: the user")])
async def test_a_tool_that_needs_a_yes_asks_first(yes: bool, said: str):
    """It does not run without approval."""

    @tool(approve=True, timeout=5)
    async def delete() -> str:
        return "done"

    view = Seen(yes)
    await exchange(
        ScriptedBackend(calling(("delete", {})), "ok"), Conversation(), delete, view=view
    )

    assert view.log[-1].startswith(said)


async def test_a_view_that_breaks_ends_the_exchange():
    """Its exception is raised and the model is stopped."""

    class Broken(View):
        async def write(self, text: str) -> None:
            raise ConnectionError("the client is gone")

    backend = ScriptedBackend(["Hello", asyncio.Event()])
    with pytest.raises(ConnectionError, match="client is gone"):
        await exchange(backend, Conversation(), view=Broken())

    assert backend.closed == 1


async def test_show_gives_each_text_and_returns_all():
    """With a plain or an async function, and as events."""
    seen: list[str] = []

    async def texts():
        for text in ("a", "b"):
            yield text

    async def write(text: str) -> None:
        seen.append(text)

    async with asyncio.timeout(5), Commander() as commander:
        events = commander.events(("text",))
        assert await commander.run(show(texts(), write)) == "ab"
        assert await commander.run(show(texts(), seen.append)) == "ab"

    assert seen == ["a", "b", "a", "b"]
    assert [event.data async for event in events] == seen


async def test_one_call_can_be_cancelled_alone():
    """The others and the conversation continue."""

    async def calls():
        yield ToolCall(id="a", name="hang", index=0)
        yield ToolCall(id="b", name="look", arguments={"place": "x"}, index=1)

    hanging = asyncio.Event()

    @tool(read_only=True)
    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(call_tools(calls(), (hang, look)), claim=True)
        await hanging.wait()
        node.children[0].cancel("the user skipped it")
        results = await node

    assert [r.content for r in results] == [
        "Error: the call was cancelled: the user skipped it",
        "seen x",
    ]


async def test_calls_with_the_same_id_get_each_its_own_result():
    """Models and servers repeat ids; the order of the calls identifies them."""

    async def calls():
        for number, place in enumerate(("Rome", "Paris")):
            yield ToolCall(id="a", name="look", arguments={"place": place}, index=number)
        yield ToolCall(id="a", name="look", arguments={"place": "Oslo"}, index=1)

    async with asyncio.timeout(5), Commander() as commander:
        results = await commander.run(call_tools(calls(), [look]))

    assert [r.content for r in results] == ["seen Rome", "seen Paris", "seen Oslo"]


class Cancelling(Seen):
    """Raises `CancelledError`, or waits for a cancelled task, at one piece."""

    def __init__(self, pieces: int, how: str) -> None:
        super().__init__()
        self.pieces = pieces
        self.how = how

    def write(self, text: str) -> Any:
        super().write(text)
        self.pieces -= 1
        if self.pieces:
            return None
        if self.how == "raises":
            raise asyncio.CancelledError
        waiting = asyncio.ensure_future(asyncio.sleep(0))
        waiting.cancel()
        return waiting


@pytest.mark.parametrize("how", ["raises", "waits"])
@given(pieces=st.integers(1, 4))
def test_a_view_that_is_cancelled_by_itself_fails_the_exchange(how: str, pieces: int) -> None:
    """The exchange was not cancelled, so its unshown text must not be lost silently."""
    view = Cancelling(pieces, how)

    async def main() -> None:
        conversation = Conversation()
        with pytest.raises(RuntimeError, match="raised CancelledError, but nothing"):
            await exchange(ScriptedBackend("Yes, and no.", size=3), conversation, view=view)
        assert view.text in "Yes, and no."

    asyncio.run(main())


async def test_an_exchange_that_is_cancelled_while_its_view_waits_is_cancelled() -> None:
    """It does not count as a failure of the view."""

    class Waiting(Seen):
        async def write(self, text: str) -> None:  # type: ignore[override]
            super().write(text)
            await asyncio.Event().wait()

    view = Waiting()
    async with asyncio.timeout(10), Commander() as commander:
        node = commander.call_handler(respond(ScriptedBackend("Yes."), Conversation(), (), view))
        await view.wrote.wait()
        node.cancel("enough")
        with pytest.raises(NodeCancelled, match="enough"):
            await node


async def test_a_tool_that_ends_the_turn_is_the_last_request():
    """All calls of its reply run, and the conversation has their results."""

    @tool(ends_turn=True)
    async def finish(text: str) -> str:
        return f"finished {text}"

    conversation = Conversation()
    reply = calling(("finish", {"text": "a"}), ("look", {"place": "Rome"}))
    backend = ScriptedBackend(reply)

    message = await exchange(backend, conversation, look, finish, max_rounds=3)

    assert [call.name for call in message.tool_calls] == ["finish", "look"]
    assert [m.content for m in conversation] == [None, "finished a", "seen Rome"]
    assert message is conversation.messages[0]


@pytest.mark.parametrize("fault", ["wrong arguments", "raises", "refused", "retry"])
async def test_a_call_that_does_not_succeed_does_not_end_the_turn(fault: str):
    """The model reads why, and is asked again."""

    @tool(ends_turn=True, approve=fault == "refused")
    async def finish(number: int) -> str:
        if fault == "retry":
            raise ModelRetry("another number")
        raise ToolError("broken")

    call = calling(("finish", {"number": "x" if fault == "wrong arguments" else 1}))
    conversation = Conversation()

    message = await exchange(ScriptedBackend(call, "Sorry."), conversation, finish)

    assert message.content == "Sorry."
    assert [m.role for m in conversation] == ["assistant", "tool", "assistant"]


async def test_a_tool_can_ask_the_model_for_a_better_call():
    """Its reason is an invalid result, `repairs` counts it, and `retry=` does not repeat it."""
    count = 0

    @tool(retry=Retry(attempts=5, backoff=0))
    def find(number: int) -> str:
        nonlocal count
        count += 1
        raise ModelRetry(f"there is no order {number}")

    view, calls = Seen(), calling(("find", {"number": 7}))
    backend = ScriptedBackend(calls, calls, "I cannot.")

    await exchange(backend, Conversation(), find, view=view, repairs=1)

    assert count == 2
    assert view.log[1] == "invalid Error: there is no order 7"
    assert backend.requests[2].options == {"tool_choice": "none"}
