"""An agent in its actor: how it is made there, how a call of it runs, and whom it finds by name.

While a call lasts the agent may ask for those who live where it was called from: its caller looks
for them, and passes on what is said to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isawaitable, signature
from typing import Any

from ..agents import AgentMessage, Answer, ConversableAgent, Directory, Participant
from ..agents.conversation import Group
from ..agents.errors import UnknownAgent
from ..agents.integration import ConversationScope, continue_scope
from ..commander import Node
from ._payload import unpack
from ._protocol import AgentCall, CallerRequest, MessagePart
from ._ray import ActorNotFound
from ._remote import REPORT_DELAY, RemoteCommander, Reporter
from ._stream import StreamWriter

__all__ = ["AgentFactory", "ClusterDirectory", "MessageSender", "TextCache"]


@dataclass(frozen=True, slots=True)
class AgentFactory:
    """Makes the agent and its service, in the actor. The arguments are packed one by one."""

    agent: Callable[..., Any]
    args: Sequence[bytes]
    kwargs: Mapping[str, bytes]

    async def __call__(self) -> AgentService:
        """Make them."""
        args = [unpack(value) for value in self.args]
        kwargs = {name: unpack(value) for name, value in self.kwargs.items()}
        directory, kind = ClusterDirectory(), self.agent
        parameters = signature(kind).parameters
        any_name = (
            isinstance(kind, type)
            and issubclass(kind, ConversableAgent | Group)
            and any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        )
        if "directory" in parameters or any_name:
            kwargs["directory"] = directory
        agent = self.agent(*args, **kwargs)
        if isinstance(agent, ConversableAgent) and agent.directory is None:
            agent.directory = directory
        if agent.name not in directory:
            directory.add(agent)  # to itself it is no agent elsewhere
        return AgentService(agent)


class AgentService:
    """Lets others call the agent; each call runs under a commander of its own."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    async def serve(self, writer: StreamWriter, call: AgentCall) -> None:
        """Call what is asked for; send what is said, what happens, and how it has ended."""
        conversation: AbstractContextManager[ConversationScope | None] = nullcontext()
        if call.context.messages is not None:
            listener = MessageSender(writer) if call.listened else None
            conversation = continue_scope(*call.context.messages, listener)
        with conversation as scope:
            quota = MessageQuota(scope)
            CALLER.set(Caller(writer, quota))  # in this stream's own task
            async with RemoteCommander(call.context) as commander:
                reporter, news = Reporter(commander), asyncio.Event()
                reporter.listen(news.set)

                async def report() -> None:
                    while True:
                        await news.wait()
                        news.clear()
                        await asyncio.sleep(REPORT_DELAY)
                        # A report that is made is sent: a cancel finds none in between.
                        await writer.wait_for_room()
                        writer.send_nowait(reporter.report(quota.take_spent()))

                reporting = asyncio.ensure_future(report())
                commander.put_root(ServedCallNode(self._agent, call))
                commander.at_done(lambda _: reporting.cancel())
            writer.send_nowait(reporter.report(quota.take_spent(), commander.outcome()))

    async def aclose(self) -> None:
        """An agent holds nothing."""


class ServedCallNode(Node[Any], internal=True):
    """A call as a node of the tree in the actor."""

    def __init__(self, agent: Any, call: AgentCall) -> None:
        super().__init__(f"{agent.name}.{call.method}")
        self._agent = agent
        self._call = call

    async def task(self) -> Any:
        """Call the method, or get what has its name."""
        value = getattr(self._agent, self._call.method)
        if callable(value):
            args, kwargs = unpack(self._call.arguments)
            value = value(*args, **kwargs)
        return await value if isawaitable(value) else value


# --- the caller, and whom it knows


class MessageQuota:
    """What a call has taken of its conversation's messages, and its caller does not know yet."""

    def __init__(self, scope: ConversationScope | None) -> None:
        self._scope = scope
        self._left = 0 if scope is None else scope.left

    def take_spent(self) -> int:
        """Return how many messages were said since this was last called."""
        if self._scope is None:
            return 0
        before, self._left = self._left, self._scope.left
        return before - self._left

    def update(self, left: int | None) -> None:
        """Take over what the caller says is left."""
        if self._scope is not None and left is not None:
            self._scope.left += left - self._left
            self._left = left


class Caller:
    """Who called the agent that runs here, as the agent sees it."""

    def __init__(self, writer: StreamWriter, quota: MessageQuota) -> None:
        self._writer = writer
        self._quota = quota

    async def ask(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Let the caller call a method of one who is there; "find" gives a handle, or None."""
        request = CallerRequest(name, method, args, kwargs, self._quota.take_spent())
        answer, left = await self._writer.ask(request)
        self._quota.update(left)
        return answer


CALLER: ContextVar[Caller | None] = ContextVar("anabranch.cluster.caller", default=None)
"""Who called the agent in whose answer this runs; None where no agent of this process is called."""


class CallerProxy:
    """A participant who lives where the agent was called from, as long as that call lasts."""

    def __init__(self, name: str, caller: Caller) -> None:
        self.name = name
        self._caller = caller

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """See `Participant`."""
        return await self._caller.ask(self.name, "receive", message, request_reply=request_reply)

    async def receive_again(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """See `Participant`."""
        method = "receive_again"
        return await self._caller.ask(self.name, method, message, request_reply=request_reply)

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """See `Participant`."""
        await self._caller.ask(self.name, "begin_chat", partner, clear_history=clear_history)


class ClusterDirectory(Directory):
    """Participants by name, wherever they live.

    First those that were added; then, for an agent that is called from elsewhere, those whom its
    caller finds; then the agents that live in the cluster under this name.
    """

    async def find(self, name: str) -> Participant:
        """Return the participant of this name; raise `UnknownAgent` if there is none."""
        from ._agent import find  # which knows this directory

        if name in self:
            return await super().find(name)
        if (caller := CALLER.get()) is not None:
            with suppress(UnknownAgent):
                handle = await caller.ask(name, "find")
                if handle is None:
                    return CallerProxy(name, caller)
                handle.directory = handle.directory or self
                return handle
        try:
            return await find(name, directory=self)
        except ActorNotFound as error:
            raise UnknownAgent(name, sorted({*self, *error.known}), "the cluster") from None


# --- what agents say while they say it

# Each part of a message has all the text so far. Sent so, a reply of n parts would cost n squared:
# so both ends keep the text that grows, by the names of who says it to whom.

GROWING = ("begin", "streaming")


class TextCache:
    """The texts that grow, at one end."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str | None], str] = {}

    def shorten(self, part: AgentMessage) -> AgentMessage:
        """Leave out a text that `expand` can make."""
        known = part.content == self._grown(part)
        self._keep(part)
        return part.model_copy(update={"content": None}) if known else part

    def expand(self, part: AgentMessage) -> AgentMessage:
        """Undo `shorten`, in the same order."""
        if part.content is None and (grown := self._grown(part)) is not None:
            part = part.model_copy(update={"content": grown})
        self._keep(part)
        return part

    def break_off(self) -> list[AgentMessage]:
        """Return the end of each text that will not grow any more."""
        return [
            AgentMessage(content=text, sender=sender, receiver=receiver, stream_state="failed")
            for (sender, receiver), text in self._texts.items()
        ]

    def _grown(self, part: AgentMessage) -> str | None:
        delta = part.extra.get("delta")
        if part.stream_state not in GROWING or not isinstance(delta, str):
            return None
        key = part.sender, part.receiver
        before = "" if part.stream_state == "begin" else self._texts.get(key, "")
        return before + delta

    def _keep(self, part: AgentMessage) -> None:
        key = part.sender, part.receiver
        if part.stream_state in GROWING and isinstance(part.content, str):
            self._texts[key] = part.content
        else:
            self._texts.pop(key, None)


class MessageSender:
    """A listener that sends what is said; a slow reader gets more new text at once."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._texts = TextCache()

    def __call__(self, part: AgentMessage) -> None:
        """Send a part, joined to the one before it if that has not been read and it goes on."""
        part = self._texts.shorten(part)
        last = self._writer.last
        goes_on = (
            isinstance(last, MessagePart)
            and last.part.stream_state in GROWING
            and part.stream_state == "streaming"
            and part.content is None
            and (last.part.sender, last.part.receiver) == (part.sender, part.receiver)
        )
        if not goes_on:
            self._writer.send_nowait(MessagePart(part))
            return
        delta: str = part.extra["delta"]
        changed: dict[str, Any] = {
            "extra": {**part.extra, "delta": last.part.extra["delta"] + delta}
        }
        if last.part.content is not None:
            changed["content"] = last.part.content + delta
        self._writer.replace_last(MessagePart(last.part.model_copy(update=changed)))
