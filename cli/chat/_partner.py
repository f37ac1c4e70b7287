"""Partners of a chat: what answers the person's messages.

`AgentPartner` answers in a session of a journal. `RunPartner` answers by one run for each turn; its
`Runs` make that run in this process or on a server.
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
from .._terminal import in_line
from ._log_renderer import BadEntry, LogRenderer

__all__ = ["Partner", "PendingCall", "Refused", "RunEvent", "RunPartner", "Runs"]


class Partner(ABC):
    """Answers the person's messages, one turn after the other; `name` is shown to the person."""

    name: str

    @abstractmethod
    def answer(self, message: Message | None, view: View) -> Node[Any]:
        """Return a new node that answers a message and shows its progress to `view`.

        None answers the conversation as it is. Cancel the node to stop the answer; the text so far
        is kept.
        """

    def steer(self, message: Message) -> bool:
        """Add a message to the next request of the running answer; False if there is none."""
        return False

    def unheard(self) -> list[Message]:
        """Return the steering messages that no request has contained yet, oldest first."""
        return []

    @abstractmethod
    def messages(self) -> Sequence[Message]:
        """Return the conversation, oldest message first."""

    def sources(self, answer: object) -> Iterator[str]:
        """Yield a line for each document that supports an answer, the result of its node."""
        yield from ()


# --- runs


class Refused(AnabranchError):
    """The message was not accepted and is not part of the conversation."""


@dataclass(frozen=True)
class PendingCall:
    """A tool call of a run that waits for the person's decision.

    `ends` is a node that ends as soon as the call is decided in another way, if there is one.
    """

    number: int
    call: ToolCall
    tool: AnyTool
    decide: Callable[[Decision], Awaitable[None]]
    ends: Node[Any] | None = None


class RunEvent(NamedTuple):
    """An entry of a run's log; "asked" comes with the call that waits."""

    kind: str
    data: Mapping[str, Any]
    pending: PendingCall | None = None


class Runs(ABC):
    """Makes the runs of a `RunPartner`; `place` names it in errors."""

    name: str
    place: str

    @abstractmethod
    def run(self, node: Node[Any], messages: Sequence[Message]) -> AsyncGenerator[RunEvent]:
        """Start a run that answers these messages, and yield its log up to "completed".

        Closing the generator stops the run. Raises `Refused` before the first event if the last
        message is not accepted, and the run's failure after its last event.
        """
        ...


class RunPartner(Partner):
    """Answers by one run for each turn, and has the conversation in memory.

    `raw` shows a JSON result as it is, and not as a table.
    """

    def __init__(self, runs: Runs, *, raw: bool = False) -> None:
        self.name = runs.name
        self._runs = runs
        self._raw = raw
        self._messages: list[Message] = []

    def messages(self) -> Sequence[Message]:
        """Return the person's messages and the answers, including interrupted ones."""
        return tuple(self._messages)

    def answer(self, message: Message | None, view: View) -> Node[Message]:
        """Return a new node whose result is the answer. The message is part of the conversation.

        None asks the person's last message again and drops its answer. A message that is refused
        (`Refused`) is dropped too.
        """
        if message is not None:
            self._messages.append(message)
        return self._answer(view, again=message is None)

    @handler
    async def _answer(self, node: Node[Any], view: View, *, again: bool) -> Message:
        while again and self._messages and self._messages[-1].role != "user":
            self._messages.pop()
        if not self._messages:
            raise ConfigurationError("nothing has been said yet")
        renderer = LogRenderer(view, self.name, raw=self._raw)
        answer = Message(role="assistant", content="")
        asking: dict[int, Node[None]] = {}  # by the number of the call

        def settle(number: int) -> None:
            if (question := asking.pop(number, None)) is not None:
                question.cancel("it is settled")

        try:
            async with aclosing(self._runs.run(node, self._messages)) as events:
                async for kind, data, pending in events:
                    await renderer.show(kind, data)
                    if kind in ("asked", "decided"):
                        settle(data["question"])
                    elif kind == "completed":
                        status = str(data.get("status"))
                        answer.finish_reason = "stop" if status == "ok" else in_line(status, 40)
                    if pending is not None:
                        number = pending.number
                        asking[number] = node.call_handler(_ask(pending, view))
                        if pending.ends is not None:
                            pending.ends.at_done(lambda _, number=number: settle(number))
        except Refused:
            self._messages.pop()  # otherwise each later turn would be refused with it
            raise
        except BadEntry as error:
            raise BadServer(f"{self._runs.place} sends no entry: {error}") from None
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
