"""The plain screen: line by line, in a pipe, on a terminal without keys, and with `--plain`."""

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
from ._approval import Rows, screen_size
from ._rules import Rules
from ._screen import Screen

__all__ = ["PlainScreen"]


class PlainScreen(Screen):
    """Writes the model's text to the standard output as it comes, and notes next to it.

    On a terminal, notes and calls of tools appear in a dim colour. In a pipe they go to the
    standard error, so that the output contains only answers. `silent` leaves out the answers.
    """

    def __init__(
        self,
        commands: list[str],
        rules: Rules | None = None,
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
        self._delayed: list[Callable[[], None]] | None = None  # output that waits for an answer
        self._at_line_start = True

    async def read(self) -> str | None:
        """Return the person's next message, None at the end of the input."""
        self.ended()
        while self.interactive:
            try:
                return await self._editor.read("> ")
            except KeyboardInterrupt:
                self.on_interrupt()
                await asyncio.sleep(0)  # it may have cancelled this task
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
        """Show a message from an earlier time; a new one is on the screen already."""
        if again and self.interactive:
            self.note(f"> {text}")

    def show_conversation(self, messages: Sequence[Message]) -> None:
        """Show it to a person; the output of a pipe contains only new answers."""
        if self.interactive:
            super().show_conversation(messages)

    def ended(self) -> None:
        """Begin a new line, unless the cursor is at the start of one."""
        if not self._at_line_start:
            with suppress(BrokenPipeError):  # the write of the text has raised it already
                self.write("\n")

    def note(self, text: str, style: str = "dim") -> None:
        """Show a line of the program's own."""
        if self._delayed is not None:
            self._delayed.append(partial(self.note, text, style))
        else:
            self.tell(text, style)

    def tell(self, text: str, style: str = "dim") -> None:
        """Show a line at once, also while a question delays other output."""
        if not self._at_line_start:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._at_line_start = True
        self._notes.print(Text(legible(text), style=style))

    @contextmanager
    def holds_output(self) -> Generator[None]:
        """Delay all output but that of the question."""
        self._delayed = []
        try:
            yield
        finally:
            delayed, self._delayed = self._delayed, None
            for show in delayed:
                show()

    async def choose(self, label: str, rows: Rows) -> str | None:
        """Ask below the rows; drop text that was typed before or together with more."""
        while True:
            shown = await asyncio.to_thread(rows, *screen_size())
            self.tell("\n".join(shown), "cyan")
            if await discard_typeahead():
                self.tell("(what was typed before this question is dropped)")
            answer, alone = await self._editor.choose(label)
            if answer is None or alone:
                return answer
            self.tell("(that came together with more; an answer is typed by itself)")

    async def edit(self, label: str, text: str) -> str | None:
        """Let the person edit a text, or write it again where there is no line editor."""
        if not self._editor.edits:
            self.tell(text)
        return await self._editor.answer(label, text)
