"""The plain screen: line by line, for pipes, simple terminals and `--plain`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from ...handlers.legible import legible
from ...jobs import read_line
from ...messages import Message
from .._editor import LineEditor, screen
from .._keyboard import discard_typeahead
from ._approval import QuestionRows, screen_size
from ._approval_rules import ApprovalRules
from ._screen import Screen

__all__ = ["PlainScreen"]


class PlainScreen(Screen):
    """Writes the model's text to standard output as it arrives.

    On a terminal, notes and tool calls appear between the text in a dim colour. In a pipe they go
    to standard error, so that standard output contains only answers. `silent` omits the answers.
    """

    def __init__(
        self,
        commands: list[str],
        rules: ApprovalRules | None = None,
        *,
        silent: bool = False,
        debug: bool = False,
    ) -> None:
        super().__init__(rules, debug=debug)
        self._silent = silent
        self.interactive = sys.stdin.isatty()
        self.on_interrupt: Callable[[], None] = lambda: None
        """Called for Ctrl-C at an empty prompt."""
        stream: Any = screen() if self.interactive else sys.stderr
        self.encoding = stream.encoding
        self._notes = Console(file=stream, soft_wrap=True, highlight=False, markup=False)
        self._editor = LineEditor(commands)
        self._delayed: list[Callable[[], None]] | None = None  # output that a question delays
        self._at_line_start = True

    async def read(self) -> str | None:
        """Return the person's next message, None at the end of the input."""
        self.ended()
        while self.interactive:
            try:
                return await self._editor.read("> ")
            except KeyboardInterrupt:
                self.on_interrupt()
                await asyncio.sleep(0)  # `on_interrupt` may have cancelled this task
        return await read_line()

    def write(self, text: str) -> None:
        """Show a piece of the model's text."""
        if self._delayed is not None:
            self._delayed.append(partial(self.write, text))
        elif not self._silent:
            sys.stdout.write(legible(text))
            sys.stdout.flush()
            self._at_line_start = text.endswith("\n")

    def show_said(self, text: str, *, again: bool = False) -> None:
        """Show a message of an earlier session. A new one is visible where it was typed."""
        if again and self.interactive:
            self.note(f"> {text}")

    def show_conversation(self, messages: Sequence[Message]) -> None:
        """Show an earlier conversation to a person. A pipe gets only new answers."""
        if self.interactive:
            super().show_conversation(messages)

    def ended(self) -> None:
        """Start a new line, unless the cursor is at the start of one."""
        if not self._at_line_start:
            with suppress(BrokenPipeError):  # writing the text has raised it before
                self.write("\n")

    def note(self, text: str, style: str = "dim") -> None:
        """Show a line from the program itself."""
        if self._delayed is not None:
            self._delayed.append(partial(self.note, text, style))
        else:
            self.note_now(text, style)

    def note_now(self, text: str, style: str = "dim") -> None:
        """Show a line at once, even while a question delays other output."""
        if not self._at_line_start:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._at_line_start = True
        self._notes.print(Text(legible(text), style=style))

    @contextmanager
    def delay_output(self) -> Generator[None]:
        """Delay all output except that of the question."""
        self._delayed = []
        try:
            yield
        finally:
            delayed, self._delayed = self._delayed, None
            for show in delayed:
                show()

    async def choose(self, label: str, rows: QuestionRows) -> str | None:
        """Ask below the rows. Drop type-ahead, and refuse an answer in a burst of keys."""
        while True:
            lines = await asyncio.to_thread(rows, *screen_size())
            self.note_now("\n".join(lines), "cyan")
            if await discard_typeahead():
                self.note_now("(text typed before this question was dropped)")
            answer, alone = await self._editor.choose(label)
            if answer is None or alone:
                return answer
            self.note_now("(not accepted: type the answer alone, do not paste it)")

    async def edit(self, label: str, text: str) -> str | None:
        """Let the person edit a text, or write it again if there is no line editor."""
        if not self._editor.edits:
            self.note_now(text)
        return await self._editor.answer(label, text)
