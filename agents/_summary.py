"""`SummaryMemory`: a memory that has its beginning summarised when it grows too long."""

from __future__ import annotations

from collections.abc import Callable

from ..backends import Backend
from ..commander import BadResponse
from ..messages import Message, Request
from ._memory import Filter, Memory, SessionId, message_text, message_tokens
from ._message import AgentMessage

__all__ = ["SummaryMemory"]

PROMPT = (
    "Summarise this conversation for someone who has to go on with it. Keep names, numbers, "
    "decisions and open questions. Write nothing but the summary."
)


class SummaryMemory(Memory):
    """Replaces the beginning of a session by a summary once it is over `max_tokens`.

    Before a model is asked, all but the newest messages, of at most half as many tokens, are given
    to `backend`; its summary stands in their place, as a message of type "summary" by "memory".
    `save` then has the summary too: what it replaced is forgotten. If the summary fails, so does
    the call that needed it, and the memory stays as it was.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        max_tokens: int,
        prompt: str = PROMPT,
        filter: Filter | None = None,  # noqa: A002 - the field's term
        count: Callable[[AgentMessage], int] = message_tokens,
    ) -> None:
        super().__init__(filter=filter, count=count)
        self.backend = backend
        self.limit = max_tokens
        self.prompt = prompt

    async def prepare(self, session_id: SessionId) -> None:
        """Summarise, if the session is too long."""
        messages = self._all(session_id)
        if sum(map(self.count, messages)) <= self.limit:
            return
        newest = self._newest(messages, self.limit // 2)
        old = messages[: len(messages) - len(newest)]
        if not old:
            return
        summary = AgentMessage(content=await self._summary(old), sender="memory", type="summary")
        messages = self._all(session_id)  # others may have added, or summarised, meanwhile
        if all(a is b for a, b in zip(old, messages, strict=False)) and len(messages) >= len(old):
            messages[: len(old)] = [summary]

    async def _summary(self, messages: list[AgentMessage]) -> str:
        said = "\n\n".join(f"{each.sender}: {message_text(each)}" for each in messages)
        asked = [Message(role="system", content=self.prompt), Message(role="user", content=said)]
        summary = (await self.backend.complete(Request(asked))).content
        if not summary:
            raise BadResponse("the model gave an empty summary")
        return f"Summary of what was said before:\n{summary}"
