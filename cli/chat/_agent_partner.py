"""An agent in a session of a journal, as the partner of a chat."""

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
from .._terminal import LONGEST, complain, in_line
from ._partner import Partner
from ._sessions import AGENT, SessionInfo, Sessions

__all__ = ["AgentPartner", "AskDoubt", "Cut", "TurnLost"]

AskDoubt: TypeAlias = Callable[[PendingDoubt], Awaitable[object]]
"""Asks the person what became of a call in doubt, and answers it: `done(value)`, `not_done()`."""

TURN = "turn"  # the extra of a message that begins a turn
LOOK = 0.1  # seconds between two looks for calls in doubt, while a cut turn goes on


@dataclass(frozen=True)
class Cut:
    """A turn whose process has died: what was asked, and the calls of which nobody knows."""

    asked: Message
    doubts: list[PendingDoubt] = field(default_factory=list[PendingDoubt])


class TurnLost(AnabranchError):
    """A turn that was cut because its session could not be stored; the chat goes on."""


class AgentPartner(Partner):
    """Talks to `agent` in one session; `open` reads it. The agent's name is that of all chats.

    `doubt` is asked about each call of a tool of which nobody knows whether it was done; without
    it, such a call waits until somebody answers elsewhere.
    """

    def __init__(
        self,
        agent: Agent[Any],
        sessions: Sessions,
        info: SessionInfo,
        *,
        doubt: AskDoubt | None = None,
    ) -> None:
        if agent.name != AGENT:
            raise ConfigurationError(f"the agent of a chat is called {AGENT!r}, not {agent.name!r}")
        agent.journal = sessions.journal
        self.name = info.model or agent.name
        self.agent = agent
        self.sessions = sessions
        self.info = info
        self._doubt = doubt
        self._asked: list[AgentMessage] | None = None  # by a turn that was cut
        self._call: AgentCall[Any] | None = None

    async def open(self) -> None:
        """Read what was said in the session, if there is one.

        Raises `SessionBusy` while another chat has it open.
        """
        if self.info.known:
            self.sessions.reserve(self.info)
            await self.agent.recall(self.info.id)
            self._asked = await self.agent.find_cut(self.info.id)

    def begin_with(self, conversation: Conversation) -> None:
        """Let a new session begin with what was said elsewhere; its first turn keeps it."""
        memory, session = self.agent.memory, self.info.id
        for each in conversation:
            match each.role:
                case "system" | "developer":
                    self.agent.system = each.content
                case "user":
                    memory.add(_as_turn(each), session_id=session)
                case "assistant" if each.tool_calls:
                    said = AgentMessage(content=each.content or "", sender=self.agent.name)
                    said.formatted, said.type = [each], TOOLS
                    memory.add(said, session_id=session)
                case "assistant":
                    said = AgentMessage(
                        content=each.content or "",
                        sender=self.agent.name,
                        reasoning=each.reasoning,
                        provider_items=each.provider_items,
                    )
                    memory.add(said, session_id=session)
                case "tool":
                    last = memory.messages(session)[-1:]
                    if last and last[0].type == TOOLS:
                        last[0].formatted.append(each)

    async def cut(self) -> Cut | None:
        """Return the turn that was cut, with the calls that are known to be in doubt; else None."""
        if self._asked is None:
            return None
        doubts = await self.sessions.journal.doubts(self.info.run_id)
        return Cut(_as_message(self._asked), doubts)

    def answer(self, said: Message | None, view: View) -> Node[Any]:
        """Answer what is said, or go on: with a turn that was cut, else with things as they stand.

        Anything but None ends a turn that was cut, as if it had been stopped.
        """
        self.agent.view = view
        return _Turn(self, said)

    def steer(self, said: Message) -> bool:
        """Let the answer under way hear this with its next request."""
        return self._call is not None and self._call.steer(said)

    def unheard(self) -> list[Message]:
        """Return what no request of the last answer had."""
        return [] if self._call is None else [_as_message([each]) for each in self._call.unheard]

    def messages(self) -> list[Message]:
        """Return the conversation, from the system prompt on."""
        return self.agent.aggregate(self.info.id)

    def sources(self, answer: object) -> Iterator[str]:
        """Yield a line for each document that an answer cites; if it cites none, what was found."""
        knowledge: Any = self.agent.knowledge
        if knowledge is None or self.agent.knowledge_tool is None:
            return
        cited = answer.extra.get("citations", ()) if isinstance(answer, AgentMessage) else ()
        for each in cited:
            heading = f" ({each['heading']})" if "heading" in each else ""
            yield in_line(f"[{each['number']}] {each['place']}{heading}", LONGEST)
        name = self.agent.knowledge_tool.name
        found = [each.content or "" for each in self.messages() if each.name == name]
        if found and not cited:
            places = ", ".join(each["place"] for each in knowledge.cited(None, found[-1:]))
            yield in_line(f"(it cites nothing; found: {places or 'nothing'})", LONGEST)

    def usage(self) -> dict[str, Usage]:
        """Return what the session has taken in all its lives, by model."""
        return self.agent.usage(self.info.id)

    async def undo(self) -> Message | None:
        """Take back the last turn, and return what was asked in it; None if there is none.

        On disk when this returns.
        """
        await self._stop_cut()
        memory, session = self.agent.memory, self.info.id
        said = memory.messages(session)
        begins = [number for number, each in enumerate(said) if TURN in each.extra]
        if not begins:
            return None
        memory.replace(said[: begins[-1]], session)
        await self.agent.keep(session)
        await self._note_turns()
        return _as_message([said[begins[-1]]])

    async def forget_answer(self) -> None:
        """Take back what came of the last turn, so that `answer(None, ...)` answers it anew.

        A turn that was cut stays as it is: that goes on.
        """
        if self._asked is not None:
            return
        memory, session = self.agent.memory, self.info.id
        said = memory.messages(session)
        begins = [number for number, each in enumerate(said) if TURN in each.extra]
        if begins and len(said) > begins[-1] + 1:
            memory.replace(said[: begins[-1] + 1], session)
            await self.agent.keep(session)

    async def note(self, **noted: Any) -> None:
        """Note something else of the session: its title, model, system prompt or folder."""
        if self.info.known:
            self.info = await self.sessions.change(self.info.id, **noted)
        else:
            self.info = replace(self.info, **noted)
        self.name = self.info.model or self.agent.name

    async def fork(self, turns: int | None = None) -> SessionInfo:
        """Make another session that goes on from here, or from the end of turn number `turns`."""
        return await self.sessions.fork(self.info.id, self.agent, turns)

    async def go_on_in_memory(self, error: JournalError) -> str:
        """Continue this session in memory where its journal takes nothing any more.

        Return what to say of that, in one line; raise `error` again where the journal still works.
        """
        if not await self.sessions.leave_file(error):
            raise error
        self.agent.journal = self.sessions.journal
        if self._asked is not None:
            self.agent.memory.add(*self._asked, session_id=self.info.id)
            self._asked = None
        if self.info.known:
            self.info = await self.sessions.begin(replace(self.info, known=False), self.info.title)
        return f"{self.sessions.trouble}. The chat continues in memory; /save FILE keeps it"

    async def _turn(self, node: Node[Any], said: Message | None) -> Any:
        before = len(self.agent.memory.messages(self.info.id))
        try:
            return await self._answer_in_session(node, said)
        except JournalError as error:
            line = await self.go_on_in_memory(error)
        if (
            len(self.agent.memory.messages(self.info.id)) == before
        ):  # nothing was said, no tool has run
            complain(line)
            return await self._answer_in_session(node, said)
        if (answer := self._last_answer()) is None:
            raise TurnLost(f"{line}, and /retry answers this turn")
        complain(line)
        return answer

    def _last_answer(self) -> AgentMessage | None:
        """Return what the agent said last, if that is a complete answer."""
        for last in self.agent.memory.messages(self.info.id)[-1:]:
            answers = last.sender == self.agent.name and last.type != TOOLS
            if answers and last.stream_state != "failed":
                return last
        return None

    async def _answer_in_session(self, node: Node[Any], said: Message | None) -> Any:
        self.sessions.reserve(self.info)
        session, asked = self.info.id, self._asked
        if said is not None:
            await self._stop_cut()
            message = _as_turn(said)
            if not self.info.known:
                self.info = await self.sessions.begin(self.info, message.text)
            else:
                turns = 1 + self._turns()
                self.info = await self.sessions.change(self.info.id, turns=turns)
            call = self.agent.call(message, session_id=session)
        else:
            call = self.agent.call(*(asked or ()), session_id=session)
        self._call, watching = call, None
        if said is None and asked is not None and self._doubt is not None:
            watching = node.call_handler(_Watch(self, self._doubt))
        try:
            answer = await node.call_handler(call, claim=True)
        except BaseException as error:
            if not isinstance(error, RunBusy):  # else it has not begun
                self._asked = None
            raise
        finally:
            if watching is not None:
                watching.cancel()
        self._asked = None
        return answer

    async def _stop_cut(self) -> None:
        if self._asked is not None:
            await self.agent.stop_cut(self.info.id)
            self._asked = None

    async def _end_turn(self, said: Message | None, turns: int) -> None:
        """Note the end of a turn, before which there were so many.

        An agent forgets what it was asked if it fails before it said anything: this remembers it.
        """
        session = self.info.id
        with suppress(RunBusy, JournalError):  # which the turn itself has told
            forgotten = self.info.known and self._turns() == turns
            if said and forgotten and await self.agent.find_cut(session) is None:
                self.agent.memory.add(_as_turn(said), session_id=session)
                await self.agent.keep(session)
            await self._note_turns()

    def _turns(self) -> int:
        return sum(TURN in each.extra for each in self.agent.memory.messages(self.info.id))

    async def _note_turns(self) -> None:
        turns = self._turns()
        if self.info.known and turns != self.info.turns:
            self.info = await self.sessions.change(self.info.id, turns=turns)


class _Turn(Node[Any], internal=True):
    """One answer of a partner."""

    def __init__(self, partner: AgentPartner, said: Message | None) -> None:
        super().__init__("turn")
        self._partner = partner
        self._said = said
        turns = partner._turns()
        self.at_done(lambda _: partner._end_turn(said, turns))

    async def task(self) -> Any:
        """Let the agent answer."""
        return await self._partner._turn(self, self._said)


class _Watch(Node[None], internal=True):
    """Asks about what is in doubt, until it is cancelled."""

    def __init__(self, partner: AgentPartner, ask: AskDoubt) -> None:
        super().__init__("doubts")
        self._partner = partner
        self._ask = ask

    async def task(self) -> None:
        """Look, and ask about each once."""
        seen = set[int]()
        while True:
            for each in await self._partner.sessions.journal.doubts(self._partner.info.run_id):
                if each.number not in seen:
                    seen.add(each.number)
                    with suppress(NotPending):  # somebody else has answered
                        await self._ask(each)
            await asyncio.sleep(LOOK)


def _as_turn(said: Message) -> AgentMessage:
    return AgentMessage(content=said.content or "", parts=list(said.parts), extra={TURN: True})


def _as_message(said: list[AgentMessage]) -> Message:
    parts = [part for each in said for part in each.parts]
    return Message(role="user", content="\n".join(str(each.content) for each in said), parts=parts)
