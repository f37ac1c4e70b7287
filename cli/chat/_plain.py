"""The chat line by line: in a pipe, on a terminal without keys, and where `--plain` wants it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from ...handlers.legible import legible
from ...jobs import read_line
from ...messages import Message, ToolCall
from ...tools import AnyTool, Decision
from .._editor import LineEditor, screen
from .._keyboard import discard_typeahead
from ._rules import Rules
from ._screen import Rows, Screen, screen_size

__all__ = ["PlainScreen"]


class PlainScreen(Screen):
    """Shows the model's words on the standard output as they come, the rest beside them.

    On a terminal, calls of tools and notes stand among the words in a dim colour; from a pipe they
    go to the standard error, so that the output holds answers alone; a silent one has not even
    those.
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
        # Whether Ctrl-C has stopped an answer, and the user has said nothing since.
        self.stopped = False
        stream: Any = screen() if self.interactive else sys.stderr
        self.encoding = stream.encoding
        self._notes = Console(file=stream, soft_wrap=True, highlight=False, markup=False)
        self._editor = LineEditor(commands)
        # What waits to be shown while a question stands there, None while there is none.
        self._held: list[Callable[[], None]] | None = None
        # Whether the last thing shown has ended its line.
        self._at_start = True

    async def read(self) -> str | None:
        """Return what the user says next, None at the end or for Ctrl-C at an empty prompt."""
        self.ended()
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
        if self._silent:
            return
        sys.stdout.write(legible(text))
        sys.stdout.flush()
        self._at_start = text.endswith("\n")

    def show_said(self, text: str, *, again: bool = False) -> None:
        """Show what the person has said in earlier times; what they say now stands there."""
        if again and self.interactive:
            self.note(f"> {text}")

    def show_conversation(self, messages: Sequence[Message]) -> None:
        """Show it to a person alone: the output of a pipe holds answers that are asked for."""
        if self.interactive:
            super().show_conversation(messages)

    def ended(self) -> None:
        """Begin a new line unless there is one."""
        if not self._at_start:
            with suppress(BrokenPipeError):  # nobody reads on, which the words themselves have told
                self.write("\n")

    def note(self, text: str, style: str = "dim") -> None:
        """Show something that neither the user nor the model has said."""
        if self._held is not None:
            self._held.append(partial(self.note, text, style))
            return
        self.tell(text, style)

    def tell(self, text: str, style: str = "dim") -> None:
        """Show something at once; while a question stands there nothing else is shown."""
        if not self._at_start:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._at_start = True
        self._notes.print(Text(legible(text), style=style))

    async def _decide(self, call: ToolCall, tool: AnyTool) -> Decision:
        self._held = []
        try:
            return await super()._decide(call, tool)
        finally:
            held, self._held = self._held, None
            for show in held:
                show()

    async def choose(self, label: str, rows: Rows) -> str | None:
        """Ask below what is asked; what was typed before the question stood there is dropped."""
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
        """Let the person change a text, or write it anew where there is no line editor."""
        if not self._editor.edits:
            self.tell(text)
        return await self._editor.answer(label, text)
