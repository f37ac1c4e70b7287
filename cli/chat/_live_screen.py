"""The live screen: finished blocks of Markdown in the scrollback, growing text above the prompt."""

from __future__ import annotations

import asyncio
import base64
import io
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from prompt_toolkit.application import in_terminal
from prompt_toolkit.completion import Completer
from prompt_toolkit.history import History
from rich.console import Console
from rich.text import Text

from ...commander import ConfigurationError
from ...commander.process import end_process, start_process
from ...handlers.legible import legible
from ...tools import ToolResult
from .._output import one_line
from ._approval import QuestionRows
from ._approval_rules import ApprovalRules
from ._inline_images import Protocol as ImageProtocol
from ._inline_images import figure_lines, find_protocol
from ._prompt import LivePrompt, PromptListener
from ._screen import Screen

if TYPE_CHECKING:  # imported at the first answer, so that the prompt appears sooner
    from ._markdown import Block, MarkdownStream
    from ._markdown_view import MarkdownStyle

__all__ = ["THEMES", "ChatController", "LiveScreen"]

THEMES = ("dark", "light", "none")
MAX_WAITING_LINES = 3
# In which an editor can restore the terminal when the chat is cancelled.
EDITOR_GRACE_SECONDS = 2.0


class ChatController(PromptListener, Protocol):
    """The chat behind the screen: receives the person's actions, and supplies the lines to show."""

    def status_line(self, columns: int) -> str:
        """Return the status line, for example what the model is doing."""
        ...

    def tree_lines(self, columns: int, rows: int) -> list[str]:
        """Return the tree of running nodes."""
        ...

    def waiting_lines(self) -> list[str]:
        """Return a line for each waiting message."""
        ...

    def show_steering(self) -> None:
        """Show the steering messages, since a reply to a request with them begins."""


class LiveScreen(Screen):
    """Prints finished blocks of Markdown above the prompt, and redraws the block that still grows.

    `show_prompt` shows the prompt for a `ChatController`.
    """

    shows_tree = False

    def __init__(
        self, rules: ApprovalRules | None = None, *, theme: str = "dark", debug: bool = False
    ) -> None:
        super().__init__(rules, debug=debug)
        self.prompt: LivePrompt | None = None
        self.theme = theme
        self._stage: ChatController | None = None
        self._markdown: MarkdownStream | None = None
        # The last drawing of the growing block: its columns and rows, and its lines.
        self._drawn: tuple[int, int, list[str]] = (0, 0, [])
        self._is_below_block = False  # then the next block needs an empty line before it
        self._images: ImageProtocol | None = find_protocol(os.environ)
        # The Linux console and older terminals would show the address of a link as text.
        self._links = not os.environ.get("TERM", "").startswith(("linux", "vt"))

    @asynccontextmanager
    async def show_prompt(
        self, stage: ChatController, completer: Completer, history: History
    ) -> AsyncGenerator[None]:
        """Show the prompt during this block."""
        self._stage = stage
        self.prompt = prompt = LivePrompt(stage, completer, history)
        running = asyncio.ensure_future(prompt.run())
        # If the terminal disappears, the prompt ends first, and then the chat must end too.
        running.add_done_callback(lambda _: stage.leave())
        try:
            yield
        finally:
            prompt.close()
            with suppress(OSError, EOFError):
                await running

    # --- above the prompt

    def _print(self, text: str) -> None:
        self._is_below_block = self._is_below_block and text.endswith("\n")
        if self.prompt is not None:
            self.prompt.print(text)

    def _print_text(self, text: str, style: str) -> None:
        file = io.StringIO()
        console = Console(
            file=file,
            force_terminal=True,
            width=self.columns,
            highlight=False,
            no_color=bool(os.environ.get("NO_COLOR")),
            legacy_windows=False,
        )
        console.print(Text(legible(text), style=style))
        self._print(file.getvalue())

    def note(self, text: str, style: str = "dim") -> None:
        """Show a line from the program itself."""
        self._print_text(text, style)

    def show_said(self, text: str, *, again: bool = False) -> None:
        """Show a message of the person, which has left the input line."""
        first, *rest = text.split("\n")
        self._print_text("\n".join([f"> {first}", *(f"  {line}" for line in rest)]), "bold")

    def write(self, text: str) -> None:
        """Show a piece of the model's text."""
        if self._markdown is None:
            from ._markdown import MarkdownStream

            self._markdown = MarkdownStream()
            if self._stage is not None:
                self._stage.show_steering()
        self._print_blocks(self._markdown.feed(text))
        if self.prompt is not None:
            self.prompt.touch()

    def ended(self) -> None:
        """Print the rest of the text."""
        if self._markdown is not None:
            self._print_blocks(self._markdown.end())
            self._markdown = None

    def _print_blocks(self, blocks: Sequence[Block]) -> None:
        from ._markdown_view import render

        for block in blocks:
            try:
                text = render(block, self._look(self.columns))
            except Exception:  # noqa: BLE001 - the text matters more than its style
                text = block.source
            if not block.joined and self._is_below_block:
                text = "\n" + text
            self._is_below_block = True
            self._print(text)

    def _look(self, columns: int) -> MarkdownStyle:
        from ._markdown_view import MarkdownStyle

        colors = not os.environ.get("NO_COLOR")
        return MarkdownStyle(columns, cast("Any", self.theme), self._links, colors)

    def show_files(self, result: ToolResult) -> None:
        """Show figures, inline if the terminal supports images, and their paths."""
        for line in figure_lines(result, self._images, self.columns - 4):
            self._print(f"   {line}\n")

    # --- the terminal

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return 80 if self.prompt is None else self.prompt.columns

    @property
    def is_asking(self) -> bool:
        """Whether a question is shown."""
        return self.prompt is not None and self.prompt.asking.visible is not None

    @property
    def is_waiting_for_pause(self) -> bool:
        """Whether a question waits until the person stops typing."""
        return self.prompt is not None and self.prompt.asking.is_waiting_for_pause

    def bring_back(self, text: str) -> None:
        """Put a text back into the input line, before its present text."""
        if self.prompt is not None:
            self.prompt.bring_back(text)

    def touch(self, *, now: bool = False) -> None:
        """Redraw the lines above the prompt: soon, or `now`."""
        if self.prompt is not None:
            self.prompt.touch(now=now)

    def choose_theme(self, name: str) -> None:
        """Use another theme; raise `ConfigurationError` for an unknown one."""
        if name not in THEMES:
            raise ConfigurationError(f"unknown theme {name!r}. Use one of: {', '.join(THEMES)}")
        self.theme, self._drawn = name, (0, 0, [])

    def copy(self, text: str) -> None:
        """Copy text to the terminal's clipboard (OSC 52), also over ssh. Some terminals refuse."""
        if self.prompt is not None:
            data = base64.b64encode(text.encode("utf-8", "replace")).decode()
            self.prompt.send(f"\x1b]52;c;{data}\x07")

    async def run_in_front(self, command: Sequence[str]) -> int:
        """Give the terminal to another program until it ends; return its exit status."""
        async with in_terminal():
            try:
                process = await start_process(*command)
            except OSError as error:
                message = f"cannot run {command[0]}: {error.strerror or error}. Set $EDITOR"
                raise ConfigurationError(message) from None
            try:
                return await process.wait()
            finally:
                await end_process(process, grace=EDITOR_GRACE_SECONDS)

    # --- at the prompt

    def lines_above(self, columns: int, rows: int) -> list[str]:
        """Return the lines between the scrollback and the prompt."""
        stage = self._stage
        if stage is None:
            return []
        waiting = [one_line(text, 400) for text in stage.waiting_lines()]
        if (more := len(waiting) - MAX_WAITING_LINES) > 0:
            waiting = [f"({more} more)", *waiting[more:]]
        below = [_shortened(line, columns) for line in waiting]
        if status := stage.status_line(columns - 1):
            below.append(status)
        below = [f"\x1b[2m{line}\x1b[0m" for line in below]
        if self.shows_tree and (room := rows - len(below)) > 1:
            below = [*stage.tree_lines(columns - 1, max(room // 2, 1)), *below]
        room = rows - len(below)
        return [*self._open_lines(columns, room), *below] if room > 0 else below

    def _open_lines(self, columns: int, rows: int) -> list[str]:
        if self._markdown is None or not self._markdown.open.strip():
            return []
        if self._markdown.dirty or self._drawn[:2] != (columns, rows):
            self._markdown.dirty = False
            from ._markdown_view import tail

            try:
                text = tail(self._markdown.block, self._look(columns), rows)
            except Exception:  # noqa: BLE001 - show the text without its style
                text = self._markdown.open[-columns:]
            self._drawn = columns, rows, text.split("\n")
        return self._drawn[2]

    # --- questions

    async def choose(self, label: str, rows: QuestionRows) -> str | None:
        """Ask in the input line; the person's draft is restored afterwards."""
        return None if self.prompt is None else await self.prompt.asking.ask(label, rows)

    async def edit(self, label: str, text: str) -> str | None:
        """Let the person edit a text in the input line."""
        if self.prompt is None:
            return None
        return await self.prompt.asking.ask(label, draft=text, guarded=False)


def _shortened(line: str, columns: int) -> str:
    text = Text(line)
    text.truncate(columns - 1, overflow="ellipsis")
    return text.plain
