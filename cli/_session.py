"""The chat in the terminal: a `ChatJob` whose rounds obey commands and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar, cast

from ..backends import Backend
from ..commander import Commander, Node, NodeCancelled
from ..dispatch import Format
from ..handlers import look_up
from ..jobs import ChatJob
from ..knowledge import Index
from ..messages import Conversation, Message
from ..tools import AnyTool, ToolResult
from ._commands import COMMANDS, Leave, describe_model, obey
from ._exit import INTERRUPTED, KILLED, handle_signals
from ._rescue import rescue
from ._terminal import LONGEST, Terminal, in_line

__all__ = ["TerminalChat", "chat_session"]

T = TypeVar("T")


@dataclass
class Session:
    """What the rounds of one session share."""

    # Holds the backends of the session open, whichever of them speaks.
    backends: AsyncExitStack
    # The documents that are searched for each question, and the tool that does.
    index: Index | None = None
    search: AnyTool | None = None
    # What Ctrl-C stops: the answer that is being given, or a command that takes its time.
    busy: Node[Any] | None = None
    interrupted: bool = False
    # The signal that ends the session from outside, 0 if none has come.
    killed: int = 0


class TerminalChat(ChatJob):
    """One round at the terminal."""

    session: Session = field(kw_only=True)

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
                said = await self._stoppable(self.call_handler(obey(self, line), claim=True))
            except Leave:
                return None
            except NodeCancelled:
                self.terminal.note("(stopped)")
                continue
            if said is not None:
                return said
        return None

    async def answer(self) -> Message:
        """Let the model answer, until it has or Ctrl-C stops it; say whom the answer cites."""
        index, search = self.session.index, self.session.search
        if index is None or search is None:
            return await self._stoppable(self.put_job(self.response(), claim=True))
        await self._stoppable(self.call_handler(look_up(self.conversation, search), claim=True))
        result = self.conversation.messages[-1]
        if isinstance(result, ToolResult) and result.status != "ok":
            self.terminal.note(in_line(f"(the search failed: {result.content})", LONGEST))
        answer = await self._stoppable(self.put_job(self.response(), claim=True))
        found = [each for each in self.conversation.messages if each.name == search.name]
        cited = index.cited(answer.content or "", [each.content or "" for each in found])
        for each in cited:
            heading = f" ({each['heading']})" if "heading" in each else ""
            self.terminal.note(in_line(f"[{each['number']}] {each['place']}{heading}", LONGEST))
        if found and not cited:
            there = index.cited(None, [found[-1].content or ""])
            places = ", ".join(each["place"] for each in there) or "nothing"
            self.terminal.note(in_line(f"(it cites nothing; found: {places})", LONGEST))
        return answer

    async def _stoppable(self, node: Node[T]) -> T:
        self.session.busy = node
        try:
            return await node
        finally:
            self.session.busy = None


async def chat_session(
    backend: Backend,
    conversation: Conversation,
    tools: Sequence[AnyTool],
    formats: Sequence[Format] | None = None,
    index: Index | None = None,
    *,
    debug: bool,
) -> int:
    """Hold a chat until the user leaves or the input ends; return the exit status."""
    terminal = Terminal(list(COMMANDS), debug=debug)
    async with AsyncExitStack() as backends:
        await backends.enter_async_context(backend)
        if terminal.interactive:
            terminal.note(f"anabranch {version('anabranch')}, {describe_model(backend)}")
            terminal.note("/help lists the commands; Ctrl-C stops the model, or leaves")
        session = Session(backends, index, None if index is None else index.as_tool())
        if session.search is not None:
            tools = [*tools, session.search]
        first = TerminalChat(backend, conversation, tools, terminal, formats, session=session)
        commander = Commander(policy="fail_fast", slow_after=0.1 if debug else None)
        try:
            with _handle_signals(commander, session, terminal):
                async with commander:
                    commander.put_job(first)
        except BrokenPipeError:
            raise  # nobody reads on, and that is how a chat in a pipe ends
        except BaseException:
            rescue(conversation)
            raise
        if session.killed:
            rescue(conversation)
            return KILLED + session.killed
    if session.interrupted:
        return INTERRUPTED
    return 1 if terminal.failures and not terminal.interactive else 0


@contextmanager
def _handle_signals(commander: Commander, session: Session, terminal: Terminal) -> Generator[None]:
    """Let SIGINT stop what the terminal is busy with, or end a session that waits for input.

    From a pipe there is nobody to go on with: there it always ends the session. So do the signals
    that come when a terminal is closed or a machine goes down.
    """

    def interrupt() -> None:
        if terminal.interactive and session.busy is not None:
            session.busy.cancel("interrupted")
            terminal.stopped = True
        elif not terminal.forgive_interrupt():
            session.interrupted = not terminal.interactive
            commander.exit()

    def received(number: int) -> None:
        if number == signal.SIGINT:
            interrupt()
        else:
            session.killed = number
            commander.exit()

    with handle_signals(received):
        yield
