"""What agents say while they say it, on its way from one process to another: only what is new."""

from __future__ import annotations

from typing import Any

from ..dispatch import AgentMessage

__all__ = ["Speaker", "Told", "Writer"]

# The parts of a message have all the text so far. Sent so, a reply of n parts would cost n squared:
# so both ends keep the text of each who speaks, by the names of who speaks to whom.


class Told:
    """An item of a stream: a message, or a part of one, whose text may be what is new alone."""

    __slots__ = ("grown", "part")

    def __init__(self, part: AgentMessage, grown: bool) -> None:
        self.part = part
        self.grown = grown
