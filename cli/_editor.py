"""Read a line from the person, with a line editor if the terminal can move the cursor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead, get_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.patch_stdout import patch_stdout

from ..jobs import read_line
from ._keyboard import discard_typeahead

__all__ = ["LineEditor", "open_history", "screen", "terminal_output"]


class LineEditor:
    """Reads messages and answers of a person. `edits` is true if a line editor is available."""

    def __init__(self, commands: list[str]) -> None:
        self.edits = os.environ.get("TERM", "dumb") != "dumb" and sys.stdout.isatty()
        self._commands = commands

    async def read(self, prompt: str) -> str | None:
        """Return the person's message, None at the end of the input.

        Alt-Enter, or a backslash at the end of a line, continues the message on another line. The
        message is added to the history of all sessions. Ctrl-C clears the line, and raises
        `KeyboardInterrupt` if the line is empty.
        """
        if not self.edits:
            return await _read_plain(prompt)
        while True:
            try:
                message = await self._session.prompt_async(prompt, handle_sigint=False)
                return message.encode("utf-8", "replace").decode()  # bytes that were no text
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self._session.default_buffer.text:
                    raise

    @cached_property
    def _session(self) -> PromptSession[str]:
        keys = KeyBindings()

        @keys.add("escape", "enter")
        def begin_line(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            event.current_buffer.insert_text("\n")

        @keys.add("enter")
        def enter(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            buffer: Any = event.current_buffer
            if buffer.document.char_before_cursor == "\\":
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        return PromptSession(
            history=open_history(),
            key_bindings=keys,
            completer=WordCompleter(self._commands, sentence=True),
            complete_while_typing=False,
            output=terminal_output(),
        )

    async def answer(self, prompt: str, draft: str = "") -> str | None:
        """Return the answer to a question, None for no answer. The person can edit `draft`.

        The answer is not added to the history. Output of the program appears above the question.
        """
        if not self.edits:
            return await _read_plain(prompt)
        session: PromptSession[str] = PromptSession(
            output=terminal_output(), enable_open_in_editor=True
        )
        return await _prompt(session, prompt, draft)

    async def choose(self, prompt: str) -> tuple[str | None, bool]:
        """Return the answer to a question, None for no answer, and whether it was typed alone.

        An answer that arrives in one burst with further keys was probably pasted, so the caller
        must ask again. Marked pastes are refused. Call `discard_typeahead` first.
        """
        if not self.edits:
            answer = await _ask_plain(prompt)
            return answer, not await discard_typeahead()
        keys = KeyBindings()

        @keys.add(Keys.BracketedPaste)
        def refuse_paste(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            event.app.output.bell()

        session: PromptSession[str] = PromptSession(output=terminal_output(), key_bindings=keys)
        clear_typeahead(session.app.input)
        answer = await _prompt(session, prompt)
        return answer, not get_typeahead(session.app.input) and not await discard_typeahead()


def screen() -> TextIO:
    """Return the stream that the person sees: standard error if only that is a terminal."""
    return sys.stderr if sys.stderr.isatty() and not sys.stdout.isatty() else sys.stdout


async def _prompt(session: PromptSession[str], prompt: str, draft: str = "") -> str | None:
    try:
        with patch_stdout(raw=True):
            return await session.prompt_async(prompt, default=draft, handle_sigint=False)
    except (EOFError, KeyboardInterrupt):
        return None


async def _ask_plain(prompt: str) -> str | None:
    screen().write(prompt)
    screen().flush()
    return await read_line()


async def _read_plain(prompt: str) -> str | None:
    lines: list[str] = []
    while True:
        line = await _ask_plain("... " if lines else prompt)
        if line is None:
            return "\n".join(lines) if lines else None
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)


def open_history() -> FileHistory | InMemoryHistory:
    """Return the history of all sessions, or an empty one in memory if its file is not writable."""
    from platformdirs import user_state_path

    try:
        path: Path = user_state_path("anabranch", ensure_exists=True) / "history"
        with path.open("ab"):
            path.chmod(0o600)
        return _History(path)
    except OSError:
        return InMemoryHistory()


def terminal_output() -> Output:
    """Return an output that never asks the terminal for its cursor position.

    Some terminals do not reply, and prompt_toolkit then prints a warning into the user's line. A
    late reply would be read as keys by the next program. The prompt works without the position.
    """
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output


class _History(FileHistory):
    """A history whose errors, such as a full disk, do not end the chat."""

    def load_history_strings(self) -> Iterable[str]:
        with suppress(OSError):
            return super().load_history_strings()
        return ()

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)
