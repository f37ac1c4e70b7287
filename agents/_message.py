"""`AgentMessage`: what agents and tool executors hand to each other."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, cast

from pydantic import BaseModel, Field
from typing_extensions import TypeVar

__all__ = ["AgentMessage", "StreamState"]

F = TypeVar("F", default=Any)

StreamState: TypeAlias = Literal["begin", "streaming", "end", "failed"]


class AgentMessage(BaseModel, Generic[F]):
    """Something that one agent says to another, to a tool executor or to a person.

    `content` is what was said, mostly text. `formatted` is what a parser or an executor made of
    it, so that nobody has to read the text again; None if nobody has. `sender` and `receiver` are
    names; `type` and `extra` are the application's. `stream_state` is "begin" or "streaming" for a
    message that is still growing, "end" for a whole one, "failed" for one that broke off.
    """

    content: Any = None
    sender: str = "user"
    formatted: F = cast("Any", None)
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])
    type: str | None = None
    receiver: str | None = None
    stream_state: StreamState = "end"

    def __reduce__(self) -> tuple[Any, ...]:
        # `AgentMessage[City]` is made where it is written, and found by no name elsewhere.
        kind = type(self).__pydantic_generic_metadata__["origin"] or type(self)
        return _remade, (kind, self.__getstate__())


def _remade(kind: type[AgentMessage], state: dict[Any, Any]) -> AgentMessage:
    message = kind.__new__(kind)
    message.__setstate__(state)
    return message
