"""Agents for the tests of remote agents, and a model that waits for a file."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from anabranch import AgentMessage, Backend, Job, Node, current_node, handler
from anabranch.agents import NOT_MINE, ConversableAgent, ReplyResult, reply
from anabranch.messages import Delta, Request
from support.waiting import wait_until


class Bob(ConversableAgent):
    """An agent that introduces itself, or lets its model answer."""

    def __init__(self, *args: Any, introduces: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self.introduces = introduces

    @reply
    async def introduce(self, message: AgentMessage) -> ReplyResult:
        return f"I am {self.name}." if self.introduces else NOT_MINE

    def where(self) -> int:
        return os.getpid()


class Alice(ConversableAgent):
    """An agent that forwards each message to Bob."""

    @reply(sender="bob")
    async def of_bob(self, message: AgentMessage) -> ReplyResult:
        return None

    @reply
    async def pass_on(self, message: AgentMessage) -> ReplyResult:
        return f"Bob says: {(await self.send(message, 'bob')).text}"


class Circular(ConversableAgent):
    """An agent that asks another agent before it answers. Two of them ask in a circle."""

    def __init__(self, name: str, other: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.other = other

    @reply
    async def ask(self, message: AgentMessage) -> ReplyResult:
        return (await self.send("And you?", self.other)).last


class Faulty(ConversableAgent):
    @reply
    async def fail(self, message: AgentMessage) -> ReplyResult:
        raise KeyError("no answer")


class Counting(ConversableAgent):
    """An agent that fails once, then returns how often its memory holds the message."""

    fails = True

    @reply
    async def count(self, message: AgentMessage) -> ReplyResult:
        if self.fails:
            self.fails = False
            raise OSError("once")
        return f"{[each.content for each in self.chat_messages['user']].count(message.content)}"


class Hasty(ConversableAgent):
    async def generate_reply(self, message: Any) -> Any:
        try:
            await self.send(message, "bob", timeout=0.5)
        except TimeoutError:
            return "Bob takes too long."


class Held(Backend):
    """A backend that waits in the middle of its reply until the file `go` exists.

    It writes its process id to `pid`, and creates `ended` when the stream is closed.
    """

    provider = "held"

    def __init__(self, folder: Path) -> None:
        super().__init__("held")
        self.folder = folder

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        try:
            (self.folder / "pid").write_text(str(os.getpid()))
            yield Delta(text="Half of it")
            await wait_until((self.folder / "go").exists)
            yield Delta(text=", and the rest.")
            yield Delta(finish_reason="stop", done=True)
        finally:
            (self.folder / "ended").touch()


class Sender(ConversableAgent):
    """An agent that puts jobs for its caller."""

    async def put(self, job: Job[Any], on: Any) -> Any:
        return await current_node().put_job(job, on=on)


class Counter(ConversableAgent):
    """An agent that returns the number of stored messages of the sender's conversation."""

    @reply
    async def count(self, message: AgentMessage) -> ReplyResult:
        return f"{len(self.chat_messages[message.sender or ''])}"


class Blocked(ConversableAgent):
    """An agent that blocks its process."""

    def block(self, file: Path) -> None:
        file.touch()
        time.sleep(1000)


class Leaver(Bob):
    """An agent that raises an exception which normally ends a program."""

    def leave(self, kind: type[BaseException]) -> None:
        raise kind(3)

    async def leave_below(self, kind: type[BaseException]) -> None:
        await current_node().call_handler(_leave(kind))


@handler
async def _leave(node: Node[Any], kind: type[BaseException]) -> None:
    raise kind(3)
