"""What the chat shows, and how it asks: a rich terminal, a plain one, or a pipe."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from ..commander import NodeCancelled
from ..handlers import View
from ..handlers.legible import legible
from ..jobs import read_line
from ..messages import ToolCall
from ..messages.mask import mask
from ..tools import AnyTool, Decision, ToolResult
from ._editor import LineEditor, screen
from ._exact import exact
from ._question import Question, draft
from ._typeahead import drop_typeahead

__all__ = [
    "LONGEST",
    "LegibleLog",
    "Terminal",
    "accept_all_signs",
    "complain",
    "in_line",
    "show_traceback",
]

# The most characters that are shown of a call or a result, and of an error.
LONGEST, MOST = 400, 2000


def complain(error: BaseException | str) -> None:
    """Show an error in one line on the standard error."""
    text = in_line(str(error), MOST) or type(error).__name__
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text.assemble(("anabranch: ", "red"), text)
    )


def accept_all_signs() -> None:
    """Let the standard output write out what its encoding has not."""
    out: Any = sys.stdout
    if isinstance(out, TextIOWrapper):
        cast("Any", out).reconfigure(errors="backslashreplace")


def show_traceback(error: BaseException) -> None:
    """Show where an error comes from on the standard error."""
    sys.stderr.write(legible("".join(traceback.format_exception(error))))


class LegibleLog(logging.StreamHandler[Any]):
    """Writes what is logged to the standard error, so that it cannot steer the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text to read, without what looks like a key."""
        return legible(mask(super().format(record)))


class Terminal(View):
    """Shows an exchange: the model's words on the standard output, the rest beside them.

    On a terminal, calls of tools and notes stand among the words in a dim colour; from a pipe they
    go to the standard error, so that the output holds answers alone. `failures` counts the turns
    that failed.
    """

    def __init__(self, commands: list[str], *, debug: bool = False) -> None:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # for what the terminal cannot show or send
        self.interactive = sys.stdin.isatty()
        self.failures = 0
        # Whether Ctrl-C has stopped an answer, and the user has said nothing since.
        self.stopped = False
        self._debug = debug
        stream = screen() if self.interactive else sys.stderr
        self._encoding = stream.encoding
        self._notes = Console(file=stream, soft_wrap=True, highlight=False, markup=False)
        self._editor = LineEditor(commands)
        self._asking = asyncio.Lock()
        # What waits to be shown while a question stands there, None while there is none.
        self._held: list[Callable[[], None]] | None = None
        # Whether the last thing shown has ended its line.
        self._at_start = True

    async def read(self) -> str | None:
        """Return what the user says next, None at the end or for Ctrl-C at an empty prompt."""
        self.end_line()
        if not self.interactive:
            return await read_line()
        while True:
            try:
                said = await self._editor.read("> ")
            except KeyboardInterrupt:
                if self.forgive_interrupt():
                    continue
                return None
            self.stopped = False
            return said

    def forgive_interrupt(self) -> bool:
        """Take an interrupt that would leave; whether it is the echo of one that stopped an answer.

        Who presses Ctrl-C twice to stop a model does not want to lose the chat.
        """
        echo, self.stopped = self.stopped, False
        if echo:
            self.note("(Ctrl-C once more leaves)")
        return echo

    def write(self, text: str) -> None:
        """Show a piece of the model's words."""
        if self._held is not None:
            self._held.append(partial(self.write, text))
            return
        sys.stdout.write(legible(text))
        sys.stdout.flush()
        self._at_start = text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line unless there is one."""
        if not self._at_start:
            self.write("\n")

    def note(self, text: str, style: str = "dim") -> None:
        """Show something that neither the user nor the model has said."""
        if self._held is None:
            self._note(text, style)
        else:
            self._held.append(partial(self.note, text, style))

    def _note(self, text: str, style: str = "dim") -> None:
        if not self._at_start:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._at_start = True
        self._notes.print(Text(legible(text), style=style))

    def called(self, call: ToolCall) -> None:
        """Show a call."""
        arguments = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in call.arguments.items()
        )
        self.note(in_line(f"[tool] {call.name}({arguments})", LONGEST), "cyan")

    def answered(self, result: ToolResult) -> None:
        """Show what a call gave, and where the figures are that it has drawn."""
        style = "dim" if result.status == "ok" else "yellow"
        self.note(f"   ->  {in_line(result.content or '', LONGEST)}", style)
        for path in result.files:
            self.note(f"   saved: {path}")

    def failed(self, error: Exception) -> None:
        """Show why a turn broke off; nothing that was said is lost."""
        self.end_line()
        if isinstance(error, BrokenPipeError):
            raise error  # nobody reads on: the chat is over
        if isinstance(error, NodeCancelled):
            self.note("(stopped; what it said is kept)")
            return
        self.failures += 1
        if self._debug:
            show_traceback(error)
        complain(error)
        if self.interactive:
            self.note("nothing is lost: /retry tries this turn again, /undo forgets it")

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask on the terminal; from a pipe there is nobody to say yes.

        The person may edit the arguments first; those that the tool would not take are not run. An
        answer is typed while the question stands there: what was typed before, and what comes in a
        burst with more, is none. Meanwhile nothing else is shown.
        """
        if self.approvals is not None or not self.interactive:
            return await super().ask(call, tool)
        async with self._asking:  # one question at a time, however many calls wait
            self._held = []
            try:
                return await self._decide(call, tool)
            finally:
                held, self._held = self._held, None
                for show in held:
                    show()

    async def _decide(self, call: ToolCall, tool: AnyTool) -> Decision:
        arguments, whole = call.arguments, False
        while True:
            question = Question(tool, arguments, self._encoding)
            columns, lines = 80, 24
            with suppress(OSError):  # of the terminal at which the person sits
                size = os.get_terminal_size(sys.stdin.fileno())
                columns, lines = size if all(size) else (columns, lines)
            # In a thread: a megabyte of some scripts takes a second.
            rows = await asyncio.to_thread(question.rows, columns, None if whole else lines)
            self._note("\n".join(rows), "cyan")
            if await drop_typeahead():
                self._note("(what was typed before this question is dropped)")
            name = in_line(exact(tool.name, self._encoding), 60)
            answer, alone = await self._editor.choose(f"run {name}? [y/N/e(dit)] ")
            letter = (answer or "n").strip().lower()
            if answer is not None and not alone:
                self._note("(that came together with more; an answer is typed by itself)")
            elif letter in ("s", "show", "show all"):
                whole = True
            elif letter in ("e", "edit"):
                arguments, whole = await self._edit(arguments, tool), False
            else:
                # As text, since 1 == True; and `dumps` alone is fast, for it leaves no character.
                same = json.dumps(arguments) == json.dumps(call.arguments)
                return Decision(letter in ("y", "yes"), None if same else arguments)

    async def _edit(self, arguments: dict[str, Any], tool: AnyTool) -> dict[str, Any]:
        """Let the person write other arguments, until `tool` takes them or they give up."""
        text: str | None = await asyncio.to_thread(draft, arguments, self._encoding)
        self._note("the arguments, as JSON; an empty line gives up")
        self._note("Ctrl-X Ctrl-E opens $EDITOR" if self._editor.edits else text)
        while text := await self._editor.answer("arguments: ", text):
            try:
                edited = json.loads(text)
                if not isinstance(edited, dict):
                    raise ValueError("the arguments are a JSON object: {...}")
                tool.check(edited := cast("dict[str, Any]", edited))
            except Exception as error:  # noqa: BLE001 - whatever is wrong, it can be mended
                complain(error)
            else:
                return edited
        return arguments


def in_line(text: str, most: int) -> str:
    """Return text as a piece of one line; a longer one says how long it is."""
    text = " ".join(legible(text).split())
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"
