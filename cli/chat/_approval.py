"""Questions to the person: may this call run, and was an interrupted call done?

The whole path of an approval:

1. `Asker.ask`: a rule of the person allows the call ("always for this tool, here": `_rules`); if
   nobody is at the terminal, the answer is no.
2. One question at a time, however many calls wait.
3. `_question.Question` lays out the call exactly, so that two calls that differ look
   different and no value can imitate another field, the question or the program.
4. `choose` asks. Only a line that the person typed below this question, by itself, is an answer:
   text typed before it, pastes and bursts of keys are dropped. On the live screen
   `_asking.PromptQuestions` checks that; on the plain screen `_keyboard` and `LineEditor.choose`.
5. `y` or `yes` is a yes. Edited arguments are checked by the tool, and the question is asked again
   with them. Anything else is a no.
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
from .._question import Question, draft, exact
from .._terminal import LONGEST, complain, in_line
from ._rules import Rules

__all__ = ["Asker", "Rows", "call_line", "screen_size"]

Rows: TypeAlias = Callable[[int, int | None], list[str]]
"""Returns the rows of a question for this many columns and lines; None: without a limit."""

NOBODY_HERE = "nobody is there to ask"
OUTCOME_UNKNOWN = "nobody knows whether this was done; it is not repeated"


class Asker(View):
    """Asks the person at a terminal, with the means of a subclass.

    `interactive` says whether a person is there. `rules` allow calls without a question.
    """

    interactive = True

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules
        self.encoding = sys.stdout.encoding
        self._one_question = asyncio.Lock()

    @abstractmethod
    def note(self, text: str, style: str = "dim") -> None:
        """Show a line of the program's own."""

    def tell(self, text: str, style: str = "dim") -> None:
        """Show a part of a question, also while `holds_output` delays other output."""
        self.note(text, style)

    @abstractmethod
    async def choose(self, label: str, rows: Rows) -> str | None:
        """Return an answer that the person typed below the question and by itself; None for none.

        The rows are shown above the answer.
        """

    @abstractmethod
    async def edit(self, label: str, text: str) -> str | None:
        """Let the person edit a text; None if they give up."""

    def holds_output(self) -> AbstractContextManager[None]:
        """Delay other output while a question is shown, if it would come between its rows."""
        return nullcontext()

    # --- approvals

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask whether a call may run; the module's docstring describes the steps."""
        if self.rules is not None and self.rules.allows(call, tool):
            self.note(f"({tool.name} runs: a rule allows it here; /approve lists them)")
            return True
        if self.approvals is not None:
            return await super().ask(call, tool)
        if not self.interactive:
            return Decision(False, reason=NOBODY_HERE)
        async with self._one_question:
            with self.holds_output():
                return await self._decide(call, tool)

    async def _decide(self, call: ToolCall, tool: AnyTool) -> Decision:
        arguments = call.arguments
        name = in_line(exact(tool.name, self.encoding), 60)
        always = "" if self.rules is None else "/a(lways here)"
        while True:
            question = Question(tool, arguments, self.encoding)
            answer = await self.choose(f"run {name}? [y/N/e(dit){always}] ", question.rows)
            letter = (answer or "n").strip().lower()
            if letter in ("s", "show", "show all"):
                # In a thread: the layout of a megabyte can take a second.
                rows = await asyncio.to_thread(question.rows, screen_size()[0])
                self.tell("\n".join(rows), "cyan")
                continue
            if letter in ("e", "edit"):
                arguments = await self._edit_arguments(arguments, tool)
                continue
            if self.rules is not None and letter in ("a", "always"):
                self.rules.add(tool)
                self.tell(f"({tool.name} runs here from now on; /approve takes that back)")
                letter = "y"
            # Compared as JSON, since 1 == True.
            same = json.dumps(arguments) == json.dumps(call.arguments)
            return Decision(letter in ("y", "yes"), None if same else arguments)

    async def _edit_arguments(self, arguments: dict[str, Any], tool: AnyTool) -> dict[str, Any]:
        """Let the person edit the arguments until `tool` accepts them, or they give up."""
        text: str | None = await asyncio.to_thread(draft, arguments, self.encoding)
        self.tell("the arguments, as JSON; an empty line gives up; Ctrl-X Ctrl-E opens $EDITOR")
        while text := await self.edit("arguments: ", text):
            try:
                edited = json.loads(text)
                if not isinstance(edited, dict):
                    raise ValueError("the arguments are a JSON object: {...}")
                tool.check(edited := cast("dict[str, Any]", edited))
            except Exception as error:  # noqa: BLE001 - the person can correct any error
                complain(error)
            else:
                return edited
        return arguments

    # --- calls in doubt

    async def ask_doubt(self, doubt: PendingDoubt) -> None:
        """Ask whether an interrupted call was done; without an answer it is not repeated."""
        call = ToolCall(id="", name=doubt.tool, arguments=dict(doubt.arguments))

        def rows(columns: int, lines: int | None) -> list[str]:
            return [call_line(call), in_line(doubt.note, LONGEST)]

        answer = ""
        if self.interactive:
            label = "was it done? [y(es)/n(o: do it now)/Enter: nobody knows] "
            answer = (await self.choose(label, rows) or "").strip().lower()
        if answer in ("n", "no"):
            await doubt.not_done()
        elif answer in ("y", "yes"):
            await doubt.done(await self.edit("what did it give? ", "") or "done")
        else:
            await doubt.done(OUTCOME_UNKNOWN)


def screen_size() -> tuple[int, int]:
    """Return the columns and lines of the person's terminal."""
    for stream in (sys.stdin, sys.stdout):  # the prompt replaces the standard input
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(stream.fileno())
            return columns or 80, lines or 24
    return 80, 24


def call_line(call: ToolCall) -> str:
    """Return a call as one line."""
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return in_line(f"[tool] {call.name}({arguments})", LONGEST)
