"""What a person sees of an exchange, and what a person is asked."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Sequence
from typing import TextIO

from ..commander.kinds import passes_with
from ..messages import Message, Request, ToolCall
from ..tools import AnyTool, Approvals, Decision, ToolResult
from ..tools.calls import NO_PERSON
from .legible import legible

__all__ = ["ConsoleView", "View"]


@passes_with("ended")
class View:
    """Sees an exchange, and is asked whether a tool may run; it shows nothing and refuses.

    A subclass writes the methods for what it wants to see, as `ConsoleView` does. Text comes
    through `write`, which may be plain or async; a slow one slows the model down, and one that
    raises fails the exchange.
    """

    approvals: Approvals | None = None
    """Where calls wait for a person's yes; without it, each is put to `approve`."""

    def write(self, text: str) -> Awaitable[object] | object:
        """Show a piece of text of the model's, as it arrives."""
        return None

    def ended(self) -> None:
        """Show that the text of one reply has ended, or broke off; there may have been none."""

    async def heard(self, request: Request) -> Sequence[Message]:
        """Return what the model hears on top of this request, which is the next that it is asked.

        It is what a person has said since the last one; by default nothing. Asked before each
        request, in a durable run in each life, where it has to return the same.
        """
        return ()

    def next_tools(self, tools: Sequence[AnyTool]) -> Sequence[AnyTool]:
        """Return the tools for the next request, by default those of the last one.

        Called when the calls of a reply have ended, in a durable run in each life, where it has to
        return the same.
        """
        return tools

    def called(self, call: ToolCall) -> None:
        """Show that a tool is about to run."""

    def answered(self, result: ToolResult) -> None:
        """Show what a call gave, whether it ran or not."""

    def failed(self, error: Exception) -> None:
        """Show that an exchange failed or was cancelled; the chat goes on."""

    async def approve(self, call: ToolCall) -> bool | Decision:
        """Ask whether a tool made with `approve=True` may run; here nobody is there to say yes."""
        return NO_PERSON

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask where the application answers, or with `approve` if it has named no such place."""
        if self.approvals is not None:
            return await self.approvals.ask(call, tool)
        return await self.approve(call)


class ConsoleView(View):
    """Shows the text of an exchange on the standard output, and what fails on the standard error.

    What it shows cannot steer a terminal: control characters become U+FFFD, also in a pipe or a
    file.
    """

    _said = False

    def write(self, text: str) -> Awaitable[object] | object:
        """Write a piece of text at once."""
        self._said = True
        _print(legible(text), sys.stdout)
        return None

    def ended(self) -> None:
        """End the line, if anything stands in it."""
        if self._said:
            self._said = False
            _print("\n", sys.stdout)

    def failed(self, error: Exception) -> None:
        """Write what the error says."""
        _print(f"{legible(str(error))}\n", sys.stderr)


def _print(text: str, stream: TextIO | None) -> None:
    """Write at once; what the stream cannot encode becomes a question mark and stops nothing."""
    if stream is None:  # a program without a console has none
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"  # a stream of the user's may have none
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
