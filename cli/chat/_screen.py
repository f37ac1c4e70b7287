"""The display of messages, calls and errors, which the live and the plain screen share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper

from ...commander import NodeCancelled
from ...messages import Message, ToolCall
from ...store import JournalError
from ...tools import ToolResult
from .._output import MAX_SHOWN_CHARS, one_line, print_error, show_traceback
from ._agent_partner import TurnLost
from ._approval import Asker, call_line
from ._approval_rules import ApprovalRules

__all__ = ["Screen"]

# The ids of calls by the program itself begin with this: the search before each question.
SEARCH_PREFIX = "look_up_"
MAX_EARLIER_MESSAGES = 30  # shown of a conversation that is continued


class Screen(Asker):
    """Shows a conversation. `failures` is the number of turns that failed."""

    def __init__(self, rules: ApprovalRules | None = None, *, debug: bool = False) -> None:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # for characters outside the encoding
        super().__init__(rules)
        self.failures = 0
        self._debug = debug

    async def ask_line(self, prompt: str) -> str | None:
        """Ask for a line of text; the last line of `prompt` is the label. None for no answer."""
        *above, label = prompt.split("\n")
        if above:
            self.note_now("\n".join(above))
        return await self.edit(label, "")

    async def choose_name(self, names: Sequence[str]) -> str | None:
        """Let the person choose a name; return None for none of them."""
        if not self.interactive:
            return None
        for number, name in enumerate(names, 1):
            self.note_now(f"{number}. {one_line(name, MAX_SHOWN_CHARS)}", "")
        answer = (await self.edit("which one? ", "") or "").strip()
        if answer.isdecimal() and 0 < int(answer) <= len(names):
            return names[int(answer) - 1]
        return answer if answer in names else None

    def show_said(self, text: str, *, again: bool = False) -> None:
        """Show a message of the person, unless it is visible; `again`: of an earlier session."""

    def bring_back(self, text: str) -> None:
        """Put a refused text back into the input line."""

    def touch(self, *, now: bool = False) -> None:
        """Redraw the lines above the prompt, if there is one: soon, or `now`."""

    def show_conversation(self, messages: Sequence[Message]) -> None:
        """Show the last messages of a conversation that is continued."""
        visible = [each for each in messages if each.role in ("user", "assistant", "tool")]
        if (left_out := len(visible) - MAX_EARLIER_MESSAGES) > 0:
            self.note(f"({left_out} earlier messages; /export FILE writes all)")
        for each in visible[-MAX_EARLIER_MESSAGES:]:
            if each.role == "user":
                self.show_said(each.content or "", again=True)
            elif each.role == "tool":
                self.note(f"   ->  {one_line(each.content or '', MAX_SHOWN_CHARS)}")
            else:
                self.write(each.content or "")
                self.ended()
                for call in each.tool_calls:
                    self.called(call)

    def called(self, call: ToolCall) -> None:
        """Show a call of the model."""
        if not call.id.startswith(SEARCH_PREFIX):
            self.note(call_line(call), "cyan")

    def answered(self, result: ToolResult) -> None:
        """Show the result of a call, and its figures."""
        if (result.tool_call_id or "").startswith(SEARCH_PREFIX):
            if result.status != "ok":
                self.note(
                    one_line(f"(the search failed: {result.content})", MAX_SHOWN_CHARS), "yellow"
                )
            return
        style = "dim" if result.status == "ok" else "yellow"
        self.note(f"   ->  {one_line(result.content or '', MAX_SHOWN_CHARS)}", style)
        self.show_files(result)

    def show_files(self, result: ToolResult) -> None:
        """Show the paths of a result's figures."""
        for path in result.files:
            self.note(f"   saved: {path}")

    def failed(self, error: Exception) -> None:
        """Show why a turn failed. Its text stays on the screen."""
        self.ended()
        if isinstance(error, BrokenPipeError):
            raise error  # the reader of the output has exited, so the chat ends
        if isinstance(error, NodeCancelled):
            self.note("(stopped; the text so far is saved)")
            return
        self.failures += 1
        if self._debug:
            show_traceback(error)
        print_error(error)
        if isinstance(error, TurnLost):
            return
        if isinstance(error, JournalError):
            self.note(
                "earlier turns are saved. Repair the file, then continue with anabranch chat -c"
            )
        elif self.interactive:
            self.note("/retry repeats this turn, /undo removes it")
