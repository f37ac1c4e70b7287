"""Events of tool calls: each call has one, with its result, however it ran."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.waiting import run_turns, settle_loop

from anabranch import Commander, Message, Node, ToolCall, handler, tool
from anabranch.agents import Agent, AgentMessage, ToolExecutor
from anabranch.commander import Event, Retry, emit
from anabranch.commander.tap import Tap
from anabranch.handlers import View, call_tools, respond
from anabranch.messages import Conversation, ReplyEvent, Request, RequestEvent, Usage
from anabranch.testing import ScriptedBackend
from anabranch.tools import Decision
from anabranch.tracing import record

pytestmark = pytest.mark.contract("S1")


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def fail(why: str) -> None:
    """Fail."""
    raise ValueError(why)


@tool(timeout=0.01)
async def slow() -> None:
    """Never end."""
    await asyncio.Event().wait()


@tool(read_only=True)
async def hang() -> None:
    """Never end."""
    await asyncio.Event().wait()


@tool(approve=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


TOOLS = [add, fail, slow, hang, pay]


class SeenCalls:
    """A listener that collects the call events of a tree, as (tool, status) by node."""

    def __init__(self, commander: Commander) -> None:
        self.events: list[Event] = []
        kinds = ("called", "answered", "put", "started", "completed", "failed", "cancelled")
        self._tap = Tap(commander, 100, lambda: None, kinds, self._take)

    def _take(self) -> None:
        self.events += self._tap.take()

    def calls(self) -> list[tuple[str, str]]:
        """Check that each call has exactly one event from its node; return tools and statuses."""
        self._take()
        called = {e.node_id: e.data for e in self.events if e.kind == "called"}
        answered = {e.node_id: e.data for e in self.events if e.kind == "answered"}
        assert [*called] == [e.node_id for e in self.events if e.kind == "called"]
        assert sorted(answered) == sorted(called)
        assert len(answered) == sum(e.kind == "answered" for e in self.events)
        for number, call in called.items():
            assert isinstance(call, ToolCall)
            assert answered[number].tool_call_id == call.id
            kinds = [e.kind for e in self.events if e.node_id == number]
            assert kinds.index("put") < kinds.index("called") < kinds.index("answered")
        return [(call.name, answered[number].status) for number, call in called.items()]


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c_{name}", name=name, arguments=arguments)


async def by_handler(calls: list[ToolCall], answer: Any = None) -> None:
    class Asks(View):
        async def ask(self, call: ToolCall, tool: Any) -> Any:
            return answer

    async def give() -> Any:
        for each in calls:
            yield each

    await call_tools(give(), TOOLS, Asks())


async def by_executor(calls: list[ToolCall], answer: Any = None) -> None:
    async def approve(asked: Any) -> Any:
        return answer

    await ToolExecutor(TOOLS, approvals=approve)(AgentMessage(output=calls, sender="me"))


async def by_agent(calls: list[ToolCall], answer: Any = None) -> None:
    async def approve(asked: Any) -> Any:
        return answer

    backend = ScriptedBackend(Message(role="assistant", tool_calls=calls), "done")
    await Agent(backend, tools=TOOLS, approve=approve)("go")


WAYS = [by_handler, by_executor, by_agent]


@handler
async def work(node: Node, way: Callable[..., Any], calls: list[ToolCall], answer: Any) -> None:
    await way(calls, answer)


async def told_of(
    way: Any, *calls: ToolCall, answer: Any = None, cancel: bool = False
) -> SeenCalls:
    async with asyncio.timeout(10), Commander() as commander:
        told = SeenCalls(commander)
        node = commander.call_handler(work(way, [*calls], answer))
        if cancel:
            await settle_loop()
            node.cancel("enough")
    return told


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_has_an_event_with_its_result(way: Any):
    """S1: the event has the result of a success, a failure, a timeout and wrong arguments."""
    wrong = call("add", a="x", b=[])
    told = await told_of(way, call("add", a=1, b=2), call("fail", why="no"), call("slow"), wrong)
    assert sorted(told.calls()) == [
        ("add", "invalid"), ("add", "ok"), ("fail", "failed"), ("slow", "failed"),
    ]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_of_an_unknown_tool_has_no_event(way: Any):
    """A call of an unknown tool starts no node; inside a reply it still gets a result."""
    assert (await told_of(way, call("nobody", x=1))).calls() == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_is_cancelled_is_answered(way: Any):
    """S1: a cancelled call has one event with the status failed, at the end of its node."""
    assert (await told_of(way, call("hang"), cancel=True)).calls() == [("hang", "failed")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("answer", "status"),
    [(True, "ok"), (False, "failed"), (Decision(True, arguments={"amount": 1}), "ok")],
)
async def test_a_call_with_approval_has_one_event(way: Any, answer: Any, status: str):
    """S1: the node that runs the call emits it, or after a denial the node that asked."""
    told = await told_of(way, call("pay", amount=5), answer=answer)
    assert told.calls() == [("pay", status)]
    (called,) = [event for event in told.events if event.kind == "called"]
    assert called.name == ("pay" if answer is not False else "ask_first:pay")
    changed = isinstance(answer, Decision)
    assert called.data.arguments == {"amount": 1 if changed else 5}


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_with_approval_and_wrong_arguments_has_one_event(way: Any):
    """S1: the node that asks for approvals emits it."""
    told = await told_of(way, call("pay", amount="much"), answer=True)
    assert told.calls() == [("pay", "invalid")]


async def test_a_cancelled_call_with_an_open_approval_has_one_event():
    """S1: a call that is cancelled while it waits for its approval counts as failed."""
    started = asyncio.Event()

    class Waits(View):
        async def ask(self, call: ToolCall, tool: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

    async def give() -> Any:
        yield call("pay", amount=5)

    async with asyncio.timeout(10), Commander() as commander:
        told = SeenCalls(commander)
        node = commander.call_handler(call_tools(give(), TOOLS, Waits()))
        await started.wait()
        node.cancel()
    assert told.calls() == [("pay", "failed")]


async def test_a_retried_call_has_one_event():
    """S1: the event of a retried call has the result of the last attempt."""
    tries = []

    @tool(retry=Retry(attempts=2, backoff=0))
    def once_more() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError
        return "done"

    backend = ScriptedBackend(
        Message(role="assistant", tool_calls=[call("once_more")]), otherwise="ok"
    )
    talk = Conversation()
    talk.add("go")
    async with asyncio.timeout(10), Commander() as commander:
        told = SeenCalls(commander)
        await commander.call_handler(respond(backend, talk, [once_more]))
        await run_turns(3)
    assert told.calls() == [("once_more", "ok")]
    assert len(tries) == 2


async def test_a_reply_with_only_calls_is_recorded(tmp_path: Path) -> None:
    """A recording with content contains a reply that consists of calls only."""
    call = ToolCall(id="c", name="look", arguments={"what": "plums"})
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]))

    @handler
    async def ask(node: Node) -> None:
        await backend.complete(Request([Message(role="user", content="Look.")]))

    async with Commander() as commander, record(commander, tmp_path / "r", content=True) as seen:
        await commander.call_handler(ask())
    [request] = [request for node in seen.trace() for request in node.requests]
    said = {"name": "look", "arguments": {"what": "plums"}}
    assert request.output == {"role": "assistant", "tool_calls": [said]}


async def test_a_reply_without_a_message_is_recorded(tmp_path: Path) -> None:
    """A recording has the reply's end, tokens and finish reason, with and without content."""
    deltas: tuple[Any, ...] = (object(),)

    @handler
    async def ask(node: Node) -> None:
        emit(node, "request", RequestEvent(1, "p", "m", {}, 1, (), False))
        used = {"m": Usage(input_tokens=3)}
        emit(node, "reply", ReplyEvent(1, None, 1, used, "stop", None, False, deltas))

    async with Commander() as commander, record(commander, tmp_path / "r", content=True) as seen:
        await commander.call_handler(ask())
    [request] = [request for node in seen.trace() for request in node.requests]
    assert (request.left, request.finish_reason, request.output) == (False, "stop", None)
    assert request.usage == {"m": Usage(input_tokens=3)}
