"""Jobs that talk to a model: `ResponseJob`, one reply, and `ChatJob`, a chat with a person."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Self

from ..backends import Backend, as_backend
from ..commander.durable import record_once, scope_here
from ..commander.kinds import require, require_awaitable
from ..dispatch import Format
from ..handlers import ConsoleView, View, respond
from ..messages import Conversation, Message
from ..messages.options import check_options
from ..tools import ToolLike
from ._job import Job

__all__ = ["ChatJob", "ResponseJob", "read_line"]


class ResponseJob(Job[Message]):
    """Let a model answer a conversation, with tools; the result is its last message.

        message = await commander.run(ResponseJob(backend, conversation, [search]))

    It adds the same messages to `conversation` as `respond`. `options` have the names of chat
    completions; others raise `ConfigurationError`. `formats` are the formats of calls in the
    model's text, by default the backend's. A backend may be given by its name.
    """

    backend: Backend | str
    conversation: Conversation
    tools: Sequence[ToolLike] = ()
    view: View = field(default_factory=View)
    narrate: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    formats: Sequence[Format] | None = None

    def __post_init__(self) -> None:
        require(
            self.backend,
            (Backend, str),
            "backend must be a Backend, from connect(...), or the name of a model",
            like="stream",
        )
        self.backend = as_backend(self.backend)
        require(self.conversation, Conversation, "conversation must be a Conversation")
        require(self.view, View, "view must be a View", like="ended")
        check_options(self.options, "a ResponseJob")

    async def task(self) -> Message:
        """Call `respond`."""
        return await respond(
            self.backend,
            self.conversation,
            self.tools,
            self.view,
            narrate=self.narrate,
            formats=self.formats,
            **self.options,
        )


class ChatJob(Job[None]):
    """One round of a chat: read the user's text, let the model answer, start the next round.

        await commander.run(ChatJob(backend, Conversation(), [search]))

    A callback at the end of a round starts the next one, under the commander, so rounds are not
    nested. The chat ends when `read` returns None. Subclasses override `read`, `response`, `answer`
    or `again`. `view` shows the chat, by default a `ConsoleView`. `formats` are the formats of
    calls in the model's text, by default the backend's.

    In the body of a durable job, with a conversation of the run, the rounds are children of that
    job and the journal stores the results of `read`: a resumed run continues at the same message.
    """

    backend: Backend | str
    conversation: Conversation
    tools: Sequence[ToolLike] = ()
    view: View = field(default_factory=ConsoleView)
    formats: Sequence[Format] | None = None

    async def task(self) -> None:
        """Run one round. A failure of the model ends the round, not the chat."""
        parent = self.commander if scope_here() is None else self.parent
        text = await record_once("read", lambda: require_awaitable(self.read(), self, "read"))
        if text is None:
            return
        self.at_end(lambda _: self.put_job(self.again(), parent=parent))
        if text:
            self.conversation.add(text)
        try:
            await require_awaitable(self.answer(), self, "answer")
        except Exception as error:  # noqa: BLE001 - the chat continues after any failure
            self.view.failed(error)

    async def read(self) -> str | None:
        """Return the user's next text, None to end the chat.

        By default it is a line of the standard input. An empty text is not added: the model answers
        the conversation unchanged.
        """
        return await read_line()

    async def answer(self) -> Message:
        """Let the model answer the conversation."""
        return await self.put_job(self.response(), claim=True)

    def response(self) -> ResponseJob:
        """Return the job that answers."""
        return ResponseJob(
            self.backend, self.conversation, self.tools, self.view, formats=self.formats
        )

    def again(self) -> Self:
        """Return the next round."""
        return dataclasses.replace(self)


async def read_line() -> str | None:
    """Return the next line of the standard input without its end; None at its end or without one.

        async with asyncio.timeout(30):
            answer = await read_line()

    A line is read in a thread, so that neither the loop nor the program's end waits for it. If the
    call is cancelled, the next call gets the line. Calls at the same time get one line each.
    """
    line = next((each for each in _unclaimed if each.stdin is sys.stdin), None)
    if line is None:
        line = _Line(sys.stdin)
    else:
        _unclaimed.remove(line)
    try:
        text, failure = await asyncio.wrap_future(line.outcome)
    except asyncio.CancelledError:
        _unclaimed.append(line)
        raise
    if failure is not None:
        raise failure
    return text.removesuffix("\n") if text else None


class _Line:
    """A line that a thread reads from the standard input."""

    def __init__(self, stdin: Any) -> None:
        self.stdin: Any = stdin
        self.outcome: concurrent.futures.Future[tuple[str, BaseException | None]]
        self.outcome = concurrent.futures.Future()
        self.outcome.set_running_or_notify_cancel()  # so no reader's cancel reaches it
        # Not a pool's thread: the program's end would wait for that.
        threading.Thread(target=self._read, name="read_line", daemon=True).start()

    def _read(self) -> None:
        text, failure = "", None
        try:
            with _reading:  # two threads would lose parts of a file's buffer
                if self.stdin is not None and not getattr(self.stdin, "closed", False):
                    text = self.stdin.readline()
        except BaseException as error:  # noqa: BLE001 - raised in the loop
            failure = error
        self.outcome.set_result((text, failure))


_reading = threading.Lock()
_unclaimed: list[_Line] = []  # lines of cancelled calls, the oldest first
