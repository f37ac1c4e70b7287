"""A partner that answers with an agent, in a session that a journal stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ...agents import Agent, AgentMessage
from ...agents.layers import TOOLS, AgentCall
from ...commander import Node
from ...commander.errors import AnabranchError, ConfigurationError
from ...handlers import View
from ...messages import Conversation, Message, Usage
from ...store import JournalError, NotPending, PendingDoubt, RunBusy
from .._output import MAX_SHOWN_CHARS, one_line, print_error
from ._partner import Partner
from ._sessions import AGENT, SessionInfo, Sessions

__all__ = ["AgentPartner", "AskDoubt", "InterruptedTurn", "TurnLost"]

AskDoubt: TypeAlias = Callable[[PendingDoubt], Awaitable[object]]
"""Asks the person whether a call in doubt happened, and settles it by `done()` or `not_done()`."""

TURN_MARK = "turn"  # the key in a message's `extra` if it begins a turn
CHAT_DOUBT_POLL_SECONDS = 0.1  # during an interrupted turn that continues


@dataclass(frozen=True)
class InterruptedTurn:
    """A turn whose process died, with its message and its known calls in doubt."""

    message: Message
    doubts: list[PendingDoubt] = field(default_factory=list[PendingDoubt])


class TurnLost(AnabranchError):
    """A turn stopped because the journal failed. The chat continues in memory."""


class AgentPartner(Partner):
    """Answers with `agent` in one session, which `open` reads. The agent's name must be `AGENT`.

    `ask_doubt` settles each call in doubt: a tool call whose outcome is unknown after a crash.
    Without it, such a call waits until another process settles it.
    """

    def __init__(
        self,
        agent: Agent[Any],
        sessions: Sessions,
        info: SessionInfo,
        *,
        ask_doubt: AskDoubt | None = None,
    ) -> None:
        if agent.name != AGENT:
            raise ConfigurationError(
                f"the agent of a chat must be called {AGENT!r}, not {agent.name!r}"
            )
        agent.journal = sessions.journal
        self.name = info.model or agent.name
        self.agent = agent
        self.sessions = sessions
        self.info = info
        self._ask_doubt = ask_doubt
        self._interrupted: list[AgentMessage] | None = None  # the messages of an interrupted turn
        self._call: AgentCall[Any] | None = None

    async def open(self) -> None:
        """Read a stored session. Raises `SessionBusy` while another chat uses it."""
        if self.info.known:
            self.sessions.reserve(self.info)
            await self.agent.recall(self.info.id)
            self._interrupted = await self.agent.find_interrupted(self.info.id)

    def begin_with(self, conversation: Conversation) -> None:
        """Begin a new session with a conversation. It is stored with the first turn."""
        memory, session = self.agent.memory, self.info.id
        for each in conversation:
            match each.role:
                case "system" | "developer":
                    self.agent.instructions = each.content
                case "user":
                    memory.add(_as_turn(each), session_id=session)
                case "assistant":
                    message = AgentMessage(
                        content=each.content or "",
                        sender=self.agent.name,
                        reasoning=None if each.tool_calls else each.reasoning,
                        provider_items=[] if each.tool_calls else each.provider_items,
                    )
                    if each.tool_calls:
                        message.output, message.type = [each], TOOLS
                    memory.add(message, session_id=session)
                case "tool":
                    last = memory.messages(session)[-1:]
                    if last and last[0].type == TOOLS:
                        last[0].output.append(each)

    async def interrupted_turn(self) -> InterruptedTurn | None:
        """Return the interrupted turn with its known calls in doubt, None if there is none."""
        if self._interrupted is None:
            return None
        doubts = await self.sessions.journal.doubts(self.info.run_id)
        return InterruptedTurn(_as_message(self._interrupted), doubts)

    def answer(self, message: Message | None, view: View) -> Node[Any]:
        """Answer a message. None continues an interrupted turn, or answers the last message again.

        A message ends an interrupted turn, as if the person had stopped it.
        """
        self.agent.view = view
        return _AnswerTurn(self, message)

    def steer(self, message: Message) -> bool:
        """Add a message to the next request of the running answer."""
        return self._call is not None and self._call.steer(message)

    def undelivered(self) -> list[Message]:
        """Return the steering messages that no request of the last answer contained."""
        steering = [] if self._call is None else self._call.undelivered
        return [_as_message([each]) for each in steering]

    def messages(self) -> list[Message]:
        """Return the conversation, beginning with the system prompt."""
        return self.agent.aggregate(self.info.id)

    def sources(self, answer: object) -> Iterator[str]:
        """Yield a line for each cited document, or one line of all found ones if none is cited."""
        knowledge: Any = self.agent.knowledge
        if knowledge is None or self.agent.knowledge_tool is None:
            return
        cited = answer.extra.get("citations", ()) if isinstance(answer, AgentMessage) else ()
        for each in cited:
            heading = f" ({each['heading']})" if "heading" in each else ""
            yield one_line(f"[{each['number']}] {each['place']}{heading}", MAX_SHOWN_CHARS)
        name = self.agent.knowledge_tool.name
        found = [each.content or "" for each in self.messages() if each.name == name]
        if found and not cited:
            places = ", ".join(each["place"] for each in knowledge.cited(None, found[-1:]))
            yield one_line(f"(no citations; documents found: {places or 'none'})", MAX_SHOWN_CHARS)

    def usage(self) -> dict[str, Usage]:
        """Return the usage of the session by model, including that before restarts."""
        return self.agent.usage(self.info.id)

    async def undo(self) -> Message | None:
        """Remove the last turn and return its message; None if there is none.

        The change is on disk when this returns.
        """
        await self._end_interrupted()
        memory, session = self.agent.memory, self.info.id
        messages = memory.messages(session)
        if not (begins := self._turn_starts()):
            return None
        memory.replace(messages[: begins[-1]], session)
        await self.agent.keep(session)
        await self._store_turn_count()
        return _as_message([messages[begins[-1]]])

    async def forget_answer(self) -> None:
        """Remove the answer of the last turn, so that `answer(None, ...)` creates another one.

        An interrupted turn is not changed, since it can continue.
        """
        if self._interrupted is not None:
            return
        memory, session = self.agent.memory, self.info.id
        messages, begins = memory.messages(session), self._turn_starts()
        if begins and len(messages) > begins[-1] + 1:
            memory.replace(messages[: begins[-1] + 1], session)
            await self.agent.keep(session)

    async def note(self, **noted: Any) -> None:
        """Change stored notes about the session: its title, model, system prompt or folder."""
        if self.info.known:
            self.info = await self.sessions.change(self.info.id, **noted)
        else:
            self.info = replace(self.info, **noted)
        self.name = self.info.model or self.agent.name

    async def fork(self, turns: int | None = None) -> SessionInfo:
        """Copy the session, or its first `turns` turns, into a new one."""
        return await self.sessions.fork(self.info.id, self.agent, turns)

    async def continue_in_memory(self, error: JournalError) -> str:
        """Continue this session in memory after its journal has failed.

        Returns a line for the person. Raises `error` again if the journal still works.
        """
        if not await self.sessions.leave_file(error):
            raise error
        self.agent.journal = self.sessions.journal
        if self._interrupted is not None:
            self.agent.memory.add(*self._interrupted, session_id=self.info.id)
            self._interrupted = None
        if self.info.known:
            self.info = await self.sessions.begin(replace(self.info, known=False), self.info.title)
        return f"{self.sessions.trouble}. The chat continues in memory. Save it with /save FILE"

    async def _turn(self, node: Node[Any], message: Message | None) -> Any:
        before = len(self.agent.memory.messages(self.info.id))
        try:
            return await self._answer_in_session(node, message)
        except JournalError as error:
            line = await self.continue_in_memory(error)
        # The memory has not grown, so no tool has run and the turn can safely run again.
        if len(self.agent.memory.messages(self.info.id)) == before:
            print_error(line)
            return await self._answer_in_session(node, message)
        if (answer := self._last_answer()) is None:
            raise TurnLost(f"{line}, and repeat this turn with /retry")
        print_error(line)
        return answer

    def _last_answer(self) -> AgentMessage | None:
        """Return the last message if it is a complete answer of the agent."""
        for last in self.agent.memory.messages(self.info.id)[-1:]:
            answers = last.sender == self.agent.name and last.type != TOOLS
            if answers and last.stream_state != "failed":
                return last
        return None

    async def _answer_in_session(self, node: Node[Any], message: Message | None) -> Any:
        self.sessions.reserve(self.info)
        session, interrupted = self.info.id, self._interrupted
        if message is not None:
            await self._end_interrupted()
            begins = _as_turn(message)
            if not self.info.known:
                self.info = await self.sessions.begin(self.info, begins.text)
            else:
                turns = 1 + len(self._turn_starts())
                self.info = await self.sessions.change(self.info.id, turns=turns)
            call = self.agent.call(begins, session_id=session)
        else:
            call = self.agent.call(*(interrupted or ()), session_id=session)
        self._call, watching = call, None
        if message is None and interrupted is not None and self._ask_doubt is not None:
            watching = node.call_handler(_DoubtPoller(self, self._ask_doubt))
        try:
            answer = await node.call_handler(call, claim=True)
        except BaseException as error:
            if not isinstance(error, RunBusy):  # a busy run has not started: it can still continue
                self._interrupted = None
            raise
        finally:
            if watching is not None:
                watching.cancel()
        self._interrupted = None
        return answer

    async def _end_interrupted(self) -> None:
        if self._interrupted is not None:
            await self.agent.end_interrupted(self.info.id)
            self._interrupted = None

    async def _end_turn(self, message: Message | None, turns: int) -> None:
        """Update the notes at the end of a turn; `turns` is the number of earlier turns.

        An agent that fails before its first reply removes the message from its memory. This method
        adds it again, so that the person can retry.
        """
        session = self.info.id
        with suppress(RunBusy, JournalError):  # the turn has raised the same error
            forgotten = self.info.known and len(self._turn_starts()) == turns
            if message and forgotten and await self.agent.find_interrupted(session) is None:
                self.agent.memory.add(_as_turn(message), session_id=session)
                await self.agent.keep(session)
            await self._store_turn_count()

    def _turn_starts(self) -> list[int]:
        """Return the indices of the messages that begin a turn."""
        messages = self.agent.memory.messages(self.info.id)
        return [at for at, each in enumerate(messages) if TURN_MARK in each.extra]

    async def _store_turn_count(self) -> None:
        turns = len(self._turn_starts())
        if self.info.known and turns != self.info.turns:
            self.info = await self.sessions.change(self.info.id, turns=turns)


class _AnswerTurn(Node[Any], internal=True, name="_Turn"):
    """The node of one answer."""

    def __init__(self, partner: AgentPartner, message: Message | None) -> None:
        super().__init__("turn")
        self._partner = partner
        self._said = message
        turns = len(partner._turn_starts())
        self.at_done(lambda _: partner._end_turn(message, turns))

    async def task(self) -> Any:
        """Let the agent answer."""
        return await self._partner._turn(self, self._said)


class _DoubtPoller(Node[None], internal=True, name="_Watch"):
    """Polls the journal for calls in doubt and asks about each once, until it is cancelled."""

    def __init__(self, partner: AgentPartner, ask: AskDoubt) -> None:
        super().__init__("doubts")
        self._partner = partner
        self._ask = ask

    async def task(self) -> None:
        """Poll until cancelled."""
        seen = set[int]()
        while True:
            for each in await self._partner.sessions.journal.doubts(self._partner.info.run_id):
                if each.number not in seen:
                    seen.add(each.number)
                    with suppress(NotPending):  # another process settled it first
                        await self._ask(each)
            await asyncio.sleep(CHAT_DOUBT_POLL_SECONDS)


def _as_turn(message: Message) -> AgentMessage:
    return AgentMessage(
        content=message.content or "", parts=list(message.parts), extra={TURN_MARK: True}
    )


def _as_message(messages: list[AgentMessage]) -> Message:
    parts = [part for each in messages for part in each.parts]
    content = "\n".join(str(each.content) for each in messages)
    return Message(role="user", content=content, parts=parts)
