"""An agent in its actor: its creation, its calls, and the participants that it finds by name.

During a call the agent can also call participants of the process that called it: the caller finds
them and forwards the messages.
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
from ._protocol import AgentRequest, CallerRequest, SentMessage
from ._ray import ActorNotFound
from ._stream import StreamWriter
from ._subtree import REPORT_DELAY_SECONDS, RemoteCommander, Reporter

__all__ = ["AgentFactory", "ClusterDirectory", "MessageSender", "TextCache"]


@dataclass(frozen=True, slots=True)
class AgentFactory:
    """Creates the agent and its service in the actor. Each argument is pickled separately."""

    agent: Callable[..., Any]
    args: Sequence[bytes]
    kwargs: Mapping[str, bytes]

    async def __call__(self) -> AgentService:
        """Create them."""
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
            directory.add(agent)  # so that it finds itself locally
        return AgentService(agent)


class AgentService:
    """Runs calls of the agent, each under its own commander."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    async def serve(self, writer: StreamWriter, call: AgentRequest) -> None:
        """Run a call; send its messages, its reports and its outcome."""
        conversation: AbstractContextManager[ConversationScope | None] = nullcontext()
        if call.context.messages is not None:
            listener = MessageSender(writer) if call.has_listener else None
            conversation = continue_scope(*call.context.messages, listener)
        with conversation as scope:
            quota = MessageQuota(scope)
            CURRENT_CALLER.set(Caller(writer, quota))  # in the context of this stream's task
            async with RemoteCommander(call.context) as commander:
                reporter, news = Reporter(commander), asyncio.Event()
                reporter.listen(news.set)

                async def report() -> None:
                    while True:
                        await news.wait()
                        news.clear()
                        await asyncio.sleep(REPORT_DELAY_SECONDS)
                        # No `await` between making and sending a report: a cancel there would lose
                        # it.
                        await writer.wait_for_room()
                        writer.send_nowait(reporter.report(quota.take_spent()))

                reporting = asyncio.ensure_future(report())
                commander.put_root(ServedCallNode(self._agent, call))
                commander.at_done(lambda _: reporting.cancel())
            writer.send_nowait(reporter.report(quota.take_spent(), commander.outcome()))

    async def aclose(self) -> None:
        """Do nothing: an agent has nothing to close."""


class ServedCallNode(Node[Any], internal=True):
    """A call as a node of the tree in the actor."""

    def __init__(self, agent: Any, call: AgentRequest) -> None:
        super().__init__(f"{agent.name}.{call.method}")
        self._agent = agent
        self._call = call

    async def task(self) -> Any:
        """Call the method, or return the attribute."""
        value = getattr(self._agent, self._call.method)
        if callable(value):
            args, kwargs = unpack(self._call.arguments)
            value = value(*args, **kwargs)
        return await value if isawaitable(value) else value


# --- the caller and its participants


class MessageQuota:
    """Messages of the conversation that a call has sent and its caller has not yet counted."""

    def __init__(self, scope: ConversationScope | None) -> None:
        self._scope = scope
        self._left = 0 if scope is None else scope.left

    def take_spent(self) -> int:
        """Return the number of messages since the last use of this method."""
        if self._scope is None:
            return 0
        before, self._left = self._left, self._scope.left
        return before - self._left

    def update(self, left: int | None) -> None:
        """Set the number of messages that the caller still allows."""
        if self._scope is not None and left is not None:
            self._scope.left += left - self._left
            self._left = left


class Caller:
    """The caller of the agent, as the agent sees it."""

    def __init__(self, writer: StreamWriter, quota: MessageQuota) -> None:
        self._writer = writer
        self._quota = quota

    async def ask(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Let the caller call a method of its participant; "find" returns a handle or None."""
        request = CallerRequest(name, method, args, kwargs, self._quota.take_spent())
        answer, left = await self._writer.ask(request)
        self._quota.update(left)
        return answer


CURRENT_CALLER: ContextVar[Caller | None] = ContextVar("anabranch.cluster.caller", default=None)
"""The caller of the agent whose call runs here; None outside of a call."""


class CallerProxy:
    """A participant in the caller's process, for the length of the call."""

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
    """Finds participants by name in all processes of the cluster.

    It searches the added participants first, then those of the caller of the current call, then the
    agents in the cluster.
    """

    async def find(self, name: str) -> Participant:
        """Return the participant with this name; raise `UnknownAgent` if there is none."""
        from ._agent import find  # circular: `_agent` uses this directory

        if name in self:
            return await super().find(name)
        if (caller := CURRENT_CALLER.get()) is not None:
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


# --- streamed messages

# Each part of a streamed message has all text so far, so n parts would cost n squared. Both ends
# therefore keep the text, by sender and receiver, and only new text is sent.

STREAMING_STATES = ("begin", "streaming")


class TextCache:
    """The texts of unfinished messages, at one end."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str | None], str] = {}

    def shorten(self, part: AgentMessage) -> AgentMessage:
        """Omit a text that `expand` can restore."""
        known = part.content == self._streamed_text(part)
        self._keep(part)
        return part.model_copy(update={"content": None}) if known else part

    def expand(self, part: AgentMessage) -> AgentMessage:
        """Undo `shorten`, in the same order."""
        if part.content is None and (grown := self._streamed_text(part)) is not None:
            part = part.model_copy(update={"content": grown})
        self._keep(part)
        return part

    def interrupt_all(self) -> list[AgentMessage]:
        """Return the end of each unfinished message, in the state "failed"."""
        return [
            AgentMessage(content=text, sender=sender, receiver=receiver, stream_state="failed")
            for (sender, receiver), text in self._texts.items()
        ]

    def _streamed_text(self, part: AgentMessage) -> str | None:
        delta = part.extra.get("delta")
        if part.stream_state not in STREAMING_STATES or not isinstance(delta, str):
            return None
        key = part.sender, part.receiver
        before = "" if part.stream_state == "begin" else self._texts.get(key, "")
        return before + delta

    def _keep(self, part: AgentMessage) -> None:
        key = part.sender, part.receiver
        if part.stream_state in STREAMING_STATES and isinstance(part.content, str):
            self._texts[key] = part.content
        else:
            self._texts.pop(key, None)


class MessageSender:
    """A listener that sends messages; a slow reader gets larger parts."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._texts = TextCache()

    def __call__(self, part: AgentMessage) -> None:
        """Send a part, joined to the last one if that is unread and has the same message."""
        part = self._texts.shorten(part)
        last = self._writer.last
        continues_last = (
            isinstance(last, SentMessage)
            and last.part.stream_state in STREAMING_STATES
            and part.stream_state == "streaming"
            and part.content is None
            and (last.part.sender, last.part.receiver) == (part.sender, part.receiver)
        )
        if not continues_last:
            self._writer.send_nowait(SentMessage(part))
            return
        delta: str = part.extra["delta"]
        changed: dict[str, Any] = {
            "extra": {**part.extra, "delta": last.part.extra["delta"] + delta}
        }
        if last.part.content is not None:
            changed["content"] = last.part.content + delta
        self._writer.replace_last(SentMessage(last.part.model_copy(update=changed)))
