"""`--agent module:name`: everything that can be served also answers in the chat."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from support.waiting import run_turns, turn_until

from anabranch import Agent, Commander, Job, Node, NodeCancelled, handler, tool
from anabranch.agents.conversation import ConversableAgent, GroupChat
from anabranch.agents.orchestration import Orchestrator, State
from anabranch.cli._fields import FieldMissing
from anabranch.cli.chat._local_runs import find_partner, local_partner
from anabranch.cli.chat._log_renderer import LogRenderer, lay_out_result
from anabranch.cli.chat._partner import MessageRefused, RunPartner
from anabranch.commander.errors import ConfigurationError
from anabranch.handlers import View
from anabranch.messages import Message, Part, ToolCall
from anabranch.serve.local import served_model_of
from anabranch.store import JournalError, RunBusy
from anabranch.testing import ScriptedBackend, deltas
from anabranch.tools import Decision, ToolResult


class Seen(View):
    """A view that records its calls and answers approvals with `says`."""

    def __init__(self, says: Any = True) -> None:
        self.shown: list[str] = []
        self.texts: list[str] = [""]
        self.asked: list[ToolCall] = []
        self.says = says

    def write(self, text: str) -> None:
        self.texts[-1] += text

    def ended(self) -> None:
        self.texts.append("")

    def called(self, call: ToolCall) -> None:
        self.shown.append(f"{call.name} {call.arguments}")

    def answered(self, result: ToolResult) -> None:
        self.shown.append(f"-> {result.content} {result.status}")

    async def approve(self, call: ToolCall) -> bool | Decision:
        self.asked.append(call)
        if isinstance(self.says, asyncio.Event):
            await self.says.wait()
            return True
        return self.says

    @property
    def said(self) -> list[str]:
        return [text for text in self.texts if text]


def user(text: str) -> Message:
    return Message(role="user", content=text)


async def ask(partner: RunPartner, said: str | None, view: View | None = None) -> Message:
    """Let a partner answer in a new tree."""
    async with Commander(policy="isolate") as tree:
        made = None if said is None else user(said)
        return await tree.call_handler(partner.answer(made, view or Seen()))


def partner_for(thing: Any, *lines: str | None, raw: bool = False) -> RunPartner:
    """Return a partner whose person answers questions with `lines`."""
    prompts: list[str] = []
    left = [*lines]

    async def ask_line(prompt: str) -> str | None:
        prompts.append(prompt)
        return left.pop(0)

    made = local_partner(served_model_of(thing), ask_line if lines else None, raw=raw)
    made.prompts = prompts  # type: ignore[attr-defined]
    return made


def roles(partner: RunPartner) -> list[tuple[str, str | None]]:
    return [(each.role, each.content) for each in partner.messages()]


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(approve=True)
def wipe(disk: str) -> str:
    """Wipe a disk."""
    return f"wiped {disk}"


def calling(name: str, **arguments: Any) -> Message:
    call = ToolCall(id="c0", name=name, arguments=arguments)
    return Message(role="assistant", content="Let me see.", tool_calls=[call])


# --- kinds of things


async def test_a_model_by_itself_hears_the_conversation() -> None:
    """S19: each request has the earlier messages."""
    backend = ScriptedBackend("One.", "Two.")
    partner, view = partner_for(backend), Seen()
    assert (await ask(partner, "a", view)).content == "One."
    await ask(partner, "b", view)
    assert [each.content for each in backend.requests[-1].messages] == ["a", "One.", "b"]
    assert view.said == ["One.", "Two."]


async def test_a_conversable_agent_and_a_group_answer() -> None:
    """All messages of a group are shown with the names of their senders."""

    def say(name: str) -> ConversableAgent:
        return ConversableAgent(name, ScriptedBackend(otherwise=f"I am {name}."))

    alone = Seen()
    assert (await ask(partner_for(say("one")), "hi", alone)).content == "I am one."
    assert alone.said == ["I am one."]
    view = Seen()
    group = GroupChat("group", [say("left"), say("right")], max_turns=2)
    answer = await ask(partner_for(group), "hi", view)
    assert view.said[:2] == ["left:\n\nI am left.", "right:\n\nI am right."]
    assert answer.content in view.said[-1]


async def test_an_orchestrator_is_made_anew_for_each_question() -> None:
    """An orchestrator has one state, so each message gets a new one; its agents are named."""
    made: list[Orchestrator[Any]] = []

    def factory() -> Orchestrator[Any]:
        agent = Agent(ScriptedBackend(otherwise="Done."), name="only")

        def transition(obs: Any, state: State) -> str | None:
            state.step_environment()
            return "only"

        made.append(Orchestrator([agent], transition, State(), name="boss"))
        return made[-1]

    partner, view = partner_for(factory), Seen()
    for _ in range(2):
        assert (await ask(partner, "hi", view)).content == "Done."
    assert len({id(each) for each in made}) == 3
    assert "only:\n\nDone." in view.said


class Report(Job[str]):
    topic: str
    pages: Annotated[int, Field(description="How many pages.", ge=1)]
    due: date = date(2026, 1, 2)
    style: Literal["short", "long"] = "short"

    async def task(self) -> str:
        return f"{self.topic} {self.pages} {self.due} {self.style}"


async def test_the_fields_of_a_job_are_asked_for_one_after_the_other() -> None:
    """Missing fields are asked for until they are valid; empty answers take the defaults."""
    partner = partner_for(Report, "many", "0", "3", "", "Short", "long")
    assert (await ask(partner, "dogs")).content == "dogs 3 2026-01-02 long"
    prompts: list[str] = partner.prompts  # type: ignore[attr-defined]
    assert prompts[0] == "pages (Annotated[int, ...]) - How many pages.: " or "pages" in prompts[0]
    assert "How many pages." in prompts[0]
    assert "valid integer" in prompts[1]
    assert "greater" in prompts[2]
    assert "default" in prompts[3]
    assert "2026" in prompts[3]
    assert "short" in prompts[5]


async def test_a_json_object_fills_fields_and_nobody_is_asked() -> None:
    """Without a person, an error names the required fields that a message lacks."""
    partner = partner_for(Report)
    assert (await ask(partner, '{"topic": "x", "pages": 2}')).content == "x 2 2026-01-02 short"
    with pytest.raises(FieldMissing, match="pages is missing"):
        await ask(partner, "cats")
    with pytest.raises(FieldMissing, match="greater than"):
        await ask(partner, '{"topic": "x", "pages": 0}')
    assert roles(partner)[-1] == ("user", '{"topic": "x", "pages": 0}')


async def test_who_gives_up_at_a_field_begins_nothing() -> None:
    """No answer ends the turn with an error, and the message stays in the conversation."""
    partner = partner_for(Report, None)
    with pytest.raises(FieldMissing, match="the job did not start"):
        await ask(partner, "dogs")
    assert roles(partner) == [("user", "dogs")]


async def test_fields_that_were_given_last_are_offered_again() -> None:
    """In the next turn an empty line takes the last value."""
    partner = partner_for(Report, "3", "", "", "", "", "")
    await ask(partner, "dogs")
    assert (await ask(partner, "cats")).content == "cats 3 2026-01-02 short"


@handler
async def rows(node: Node[Any], count: int) -> list[dict[str, Any]]:
    """Give rows."""
    return [{"n": n, "what": "a|b"} for n in range(count)]


async def test_a_result_that_is_no_text_is_shown_as_a_table() -> None:
    """Rows with equal fields become a Markdown table, while the conversation has the JSON."""
    view = Seen()
    answer = await ask(partner_for(rows), "2", view)
    assert view.said == ["| n | what |\n| --- | --- |\n| 0 | a\\|b |\n| 1 | a\\|b |\n"]
    assert answer.content == '[{"n":0,"what":"a|b"},{"n":1,"what":"a|b"}]'
    plain = Seen()
    await ask(partner_for(rows, raw=True), "1", plain)
    assert plain.said == ['[{"n":0,"what":"a|b"}]']


@pytest.mark.parametrize("text", ["plain", "[1", "{" * 5000, "[" * 100_000, "", "[x]"])
def test_a_result_that_is_no_json_is_shown_as_it_is(text: str) -> None:
    """Any other result is shown unchanged."""
    assert lay_out_result(text) == text


# --- tools, questions, failures


async def test_tools_and_those_below_are_shown() -> None:
    """Replies of other agents have their names; the answer is that of the served agent."""
    below = Agent(ScriptedBackend(otherwise="from below"), name="below")

    @tool
    async def ask_below(question: str) -> str:
        """Ask another."""
        return (await below.call(question)).text

    agent = Agent(
        ScriptedBackend(calling("ask_below", question="q"), "Done."), name="top", tools=[ask_below]
    )
    partner, view = local_partner(served_model_of(agent)), Seen()
    answer = await ask(partner, "hi", view)
    assert answer.content == "Done."
    assert view.said == ["Let me see.", "below:\n\nfrom below", "top:\n\nDone."]
    assert view.shown == ["ask_below {'question': 'q'}", "-> from below ok"]
    assert roles(partner) == [("user", "hi"), ("assistant", "Done.")]


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (True, "wiped a"),
        (False, "Error: "),
        (Decision(True, {"disk": "b"}), "wiped b"),
        (Decision(False, reason="not today"), "not today"),
    ],
)
async def test_the_person_says_whether_a_tool_runs(says: Any, told: str) -> None:
    """The decision of the view applies: yes, no, a reason, other arguments."""
    agent = Agent(ScriptedBackend(calling("wipe", disk="a"), "Done."), name="a", tools=[wipe])
    view = Seen(says)
    await ask(local_partner(served_model_of(agent)), "hi", view)
    assert [each.name for each in view.asked] == ["wipe"]
    assert told in view.shown[-1]


class Broken(Job[str]):
    question: str

    async def task(self) -> str:
        async def texts() -> AsyncGenerator[str]:
            yield "half of "
            yield "it"

        raise ValueError("it broke")


async def test_a_failure_is_its_own_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The raised error is shown, the message stays, and None repeats it."""
    partner = partner_for(Broken)
    for said in "q", None:
        with pytest.raises(ValueError, match="it broke"):
            await ask(partner, said)
    assert roles(partner) == [("user", "q")]
    assert not caplog.records


async def test_a_message_that_is_refused_is_no_part_of_the_conversation() -> None:
    """The error has the server's text, and the next message is answered."""
    partner = partner_for(ConversableAgent("one", ScriptedBackend("Yes.")))
    picture = Part.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    async with Commander(policy="isolate") as tree:
        with pytest.raises(MessageRefused, match="images and files"):
            shown = Message(role="user", content="see", parts=[picture])
            await tree.call_handler(partner.answer(shown, Seen()))
    assert (await ask(partner, "hi")).content == "Yes."
    assert roles(partner) == [("user", "hi"), ("assistant", "Yes.")]


async def test_an_error_of_a_journal_inside_is_told_as_any_other() -> None:
    """A journal's error inside the run is shown like any other."""
    for error in JournalError("x.db", "is broken", "mend it"), RunBusy("x", 1):

        @handler
        async def fail(node: Node[Any], said: str, error: Exception = error) -> str:
            raise error

        with pytest.raises(type(error)):
            await ask(partner_for(fail), "hi")


async def test_again_forgets_the_answer_that_came() -> None:
    """None repeats the last message."""
    backend = ScriptedBackend("One.", "Two.")
    partner = partner_for(backend)
    with pytest.raises(ConfigurationError, match="there is no message to answer"):
        await ask(partner, None)
    await ask(partner, "a")
    await ask(partner, None)
    assert roles(partner) == [("user", "a"), ("assistant", "Two.")]


async def test_a_cancel_at_any_turn_keeps_what_was_said() -> None:
    """A cancelled answer keeps its text so far, and no node continues."""
    for at in range(0, 120, 3):
        backend = ScriptedBackend(deltas("one two three four"))
        partner, view = partner_for(backend), Seen()
        async with Commander(policy="isolate") as tree:
            node = tree.call_handler(partner.answer(user("q"), view))
            await run_turns(at)
            node.cancel("stop")
            with suppress(NodeCancelled):
                await node
        kept = roles(partner)
        assert kept[0] == ("user", "q")
        assert len(kept) < 3
        assert "".join(view.said) in "one two three four"
        if len(kept) == 2:
            assert "one two three four".startswith(kept[1][1] or "-")
            assert (kept[1][1] or "").startswith("".join(view.said))


async def test_a_cancel_ends_a_question_to_the_person() -> None:
    """The end of a run withdraws its question."""
    agent = Agent(ScriptedBackend(calling("wipe", disk="a"), "Done."), name="a", tools=[wipe])
    view = Seen(asyncio.Event())
    async with Commander(policy="isolate") as tree:
        node = tree.call_handler(local_partner(served_model_of(agent)).answer(user("q"), view))
        await turn_until(lambda: view.asked)
        node.cancel("stop")
        with pytest.raises(NodeCancelled):
            await node
    assert not any(text.startswith("wiped") for text in view.shown)


class Deaf(Seen):
    def write(self, text: str) -> None:
        raise BrokenPipeError("nobody reads")


async def test_a_view_that_fails_ends_the_answer_with_its_own_error() -> None:
    """An error of the view, such as a closed pipe, stops the model."""
    with pytest.raises(BrokenPipeError):
        await ask(partner_for(ScriptedBackend(otherwise="x")), "q", Deaf())


# --- several at once


async def test_two_that_speak_at_once_take_turns_of_a_line() -> None:
    """Replies at the same time alternate by lines, without lost or repeated text."""
    view = Seen()
    telling = LogRenderer(view, "top")
    for number in range(200):
        for who in "ab":
            text = f"{who}{number} " + ("\n" if number % 7 == 0 else "")
            await telling.show("text", {"text": text, "speech": who, "agent": who, "aside": True})
    await telling.show("completed", {})
    for who in "ab":
        own = "".join(t.partition("\n\n")[2] for t in view.said if t.startswith(f"{who}:"))
        assert own.split() == [f"{who}{number}" for number in range(200)]
    assert telling.text == ""


def test_the_terminal_needs_no_web_server() -> None:
    """The chat with served things imports neither starlette nor uvicorn."""
    code = (
        "import sys; import anabranch.cli.chat._local_runs, anabranch.cli.chat._server_runs;"
        "sys.exit(any(name in sys.modules for name in ('starlette', 'uvicorn', 'aiohttp')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_agent_is_given_as_it_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent is returned unchanged, and anything else as a partner."""
    (tmp_path / "chat_things_here.py").write_text(
        "from anabranch import Agent\nfrom anabranch.testing import ScriptedBackend\n"
        "model = ScriptedBackend()\nagent = Agent(model, name='a')\nnumber = 5\n"
    )
    monkeypatch.chdir(tmp_path)
    assert isinstance(find_partner("chat_things_here:agent"), Agent)
    assert isinstance(find_partner("chat_things_here:model"), RunPartner)
    for wrong in "chat_things_here:number", "chat_things_here:none", "chat_things_here", "no:x":
        with pytest.raises(ConfigurationError):
            find_partner(wrong)
