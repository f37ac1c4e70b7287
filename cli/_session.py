"""The chat in the terminal: a `ChatJob` whose rounds obey commands and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, cast

from ..backends import Backend
from ..commander import Commander, Node
from ..dispatch import Conversation, Message
from ..jobs import ChatJob
from ..tools import AnyTool
from ._commands import COMMANDS, Leave, about, obey
from ._terminal import Terminal

__all__ = ["TerminalChat", "chat_session"]

INTERRUPTED = 130


@dataclass
class Desk:
    """What the rounds of one session share."""

    # Holds the backends of the session open, whichever of them speaks.
    backends: AsyncExitStack
    # What Ctrl-C stops: the answer that is being given.
    answer: Node[Any] | None = None
    interrupted: bool = False


class TerminalChat(ChatJob):
    """One round at the terminal."""

    desk: Desk = field(kw_only=True)

    @property
    def terminal(self) -> Terminal:
        """The view, which is also where the user writes."""
        return cast("Terminal", self.view)

    async def read(self) -> str | None:
        """Return what the user says next; commands are obeyed on the way."""
        while (line := await self.terminal.read()) is not None:
            if not line.strip():
                continue
            if not line.startswith("/"):
                return line
            try:
                said = await obey(self, line)
            except Leave:
                return None
            if said is not None:
                return said
        return None

    async def answer(self) -> Message:
        """Let the model answer, until it has or Ctrl-C stops it."""
        answer = self.desk.answer = self.response()
        try:
            return await self.put_job(answer, claim=True)
        finally:
            self.desk.answer = None


async def chat_session(
    backend: Backend, conversation: Conversation, tools: Sequence[AnyTool], *, debug: bool
) -> int:
    """Hold a chat until the user leaves or the input ends; return the exit status."""
    terminal = Terminal(COMMANDS, debug=debug)
    async with AsyncExitStack() as backends:
        await backends.enter_async_context(backend)
        if terminal.interactive:
            terminal.note(f"anabranch {version('anabranch')}, {about(backend)}")
            terminal.note("/help lists the commands; Ctrl-C stops the model, or leaves")
        desk = Desk(backends)
        first = TerminalChat(backend, conversation, tools, terminal, desk=desk)
        async with Commander(slow_after=0.1 if debug else None) as commander:
            _stop_answers(commander, desk)
            commander.put_job(first)
    if desk.interrupted:
        return INTERRUPTED
    return 1 if terminal.failures and not terminal.interactive else 0


def _stop_answers(commander: Commander, desk: Desk) -> None:
    """Let SIGINT stop the answer that is being given, or end a session that waits for input."""

    def interrupt() -> None:
        if desk.answer is not None:
            desk.answer.cancel("interrupted")
        else:
            desk.interrupted = True
            commander.exit()

    # As `asyncio.Runner` leaves it: its own handler returns when the session has ended.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
