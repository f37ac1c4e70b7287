"""`ToolCallError`: what stands in the place of a call that cannot be run."""

from __future__ import annotations

from ..commander.errors import ToolError

__all__ = ["ToolCallError"]


class ToolCallError(ToolError):
    """A call that cannot be run: its arguments broke off or are not a JSON object.

    It stands in the place of the call in `reply.tool_calls`; its text is what the model is told.
    Attributes: `id`, `name` and `index` of the call, `raw`, its arguments as they came, and
    `reason`.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the wire's name
        name: str,
        index: int,
        raw: str,
        reason: str = "its arguments are not a JSON object",
    ) -> None:
        shown = raw if len(raw) <= 500 else f"{raw[:300]} ... {raw[-200:]}"
        super().__init__(
            f"The call of {name or 'an unnamed tool'} was not run: {reason}."
            f" Its arguments came as {shown!r}. Call it again with a whole JSON object."
        )
        self.id = id
        self.name = name
        self.index = index
        self.raw = raw
        self.reason = reason
