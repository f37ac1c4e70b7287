"""Views show an exchange with a model to a person and ask for approvals: `View`, `ConsoleView`.

`show` prints or passes on text as it arrives. An exchange is a message, the replies and tool calls
that follow it, and the final answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from typing import Any, TextIO

from ..commander import Node, emit
from ..commander.kinds import passes_with
from ..dispatch.pouring import pour
from ..messages import Delta, Message, Request, ToolCall
from ..messages.output import GrowingOutput
from ..tools import AnyTool, Approvals, Decision, ToolResult
from ..tools.calls import NO_PERSON
from ._handler import handler
from .legible import legible

__all__ = ["ConsoleView", "View", "show"]


@passes_with("ended")
class View:
    """Receives an exchange as it happens, and decides whether a tool may run.

    This base class shows nothing and refuses each call that needs an approval.

    Subclasses override the methods that they need, as `ConsoleView`. `write` gets the text and may
    be plain or async. A slow one slows the model down, and one that raises fails the exchange.
    """

    approvals: Approvals | None = None
    """Where calls wait for a person's decision; without it, `approve` is asked."""

    def write(self, text: str) -> Awaitable[object] | object:
        """Show a piece of the model's text."""
        return None

    def ended(self) -> None:
        """Show the end of a reply's text, complete or not; it may be empty."""

    async def heard(self, request: Request) -> Sequence[Message]:
        """Return messages to add to this request, which is about to be sent.

        These are the user's messages since the last request; by default none. Called before each
        request. In a durable run, each execution must return the same.
        """
        return ()

    def incoming(self, deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Return the deltas of a reply before anything reads them, by default unchanged.

        An agent with guards holds them back here. The result must close `deltas` when it is closed.
        """
        return deltas

    def next_tools(self, tools: Sequence[AnyTool]) -> Sequence[AnyTool]:
        """Return the tools for the next request, by default the same ones.

        Called when the calls of a reply have ended. In a durable run, each execution must return
        the same.
        """
        return tools

    def output_begun(self, output: GrowingOutput[Any]) -> None:
        """See that the next reply may be typed output, which grows in `output`.

        Called before each request of `respond(..., output_type=...)`. What earlier replies have
        written is then not the output.
        """

    def output_grew(self) -> None:
        """See that `output` has a new piece: `output.read()` returns the value so far."""

    def output_failed(self, reason: str) -> None:
        """See that the output of the last reply cannot be used.

        The model is asked again with the reason, or the exchange fails.
        """

    def called(self, call: ToolCall) -> None:
        """Show that a tool is about to run."""

    def answered(self, result: ToolResult) -> None:
        """Show the result of a call, whether it ran or not."""

    def failed(self, error: Exception) -> None:
        """Show that an exchange failed or was cancelled; the chat continues."""

    async def approve(self, call: ToolCall) -> bool | Decision:
        """Decide whether a tool made with `approve=True` may run. Here no person can decide."""
        return NO_PERSON

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Decide through `approvals`, or through `approve` if there are none."""
        if self.approvals is not None:
            return await self.approvals.ask(call, tool)
        return await self.approve(call)


class ConsoleView(View):
    """Prints the text of an exchange to the standard output, and failures to the standard error.

    Its output cannot control a terminal: control characters become U+FFFD, also in a pipe or a
    file.
    """

    _has_text = False

    def write(self, text: str) -> Awaitable[object] | object:
        """Print a piece of text at once."""
        self._has_text = True
        _print(legible(text), sys.stdout)
        return None

    def ended(self) -> None:
        """End the line, unless it is empty."""
        if self._has_text:
            self._has_text = False
            _print("\n", sys.stdout)

    def failed(self, error: Exception) -> None:
        """Print the error's message."""
        _print(f"{legible(str(error))}\n", sys.stderr)


def _print(text: str, stream: TextIO | None) -> None:
    """Write at once. Characters that the stream cannot encode become question marks."""
    if stream is None:  # a program without a console has none
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"  # a user's stream may have none
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


@handler
async def show(
    node: Node[Any],
    texts: AsyncIterable[str],
    write: Callable[[str], Awaitable[object] | object] | None = None,
) -> str:
    """Pass each text to `write`, plain or async, as it arrives; return the complete text.

    Without `write` it goes to the standard output. Each piece is also an event of kind `text`.
    Exceptions of `write` are raised. If `write` itself raises `CancelledError`, that becomes a
    `RuntimeError`, because the failure of a cancelled node is not reported and the text would be
    lost silently.
    """
    write = write or ConsoleView().write
    parts: list[str] = []

    def pass_on(text: str) -> object:
        emit(node, "text", text)
        parts.append(text)
        return write(text)

    try:
        await pour(texts, pass_on)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # the cancel is for this node
            raise
        raise RuntimeError(
            f"{write!r:.200} raised CancelledError, but nothing cancelled it"
        ) from error
    return "".join(parts)
