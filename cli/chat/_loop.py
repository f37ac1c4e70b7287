"""The loop of the chat: one turn at a time. A message starts a turn, steers it, or waits."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from textwrap import shorten
from typing import Any, TypeVar

from prompt_toolkit.completion import Completer

from ...agents import AgentMessage
from ...commander import AnabranchError, Commander, ConfigurationError, Node, NodeCancelled
from ...handlers import View, handler
from ...messages import Message, Request, Usage
from ...tracing import LiveTrace, live
from .._display import elapsed_seconds
from .._exit import SIGNAL_STATUS, handle_signals
from .._output import MAX_SHOWN_CHARS, one_line, print_error
from .._tree_model import TreeSummary
from .._tree_view import draw
from ._agent_partner import AgentPartner
from ._commands import HELP, IMMEDIATE_COMMANDS, execute_command
from ._completer import ChatCompleter, Choices
from ._live_screen import THEMES, LiveScreen
from ._partner import Partner
from ._plain_screen import PlainScreen
from ._screen import Screen
from ._session_manager import SessionManager, read_message
from ._sessions import SessionInfo
from ._status import Status

__all__ = ["ChatLoop"]

T = TypeVar("T")

ONLY_REASONED = "the model only reasoned, without an answer. Ask again, or raise --max-tokens"
TICK_SECONDS = 0.25  # between redraws while the chat is busy


class ChatLoop:
    """A conversation with `partner` on `screen`. Its nodes run below `commander`.

    A message during an answer steers the answer, or waits in `waiting` for its own turn.
    """

    def __init__(
        self, screen: Screen, commander: Commander, manager: SessionManager, status: Status
    ) -> None:
        self.screen = screen
        self.commander = commander
        self.manager = manager
        self.status = status
        self.partner: Partner = _NoPartner()
        self.waiting: deque[str] = deque()
        self.busy: Node[Any] | None = None  # the node that Ctrl-C stops
        self.only_reasoned = False  # the last reply has reasoning and no text
        # The typed texts of steering messages, oldest first; the partner knows which were sent.
        self._steering: list[str] = []
        self._news = asyncio.Event()  # set if a message waits or the chat ends
        self._reading: asyncio.Future[str | None] | None = None  # a line from the plain screen
        self._ticking: asyncio.TimerHandle | None = None
        self._has_left = False
        self._signal = 0  # the signal that ended the chat
        self._just_stopped = False  # Ctrl-C stopped something, and no message followed
        self._is_once = False
        self._warming: Node[Any] | None = None
        self._sessions: list[SessionInfo] = []  # for completion
        self._tree: LiveTrace | None = None

    # --- turns

    async def run(self, partner: Partner) -> int:
        """Chat until the person leaves or the input ends; return the exit status."""
        with self._signals():
            await self.go_to(partner)
            self.warm()
            return await self._converse()

    async def once(self, partner: Partner, question: Message) -> int:
        """Answer one question; return the exit status."""
        self.partner, self._is_once = partner, True
        self._note_other_agent(partner)
        with self._signals():
            await self.answer(question)
            return self._end()

    async def _converse(self) -> int:
        while (text := await self._next()) is not None:
            try:
                await self._take(text)
            except Exception as error:
                if not self.screen.interactive:
                    raise
                print_error(error)  # no error ends an interactive chat
        return self._end()

    def _end(self) -> int:
        for text in [*self._steering, *self.waiting]:
            self.screen.note(one_line(f"(not sent: {text})", MAX_SHOWN_CHARS))
        if self._signal:
            return SIGNAL_STATUS + self._signal
        alone = self._is_once or not self.screen.interactive
        return 1 if self.screen.failures and alone else 0

    @property
    def is_killed(self) -> bool:
        """Whether a signal other than Ctrl-C ended the chat."""
        return self._signal not in (0, signal.SIGINT)

    async def _next(self) -> str | None:
        while not self._has_left:
            if self.waiting:
                return self.waiting.popleft()
            if isinstance(self.screen, PlainScreen):
                self._reading = asyncio.ensure_future(self.screen.read())
                await asyncio.wait([self._reading])
                return None if self._reading.cancelled() else self._reading.result()
            self._news.clear()
            await self._news.wait()
        return None

    async def _take(self, text: str) -> None:
        if not text.strip():
            return
        if not is_command(text):
            if (message := await self._read(text)) is not None:
                self.screen.show_said(text)
                await self.answer(message)
            return
        try:
            again = await self.run_stoppable(execute_command(self, text))
        except NodeCancelled:
            if not self._has_left:
                self.screen.note("(stopped)")
        else:
            if again is not None:
                await self.answer(again if isinstance(again, Message) else None)

    async def _read(self, text: str) -> Message | None:
        """Return a message with the files in its text; None if one cannot be attached."""
        try:
            return await read_message(text)
        except (AnabranchError, OSError) as error:
            print_error(error)
            self.screen.bring_back(text)
            return None

    async def answer(self, message: Message | None) -> None:
        """Let the partner answer. Steering messages that no request contained become next turns."""
        if self._warming is not None:
            self._warming.cancel("a message came")
        self.status.begin(self.status.now())
        try:
            answer = await self.run_stoppable(self.partner.answer(message, self.screen))
            self.screen.ended()
            for line in self.partner.sources(answer):
                self.screen.note(line)
            self.only_reasoned = _only_reasoned(answer)
            if self.only_reasoned:
                self.screen.failed(AnabranchError(ONLY_REASONED))
        except Exception as error:  # noqa: BLE001 - the chat continues after any error
            self.screen.failed(error)
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        """Show the end of a turn; queue undelivered steering messages even if that fails."""
        try:
            self.screen.ended()
            self.status.end(self.status.now())
            if isinstance(self.screen, LiveScreen):
                self.screen.note(self.status.summary(self.status.now(), self.screen.columns - 1))
            self.show_steering()
        finally:
            again, self._steering = self._steering, []
            self.waiting.extendleft(reversed(again))

    async def run_stoppable(self, node: Node[T]) -> T:
        """Run a node that Ctrl-C stops."""
        self.busy = node
        self._tick()
        try:
            return await self.commander.call_handler(node, claim=True)
        finally:
            self.busy = None
            if self._ticking is not None:
                self._ticking.cancel()
            self.screen.touch(now=True)

    def show_steering(self) -> None:
        """Show the steering messages that a request contained."""
        sent = len(self._steering) - len(self.partner.undelivered())
        for text in self._steering[:sent]:
            self.screen.show_said(text)
        del self._steering[:sent]

    # --- actions of the person

    def take_message(self, text: str) -> None:
        """Take a message. It steers the running answer, or becomes the next turn."""
        self._just_stopped = False
        name = text.split()[0] if text.split() else ""
        if is_command(text) and name in IMMEDIATE_COMMANDS:
            self.commander.call_handler(execute_command(self, text))
        elif self.busy is None or is_command(text):
            self.queue_message(text)
        else:
            self.commander.call_handler(self._steer(text))

    @handler
    async def _steer(self, node: Node[Any], text: str) -> None:
        message = await self._read(text)
        if message is None:
            return
        try:
            steered = self.partner.steer(message)
        except Exception as error:  # noqa: BLE001 - it becomes the next turn
            print_error(error)
            steered = False
        if steered:
            self._steering.append(text)
            self.screen.touch(now=True)
        else:
            self.queue_message(text)

    def queue_message(self, text: str) -> None:
        """Queue a message as a turn."""
        self._just_stopped = False
        self.waiting.append(text)
        self._news.set()
        self.screen.touch(now=True)

    def take_back(self) -> str | None:
        """Remove the newest message from the queue, and return it."""
        text = self.waiting.pop() if self.waiting else None
        self.screen.touch(now=True)
        return text

    def interrupt(self) -> None:
        """Stop the running node. If none runs, leave, unless Ctrl-C has just stopped one."""
        just_stopped, self._just_stopped = self._just_stopped, False
        is_chat = self.screen.interactive and not self._is_once
        if self.busy is not None and is_chat:
            self.busy.cancel("interrupted")
            self._just_stopped = True
        elif is_chat and just_stopped:  # a second Ctrl-C for the same answer must not exit
            self.screen.note("(press Ctrl-C again to exit)")
        else:
            self._signal = 0 if is_chat else signal.SIGINT
            self.leave()

    def leave(self) -> None:
        """End the chat. `/retry` in this session can continue an interrupted answer."""
        self._has_left = True
        self._news.set()
        if self._reading is not None:
            self._reading.cancel()
        if self.busy is not None:
            self.commander.exit()

    def lines_above(self, columns: int, rows: int) -> list[str]:
        """Return the lines above the prompt."""
        assert isinstance(self.screen, LiveScreen)
        return self.screen.lines_above(columns, rows)

    def waiting_lines(self) -> list[str]:
        """Return a line for each waiting message: steering messages, then the queue."""
        steering = [f"for the next request: {text}" for text in self._steering]
        return [*steering, *(f"queued: {text}" for text in self.waiting)]

    def usage(self) -> Mapping[str, Usage]:
        """Return the usage by model, of the session if there is one, otherwise of this chat."""
        partner = self.partner
        return partner.usage() if isinstance(partner, AgentPartner) else self.commander.usage()

    async def go_to(self, partner: Partner) -> None:
        """Continue in another session: show its conversation and an interrupted turn."""
        self.partner = partner
        self._sessions = await self.manager.sessions.list()
        if not isinstance(partner, AgentPartner):
            return
        self.screen.show_conversation(partner.messages())
        self._note_other_agent(partner)
        if partner.info.known:
            self.screen.note(f"(session: {partner.info.title}; /sessions lists all)")
        if (interrupted := await partner.interrupted_turn()) is not None:
            question = shorten(interrupted.message.content or "", 60, placeholder=" ...")
            self.screen.note(f"(the answer to {question!r} was interrupted: /retry continues it)")

    def _note_other_agent(self, partner: Partner) -> None:
        if isinstance(partner, AgentPartner) and partner.info.agent != self.manager.place:
            other = partner.info.agent
            before = f"used --agent {other}" if other else "used no --agent"
            self.screen.note(f"(this session {before} before)")

    def warm(self) -> None:
        """Let the model process the conversation while the person types."""
        partner = self.partner
        if isinstance(partner, AgentPartner) and self.screen.interactive and not self._has_left:
            self._warming = self.commander.call_handler(_warm(partner))

    def completer(self) -> Completer:
        """Return the completer of commands and files for the prompt."""
        models = ("local", "openai:", "mistral:", "groq:", "vllm:", "http://")
        choices: dict[str, Choices] = {
            "/model": lambda: [(each, "") for each in models],
            "/theme": lambda: [(each, "") for each in THEMES],
            "/tools": lambda: [
                (f"{word} {tool.name}", "") for tool in self.manager.tools for word in ("on", "off")
            ],
            "/resume": lambda: [(each.id, each.title) for each in self._sessions],
        }
        return ChatCompleter({usage.split()[0]: words for usage, words in HELP}, choices)

    # --- at the prompt

    def status_line(self, columns: int) -> str:
        """Return the status line."""
        if isinstance(self.screen, LiveScreen):
            self.status.asks = self.screen.is_asking
            if self.screen.is_waiting_for_pause:
                return "a question appears when you stop typing"[:columns]
        return self.status.line(self.status.now(), columns)

    def tree_lines(self, columns: int, rows: int) -> list[str]:
        """Return the tree of running nodes; the first call starts to record it."""
        if self._tree is None:
            self._tree = live(self.commander, prices=self.manager.settings.priced)
        trace = self._tree.trace()
        summary = TreeSummary(trace)
        return [line.plain for line in draw(summary, columns, rows, elapsed_seconds(trace))]

    def _tick(self) -> None:
        """Redraw the elapsed_seconds seconds while the chat is busy."""
        if self.busy is not None and isinstance(self.screen, LiveScreen):
            self.screen.touch(now=True)
            self._ticking = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    @contextmanager
    def _signals(self) -> Generator[None]:
        def received(number: int) -> None:
            if number == signal.SIGINT:
                self.interrupt()
            else:
                self._signal = number
                self.leave()

        if isinstance(self.screen, PlainScreen):
            self.screen.on_interrupt = self.interrupt
        with handle_signals(received):
            yield


class _NoPartner(Partner):
    """The partner until the real one is found. Commands work with it."""

    name = "no partner"

    def answer(self, message: Message | None, view: View) -> Node[Any]:
        raise ConfigurationError("the chat has no partner yet")

    def messages(self) -> Sequence[Message]:
        return ()


@handler
async def _warm(node: Node[Any], partner: AgentPartner) -> None:
    backend = partner.agent.backend
    if backend is not None:
        with suppress(Exception):  # the next message reports the error
            await backend.warm(Request(partner.messages(), tools=partner.agent.tools))


def is_command(text: str) -> bool:
    """Return whether a text is a command: `/word`, and not a path."""
    name = text.split(maxsplit=1)[0] if text.strip() else ""
    return name.startswith("/") and "/" not in name[1:]


def _only_reasoned(answer: object) -> bool:
    match answer:
        case AgentMessage(reasoning=str()) | Message(reasoning=str()):
            return answer.content is None or not str(answer.content).strip()
        case _:
            return False
