"""What the chat shows, and how it asks: a rich terminal, a plain one, or a pipe."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console
from rich.text import Text

from ..commander import NodeCancelled
from ..dispatch import ToolCall
from ..handlers import View
from ..jobs import read_line
from ..tools import AnyTool, Decision, InvalidArguments, ToolResult

__all__ = ["Terminal", "complain"]

LONGEST = 400

# What a model or a tool says may not steer the terminal: of the control characters only these pass.
_CONTROLS = {
    code: "" if code == ord("\r") else "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
}


def complain(error: BaseException | str) -> None:
    """Show an error in one line on the standard error."""
    text = " ".join(_harmless(str(error)).split()) or type(error).__name__
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text.assemble(("anabranch: ", "red"), text)
    )


class Terminal(View):
    """Shows an exchange: the model's words on the standard output as they are, the rest beside.

    On a terminal, calls of tools and notes stand among the words in a dim colour; from a pipe they
    go to the standard error, so that the output holds answers alone. `failures` counts the turns
    that failed.
    """

    def __init__(self, commands: list[str], *, debug: bool = False) -> None:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # for what the terminal cannot show or send
        self.interactive = sys.stdin.isatty()
        # Whether there is a line editor; without one the terminal's own must do.
        self._edits = os.environ.get("TERM", "dumb") != "dumb" and sys.stdout.isatty()
        self.failures = 0
        self._debug = debug
        self._notes = Console(
            stderr=not self.interactive, soft_wrap=True, highlight=False, markup=False
        )
        self._commands = commands
        self._prompt: PromptSession[str] | None = None
        self._asking = asyncio.Lock()
        # Whether the last thing shown has ended its line.
        self._at_start = True

    async def read(self, prompt: str = "> ") -> str | None:
        """Return what the user says, None at the end of the input or for Ctrl-C at an empty prompt.

        Several lines are one text: Alt-Enter, or a backslash at the end of a line.
        """
        self.end_line()
        if not self.interactive:
            return await read_line()
        if not self._edits:
            return await self._read_plain(prompt)
        if self._prompt is None:
            self._prompt = _session(self._commands)
        while True:
            try:
                return await self._prompt.prompt_async(prompt, handle_sigint=False)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self._prompt.default_buffer.text:
                    return None

    async def _read_plain(self, prompt: str) -> str | None:
        lines: list[str] = []
        while True:
            sys.stdout.write("... " if lines else prompt)
            sys.stdout.flush()
            line = await read_line()
            if line is None:
                return "\n".join(lines) if lines else None
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                return "\n".join(lines)

    def write(self, text: str) -> None:
        """Show a piece of the model's words."""
        sys.stdout.write(_harmless(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
        self._at_start = text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line unless there is one."""
        if not self._at_start:
            self.write("\n")

    def note(self, text: str, style: str = "dim") -> None:
        """Show something that neither the user nor the model has said."""
        self.end_line()
        self._notes.print(Text(_harmless(text), style=style))

    def called(self, call: ToolCall) -> None:
        """Show a call."""
        arguments = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in call.arguments.items()
        )
        self.note(_cut(f"[tool] {call.name}({arguments})"), "cyan")

    def answered(self, result: ToolResult) -> None:
        """Show what a call gave."""
        style = "dim" if result.status == "ok" else "yellow"
        self.note(_cut(f"   ->  {result.content or ''}"), style)

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
            Console(stderr=True).print_exception()
        complain(error)
        if self.interactive:
            self.note("nothing is lost: /retry tries this turn again, /undo forgets it")

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask on the terminal; from a pipe there is nobody to say yes.

        The person may edit the arguments first; those that the tool would not take are not run.
        """
        if self.approvals is not None or not self.interactive:
            return await super().ask(call, tool)
        async with self._asking:  # one question at a time, however many calls wait
            edited: dict[str, Any] | None = None
            while True:
                for name, value in (edited or call.arguments).items():
                    self.note(f"{name}: {value}", "cyan")  # whole: it is what the answer is about
                answer = (await self._line(f"run {call.name}? [y/N/e(dit)] ") or "").strip().lower()
                if answer not in ("e", "edit"):
                    return Decision(answer in ("y", "yes"), edited)
                edited = await self._edit(edited or call.arguments, tool) or edited

    async def _edit(self, arguments: dict[str, Any], tool: AnyTool) -> dict[str, Any] | None:
        """Let the person write other arguments, until `tool` takes them; None if they give up."""
        draft: str | None = json.dumps(arguments, ensure_ascii=False)
        self.note("the arguments, as JSON; an empty line gives up")
        self.note("Ctrl-X Ctrl-E opens $EDITOR" if self._edits else draft)
        while draft := await self._line("arguments: ", draft):
            try:
                tool.check(edited := _json_object(draft))
            except (ValueError, InvalidArguments) as error:
                complain(error)
            else:
                return edited
        return None

    async def _line(self, prompt: str, draft: str = "") -> str | None:
        """Return what the person answers, None for nothing; it does not enter the history."""
        self.end_line()
        if not self._edits:
            return await self._read_plain(prompt)
        session: PromptSession[str] = PromptSession(output=_output(), enable_open_in_editor=True)
        try:
            # What other calls show meanwhile stands above the question.
            with patch_stdout(raw=True):
                return await session.prompt_async(prompt, default=draft, handle_sigint=False)
        except (EOFError, KeyboardInterrupt):
            return None


def _json_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("the arguments are a JSON object: {...}")
    return cast("dict[str, Any]", found)


def _harmless(text: str) -> str:
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROLS)


def _cut(text: str) -> str:
    text = " ".join(text.split("\n"))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"


def _session(commands: list[str]) -> PromptSession[str]:
    return PromptSession(
        history=_history(),
        key_bindings=_keys(),
        completer=WordCompleter(commands, sentence=True),
        complete_while_typing=False,
        output=_output(),
    )


def _output() -> Output:
    """Return the terminal, never asked where its cursor is: some do not answer.

    Asked, such a terminal gets a warning in the midst of what the user writes; the answer of a
    slow one is taken for keys by what runs next. The prompt does not need it.
    """
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output


def _history() -> FileHistory | InMemoryHistory:
    from platformdirs import user_state_path

    try:
        path: Path = user_state_path("anabranch", ensure_exists=True) / "history"
        path.touch(mode=0o600)
    except OSError:  # a home that cannot be written: arrow keys still know this session
        return InMemoryHistory()
    return FileHistory(path)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer: Any = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    return keys
