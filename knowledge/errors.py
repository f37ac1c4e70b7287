"""The error of an index."""

from __future__ import annotations

from ..commander.errors import AnabranchError

__all__ = ["KnowledgeError"]


class KnowledgeError(AnabranchError):
    """The index cannot be opened, read, written or changed as requested.

    Its documents do not change. Attributes: `index`, its name; `why`, what happened; `remedy`,
    what to do.
    """

    def __init__(self, index: str, why: str, remedy: str) -> None:
        super().__init__(f"the index {index!r} {why}: {remedy}")
        self.index = index
        self.why = why
        self.remedy = remedy
