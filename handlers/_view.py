"""What a person sees of an exchange, and what a person is asked."""

from __future__ import annotations

import sys
from collections.abc import Awaitable

from ..dispatch import ToolCall
from ..tools import AnyTool, Approvals, Decision, ToolResult

__all__ = ["View"]


class View:
    """Shows an exchange on the standard output; subclass it to show it elsewhere.

    Text comes through `write`, which may be plain or async; a slow one slows the model down.
    """

    approvals: Approvals | None = None
    """Where calls wait for a person's yes; without it, each is put to `approve`."""

    _said = False

    def write(self, text: str) -> Awaitable[object] | object:
        """Show a piece of text of the model's, as it arrives."""
        self._said = True
        sys.stdout.write(text)
        sys.stdout.flush()
        return None

    def ended(self) -> None:
        """Show that the text of one reply has ended, or broke off; there may have been none."""
        if self._said:
            self._said = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def called(self, call: ToolCall) -> None:
        """Show that a tool is about to run."""

    def answered(self, result: ToolResult) -> None:
        """Show what a call gave, whether it ran or not."""

    def failed(self, error: Exception) -> None:
        """Show that an exchange failed or was cancelled; the chat goes on."""
        print(error, file=sys.stderr)  # noqa: T201 - it is what a plain view is for

    async def approve(self, call: ToolCall) -> bool | Decision:
        """Ask whether a tool made with `approve=True` may run; here nobody is there to say yes."""
        return False

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask where the application answers, or with `approve` if it has named no such place."""
        if self.approvals is not None:
            return await self.approvals.ask(call, tool)
        return await self.approve(call)
