"""`fork` and its `Reply`: branches to read while the reply arrives, and a message at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Self, TypeAlias

from ..commander import Node, is_watched
from ..messages import Message, ToolCall, ToolCallDelta, ToolCallError, ToolSchema, has_parameter
from ._format import Format
from ._pump import Pump, Repair
from ._source import Source, check_source, discard_source

__all__ = ["Reply", "fork"]

ReplyCallback: TypeAlias = "Callable[[Reply], Awaitable[object] | object]"


def fork(
    node: Node[Any],
    source: Source,
    *,
    to_user: str | None = None,
    tools: Iterable[ToolSchema] = (),
    formats: Sequence[Format] = (),
    repair: Repair | None = None,
    limit: int = 65_536,
) -> Reply:
    """Read a reply from `source`, as a child of `node`, and fork it into branches.

    - `source` yields deltas, or chat-completions chunks as plain JSON or as objects of the openai
      SDK. It may be async, or blocking and then read in a thread. Reading starts in a later turn
      of the loop, so that branches and callbacks can be set up first. The fork always closes it.
    - `to_user` names a top-level argument of tool calls. Its text goes to the user as it arrives,
      and the tool does not get it. A tool among `tools` with a parameter of that name keeps it as
      a normal argument.
    - `formats`: how the model may write calls, or text for other branches, into its text.
    - `repair` is called with each faulty call when the reply is complete. It may return arguments.
    - `limit`: the characters that may wait in a branch that is being read. With more, the source
      must wait.

    Every branch and `reply.message` raise the source's failure, after the items that came before
    it. If no reader takes the failure, `node` fails with it. Cancelling `node` closes the source.

    Raises `TypeError` for a source that is not iterable or an invalid format, and `NodeClosed` as
    `call_handler` does; the source is closed then too.

    ```python
    reply = fork(node, stream)
    async for text in reply.text:
        print(text, end="")
    message = await reply.message
    ```
    """
    try:
        check_source(source)
        for each in formats:
            if not isinstance(each, Format):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
                raise TypeError(f"a format must be an instance, as Hermes(), not {each!r:.80}")
        exempt = frozenset(each.name for each in tools if to_user and has_parameter(each, to_user))
        # Emit reasoning only if the node has a listener: an event for each delta costs time.
        listener = node if is_watched(node, "reasoning") else None
        pump = Pump(source, to_user, formats, repair, limit, exempt, listener)
        return Reply(node.call_handler(pump, claim=True))
    except BaseException:
        discard_source(source)
        raise


class Reply:
    """A reply that is being read; `fork` makes it.

    Its branches are async iterators. Read them together, one after the other, or not at all: the
    pump reads the reply to its end even without readers.
    """

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    @property
    def text(self) -> AsyncIterator[str]:
        """The text for the user, as it arrives: content, `to_user` texts, a refusal.

        A newline separates texts of different origins.
        """
        return self._pump.text

    @property
    def reasoning(self) -> AsyncIterator[str]:
        """The model's reasoning, as it arrives."""
        return self._pump.reasoning

    @property
    def tool_calls(self) -> AsyncIterator[ToolCall | ToolCallError]:
        """Each call, as soon as its arguments are complete and valid.

        For each faulty call it yields a `ToolCallError` when the reply is complete.
        """
        return self._pump.calls

    @property
    def tool_call_deltas(self) -> AsyncIterator[ToolCallDelta]:
        """Every piece of every call, as it arrives."""
        return self._pump.pieces

    def branch(self, name: str) -> AsyncIterator[str]:
        """Return the branch of the formats with this `branch`, or `text` or `reasoning`.

        Raises `LookupError` if no format has it.
        """
        pump = self._pump
        branches = {"text": pump.text, "reasoning": pump.reasoning, **pump.others}
        if name not in branches:
            raise LookupError(f"no format has the branch {name!r}; this reply has {[*branches]}")
        return branches[name]

    @property
    def message(self) -> Awaitable[Message]:
        """The assembled message, to be awaited any number of times; raises the reply's failure.

        It equals the message of a request without streaming: its arguments still have the `to_user`
        texts, and its content does not.
        """
        return _MessageAwaitable(self._pump)

    @property
    def partial(self) -> Message | None:
        """The text and the reasoning so far, as a message without tool calls; None without either.

        Its `content` is None as long as the model has only reasoned.
        """
        return self._pump.partial

    def at_first(self, callback: ReplyCallback) -> Self:
        """Run `callback(reply)`, plain or async, before the first delta reaches a branch.

        If it raises, the reply fails. Returns the reply.
        """
        self._pump.firsts.append(lambda: callback(self))
        return self

    def at_last(self, callback: ReplyCallback) -> Self:
        """Run `callback(reply)`, plain or async, after the reply and its branches ended or failed.

        It does not run if the reply is cancelled or closed. Returns the reply.
        """
        self._pump.lasts.append(lambda: callback(self))
        return self

    async def aclose(self) -> None:
        """Stop reading and close the source; the branches end after the items that have arrived.

        `message` then raises `StreamInterrupted`. Closing twice, or after the end, does nothing.
        """
        await self._pump.aclose()

    def __repr__(self) -> str:
        return f"<Reply {self._pump.state}>"


class _MessageAwaitable(Awaitable[Message]):
    __slots__ = ("_pump",)

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    def __await__(self) -> Generator[Any, None, Message]:
        return self._pump.whole().__await__()
