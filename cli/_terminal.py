"""What the chat shows, and how it asks: a rich terminal, a plain one, or a pipe."""

from __future__ import annotations

import asyncio
import json
import sys
from io import TextIOWrapper
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from ..commander import NodeCancelled
from ..dispatch import ToolCall
from ..handlers import View
from ..jobs import read_line
from ..tools import AnyTool, Decision, InvalidArguments, ToolResult
from ._editor import LineEditor

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
        self.failures = 0
        # Whether Ctrl-C has stopped an answer, and the user has said nothing since.
        self.stopped = False
        self._debug = debug
        self._notes = Console(
            stderr=not self.interactive, soft_wrap=True, highlight=False, markup=False
        )
        self._editor = LineEditor(commands)
        self._asking = asyncio.Lock()
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
                if self.forgives():
                    continue
                return None
            self.stopped = False
            return said

    def forgives(self) -> bool:
        """Take an interrupt that would leave; whether it is the echo of one that stopped an answer.

        Who presses Ctrl-C twice to stop a model does not want to lose the chat.
        """
        echo, self.stopped = self.stopped, False
        if echo:
            self.note("(Ctrl-C once more leaves)")
        return echo

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
            arguments = call.arguments
            while True:
                for name, value in arguments.items():
                    self.note(f"{name}: {value}", "cyan")  # whole: it is what the answer is about
                answer = await self._editor.answer(f"run {call.name}? [y/N/e(dit)] ")
                letter = (answer or "n").strip().lower()
                if letter not in ("e", "edit"):
                    edited = None if arguments == call.arguments else arguments
                    return Decision(letter in ("y", "yes"), edited)
                arguments = await self._edit(arguments, tool)

    async def _edit(self, arguments: dict[str, Any], tool: AnyTool) -> dict[str, Any]:
        """Let the person write other arguments, until `tool` takes them or they give up."""
        draft: str | None = json.dumps(arguments, ensure_ascii=False)
        self.note("the arguments, as JSON; an empty line gives up")
        self.note("Ctrl-X Ctrl-E opens $EDITOR" if self._editor.edits else draft)
        while draft := await self._editor.answer("arguments: ", draft):
            try:
                tool.check(edited := _json_object(draft))
            except (ValueError, InvalidArguments) as error:
                complain(error)
            else:
                return edited
        return arguments


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
