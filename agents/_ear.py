"""What an agent says while it says it, on its way to those who listen to the conversation."""

from __future__ import annotations

from ._message import AgentMessage
from ._scope import listened_to
from ._stream import Feed, Speech

__all__ = ["Ear"]


class Ear(Feed):
    """Hears one answer of an agent to `partner` and passes each part on at once.

    The whole answer is not passed on: it is said, and told, when it is delivered.
    """

    def __init__(self, partner: str) -> None:
        super().__init__()
        self._partner = partner
        self._scope = listened_to()

    def put(self, message: AgentMessage) -> None:
        """Pass on a call of a tool, or its result."""
        if self._scope is not None and message.type is not None:
            self._scope.tell(message)

    def grow(self, speech: Speech, text: str) -> None:
        """Pass on text that is new."""
        if self._scope is None:
            speech.said += text
            return
        speech.fresh.append(text)
        self._tell(speech.message())

    def fail(self, speech: Speech) -> None:
        """Tell that an answer which has begun broke off."""
        self._tell(speech.message("failed"))

    def _tell(self, part: AgentMessage) -> None:
        if self._scope is not None:
            self._scope.tell(part.model_copy(update={"receiver": self._partner}))
