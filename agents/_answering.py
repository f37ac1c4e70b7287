"""One answer of a conversable agent, as a node of the tree: who gives it, and whether."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..commander import Node
from ._directory import Answer, Status
from ._message import AgentMessage
from ._reply import NOT_MINE, Reply
from ._say import as_message, text_of
from ._scope import current_scope
from ._transcript import Transcript

if TYPE_CHECKING:
    from ._conversable import ConversableAgent

__all__ = ["Answering"]

logger = logging.getLogger("anabranch.agents")

EXIT = "exit"


class Answering(Node[Answer], internal=True):
    """Lets `agent` answer a message that is in its history with `partner` already.

    Attributes: `agent`, `partner`, `message`.
    """

    def __init__(self, agent: ConversableAgent, partner: str, message: AgentMessage) -> None:
        super().__init__(f"{agent.name}.reply")
        self.agent = agent
        self.partner = partner
        self.message = message

    async def task(self) -> Answer:
        """Ask the person if it is their turn, else answer without one, or end."""
        self.message = await self.agent.hear(self.message, self.partner)
        ending = self._ending()
        if self._asks_person(ending):
            said = await self.agent.human_input(self._prompt(ending))
            if said is None or said.strip() == EXIT:
                return Answer(status="left")
            if said.strip():
                self.agent.auto_replies[self.partner] = 0
                return await self._answered(said)
            if ending == "terminated":
                return Answer(status=ending)
        elif ending is not None:
            return Answer(status=ending)
        self.agent.auto_replies[self.partner] += 1
        return await self._answered(await self._reply())

    def _ending(self) -> Status | None:
        """Say why the conversation ends here, unless a person goes on."""
        agent, limit = self.agent, self.agent.max_consecutive_auto_reply
        if agent.is_termination(self.message):
            return "terminated"
        if limit is None or agent.auto_replies[self.partner] < limit:
            return None
        if limit and agent.human_input_mode == "NEVER":
            logger.warning(
                "%s: %s has answered %s %d times in a row, and the conversation ends"
                " (max_consecutive_auto_reply)",
                self.path,
                agent.name,
                self.partner,
                limit,
            )
        return "auto_reply_limit"

    def _asks_person(self, ending: Status | None) -> bool:
        mode = self.agent.human_input_mode
        return mode == "ALWAYS" or (mode == "TERMINATE" and ending is not None)

    def _prompt(self, ending: Status | None) -> str:
        scope, name = current_scope(), self.agent.name
        seen = scope is not None and any(isinstance(each, Transcript) for each in scope.listeners)
        said = "" if seen else f"{self.message.sender} (to {name}):\n\n{text_of(self.message)}\n\n"
        enter = "to end" if ending == "terminated" else f"to let {name} answer by itself"
        return f"{said}Answer {self.partner} as {name} (Enter {enter}, '{EXIT}' to leave): "

    async def _reply(self) -> Reply:
        for rule in self.agent.rules:
            if (said := await rule(self.agent, self.message)) is not NOT_MINE:
                return said
        return await self.agent.generate_reply(self.message)

    async def _answered(self, said: Reply) -> Answer:
        if said is None or said is NOT_MINE:
            return Answer(status="no_answer")
        agent = self.agent
        answer = as_message(said, agent.name, self.partner)
        answer = await agent.hooks_of("after_agent").run(agent, answer)
        return Answer(as_message(answer, agent.name, self.partner))
