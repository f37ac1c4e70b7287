"""One answer of a conversable agent, as a node of the tree: who gives it, and whether."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...commander import act_as
from ...commander.awaitable import require_awaitable
from ...commander.errors import ConfigurationError
from ...commander.scope import once
from ..layers import AgentMessage
from ..layers._call import ROUND, require_again
from ..layers._stream import APPROVE
from ..layers._usage import CountedCall
from ._directory import Answer, Status
from ._messages import as_message
from ._reply import NOT_MINE, ReplyResult
from ._scope import current_scope
from ._transcript import Transcript

if TYPE_CHECKING:
    from ._conversable import ConversableAgent

__all__ = ["Answering"]

logger = logging.getLogger("anabranch.agents")

EXIT = "exit"


class Answering(CountedCall[Answer], internal=True):
    """Lets `agent` answer a message that is in its history with `partner` already.

    Attributes: `agent`, `partner`, `message`.
    """

    def __init__(self, agent: ConversableAgent, partner: str, message: AgentMessage) -> None:
        super().__init__(f"{agent.name}.reply")
        act_as(self, agent.name, agent.session_with(partner))
        self.agent = agent
        self.partner = partner
        self.message = message

    async def task(self) -> Answer:
        """Ask the person if it is their turn, else answer without one, or end."""
        agent, mode = self.agent, self.agent.human_input_mode
        if agent.journal is not None or ROUND.get() is not None:
            raise ConfigurationError(
                f"{agent.name} talks with others, and no session of an agent's journal= keeps what"
                " they remember: let them talk in a Durable job"
            )
        self.count_for(agent.spending, agent.session_with(self.partner))
        if agent.approve is not None:
            APPROVE.set(agent.approve)
        agent.tool_sessions.enter(agent.session_with(self.partner))
        require_again(agent, agent.session_with(self.partner))
        self.message = await agent.hear(self.message, self.partner)
        ending = self._ending()
        if mode == "ALWAYS" or (mode == "TERMINATE" and ending is not None):
            scope = current_scope()
            listeners = () if scope is None else scope.listeners
            seen = any(isinstance(each, Transcript) for each in listeners)
            # What was said since the agent last spoke: in a group, by several.
            said = agent.memory.messages(agent.session_with(self.partner))
            own = [number for number, each in enumerate(said) if each.sender == agent.name]
            shown = "".join(
                f"{each.sender} (to {each.receiver or agent.name}):\n\n{each.text}\n\n"
                for each in said[own[-1] + 1 if own else 0 :] or [self.message]
            )
            enter = "to end" if ending == "terminated" else f"to let {agent.name} answer by itself"
            question = (
                f"{'' if seen else shown}Answer {self.partner} as {agent.name} (Enter {enter},"
                f" '{EXIT}' to leave): "
            )

            async def ask() -> str | None:
                return await require_awaitable(agent.human_input(question), agent, "human_input")

            text = await once("human input", ask)
            if text is None or text.strip() == EXIT:
                return Answer(status="left")
            if text.strip():
                agent.auto_replies[agent.session_with(self.partner)] = 0
                return await self._deliver(text)
            if ending == "terminated":
                return Answer(status=ending)
        elif ending is not None:
            return Answer(status=ending)
        session = agent.session_with(self.partner)
        agent.auto_replies[session] += 1
        try:
            for rule in agent.rules:
                if (reply := await rule(agent, self.message)) is not NOT_MINE:
                    return await self._deliver(reply)
            return await self._deliver(await agent.generate_reply(self.message))
        except BaseException:
            agent.auto_replies[session] = max(0, agent.auto_replies[session] - 1)  # it has failed
            raise

    def _ending(self) -> Status | None:
        """Say why the conversation ends here, unless a person goes on."""
        agent, limit = self.agent, self.agent.max_consecutive_auto_reply
        if agent.is_termination(self.message):
            return "terminated"
        if limit is None or agent.auto_replies[agent.session_with(self.partner)] < limit:
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

    async def _deliver(self, reply: ReplyResult) -> Answer:
        if reply is None or reply is NOT_MINE:
            return Answer(status="no_answer")
        agent = self.agent
        message = as_message(reply, agent.name, self.partner)
        session = agent.session_with(self.partner)
        message = await agent.hooks_of("after_agent").run(agent, message, session)
        answer = as_message(message, agent.name, self.partner)
        answer.usage = self.usage
        return Answer(answer)
