"""Jobs and agents that read their context, for the tests of remote nodes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from anabranch import AgentMessage, Job, current_context, handler
from anabranch.agents import ConversableAgent, ReplyResult, reply
from anabranch.commander import Node


@dataclass
class User:
    name: str


@dataclass
class Locked(User):
    lock: Any = field(default_factory=threading.Lock)


@handler
async def read(self: Node[Any]) -> str:
    return current_context(User).value.name


class Read(Job[str]):
    async def task(self) -> str:
        return await read()


class Seven(Job[int]):
    async def task(self) -> int:
        return 7


class Reader(ConversableAgent):
    """An agent that answers with its context."""

    @reply
    async def read(self, message: AgentMessage) -> ReplyResult:
        return current_context(User).value.name
