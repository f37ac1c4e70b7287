"""What agents say while they say it, on its way to another process: only what is new.

Each part of a message has all the text so far. Sent so, a reply of n parts would cost n squared; so
both ends keep the text that grows, by the names of who says it to whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..agents import AgentMessage
from ._actor import Outlet

__all__ = ["Teller", "Texts", "Told"]

GROWING = ("begin", "streaming")


@dataclass(frozen=True, slots=True)
class Told:
    """An item of a stream: something that was said, its text left out if the other end has it."""

    part: AgentMessage


class Texts:
    """The texts that grow, at one end."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str | None], str] = {}

    def shortened(self, part: AgentMessage) -> AgentMessage:
        """Leave out a text that `restored` can make."""
        known = part.content == self._grown(part)
        self._keep(part)
        return part.model_copy(update={"content": None}) if known else part

    def restored(self, part: AgentMessage) -> AgentMessage:
        """Undo `shortened`, in the same order."""
        if part.content is None and (grown := self._grown(part)) is not None:
            part = part.model_copy(update={"content": grown})
        self._keep(part)
        return part

    def broken_off(self) -> list[AgentMessage]:
        """Return the end of each text that will not grow any more."""
        return [
            AgentMessage(content=text, sender=sender, receiver=receiver, stream_state="failed")
            for (sender, receiver), text in self._said.items()
        ]

    def _grown(self, part: AgentMessage) -> str | None:
        delta = part.extra.get("delta")
        if part.stream_state not in GROWING or not isinstance(delta, str):
            return None
        before = "" if part.stream_state == "begin" else self._said.get(_between(part), "")
        return before + delta

    def _keep(self, part: AgentMessage) -> None:
        if part.stream_state in GROWING and isinstance(part.content, str):
            self._said[_between(part)] = part.content
        else:
            self._said.pop(_between(part), None)


def _between(part: AgentMessage) -> tuple[str, str | None]:
    return part.sender, part.receiver


class Teller:
    """A listener that sends what it is told; a slow reader gets more new text at once."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._texts = Texts()

    def __call__(self, part: AgentMessage) -> None:
        """Send a part, if it can be with the one before it."""
        short = self._texts.shortened(part)
        last = self._outlet.last
        if isinstance(last, Told) and _goes_on(last.part, short):
            self._outlet.send_instead(Told(_joined(last.part, short)))
        else:
            self._outlet.send_nowait(Told(short))


def _goes_on(last: AgentMessage, part: AgentMessage) -> bool:
    growing = last.stream_state in GROWING and part.stream_state == "streaming"
    return growing and part.content is None and _between(last) == _between(part)


def _joined(last: AgentMessage, part: AgentMessage) -> AgentMessage:
    delta: str = part.extra["delta"]
    changed: dict[str, Any] = {"extra": {**part.extra, "delta": last.extra["delta"] + delta}}
    if last.content is not None:
        changed["content"] = last.content + delta
    return last.model_copy(update=changed)
