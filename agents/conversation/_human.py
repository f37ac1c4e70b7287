"""Where a person's words come from: the terminal, a queue, or an application that asks them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ...jobs import read_line
from ...tools import Pending, PendingList

__all__ = ["HumanInput", "Question", "Questions", "QueueInput", "TerminalInput"]

HumanInput: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Asks a person: takes what to show, gives what they say, None if they have left.

While it waits nothing else is held up; cancelled, it leaves nothing behind.
"""


class TerminalInput:
    """Asks on the terminal, one question at a time.

    It waits for the standard input in the loop, without a thread, so a cancelled question leaves
    none behind, and what the person types later goes to the next question. It reads the standard
    input itself: do not use `input()` or `sys.stdin` beside it. Where a loop cannot watch the
    standard input (Windows) it asks by `anabranch.jobs.read_line`, which has a thread.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._held = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()

    async def __call__(self, prompt: str) -> str | None:
        """Show `prompt`; return the next line without its end, None at the end of the input."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._turn = loop, asyncio.Lock()  # a lock belongs to one loop
        async with self._turn:
            sys.stdout.write(prompt)
            sys.stdout.flush()
            while b"\n" not in self._held:
                ready = asyncio.Event()
                try:
                    loop.add_reader(self._descriptor, ready.set)
                except NotImplementedError:
                    return await read_line()
                except PermissionError:
                    ready.set()  # a plain file, which never makes anyone wait
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(self._descriptor)
                if not (data := os.read(self._descriptor, 65_536)):
                    break
                self._held += data
            line, end, self._held = self._held.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r") if line or end else None


class QueueInput:
    """Takes what people say from a queue, in order; `put` may be called before they are asked.

    Attribute: `prompts`, all that was asked. It belongs to one loop.
    """

    def __init__(self, *said: str | None) -> None:
        self.prompts: list[str] = []
        self._said: asyncio.Queue[str | None] = asyncio.Queue()
        for text in said:
            self.put(text)

    def put(self, text: str | None) -> None:
        """Say something; None says that the person leaves."""
        self._said.put_nowait(text)

    async def __call__(self, prompt: str) -> str | None:
        """Wait for the next that is said."""
        self.prompts.append(prompt)
        return await self._said.get()


class Question(Pending["str | None"], internal=True):
    """A question whose answer is what the person says."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.prompt = prompt

    def answer(self, text: str | None) -> bool:
        """Answer; None leaves the conversation. False if the question is settled."""
        return self.settle(text)


class Questions(PendingList[Question]):
    """Where questions wait until an application, such as a web page, has asked the person.

        questions = Questions()
        user = UserProxyAgent("user", human_input=questions)
        async for question in questions:        # in the application's own task
            show(question.number, question.prompt)
        ...
        questions.get(2).answer("yes")          # whenever the person answers

    Any number may wait at once, each a node below the agent that asks. All this belongs to one
    loop.
    """

    async def __call__(self, prompt: str) -> str | None:
        """Put the question as a child of the current node and wait for its answer."""
        return await self.put(Question(prompt))
