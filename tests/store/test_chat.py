"""`ChatJob` in a durable run: after a kill the chat continues at the same message."""

import pytest
from support.killed_executions import Kill, kill_everywhere, run_execution
from support.memory_journal import act

from anabranch import tool
from anabranch.backends import Backend
from anabranch.handlers import View
from anabranch.jobs import ChatJob
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D22")

LINES = ["hello", "look", "look again", "bye"]


@tool(effect="keyed")
async def look(at: str) -> str:
    """Look at something."""
    return await act("look", at)


def answers(request: Request) -> Message | str:
    last = request.messages[-1]
    if last.role == "user" and "look" in str(last.content):
        call = ToolCall(id="c", name="look", arguments={"at": str(len(request.messages))})
        return Message(role="assistant", tool_calls=[call])
    return f"answer to {len(request.messages)}"


READ: list[int] = []


class Chat(ChatJob):
    """Reads the next line, which depends on the conversation, as a person would."""

    async def read(self) -> str | None:
        number = sum(each.role == "user" for each in self.conversation)
        READ.append(number)
        return LINES[number] if number < len(LINES) else None


class Loop(Durable[None]):
    """Puts a chat as its child, as the loop of the README does with a commander."""

    backend: Live[Backend] = later()

    async def task(self) -> None:
        talk = self.durable.conversation("chat", "Be kind.")
        self.put_job(Chat(self.backend, talk, [look], View()))


class Read(Durable[list[str]]):
    """Runs the loop, then returns the conversation."""

    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        await self.put_job(Loop(self.backend))
        return [str(each.content) for each in self.durable.conversation("chat")]


def test_a_chat_goes_on_at_the_message_where_it_stood() -> None:
    """Lines that were read are not requested again; tools repeat nothing."""
    first = kill_everywhere(lambda: Read(ScriptedBackend(otherwise=answers)), seeds=(None, 1))
    assert first.result[0] == "Be kind."
    assert first.result[-1].startswith("answer to")
    assert len(first.disk.done) == 2


def test_only_lines_that_were_not_kept_are_read() -> None:
    """A person is asked for the next line, and for no earlier one."""
    first = run_execution(lambda: Read(ScriptedBackend(otherwise=answers)))
    for rows in range(len(first.rows) + 1):
        said = [row.value for row in first.rows[:rows] if row.kind == "gave"]
        kept = sum(b'"value"' in each and b"null" not in each for each in said)
        READ.clear()
        again = Kill(rows, frozenset()).of(first)
        run_execution(lambda: Read(ScriptedBackend(otherwise=answers)), again)
        if READ:
            assert [*range(kept, len(LINES) + 1)] == READ
