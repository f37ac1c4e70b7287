"""The chat on a terminal: finished blocks of Markdown above, what grows at the prompt."""

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
from rich.console import Console, RenderableType
from rich.text import Text

from ...commander import ConfigurationError
from ...commander.process import end_process, start_process
from ...handlers.legible import legible
from ...tools import ToolResult
from .._terminal import in_line
from ._figures import Protocol as Way
from ._figures import figures, protocol
from ._prompt import Listener, LivePrompt
from ._rules import Rules
from ._screen import Rows, Screen

if TYPE_CHECKING:  # they are read with the first answer: the prompt stands sooner
    from ._markdown import Block, MarkdownStream
    from ._markdown_view import Look

__all__ = ["THEMES", "LiveScreen", "Stage"]

THEMES = ("dark", "light", "none")

# Of what waits, as many lines are shown, and how long one may be.
MOST_WAITING = 3

# For an editor that has the terminal when the chat is cancelled, to restore it.
EDITOR_GRACE_SECONDS = 2.0


class Stage(Listener, Protocol):
    """Hears what the person does, and says what stands at the prompt."""

    def status_line(self, columns: int) -> str:
        """Return what is going on, in words."""
        ...

    def tree_lines(self, columns: int, rows: int) -> list[str]:
        """Return the tree of what goes on."""
        ...

    def waits(self) -> list[str]:
        """Return what waits, in words."""
        ...

    def heard(self) -> None:
        """Text is about to be shown: whoever speaks has heard what steered it."""


class LiveScreen(Screen):
    """Shows blocks of Markdown above the prompt once they are whole, the open one at the prompt.

    It stands while `standing` does, for a `Stage`, which says what stands at the prompt.
    """

    shows_tree = False

    def __init__(
        self, rules: Rules | None = None, *, theme: str = "dark", debug: bool = False
    ) -> None:
        super().__init__(rules, debug=debug)
        self.prompt: LivePrompt | None = None  # once it stands there
        self.theme = theme
        self._stage: Stage | None = None
        self._markdown: MarkdownStream | None = None
        # The open block as it was drawn: for how many columns and rows, and its lines.
        self._drawn: tuple[int, int, list[str]] = (0, 0, [])
        self._below_block = False  # whether a block was printed last, and an empty line parts them
        self._images: Way | None = protocol(os.environ)
        # The console of Linux and older terminals show the address of a link as text.
        self._links = not os.environ.get("TERM", "").startswith(("linux", "vt"))

    @asynccontextmanager
    async def standing(
        self, stage: Stage, completer: Completer, history: History
    ) -> AsyncGenerator[None]:
        """Let the prompt stand there during this block."""
        self._stage = stage
        self.prompt = prompt = LivePrompt(stage, completer, history)
        running = asyncio.ensure_future(prompt.run())
        running.add_done_callback(lambda _: stage.leave())  # also where its terminal is gone
        try:
            yield
        finally:
            prompt.close()
            with suppress(OSError, EOFError):
                await running

    # --- what is printed

    def print(self, what: RenderableType) -> None:
        """Print something above the prompt."""
        self._print(self.render(what))

    def _print(self, text: str) -> None:
        self._below_block = self._below_block and text.endswith("\n")
        if self.prompt is not None:
            self.prompt.print(text)

    def render(self, what: RenderableType, columns: int | None = None) -> str:
        """Return something as text with ANSI colours, as wide as the terminal."""
        width = columns or self.columns
        file = io.StringIO()
        console = Console(
            file=file,
            force_terminal=True,
            width=width,
            highlight=False,
            no_color=bool(os.environ.get("NO_COLOR")),
            legacy_windows=False,
        )
        console.print(what)
        return file.getvalue()

    @property
    def columns(self) -> int:
        """How wide the terminal is."""
        return 80 if self.prompt is None else self.prompt.columns

    @property
    def is_asking(self) -> bool:
        """Whether a question stands there."""
        return self.prompt is not None and self.prompt.asking.standing is not None

    @property
    def is_holding_back(self) -> bool:
        """Whether a question waits until the person stops typing."""
        return self.prompt is not None and self.prompt.asking.is_holding_back

    def bring_back(self, text: str) -> None:
        """Put a text into the line again, before what was written since."""
        if self.prompt is not None:
            self.prompt.bring_back(text)

    def touch(self) -> None:
        """Draw what stands at the prompt anew."""
        if self.prompt is not None:
            self.prompt.touch(now=True)

    def choose_theme(self, name: str) -> None:
        """Use other colours from now on; raise `ConfigurationError` for a theme that is not one."""
        if name not in THEMES:
            raise ConfigurationError(f"there is no theme {name!r}; there are: {', '.join(THEMES)}")
        self.theme, self._drawn = name, (0, 0, [])

    def copy(self, text: str) -> None:
        """Give text to the clipboard of the terminal, also over ssh: OSC 52, which some refuse."""
        if self.prompt is not None:
            data = base64.b64encode(text.encode("utf-8", "replace")).decode()
            self.prompt.send(f"\x1b]52;c;{data}\x07")

    async def run_in_front(self, command: Sequence[str]) -> int:
        """Give the terminal to another program until it ends; return its status."""
        async with in_terminal():
            try:
                process = await start_process(*command)
            except OSError as error:
                what = f"{command[0]} cannot be run: {error.strerror or error}; set $EDITOR"
                raise ConfigurationError(what) from None
            try:
                return await process.wait()
            finally:
                await end_process(process, grace=EDITOR_GRACE_SECONDS)

    def note(self, text: str, style: str = "dim") -> None:
        """Show something that neither the user nor the model has said."""
        self.print(Text(legible(text), style=style))

    def show_said(self, text: str, *, again: bool = False) -> None:
        """Show what the person has said: it has gone from the line."""
        first, *rest = legible(text).split("\n")
        shown = Text("\n".join([f"> {first}", *(f"  {line}" for line in rest)]), style="bold")
        self.print(shown)

    def write(self, text: str) -> None:
        """Show a piece of the model's words."""
        if self._markdown is None:
            from ._markdown import MarkdownStream

            self._markdown = MarkdownStream()
            if self._stage is not None:
                self._stage.heard()
        self._print_blocks(self._markdown.feed(text))
        if self.prompt is not None:
            self.prompt.touch()

    def ended(self) -> None:
        """Print what has not been printed of the text."""
        if self._markdown is None:
            return
        self._print_blocks(self._markdown.end())
        self._markdown = None

    def _print_blocks(self, blocks: Sequence[Block]) -> None:
        from ._markdown_view import render

        for block in blocks:
            try:
                text = render(block, self._look(self.columns))
            except Exception:  # noqa: BLE001 - the words count more than their looks
                text = block.source
            if not block.joined and self._below_block:
                text = "\n" + text
            self._below_block = True
            self._print(text)

    def _look(self, columns: int) -> Look:
        from ._markdown_view import Look

        colors = not os.environ.get("NO_COLOR")
        return Look(columns, cast("Any", self.theme), self._links, colors)

    def show_files(self, result: ToolResult) -> None:
        """Show the figures of a call where the terminal can, and where they are."""
        for line in figures(result, self._images, self.columns - 4):
            self._print(f"   {line}\n")

    # --- what stands at the prompt

    def above(self, columns: int, rows: int) -> list[str]:
        """Return the lines between the scrollback and the prompt."""
        stage = self._stage
        if stage is None:
            return []
        waiting = [in_line(text, 400) for text in stage.waits()]
        more = len(waiting) - MOST_WAITING
        if more > 0:
            waiting = [f"({more} more)", *waiting[more:]]
        waiting = [_fit(line, columns) for line in waiting]
        status = stage.status_line(columns - 1)
        below = [f"\x1b[2m{line}\x1b[0m" for line in [*waiting, *([status] if status else [])]]
        room = rows - len(below)
        if self.shows_tree and room > 1:
            tree = stage.tree_lines(columns - 1, max(room // 2, 1))
            below = [*tree, *below]
            room -= len(tree)
        return [*self._open_lines(columns, room), *below] if room > 0 else below

    def _open_lines(self, columns: int, rows: int) -> list[str]:
        if self._markdown is None or not self._markdown.open.strip():
            return []
        if self._markdown.dirty or self._drawn[:2] != (columns, rows):
            self._markdown.dirty = False
            from ._markdown_view import tail

            try:
                text = tail(self._markdown.block, self._look(columns), rows)
            except Exception:  # noqa: BLE001 - as above
                text = self._markdown.open[-columns:]
            self._drawn = columns, rows, text.split("\n")
        return self._drawn[2]

    # --- questions

    async def choose(self, label: str, rows: Rows) -> str | None:
        """Ask in the line, below what is asked; what was being written comes back afterwards."""
        return None if self.prompt is None else await self.prompt.asking.ask(label, rows)

    async def edit(self, label: str, text: str) -> str | None:
        """Let the person change a text in the line."""
        if self.prompt is None:
            return None
        return await self.prompt.asking.ask(label, draft=text, guarded=False)


def _fit(line: str, columns: int) -> str:
    shown = Text(line)
    shown.truncate(columns - 1, overflow="ellipsis")
    return shown.plain
