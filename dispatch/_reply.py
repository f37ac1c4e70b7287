"""The fork: one reply becomes branches that are read while it arrives, and a message at the end."""

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

    `source` gives deltas, or chat-completions chunks as plain JSON or the openai SDK's objects; it
    may be async, or blocking, which is read in a thread. It is read from a later turn of the loop
    on, so branches and callbacks can be set up first, and is closed in any case.

    `to_user` names a top-level argument of tool calls: its text goes to the user as it arrives and
    the tool does not get it. Of the `tools` on offer, those that have a parameter of that name of
    their own keep it: its value is an argument like others, and is not shown. `formats` are the
    ways in which the model may write calls, or text for other branches, into its text. `repair`
    sees each call that cannot be run, once the reply is whole, and may give it arguments. `limit`
    is how many characters a branch that is being read may be behind before the source has to wait.

    The source's failure is raised from every branch and from `reply.message`, after what came
    before it; if nobody takes it, `node` fails with it. Cancelling `node` closes the source.
    Raises `TypeError` if `source` is nothing that can be read or a format is none, `NodeClosed` as
    `call_handler`; then, too, the source is closed.
    """
    try:
        check_source(source)
        for each in formats:
            if not isinstance(each, Format):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
                raise TypeError(f"a format is an instance, as Hermes(); {each!r:.80} is none")
        exempt = frozenset(each.name for each in tools if to_user and has_parameter(each, to_user))
        # Whoever listens for it hears it; else the branch costs what it cost before.
        hears = node if is_watched(node, "reasoning") else None
        pump = Pump(source, to_user, formats, repair, limit, exempt, hears)
        return Reply(node.call_handler(pump, claim=True))
    except BaseException:
        discard_source(source)
        raise


class Reply:
    """A reply that is being read; made by `fork`.

    Its branches are async iterators. They may be read together, one after the other, or not at
    all. The reply is read to its end even if nobody reads them.
    """

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    @property
    def text(self) -> AsyncIterator[str]:
        """What the user is to read, as it arrives: content, `to_user` texts, a refusal.

        A newline separates texts of different origin.
        """
        return self._pump.text

    @property
    def reasoning(self) -> AsyncIterator[str]:
        """The model's reasoning, as it arrives."""
        return self._pump.reasoning

    @property
    def tool_calls(self) -> AsyncIterator[ToolCall | ToolCallError]:
        """Each call, as soon as its arguments are whole and valid.

        In the place of a call that cannot be run there is a `ToolCallError`, once the reply is
        whole.
        """
        return self._pump.calls

    @property
    def tool_call_deltas(self) -> AsyncIterator[ToolCallDelta]:
        """Every piece of every call, as it came."""
        return self._pump.pieces

    def branch(self, name: str) -> AsyncIterator[str]:
        """The text that a format with this `branch` found; also `text` and `reasoning`.

        Raises `LookupError` if no format has it.
        """
        pump = self._pump
        branches = {"text": pump.text, "reasoning": pump.reasoning, **pump.others}
        if name not in branches:
            raise LookupError(f"no format of this reply makes {name!r}; it has {[*branches]}")
        return branches[name]

    @property
    def message(self) -> Awaitable[Message]:
        """The assembled message, once the reply is whole; may be awaited more than once.

        It is what the endpoint would have given without streaming: the content without `to_user`
        texts, the arguments as they were sent.
        """
        return _Whole(self._pump)

    @property
    def partial(self) -> Message | None:
        """The text and the reasoning so far, as a message without tool calls; None without either.

        Its `content` is None while the model only reasons.
        """
        return self._pump.partial

    def at_first(self, callback: ReplyCallback) -> Self:
        """Run `callback(reply)`, plain or async, when the first delta arrives, before it is used.

        One that raises fails the reply. Returns the reply.
        """
        self._pump.firsts.append(lambda: callback(self))
        return self

    def at_last(self, callback: ReplyCallback) -> Self:
        """Run `callback(reply)`, plain or async, when the reply has ended or failed.

        The branches have ended by then. It does not run if the reply is cancelled or closed.
        Returns the reply.
        """
        self._pump.lasts.append(lambda: callback(self))
        return self

    async def aclose(self) -> None:
        """Stop reading and close the source; the branches end after what came.

        `message` then raises `StreamInterrupted`. Closing twice, or after the end, is harmless.
        """
        await self._pump.aclose()

    def __repr__(self) -> str:
        return f"<Reply {self._pump.state}>"


class _Whole(Awaitable[Message]):
    __slots__ = ("_pump",)

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    def __await__(self) -> Generator[Any, None, Message]:
        return self._pump.whole().__await__()
