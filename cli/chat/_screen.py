"""What the chat shows, and how it asks whether a tool may run: what all its screens share."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, cast

from ...commander import NodeCancelled
from ...handlers import View
from ...messages import Message, ToolCall
from ...store import JournalError
from ...tools import AnyTool, Decision, ToolResult
from .._question import Question, draft, exact
from .._terminal import LONGEST, complain, in_line, show_traceback
from ._agent_partner import TurnLost
from ._rules import Rules

NOBODY_HERE = "nobody is there to ask"

LOOK_UP = "look_up_"
"""What the ids of calls begin with that no model has made: a search for each question."""

MOST_SHOWN = 30
"""How many messages of an earlier conversation are shown when it goes on."""

__all__ = ["Rows", "Screen", "call_line"]

Rows = Callable[[int, int | None], list[str]]
"""The rows of a question for a screen of so many columns, and lines; None: all of it."""


class Screen(View):
    """Shows an exchange. `failures` counts the turns that failed.

    `interactive` says whether a person sits there. `rules` say which calls need not be asked about.
    """

    interactive = True

    def __init__(self, rules: Rules | None = None, *, debug: bool = False) -> None:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # for what the terminal cannot show or send
        self.failures = 0
        self.rules = rules
        self.encoding = sys.stdout.encoding
        self._debug = debug
        self._asking = asyncio.Lock()

    @abstractmethod
    def note(self, text: str, style: str = "dim") -> None:
        """Show something that neither the user nor the model has said."""

    def tell(self, text: str, style: str = "dim") -> None:
        """Show something that belongs to a question, also where all else waits for its answer."""
        self.note(text, style)

    @abstractmethod
    async def choose(self, label: str, rows: Rows) -> str | None:
        """Ask a question of which the answer is typed by itself; None for no answer."""

    @abstractmethod
    async def edit(self, label: str, text: str) -> str | None:
        """Let the person change a text; None if they give up."""

    async def ask_line(self, prompt: str) -> str | None:
        """Ask for a line; the last line of `prompt` stands before it. None for no answer."""
        *above, label = prompt.split("\n")
        if above:
            self.tell("\n".join(above))
        return await self.edit(label, "")

    async def choose_name(self, names: Sequence[str]) -> str | None:
        """Let the person choose one of several names; None: none of them."""
        if not self.interactive:
            return None
        for number, name in enumerate(names, 1):
            self.tell(f"{number}. {in_line(name, LONGEST)}", "")
        answer = (await self.edit("which one? ", "") or "").strip()
        if answer.isdecimal() and 0 < int(answer) <= len(names):
            return names[int(answer) - 1]
        return answer if answer in names else None

    def show_said(self, text: str, *, again: bool = False) -> None:
        """Show what the person has said, where the screen has not; `again`: in earlier times."""

    def bring_back(self, text: str) -> None:
        """Give a text back that could not be said, so that it can be changed."""

    def show_conversation(self, messages: Sequence[Message]) -> None:
        """Show what was said before, the end of it if that is long."""
        said = [each for each in messages if each.role in ("user", "assistant", "tool")]
        if len(said) > MOST_SHOWN:
            self.note(f"({len(said) - MOST_SHOWN} messages before; /export FILE writes them all)")
        for each in said[-MOST_SHOWN:]:
            if each.role == "user":
                self.show_said(each.content or "", again=True)
            elif each.role == "tool":
                self.note(f"   ->  {in_line(each.content or '', LONGEST)}")
            else:
                self.write(each.content or "")
                self.ended()
                for call in each.tool_calls:
                    self.called(call)

    def called(self, call: ToolCall) -> None:
        """Show a call of the model's."""
        if not call.id.startswith(LOOK_UP):
            self.note(call_line(call), "cyan")

    def answered(self, result: ToolResult) -> None:
        """Show what a call gave, and where the figures are that it has drawn."""
        if (result.tool_call_id or "").startswith(LOOK_UP):
            if result.status != "ok":
                self.note(in_line(f"(the search failed: {result.content})", LONGEST), "yellow")
            return
        style = "dim" if result.status == "ok" else "yellow"
        self.note(f"   ->  {in_line(result.content or '', LONGEST)}", style)
        self.show_files(result)

    def show_files(self, result: ToolResult) -> None:
        """Show where the figures of a call are."""
        for path in result.files:
            self.note(f"   saved: {path}")

    def failed(self, error: Exception) -> None:
        """Show why a turn broke off; nothing that was said is lost."""
        self.ended()
        if isinstance(error, BrokenPipeError):
            raise error  # nobody reads on: the chat is over
        if isinstance(error, NodeCancelled):
            self.note("(stopped; what it said is kept)")
            return
        self.failures += 1
        if self._debug:
            show_traceback(error)
        complain(error)
        if isinstance(error, TurnLost):
            return
        if isinstance(error, JournalError):
            self.note("the turns before are kept; once that is mended, anabranch chat -c has them")
        elif self.interactive:
            self.note("nothing is lost: /retry tries this turn again, /undo forgets it")

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask the person, unless a rule says yes; where nobody sits there is nobody to say yes.

        The person may edit the arguments first; those that the tool would not take are not run.
        """
        if self.rules is not None and self.rules.allows(call, tool):
            self.note(f"({tool.name} runs: a rule allows it here; /approve lists them)")
            return True
        if self.approvals is not None:
            return await super().ask(call, tool)
        if not self.interactive:  # and nobody will come, so that the call is not to wait
            return Decision(False, reason=NOBODY_HERE)
        async with self._asking:  # one question at a time, however many calls wait
            return await self._decide(call, tool)

    async def _decide(self, call: ToolCall, tool: AnyTool) -> Decision:
        arguments = call.arguments
        name = in_line(exact(tool.name, self.encoding), 60)
        always = "" if self.rules is None else "/a(lways here)"
        whole = False
        while True:
            question = Question(tool, arguments, self.encoding)
            if whole:
                # In a thread: a megabyte of some scripts takes a second.
                rows = await asyncio.to_thread(question.rows, screen_size()[0])
                self.tell("\n".join(rows), "cyan")
            answer = await self.choose(f"run {name}? [y/N/e(dit){always}] ", question.rows)
            letter = (answer or "n").strip().lower()
            whole = letter in ("s", "show", "show all")
            if whole:
                continue
            if letter in ("e", "edit"):
                arguments = await self._edit(arguments, tool)
                continue
            if self.rules is not None and letter in ("a", "always"):
                self.rules.add(tool)
                self.tell(f"({tool.name} runs here from now on; /approve takes that back)")
                letter = "y"
            # As text, since 1 == True; and `dumps` alone is fast, for it leaves no character.
            same = json.dumps(arguments) == json.dumps(call.arguments)
            return Decision(letter in ("y", "yes"), None if same else arguments)

    async def _edit(self, arguments: dict[str, Any], tool: AnyTool) -> dict[str, Any]:
        """Let the person write other arguments, until `tool` takes them or they give up."""
        text: str | None = await asyncio.to_thread(draft, arguments, self.encoding)
        self.tell("the arguments, as JSON; an empty line gives up; Ctrl-X Ctrl-E opens $EDITOR")
        while text := await self.edit("arguments: ", text):
            try:
                edited = json.loads(text)
                if not isinstance(edited, dict):
                    raise ValueError("the arguments are a JSON object: {...}")
                tool.check(edited := cast("dict[str, Any]", edited))
            except Exception as error:  # noqa: BLE001 - whatever is wrong, it can be mended
                complain(error)
            else:
                return edited
        return arguments


def screen_size() -> tuple[int, int]:
    """Return the columns and lines of the terminal at which the person sits."""
    for stream in (sys.stdin, sys.stdout):  # the prompt leaves others no input
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(stream.fileno())
            return columns or 80, lines or 24
    return 80, 24


def call_line(call: ToolCall) -> str:
    """Return a call in one line."""
    arguments = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return in_line(f"[tool] {call.name}({arguments})", LONGEST)
