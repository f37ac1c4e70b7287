"""People in a conversation: sources of their input, and the transcript that they read."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from ...handlers.legible import legible
from ...jobs import read_line
from ...tools import Pending, PendingList
from ..layers import AgentMessage

__all__ = ["HumanInput", "Question", "Questions", "QueueInput", "TerminalInput", "Transcript"]

HumanInput: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Shows a prompt to a person and returns their text, None if they have left.

It must not block the loop. When cancelled, it must leave no thread or reader behind.
"""


class TerminalInput:
    """Asks on the terminal, one question at a time.

    It waits for the standard input in the loop, without a thread. So a cancelled question leaves no
    thread behind, and later input goes to the next question. Do not use `input()` or `sys.stdin`
    beside it. Where a loop cannot watch the standard input (Windows), it uses
    `anabranch.jobs.read_line`, which has a thread.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()

    async def __call__(self, prompt: str) -> str | None:
        """Show `prompt`; return the next line without its end, None at the end of the input."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._turn = loop, asyncio.Lock()  # a lock works in one loop only
        async with self._turn:
            sys.stdout.write(prompt)
            sys.stdout.flush()
            while b"\n" not in self._buffer:
                ready = asyncio.Event()
                try:
                    loop.add_reader(self._descriptor, ready.set)
                except NotImplementedError:
                    return await read_line()
                except PermissionError:
                    ready.set()  # a plain file, which is always readable
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(self._descriptor)
                if not (data := os.read(self._descriptor, 65_536)):
                    break
                self._buffer += data
            line, end, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r") if line or end else None


class QueueInput:
    """Takes a person's answers from a queue, in order. `put` may be called before the question.

        user = UserProxyAgent("user", human_input=QueueInput("Hello", None))

    Attribute: `prompts`, all questions so far. Use it in one loop.
    """

    def __init__(self, *answers: str | None) -> None:
        self.prompts: list[str] = []
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()
        for text in answers:
            self.put(text)

    def put(self, text: str | None) -> None:
        """Add an answer; None means that the person leaves."""
        self._answers.put_nowait(text)

    async def __call__(self, prompt: str) -> str | None:
        """Wait for the next answer."""
        self.prompts.append(prompt)
        return await self._answers.get()


class Question(Pending["str | None"], internal=True):
    """A question whose answer is a person's text."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt

    def answer(self, text: str | None) -> bool:
        """Answer; None leaves the conversation. Returns False if the question is settled."""
        return self.settle(text)


class Questions(PendingList[Question]):
    """Open questions to people, for an application such as a web page.

        questions = Questions()
        user = UserProxyAgent("user", human_input=questions)
        async for question in questions:        # in the application's own task
            show(question.number, question.prompt)
        ...
        questions.get(2).answer("yes")          # whenever the person answers

    Any number may be open at once. Each is a node below the agent that asks. Use it in one loop.
    """

    async def __call__(self, prompt: str) -> str | None:
        """Open a question as a child of the current node, and wait for its answer."""
        return await self.put(Question(prompt))


SEPARATOR = "-" * 80
BROKEN_OFF = "\n(broken off)"


@dataclass(slots=True)
class _Entry:
    heading: str
    text: str = ""
    written: int = -1  # characters of the text; -1 until the heading is written
    ending: str | None = None


class Transcript:
    """Writes messages: `alice (to bob):`, an empty line, the text, a line of dashes.

    It writes a streaming message as it arrives. Other messages wait for the end of that one, so
    that no two are mixed. Without `file` it writes to the current standard output.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._entries: list[_Entry] = []

    def __call__(self, part: AgentMessage) -> None:
        """Take a part of a message, or a complete message; ignore those without a receiver."""
        if part.receiver is None or part.type in ("tool_call", "tool_result"):
            return
        heading = f"{part.sender} (to {part.receiver}):"
        for entry in self._entries:
            if entry.heading == heading and entry.ending is None:
                if part.text.startswith(entry.text):
                    entry.text = part.text
                    break
                entry.ending = BROKEN_OFF  # the new text replaces it: the reply was tried again
        else:
            entry = _Entry(heading, part.text)
            self._entries.append(entry)
        if part.stream_state == "end":
            entry.ending = ""
        elif part.stream_state == "failed":
            entry.ending = BROKEN_OFF
        out = self._file or sys.stdout
        while self._entries:
            entry = self._entries[0]
            if entry.written < 0:
                out.write(f"{legible(entry.heading)}\n\n")
                entry.written = 0
            out.write(legible(entry.text[entry.written :]))
            entry.written = len(entry.text)
            if entry.ending is None:
                break
            out.write(f"{entry.ending}\n\n{SEPARATOR}\n")
            del self._entries[0]
        out.flush()
