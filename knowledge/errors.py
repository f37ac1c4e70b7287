"""What can go wrong with an index, beside the errors of the commander and of backends."""

from __future__ import annotations

from ..commander.errors import AnabranchError

__all__ = ["KnowledgeError"]


class KnowledgeError(AnabranchError):
    """The index cannot be opened, read or written, or not in the way that was asked for.

    What was in it before stays there. Attributes: `index`, its name; `why`, what happened;
    `remedy`, what to do.
    """

    def __init__(self, index: str, why: str, remedy: str) -> None:
        super().__init__(f"the index {index!r} {why}: {remedy}")
        self.index = index
        self.why = why
        self.remedy = remedy
