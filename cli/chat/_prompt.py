"""The live prompt: an input line that is always there, and the lines between it and the scrollback.

One prompt_toolkit application runs as long as the chat. So the terminal never echoes keys itself:
keys during an answer appear only in the input line. Output is printed above it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import Any, Protocol, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output

from .._editor import terminal_output
from .._keyboard import TerminalMode
from .._output import one_line
from .._streams import CapturedStream, capture_streams, unfinished_lines
from ._prompt_question import PromptQuestions

__all__ = ["LivePrompt", "PromptListener"]

FRAME_SECONDS, IDLE_FACTOR = 0.05, 4
"""The pause between two drawings of growing text: seconds, or a factor of the drawing's duration.

Keys are shown at once, below the last drawing."""

MIN_PASTED_KEYS = 50
"""This many letters at once are a paste, from a terminal that does not mark pastes."""

# Terminals with synchronized output show everything between these at once, without flicker.
HOLD_OUTPUT, RELEASE_OUTPUT = "\x1b[?2026h", "\x1b[?2026l"

INPUT_ROWS = 4  # reserved for the input line and its menu


class PromptListener(Protocol):
    """Receives the person's actions at the prompt, in the prompt's event loop."""

    def take_message(self, text: str) -> None:
        """Take a text that the person sent with Enter."""

    def queue_message(self, text: str) -> None:
        """Take a text that the person queued with Tab."""

    def take_back(self) -> str | None:
        """Remove and return the newest queued text, for Esc; None if there is none."""

    def interrupt(self) -> None:
        """Handle Ctrl-C in an empty line."""

    def leave(self) -> None:
        """Handle Ctrl-D in an empty line."""

    def lines_above(self, columns: int, rows: int) -> list[str]:
        """Return the lines above the prompt, with ANSI colours."""
        ...


class LivePrompt:
    """Reads the person's messages while `run` runs. Call all methods in its event loop.

    Enter sends the line, Tab queues it, and Esc takes the newest queued text back. Tab completes if
    a menu is open or the word begins with `/` or `@`. Alt-Enter, or a backslash before Enter,
    starts a new line.
    """

    def __init__(
        self,
        listener: PromptListener,
        completer: Completer | None = None,
        history: History | None = None,
        *,
        input: Input | None = None,  # noqa: A002 - the name that prompt_toolkit gives it
        output: Output | None = None,
    ) -> None:
        self._listener = listener
        self.asking = PromptQuestions(
            lambda: self._session.default_buffer, lambda: self.touch(now=True), self.print
        )
        self._pending: list[str] = []
        self._streams: list[CapturedStream] = []
        self._is_output_held = False  # whether the terminal waits for RELEASE_OUTPUT
        self._drawing: asyncio.TimerHandle | None = None
        self._mode: TerminalMode | None = None
        self._drawn = Size(0, 0)  # the terminal's size at the last drawing
        # The text above the input line, its parsed form, and the seconds that both took.
        self._before = ""
        self._parsed: StyleAndTextTuples = []
        self._took = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()  # the thread of the event loop
        self._session: PromptSession[str] = PromptSession(
            message=lambda: self._parsed,  # cached, since each drawing calls this ten times
            completer=completer,
            complete_while_typing=Condition(self._is_completing),
            complete_in_thread=True,
            reserve_space_for_menu=6,
            history=history,
            key_bindings=self._bindings(),
            enable_suspend=True,
            erase_when_done=True,
            prompt_continuation="  ",
            input=input,
            output=output or terminal_output(),
        )
        app = self._session.app
        # Seconds to wait after Esc, which may begin the sequence of another key.
        app.ttimeoutlen, app.timeoutlen = 0.05, 0.3
        app.key_processor.before_key_press += self.asking.note_key
        feed = app.key_processor.feed_multiple
        app.key_processor.feed_multiple = lambda key_presses, first=False: feed(
            _joined(key_presses), first
        )
        app.before_render += self._keep_terminal
        app.after_render += self._release
        app.terminal_size_polling_interval = None  # `_watch_signals` handles SIGWINCH
        app.max_render_postpone_time = None  # keys must not wait for a pause in the output

    # --- start and end

    async def run(self) -> None:
        """Show the prompt until `close`. Output of the program is printed above it."""
        self._loop = asyncio.get_running_loop()
        self._flush()  # output from before the prompt
        with capture_streams(
            self.print_threadsafe, lambda: self._call_threadsafe(self.touch), hide_input=True
        ) as self._streams:
            try:
                await self._session.prompt_async(
                    handle_sigint=False,
                    set_exception_handler=False,
                    pre_run=lambda: cast("Any", self._loop).call_soon(self._watch_signals),
                )
            finally:
                self.asking.end()
                if self._drawing is not None:
                    self._drawing.cancel()
                self._end_lines()
        self._flush()

    def close(self) -> None:
        """Let `run` end."""
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(result="")

    # --- output

    def print(self, text: str) -> None:
        """Print text above the prompt on separate lines."""
        self._end_lines()
        self._put(text)

    def _end_lines(self) -> None:
        for stream in self._streams:
            if line := stream.take():
                self._put(line)

    def _put(self, text: str) -> None:
        self._pending.append(text if text.endswith("\n") else text + "\n")
        if len(self._pending) == 1 and self._loop is not None:
            self._loop.call_soon(self._flush)

    def send(self, sequence: str) -> None:
        """Send the terminal a sequence that does not change the screen."""
        self._session.app.output.write_raw(sequence)
        self._session.app.output.flush()

    def print_threadsafe(self, text: str) -> None:
        """Print from any thread."""
        self._call_threadsafe(self._put, text)

    def _call_threadsafe(self, function: Callable[..., None], *given: str) -> None:
        if threading.get_ident() == self._thread:
            function(*given)  # at once, to preserve the order of all output
        elif self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the program ends
                self._loop.call_soon_threadsafe(function, *given)

    def _flush(self) -> None:
        app, output = self._session.app, self._session.app.output
        if app.is_running and app.is_done:
            return  # the application is erasing the prompt; `run` prints the rest afterwards
        text, self._pending = "".join(self._pending), []
        if not text:
            return
        if not app.is_running:
            output.write_raw(text)
            output.flush()
            return
        output.write_raw(HOLD_OUTPUT)
        self._follow_size()
        app.renderer.erase(leave_alternate_screen=False)
        output.write_raw(text)
        self._is_output_held = True
        self._compose()
        app.invalidate()

    def _release(self, _: object = None) -> None:
        if self._is_output_held:
            self._is_output_held = False
            self._session.app.output.write_raw(RELEASE_OUTPUT)
            self._session.app.output.flush()

    def touch(self, *, now: bool = False) -> None:
        """Redraw the lines above the prompt: soon, or in this turn of the event loop."""
        if now:
            self._draw()
        elif self._drawing is None and self._loop is not None and not self._loop.is_closed():
            self._drawing = self._loop.call_later(
                max(FRAME_SECONDS, IDLE_FACTOR * self._took), self._draw
            )

    def _draw(self) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            self._drawing = None
        if self._compose():
            self._session.app.invalidate()

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return self._session.app.output.get_size().columns or 80

    def _watch_signals(self) -> None:
        if hasattr(signal, "SIGWINCH") and threading.current_thread() is threading.main_thread():
            with suppress(NotImplementedError, RuntimeError):  # a loop without signal support
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGWINCH, self._session.app.invalidate)
                loop.add_signal_handler(signal.SIGCONT, self._resume_terminal)

    def _resume_terminal(self) -> None:
        """Show the prompt again, below the text that the shell wrote during the stop."""
        app = self._session.app
        if app.is_running and self._mode is not None and self._mode.restore():
            app.renderer.reset()
            app.output.write_raw("\r\n")
            app.invalidate()

    def _keep_terminal(self, _: object = None) -> None:
        """Restore the terminal mode, which programs of tools may have changed."""
        if self._mode is None:
            self._mode = TerminalMode(self._session.app.input.fileno())
        self._mode.restore()
        self._follow_size()

    def _follow_size(self) -> None:
        """After a change of the width, erase the last drawing, which the terminal has wrapped."""
        app = self._session.app
        size = app.output.get_size()
        if self._drawn.columns not in (0, size.columns):
            app.output.cursor_up(self._rewrapped(size.columns))
            app.renderer.erase(leave_alternate_screen=False)
        if self._drawn != size:
            self._drawn = size
            self._compose()

    def _rewrapped(self, columns: int) -> int:
        """Return the number of lines that wrapping has added above the cursor.

        Most terminals wrap lines to a new width. xterm and the Linux console cut them.
        """
        screen, term = self._session.app.renderer.last_rendered_screen, os.environ.get("TERM", "")
        cuts = "XTERM_VERSION" in os.environ or term.startswith(("linux", "vt"))
        if screen is None or cuts or (term.startswith("screen") and "TMUX" not in os.environ):
            return 0
        cursor = screen.get_cursor_position(self._session.app.layout.current_window)
        more = cursor.x // columns
        for row in range(cursor.y):
            cells = [at for at, each in screen.data_buffer[row].items() if each.char.strip()]
            more += max(cells, default=0) // columns
        return more

    def _compose(self) -> bool:
        """Update the text above the input line; return whether it has changed."""
        began = time.perf_counter()
        before, self._before = self._before, self._text_before()
        if changed := self._before != before:
            self._parsed = to_formatted_text(ANSI(self._before))
        self._took = time.perf_counter() - began
        return changed

    def _text_before(self) -> str:
        size = self._session.app.output.get_size()
        columns, rows = size.columns or 80, max(1, (size.rows or 24) - INPUT_ROWS)
        question = self.asking.visible
        if question is None:
            lines, label = (
                [*unfinished_lines(self._streams, columns), *self._above(columns, rows)],
                "> ",
            )
        else:
            lines, label = question.rows(columns, rows), question.label
        # The colour makes prompt_toolkit write the last space too. Otherwise the cursor would be
        # behind the last written cell, and some terminals lose it there when they wrap.
        return "\n".join([*lines[-rows:], f"\x1b[0;36m{label}\x1b[0m"])

    def _above(self, columns: int, rows: int) -> list[str]:
        try:
            # At most half of the screen. If the terminal becomes narrow, the wrapped lines must
            # still fit, since lines in the scrollback cannot be erased.
            return self._listener.lines_above(columns, (rows + 1) // 2)
        except Exception as error:  # noqa: BLE001 - a display error must not end the chat
            return [one_line(f"(not shown: {type(error).__name__}: {error})", max(columns - 40, 0))]

    # --- keys

    def bring_back(self, text: str) -> None:
        """Put a text into the input line, before its present text."""
        buffer = self._session.default_buffer
        buffer.document = Document(f"{text}\n{buffer.text}" if buffer.text else text)

    def _is_completing(self) -> bool:
        if self.asking.is_asked:
            return False
        before = self._session.default_buffer.document.text_before_cursor
        word = before.split()[-1:] if before[-1:].strip() else []
        return before.startswith("/") or (bool(word) and word[0].startswith("@"))

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()
        is_empty = Condition(lambda: not self._session.default_buffer.text)
        is_guarded = Condition(lambda: bool((question := self.asking.visible) and question.guarded))
        keys.add("enter")(self._on_enter)
        keys.add("c-c")(self._on_ctrl_c)
        keys.add("c-d", filter=is_empty)(self._on_ctrl_d)
        keys.add("escape", "enter")(_begin_line)
        keys.add("c-x", "c-e")(_open_editor)
        keys.add("escape")(self._on_escape)
        keys.add("tab")(self._on_tab)
        keys.add(Keys.BracketedPaste, filter=is_guarded)(_refuse_paste)
        return keys

    def _take(self) -> str:
        buffer = self._session.default_buffer
        text = buffer.text.encode("utf-8", "replace").decode()  # bytes that were no text
        buffer.reset(append_to_history=bool(text.strip()) and not self.asking.is_asked)
        return text

    def _on_enter(self, event: KeyPressEvent) -> None:
        buffer: Any = event.current_buffer
        state = buffer.complete_state
        if state and state.current_completion and not buffer.text.startswith("/"):
            buffer.complete_state = None  # a file was chosen; the message may continue
            return
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        if (question := self.asking.visible) is not None:
            self.asking.answer(question, buffer.text)
        elif (text := self._take()).strip():
            self._listener.take_message(text)

    def _on_tab(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.complete_next()
        elif self._is_completing():
            buffer.start_completion(insert_common_part=True)
        elif not self.asking.is_asked and buffer.text.strip():
            self._listener.queue_message(self._take())

    def _on_escape(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.cancel_completion()
        elif not self.asking.dismiss() and (text := self._listener.take_back()) is not None:
            self.bring_back(text)

    def _on_ctrl_c(self, event: KeyPressEvent) -> None:
        if self.asking.dismiss():
            return
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            self._listener.interrupt()

    def _on_ctrl_d(self, event: KeyPressEvent) -> None:
        if not self.asking.dismiss():
            self._listener.leave()


def _joined(keys: list[KeyPress]) -> list[KeyPress]:
    """Join letters that arrive at once into a paste. A single key takes 0.3 milliseconds."""
    joined: list[KeyPress] = []
    for special, run in groupby(keys, lambda each: isinstance(each.key, Keys)):
        some = [*run]
        if not special and len(some) >= MIN_PASTED_KEYS:
            some = [KeyPress(Keys.BracketedPaste, "".join(each.data for each in some))]
        joined += some
    return joined


def _open_editor(event: KeyPressEvent) -> None:
    event.current_buffer.open_in_editor()  # it edits the input line and sends nothing


def _begin_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _refuse_paste(event: KeyPressEvent) -> None:
    event.app.output.bell()
