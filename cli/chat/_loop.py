"""The chat: turns, one after the other. What is said begins one, steers it, or waits."""

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
from ...messages import Message, Request, ToolCall, Usage
from ...store import PendingDoubt
from ...tracing import LiveTrace, live
from .._display import elapsed
from .._exit import INTERRUPTED, KILLED, handle_signals
from .._terminal import LONGEST, complain, in_line
from .._tree_model import TreeSummary
from .._tree_view import draw
from ._agent_partner import AgentPartner
from ._commands import AT_ONCE, HELP, obey
from ._complete import ChatCompleter, Choices
from ._file_completer import file_completer
from ._home import Home, read_message
from ._live import THEMES, LiveScreen
from ._partner import Partner
from ._plain import PlainScreen
from ._screen import Screen, call_line
from ._sessions import SessionInfo
from ._status import Status

__all__ = ["Chat"]

T = TypeVar("T")

ONLY_REASONED = "the model reasoned and gave no answer: ask again, or raise --max-tokens"
NOBODY_KNOWS = "nobody knows whether this was done; it is not repeated"
TICK = 0.25
"""Seconds between two looks at the clock while something goes on."""


class Chat:
    """Talks with `partner` on `screen`, below `commander`, until the person leaves.

    What the person says while an answer is given steers it, or waits in `waiting`, in its order.
    """

    def __init__(self, screen: Screen, commander: Commander, home: Home, status: Status) -> None:
        self.screen = screen
        self.commander = commander
        self.home = home
        self.status = status
        self.partner: Partner = _Nobody()
        self.waiting: deque[str] = deque()
        self.busy: Node[Any] | None = None  # what Ctrl-C stops
        # What steers the answer that is given, as it was typed; who answers tells what was heard.
        self._steering: list[str] = []
        self._news = asyncio.Event()
        self._ticking: asyncio.TimerHandle | None = None
        self._left = False
        self._stopped = False  # by Ctrl-C, and nothing was said since
        self._interrupted = False
        self._killed = 0
        self._is_once = False
        self.only_reasoned = False  # the last reply has no text
        self._warming: Node[Any] | None = None
        self._sessions: list[SessionInfo] = []  # as they were listed last, to be completed
        self._tree: LiveTrace | None = None

    # --- turns

    async def run(self, partner: Partner) -> int:
        """Talk until the person leaves or the input ends; return the exit status."""
        with self._signals():
            await self.go_to(partner)
            self.warm()
            return await self._talk()

    async def once(self, partner: Partner, question: Message) -> int:
        """Have one question answered; return the exit status."""
        self.partner, self._is_once = partner, True
        self._tell_agent(partner)
        with self._signals():
            await self.answer(question)
            return self._end()

    async def _talk(self) -> int:
        while (said := await self._next()) is not None:
            try:
                await self._take(said)
            except Exception as error:
                if not self.screen.interactive:
                    raise
                complain(error)  # whatever it was, the chat goes on
        return self._end()

    def _end(self) -> int:
        for text in [*self._steering, *self.waiting]:
            self.screen.note(in_line(f"(not said: {text})", LONGEST))
        if self._killed:
            return KILLED + self._killed
        if self._interrupted:
            return INTERRUPTED
        alone = self._is_once or not self.screen.interactive
        return 1 if self.screen.failures and alone else 0

    @property
    def is_killed(self) -> bool:
        """Whether a signal has ended it."""
        return self._killed > 0

    async def _next(self) -> str | None:
        while not self._left:
            if self.waiting:
                return self.waiting.popleft()
            if isinstance(self.screen, PlainScreen):
                return await self._unless_left(self.screen.read())
            self._news.clear()
            await self._news.wait()
        return None

    async def _unless_left(self, reading: Any) -> str | None:
        """Read a line, unless a signal ends the chat meanwhile."""
        line = asyncio.ensure_future(reading)
        leaving = asyncio.ensure_future(self._leaving())
        await asyncio.wait((line, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if line.done():
            return line.result()
        line.cancel()
        return None

    async def _leaving(self) -> None:
        while not self._left:
            self._news.clear()
            await self._news.wait()

    async def _take(self, said: str) -> None:
        if not said.strip():
            return
        if not is_command(said):
            message = await self._read(said)
            if message is not None:
                self.screen.show_said(said)
                await self.answer(message)
            return
        try:
            again = await self.stoppable(obey(self, said))
        except NodeCancelled:
            if not self._left:
                self.screen.note("(stopped)")
        else:
            if again is not None:
                await self.answer(again if isinstance(again, Message) else None)

    async def _read(self, said: str) -> Message | None:
        """Make a message of what was typed; None for one of which a file cannot be attached."""
        try:
            return await read_message(said)
        except (AnabranchError, OSError) as error:
            complain(error)
            self.screen.bring_back(said)
            return None

    async def answer(self, said: Message | None) -> None:
        """Let the partner answer; what it has not heard by the end comes next."""
        if self._warming is not None:
            self._warming.cancel("there is a question")
        self.status.begin(self.status.now())
        try:
            answer = await self.stoppable(self.partner.answer(said, self.screen))
            self.screen.ended()
            for line in self.partner.sources(answer):
                self.screen.note(line)
            self.only_reasoned = _only_reasoned(answer)
            if self.only_reasoned:
                self.screen.failed(AnabranchError(ONLY_REASONED))
        except Exception as error:  # noqa: BLE001 - whatever failed, the chat goes on
            self.screen.failed(error)
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        """Show the end of a turn; what steered it unheard comes next, also where showing fails."""
        try:
            self.screen.ended()
            self.status.end(self.status.now())
            if isinstance(self.screen, LiveScreen):
                self.screen.note(self.status.summary(self.status.now(), self.screen.columns - 1))
            self.heard()
        finally:
            again, self._steering = self._steering, []
            self.waiting.extendleft(reversed(again))

    async def stoppable(self, node: Node[T]) -> T:
        """Run a node that Ctrl-C stops."""
        self.busy = node
        self._tick()
        try:
            return await self.commander.call_handler(node, claim=True)
        finally:
            self.busy = None
            if self._ticking is not None:
                self._ticking.cancel()
            self._touch()

    def heard(self) -> None:
        """Show what steered the answer, once a request has it."""
        heard = len(self._steering) - len(self.partner.unheard())
        for text in self._steering[:heard]:
            self.screen.show_said(text)
        del self._steering[:heard]

    # --- what the person does meanwhile

    def said(self, text: str) -> None:
        """Take a text: it steers the answer under way, else it is the next turn."""
        self._stopped = False
        name = text.split()[0] if text.split() else ""
        if is_command(text) and name in AT_ONCE:
            self.commander.call_handler(obey(self, text))
        elif self.busy is None or is_command(text):
            self.queued(text)
        else:
            self.commander.call_handler(self._steer(text))

    @handler
    async def _steer(self, node: Node[Any], text: str) -> None:
        message = await self._read(text)
        if message is None:
            return
        try:
            steered = self.partner.steer(message)
        except Exception as error:  # noqa: BLE001 - then it comes as the next turn
            complain(error)
            steered = False
        if steered:
            self._steering.append(text)
            self._touch()
        else:
            self.queued(text)

    def queued(self, text: str) -> None:
        """Take a text that waits for its turn."""
        self._stopped = False
        self.waiting.append(text)
        self._news.set()
        self._touch()

    def take_back(self) -> str | None:
        """Give back the newest text that waits."""
        text = self.waiting.pop() if self.waiting else None
        self._touch()
        return text

    def interrupt(self) -> None:
        """Stop what goes on; where nothing does, leave, unless something was stopped just now."""
        echo, self._stopped = self._stopped, False
        if self.busy is not None and self.screen.interactive and not self._is_once:
            self.busy.cancel("interrupted")
            self._stopped = True
        elif self._is_once:
            self._interrupted = True
            self.leave()
        elif echo:  # who presses Ctrl-C twice to stop a model does not want to lose the chat
            self.screen.note("(Ctrl-C once more leaves)")
        else:
            self._interrupted = not self.screen.interactive
            self.leave()

    def leave(self) -> None:
        """Let the chat end; an answer under way is cut, and goes on when the session is resumed."""
        self._left = True
        self._news.set()
        if self.busy is not None:
            self.commander.exit()

    def above(self, columns: int, rows: int) -> list[str]:
        """Return what stands above the prompt."""
        assert isinstance(self.screen, LiveScreen)
        return self.screen.above(columns, rows)

    def waits(self) -> list[str]:
        """Return what waits, in words: what steers the answer, then what is queued."""
        steering = [f"to be heard next: {text}" for text in self._steering]
        return [*steering, *(f"queued: {text}" for text in self.waiting)]

    def usage(self) -> Mapping[str, Usage]:
        """Return what the session has taken, by model; of others, what went through this tree."""
        partner = self.partner
        return partner.usage() if isinstance(partner, AgentPartner) else self.commander.usage()

    async def go_to(self, partner: Partner) -> None:
        """Go on in another session: show what was said in it, and a turn of it that was cut."""
        self.partner = partner
        self._sessions = await self.home.sessions.list()
        if not isinstance(partner, AgentPartner):
            return
        self.screen.show_conversation(partner.messages())
        self._tell_agent(partner)
        info = partner.info
        if info.known:
            self.screen.note(f"({info.title}; /sessions lists all)")
        if (cut := await partner.cut()) is not None:
            asked = shorten(cut.asked.content or "", 60, placeholder=" ...")
            self.screen.note(f"(the answer to {asked!r} was cut off: /retry goes on with it)")

    def _tell_agent(self, partner: Partner) -> None:
        """Say so where another one answers than the one that the session is with."""
        if isinstance(partner, AgentPartner) and partner.info.agent != self.home.place:
            other = partner.info.agent
            whom = f"--agent {other}, and now goes on without it" if other else "no --agent before"
            self.screen.note(f"(this session was with {whom})")

    def warm(self) -> None:
        """Let the model read the conversation while the person writes."""
        partner = self.partner
        if isinstance(partner, AgentPartner) and self.screen.interactive and not self._left:
            self._warming = self.commander.call_handler(_warm(partner))

    async def ask_doubt(self, doubt: PendingDoubt) -> None:
        """Ask the person what became of a call that was cut: it is never repeated in silence."""
        call = ToolCall(id="", name=doubt.tool, arguments=dict(doubt.arguments))

        def rows(columns: int, lines: int | None) -> list[str]:
            return [call_line(call), in_line(doubt.note, LONGEST)]

        if not self.screen.interactive:
            await doubt.done(NOBODY_KNOWS)
            return
        label = "was it done? [y(es)/n(o: do it now)/Enter: nobody knows] "
        answer = (await self.screen.choose(label, rows) or "").strip().lower()
        if answer in ("y", "yes"):
            said = await self.screen.edit("what did it give? ", "")
            await doubt.done(said or "done")
        elif answer in ("n", "no"):
            await doubt.not_done()
        else:
            await doubt.done(NOBODY_KNOWS)

    def completer(self) -> Completer:
        """Return what completes commands and files at the prompt."""
        models = ("local", "openai:", "mistral:", "groq:", "vllm:", "http://")
        choices: dict[str, Choices] = {
            "/model": lambda: [(each, "") for each in models],
            "/theme": lambda: [(each, "") for each in THEMES],
            "/tools": lambda: [
                (f"{word} {tool.name}", "") for tool in self.home.tools for word in ("on", "off")
            ],
            "/resume": lambda: [(each.id, each.title) for each in self._sessions],
        }
        return ChatCompleter(
            {usage.split()[0]: words for usage, words in HELP}, choices, file_completer()
        )

    # --- what is shown at the prompt

    def status_line(self, columns: int) -> str:
        """Return what is going on, in words."""
        if isinstance(self.screen, LiveScreen):
            self.status.asks = self.screen.is_asking
            if self.screen.is_holding_back:
                return "a question for you comes when you stop typing"[:columns]
        return self.status.line(self.status.now(), columns)

    def tree_lines(self, columns: int, rows: int) -> list[str]:
        """Return the tree of what goes on; it is followed from the first time on."""
        if self._tree is None:
            self._tree = live(self.commander, prices=self.home.settings.priced)
        trace = self._tree.trace()
        summary = TreeSummary(trace)
        return [line.plain for line in draw(summary, columns, rows, elapsed(trace))]

    # --- the clock, and signals

    def touch(self) -> None:
        """Draw what stands at the prompt anew, soon."""
        if isinstance(self.screen, LiveScreen) and self.screen.prompt is not None:
            self.screen.prompt.touch()

    def _touch(self) -> None:
        if isinstance(self.screen, LiveScreen):
            self.screen.touch()

    def _tick(self) -> None:
        """Draw the seconds as they pass, while something goes on."""
        if self.busy is not None and isinstance(self.screen, LiveScreen):
            self._touch()
            self._ticking = asyncio.get_running_loop().call_later(TICK, self._tick)

    @contextmanager
    def _signals(self) -> Generator[None]:
        def received(number: int) -> None:
            if number == signal.SIGINT:
                self.interrupt()
            else:
                self._killed = number
                self.leave()

        with handle_signals(received):
            yield


class _Nobody(Partner):
    """Stands there until it is known whom one talks to."""

    name = "nobody"

    def answer(self, said: Message | None, view: View) -> Node[Any]:
        raise ConfigurationError("there is nobody to answer")

    def messages(self) -> Sequence[Message]:
        return ()


@handler
async def _warm(node: Node[Any], partner: AgentPartner) -> None:
    backend = partner.agent.backend
    if backend is not None:
        with suppress(Exception):  # whatever it is, the question itself will tell
            await backend.warm(Request(partner.messages(), tools=partner.agent.tools))


def is_command(text: str) -> bool:
    """Say whether a text is for the chat itself: `/word`, and no path."""
    name = text.split(maxsplit=1)[0] if text.strip() else ""
    return name.startswith("/") and "/" not in name[1:]


def _only_reasoned(answer: object) -> bool:
    """Say whether a reply has reasoning and nothing for the person."""
    match answer:
        case AgentMessage(reasoning=str()) | Message(reasoning=str()):
            return answer.content is None or not str(answer.content).strip()
        case _:
            return False
