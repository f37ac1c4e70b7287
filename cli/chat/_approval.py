"""Approvals: ask the person whether a tool call may run, or whether a call in doubt happened.

The path of an approval, and the module of each step:

1. `Asker.ask` allows the call if a rule of the person does (`_approval_rules`). If no person is at
   the terminal, it denies the call.
2. A lock shows one question at a time, however many calls wait.
3. `../_call_layout` lays out the call. Calls that differ look different, and no value can imitate
   another field, the question or the program.
4. `Asker.choose` shows the rows and reads the answer. Only a line that the person typed alone,
   after the question appeared, is an answer. Type-ahead, pastes and bursts of keys are dropped: on
   the live screen by `_prompt_question`, on the plain one by `../_keyboard` and `../_editor`.
5. `y` or `yes` approves. `e` edits the arguments: the tool checks them, and the question is asked
   again with them. Any other answer, or none, denies the call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeAlias, cast

from ...handlers import View
from ...messages import ToolCall
from ...store import PendingDoubt
from ...tools import AnyTool, Decision
from .._call_layout import CallLayout, escape_unclear, write_draft
from .._output import MAX_SHOWN_CHARS, one_line, print_error
from ._approval_rules import ApprovalRules

__all__ = ["Asker", "QuestionRows", "call_line", "screen_size"]

QuestionRows: TypeAlias = Callable[[int, int | None], list[str]]
"""Returns the rows of a question for a number of columns and lines; None: no limit of lines."""

NO_PERSON = "no person is there to approve the call"
OUTCOME_UNKNOWN = "it is unknown whether this call happened; it is not repeated"


class Asker(View):
    """Asks the person at a terminal. A subclass shows the questions and reads the answers.

    `interactive` is true if a person is there. `rules` allow calls without a question.
    """

    interactive = True

    def __init__(self, rules: ApprovalRules | None = None) -> None:
        self.rules = rules
        self.encoding = sys.stdout.encoding
        self._one_question = asyncio.Lock()

    @abstractmethod
    def note(self, text: str, style: str = "dim") -> None:
        """Show a line from the program itself."""

    def note_now(self, text: str, style: str = "dim") -> None:
        """Show a line of a question at once, even inside `delay_output`."""
        self.note(text, style)

    @abstractmethod
    async def choose(self, label: str, rows: QuestionRows) -> str | None:
        """Show the rows, and return the line that the person typed alone after them.

        Returns None for no answer.
        """

    @abstractmethod
    async def edit(self, label: str, text: str) -> str | None:
        """Let the person edit a text; return None if they give up."""

    def delay_output(self) -> AbstractContextManager[None]:
        """Delay other output during this block if it could appear inside a question."""
        return nullcontext()

    # --- approvals

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask whether a call may run; see the docstring of this module."""
        if self.rules is not None and self.rules.allows(call, tool):
            self.note(f"({tool.name} runs without a question: see /approve)")
            return True
        if self.approvals is not None:
            return await super().ask(call, tool)
        if not self.interactive:
            return Decision(False, reason=NO_PERSON)
        async with self._one_question:
            with self.delay_output():
                return await self._decide(call, tool)

    async def _decide(self, call: ToolCall, tool: AnyTool) -> Decision:
        arguments = call.arguments
        name = one_line(escape_unclear(tool.name, self.encoding), 60)
        always = "" if self.rules is None else "/a(lways here)"
        while True:
            question = CallLayout(tool, arguments, self.encoding)
            answer = await self.choose(f"run {name}? [y/N/e(dit){always}] ", question.rows)
            letter = (answer or "n").strip().lower()
            if letter in ("s", "show", "show all"):
                # In a thread, since the layout of a megabyte can take a second.
                rows = await asyncio.to_thread(question.rows, screen_size()[0])
                self.note_now("\n".join(rows), "cyan")
                continue
            if letter in ("e", "edit"):
                arguments = await self._edit_arguments(arguments, tool)
                continue
            if self.rules is not None and letter in ("a", "always"):
                self.rules.add(tool)
                self.note_now(f"({tool.name} now runs here without a question; undo with /approve)")
                letter = "y"
            # As JSON, since 1 == True in Python and an edit may only change the type.
            same = json.dumps(arguments) == json.dumps(call.arguments)
            return Decision(letter in ("y", "yes"), None if same else arguments)

    async def _edit_arguments(self, arguments: dict[str, Any], tool: AnyTool) -> dict[str, Any]:
        """Let the person edit the arguments until `tool` accepts them, or they give up."""
        text: str | None = await asyncio.to_thread(write_draft, arguments, self.encoding)
        self.note_now(
            "Edit the arguments as JSON. An empty line gives up; Ctrl-X Ctrl-E opens $EDITOR."
        )
        while text := await self.edit("arguments: ", text):
            try:
                edited = json.loads(text)
                if not isinstance(edited, dict):
                    raise ValueError("the arguments must be a JSON object: {...}")
                tool.check(edited := cast("dict[str, Any]", edited))
            except Exception as error:  # noqa: BLE001 - the person can correct any error
                print_error(error)
            else:
                return edited
        return arguments

    # --- calls in doubt

    async def ask_doubt(self, doubt: PendingDoubt) -> None:
        """Ask whether a call in doubt happened. Without an answer it is not repeated."""
        call = ToolCall(id="", name=doubt.tool, arguments=dict(doubt.arguments))

        def rows(columns: int, lines: int | None) -> list[str]:
            return [call_line(call), one_line(doubt.note, MAX_SHOWN_CHARS)]

        answer = ""
        if self.interactive:
            label = "did it happen? [y(es)/n(o, run it now)/Enter: unknown] "
            answer = (await self.choose(label, rows) or "").strip().lower()
        if answer in ("n", "no"):
            await doubt.not_done()
        elif answer in ("y", "yes"):
            await doubt.done(await self.edit("what was its result? ", "") or "done")
        else:
            await doubt.done(OUTCOME_UNKNOWN)


def screen_size() -> tuple[int, int]:
    """Return the columns and lines of the person's terminal."""
    for stream in (sys.stdin, sys.stdout):  # the live prompt replaces standard input
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(stream.fileno())
            return columns or 80, lines or 24
    return 80, 24


def call_line(call: ToolCall) -> str:
    """Return a call as one line."""
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return one_line(f"[tool] {call.name}({arguments})", MAX_SHOWN_CHARS)
