"""`Talk`: what is said in a group for one who asks it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ...commander import Node, current_node
from ..errors import ConversationTooLong
from ..layers import AgentMessage
from ._directory import Answer, Participant, Status
from ._messages import as_message
from ._scope import current_scope, open_scope

if TYPE_CHECKING:
    from ._group import Group

__all__ = ["Talk", "TalkNode", "find_talk"]

logger = logging.getLogger("anabranch.agents")

GO_ON = "Please go on."
FREE = nullcontext()


class Talk:
    """What is said in `group` for one who asks it, in one session of the conversations.

    `asker` is who asks, by name. `messages` is all that was said, oldest first; `status` is how it
    ended last; `last_speaker` is who spoke last, and `speaking` who has the floor, None if nobody.
    """

    def __init__(self, group: Group, asker: str) -> None:
        self.group = group
        self.asker = asker
        self.messages: list[AgentMessage] = []
        self.status: Status = "no_answer"
        self.last_speaker: str | None = None
        self.speaking: str | None = None
        # What each has not heard yet who was a member so far, and who wants to know that there is
        # something.
        self._unheard: dict[str, list[AgentMessage]] = {each: [] for each in group.members}
        self.on_news: Callable[[], object] | None = None
        # The members of a talk during which these do not change.
        self.seated: Mapping[str, Participant | str] | None = None
        # Whether the members speak just now, and about what they do, or did when it failed.
        self.held = False
        self.failed: AgentMessage | None = None

    @property
    def members(self) -> Mapping[str, Participant | str]:
        """The members by their names."""
        return self.group.members if self.seated is None else self.seated

    @property
    def names(self) -> list[str]:
        """The members' names, in the order in which they were given."""
        return [*self.members]

    def unheard(self, name: str) -> list[AgentMessage]:
        """Return what a member has not heard yet: all that was said, if it has just been added."""
        if name not in self._unheard:
            self._unheard[name] = [self._for_all(m) for m in self.messages if m.sender != name]
        return self._unheard[name]

    def _for_all(self, message: AgentMessage) -> AgentMessage:
        return message.model_copy(update={"receiver": self.group.name})

    def hear(self, message: AgentMessage) -> None:
        """Note a message that all but its sender are to be told."""
        self.messages.append(message)
        for name, unheard in self._unheard.items():
            if name != message.sender:
                unheard.append(self._for_all(message))
        if self.on_news is not None:
            self.on_news()

    def say(self, message: AgentMessage) -> None:
        """Count what a member has said, and let all hear it."""
        scope = current_scope()
        assert scope is not None
        scope.spend()
        scope.tell(message)
        self.hear(message)

    async def ask(
        self,
        name: str,
        nudge: str = GO_ON,
        *,
        turn: AbstractAsyncContextManager[None] = FREE,
    ) -> Answer:
        """Tell a member what it has not heard yet, and let it answer the last of that.

        What that is, is looked for in the block of `turn`.
        """
        member = await self._find(name)
        async with turn:
            unheard, self._unheard[name] = self.unheard(name), []
        if not unheard:
            return await self.tell(name, nudge)
        for message in unheard[:-1]:
            await member.receive(message, request_reply=False)
        return self._answer(name, await member.receive(unheard[-1]))

    async def tell(self, name: str, text: str, *, request_reply: bool = True) -> Answer:
        """Tell one member something, in the group's own name."""
        message = as_message(text, self.group.name, self.group.name)
        member = await self._find(name)
        return self._answer(name, await member.receive(message, request_reply=request_reply))

    def _find(self, name: str) -> Awaitable[Participant]:
        seated = self.seated
        return self.group.find(name) if seated is None else self.group.find(name, seated)

    def _answer(self, name: str, answer: Answer) -> Answer:
        if answer.message is None:
            return answer
        return Answer(as_message(answer.message, name, self.group.name))


class TalkNode(Node[Answer], internal=True):
    """Lets the members speak about a message; attribute: `talk`."""

    def __init__(self, talk: Talk, message: AgentMessage) -> None:
        super().__init__(f"{talk.group.name}.talk")
        self.talk = talk
        self._message = message

    async def task(self) -> Answer:
        """Hold the talk, then tell each member what it has not heard."""
        talk, group = self.talk, self.talk.group
        with open_scope(group.max_messages) as (_, is_outermost):
            try:
                talk.status = await group.hold(talk, self)
            except ConversationTooLong as error:
                talk.status = "message_limit"
                if not is_outermost:
                    raise
                logger.warning("%s: %s", self.path, error)
        for name in talk.names:  # so that all histories are complete
            while name in group.members and (unheard := talk.unheard(name)):
                member = await group.find(name)
                await member.receive(unheard.pop(0), request_reply=False)
        last = talk.messages[-1]
        if talk.asker in group.members or last is self._message:
            return Answer(status=talk.status)  # nothing that the asker has not heard
        return Answer(as_message(last, group.name, self._message.sender), talk.status)


def find_talk(group: str) -> Talk | None:
    """Return the talk of the group called `group` in which this is called, if it is in one."""
    try:
        node: Node[Any] = current_node()
    except LookupError:
        return None
    for each in (node, *node.ancestors):
        if isinstance(each, TalkNode) and each.talk.group.name == group:
            return each.talk
    return None
