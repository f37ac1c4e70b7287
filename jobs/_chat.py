"""`ChatJob`: a chat, round after round; a user's own chat is a subclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from typing import Self

from ..backends import Backend
from ..commander.durable import record_once, scope_here
from ..commander.kinds import require_awaitable
from ..dispatch import Format
from ..handlers import ConsoleView, View
from ..messages import Conversation, Message
from ..tools import AnyTool
from ._job import Job
from ._read_line import read_line
from ._response import ResponseJob

__all__ = ["ChatJob"]


class ChatJob(Job[None]):
    """One round of a chat: read what the user says, let the model answer, start the next round.

    The next round starts from a callback at the end of this one, under the commander, so rounds
    do not nest however long the chat is. The chat ends when `read` returns None. A subclass
    changes `read`, `response`, `answer` or `again`; what is seen is up to `view`, by default a
    `ConsoleView`. `formats` are the ways in which the model writes calls into its text, if not as
    the backend knows of it.

    Put in the body of a durable job, with a conversation of its run, the rounds stay below that
    job, and what `read` has returned is kept: the chat goes on at the message where it stood.
    """

    backend: Backend
    conversation: Conversation
    tools: Sequence[AnyTool] = ()
    view: View = field(default_factory=ConsoleView)
    formats: Sequence[Format] | None = None

    async def task(self) -> None:
        """Do one round; a model that fails ends the round, not the chat."""
        above = self.commander if scope_here() is None else self.parent
        said = await record_once("read", lambda: require_awaitable(self.read(), self, "read"))
        if said is None:
            return
        self.at_end(lambda _: self.put_job(self.again(), parent=above))
        if said:
            self.conversation.add(said)
        try:
            await require_awaitable(self.answer(), self, "answer")
        except Exception as error:  # noqa: BLE001 - whatever failed, the chat goes on
            self.view.failed(error)

    async def read(self) -> str | None:
        """Return what the user says next, None to end the chat: a line of the standard input.

        An empty text adds nothing: the model answers the conversation as it stands.
        """
        return await read_line()

    async def answer(self) -> Message:
        """Let the model answer the conversation."""
        return await self.put_job(self.response(), claim=True)

    def response(self) -> ResponseJob:
        """Make the job that answers."""
        return ResponseJob(
            self.backend, self.conversation, self.tools, self.view, formats=self.formats
        )

    def again(self) -> Self:
        """Make the next round."""
        return dataclasses.replace(self)
