"""Partners of a chat, which answer the person's messages.

`AgentPartner` answers in a session that a journal stores. `RunPartner` starts one run for each turn
through a `RunSource`, in this process or on a server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...commander import AnabranchError, ConfigurationError, Node
from ...handlers import View, handler
from ...messages import Message, ToolCall
from ...tools import AnyTool, Decision
from .._http import BadServer
from .._output import one_line
from ._log_renderer import BadEntry, LogRenderer

__all__ = ["MessageRefused", "Partner", "PendingCall", "RunEvent", "RunPartner", "RunSource"]


class Partner(ABC):
    """Answers the person's messages, one turn after the other. The screen shows `name`."""

    name: str

    @abstractmethod
    def answer(self, message: Message | None, view: View) -> Node[Any]:
        """Return a new node that answers a message and shows its progress on `view`.

        With None as message it answers the conversation as it is. Cancel the node to stop the
        answer; its text stays in the conversation.
        """

    def steer(self, message: Message) -> bool:
        """Add a message to the next request of the running answer; return False if none runs."""
        return False

    def undelivered(self) -> list[Message]:
        """Return the steering messages that no request has contained yet, oldest first."""
        return []

    @abstractmethod
    def messages(self) -> Sequence[Message]:
        """Return the conversation, oldest message first."""

    def sources(self, answer: object) -> Iterator[str]:
        """Yield a line for each document that an answer cites. `answer` is the node's result."""
        yield from ()


# --- runs


class MessageRefused(AnabranchError):
    """A message was refused and is not part of the conversation."""


@dataclass(frozen=True)
class PendingCall:
    """A tool call of a run that waits for the person's decision.

    `ends` is a node that ends when someone else decides the call; None if there is no such node.
    """

    number: int
    call: ToolCall
    tool: AnyTool
    decide: Callable[[Decision], Awaitable[None]]
    ends: Node[Any] | None = None


class RunEvent(NamedTuple):
    """An entry of a run's log; an "asked" entry has the pending call."""

    kind: str
    data: Mapping[str, Any]
    pending: PendingCall | None = None


class RunSource(ABC):
    """Starts the runs of a `RunPartner`. Error messages name it by `place`, such as an address."""

    name: str
    place: str

    @abstractmethod
    def run(self, node: Node[Any], messages: Sequence[Message]) -> AsyncGenerator[RunEvent]:
        """Start a run that answers these messages, and yield its log up to "completed".

        Closing the generator stops the run. If the last message is not accepted, it raises
        `MessageRefused` before the first event. If the run fails, it raises that error after the
        last event.
        """
        ...


class RunPartner(Partner):
    """Answers each turn with one run, and holds the conversation in memory.

    `raw` shows a JSON result unchanged instead of as a table.
    """

    def __init__(self, runs: RunSource, *, raw: bool = False) -> None:
        self.name = runs.name
        self._runs = runs
        self._raw = raw
        self._messages: list[Message] = []

    def messages(self) -> Sequence[Message]:
        """Return the person's messages and the answers, including interrupted ones."""
        return tuple(self._messages)

    def answer(self, message: Message | None, view: View) -> Node[Message]:
        """Add the message to the conversation, and return a new node whose result is the answer.

        None repeats the person's last message and drops its answer. A message that is refused
        (`MessageRefused`) is dropped.
        """
        if message is not None:
            self._messages.append(message)
        return self._answer(view, again=message is None)

    @handler
    async def _answer(self, node: Node[Any], view: View, *, again: bool) -> Message:
        while again and self._messages and self._messages[-1].role != "user":
            self._messages.pop()
        if not self._messages:
            raise ConfigurationError("there is no message to answer yet")
        renderer = LogRenderer(view, self.name, raw=self._raw)
        answer = Message(role="assistant", content="")
        asking: dict[int, Node[None]] = {}  # by the number of the call

        def settle(number: int) -> None:
            if (question := asking.pop(number, None)) is not None:
                question.cancel("the call is decided")

        try:
            async with aclosing(self._runs.run(node, self._messages)) as events:
                async for kind, data, pending in events:
                    await renderer.show(kind, data)
                    if kind in ("asked", "decided"):
                        settle(data["question"])
                    elif kind == "completed":
                        status = str(data.get("status"))
                        answer.finish_reason = "stop" if status == "ok" else one_line(status, 40)
                    if pending is not None:
                        number = pending.number
                        asking[number] = node.call_handler(_ask(pending, view))
                        if pending.ends is not None:
                            pending.ends.at_done(lambda _, number=number: settle(number))
        except MessageRefused:
            self._messages.pop()  # otherwise each later turn would be refused with it
            raise
        except BadEntry as error:
            raise BadServer(f"{self._runs.place} sent an invalid entry: {error}") from None
        finally:
            for number in [*asking]:
                settle(number)
            renderer.end()
            answer.content, answer.reasoning = renderer.text, renderer.reasoning
            if answer.content or answer.reasoning:
                self._messages.append(answer)
        return answer


@handler
async def _ask(node: Node[Any], pending: PendingCall, view: View) -> None:
    await pending.decide(Decision.of(await view.ask(pending.call, pending.tool)))
