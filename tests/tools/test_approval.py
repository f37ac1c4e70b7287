"""Calls wait for a person's approval, each in its own node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.agents import AgentMessage, ToolExecutor
from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import View, call_tools, handler
from anabranch.messages import ToolCall
from anabranch.tools import Approval, Approvals, InvalidArguments, tool


@tool(approve=True, timeout=5)
async def send(to: str, copies: int = 1) -> str:
    """Send something."""
    return f"sent {copies} to {to}"


def calls(*to: Any) -> AgentMessage:
    return AgentMessage(content=[{"name": "send", "parameters": {"to": each}} for each in to])


async def answered(message: AgentMessage, answer: Callable[[Approval], object], **more: Any) -> Any:
    """Run `message` while `answer` settles each question as it comes."""
    approvals = Approvals(**more)

    async def person() -> None:
        async for question in approvals:
            answer(question)

    asking = asyncio.create_task(person())
    try:
        async with asyncio.timeout(5):
            return await ToolExecutor([send], approvals=approvals)(message)
    finally:
        asking.cancel()
        assert approvals.pending == ()


async def test_a_yes_lets_the_call_run():
    """The call runs after the approval, not before."""
    assert (await answered(calls("Ann"), lambda q: q.approve())).content == "sent 1 to Ann"


async def test_a_no_is_told_to_the_model_with_its_reason():
    """The call does not run, and the model reads the reason."""
    answer = await answered(calls("Ann"), lambda q: q.deny("she left"))

    assert answer.content == "Error: the user did not allow this call: she left"
    assert answer.extra == {"status": "failed"}


async def test_several_wait_at_once_and_are_answered_in_any_order():
    """Each answer reaches its own call."""
    approvals = Approvals()
    order: list[str] = []
    everybody = asyncio.Event()

    def asked(question: Approval) -> None:
        if len(approvals.pending) == 3:
            everybody.set()

    approvals = Approvals(on_ask=asked)
    async with asyncio.timeout(5), Commander() as commander:
        executor = ToolExecutor([send], approvals=approvals)

        @handler
        async def work(node: Any) -> AgentMessage:
            return await executor(calls("a", "b", "c"))

        working = commander.call_handler(work(), claim=True)
        await everybody.wait()
        for question in reversed(approvals.pending):
            order.append(question.call.arguments["to"])
            assert "/ask_first:send#" in question.path
            assert approvals.get(question.number) is question
            assert question.approve() if question.call.arguments["to"] != "b" else question.deny()
        answer = await working

    assert order == ["c", "b", "a"]
    assert [each.status for each in answer.output] == ["ok", "failed", "ok"]


async def test_nobody_answering_in_time_is_a_no():
    """The question ends, and the conversation continues."""
    answer = await answered(calls("Ann"), lambda q: None, timeout=0.01)

    assert "did not allow this call: nobody answered in time" in answer.content


async def test_a_person_may_edit_the_arguments():
    """The tool gets the new arguments, and the model reads that they changed."""
    answer = await answered(calls("Ann"), lambda q: q.approve({"to": "Bob", "copies": 2}))

    assert answer.content == (
        '(The user changed the arguments to {"to": "Bob", "copies": 2})\nsent 2 to Bob'
    )


async def test_a_wrong_edit_is_the_persons_to_mend():
    """The person's `approve` raises, and the question still waits."""

    def clumsy(question: Approval) -> None:
        with pytest.raises(InvalidArguments, match="to: Field required"):
            question.approve({})
        assert question.waits
        question.approve({"to": "Bob"})

    assert (await answered(calls("Ann"), clumsy)).content.endswith("sent 1 to Bob")


async def test_a_question_is_settled_once():
    """A second answer changes nothing and returns False."""
    said: list[bool] = []

    def twice(question: Approval) -> None:
        said.extend([question.deny("no"), question.approve(), question.waits])

    answer = await answered(calls("Ann"), twice)

    assert said == [True, False, False]
    assert answer.extra == {"status": "failed"}


async def test_wrong_arguments_are_not_asked_about():
    """The call fails without a question to the person."""
    asked: list[Approval] = []
    answer = await answered(calls(3), asked.append)

    assert answer.extra == {"status": "invalid"}
    assert asked == []


async def test_a_cancelled_conversation_withdraws_its_questions():
    """No question is pending, and a late answer changes nothing."""
    waiting = asyncio.Event()
    asked: list[Approval] = []

    async def on_ask(question: Approval) -> None:
        asked.append(question)
        waiting.set()

    approvals = Approvals(on_ask=on_ask)
    async with asyncio.timeout(5), Commander() as commander:

        @handler
        async def work(node: Any) -> AgentMessage:
            return await ToolExecutor([send], approvals=approvals)(calls("Ann"))

        working = commander.call_handler(work(), claim=True)
        await waiting.wait()
        working.cancel()
        with pytest.raises(NodeCancelled):
            await working

        assert approvals.pending == ()
        assert not asked[0].approve()
        with pytest.raises(KeyError):
            approvals.get(asked[0].number)


async def test_without_anyone_to_ask_the_call_is_refused():
    """An executor without an approver never runs a tool that needs approval."""
    answer = await ToolExecutor([send])(calls("Ann"))

    assert answer.content == "Error: the user did not allow this call: nobody is there to ask"


async def test_an_asker_that_raises_fails_the_caller():
    """The model reads refusals, and no errors of the program."""

    def on_ask(question: Approval) -> None:
        raise OSError("no terminal")

    approvals = Approvals(on_ask=on_ask)
    with pytest.raises(OSError, match="no terminal"):
        await ToolExecutor([send], approvals=approvals)(calls("Ann"))
    assert not approvals.pending


async def test_a_question_that_is_cancelled_fails_that_call_alone():
    """The cancel of one question is a result, as that of a tool."""
    approvals = Approvals(on_ask=lambda question: question.cancel("withdrawn"))
    answer = await ToolExecutor([send], approvals=approvals)(calls("Ann"))

    assert "cancelled" in str(answer.content)


async def arriving(*made: ToolCall) -> Any:
    for each in made:
        yield each


@pytest.mark.parametrize("with_approvals", [True, False])
async def test_a_chats_calls_are_asked_about_through_its_view(with_approvals: bool):
    """Through `view.approvals` where an application answers, else through `view.approve`."""
    told: list[Any] = []

    class Quiet(View):
        def answered(self, result: Any) -> None:
            told.append(result.content)

        async def approve(self, call: ToolCall) -> bool:
            return call.arguments["to"] == "Ann"

    view = Quiet()
    if with_approvals:
        view.approvals = Approvals(
            on_ask=lambda q: q.approve() if q.call.arguments["to"] == "Ann" else q.deny()
        )
    made = [ToolCall(id=to, name="send", arguments={"to": to}) for to in ("Ann", "Bob")]
    async with asyncio.timeout(5), Commander() as commander:
        results = await commander.run(call_tools(arriving(*made), [send], view))

    assert [each.status for each in results] == ["ok", "failed"]
    assert sorted(told) == ["Error: the user did not allow this call", "sent 1 to Ann"]
