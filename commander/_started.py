"""`Started`: a running job with the text of its whole tree, as `commander.start` returns it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from ._event import Event
from ._events import Tap
from ._node import Node
from ._record import DONE, Record, record_of, require_loop
from ._task_waits import LocalFuture
from .waiting import Wait, begin_wait, observe, outcome, wait_shielded

if TYPE_CHECKING:
    from ._commander import Tree

__all__ = ["Started", "TextRouter"]

T_co = TypeVar("T_co", covariant=True)
Key: TypeAlias = int | tuple[int, int]  # of a node with text; on another machine, after its job's

# The router's tap is emptied at each event, so its capacity is never used.
TAP_CAPACITY = 100
# The cached sources of a router. A source is a node with text, such as `show`.
MAX_CACHED_SOURCES = 1000


class Started(Generic[T_co]):
    """A job or a handler that `commander.start` has started, and the text of all nodes below it.

        run = commander.start(Desk("rivers"))
        async for agent, text in run.text():
            print(agent, text)
        report = await run

    Awaiting it returns the result or raises the failure, as awaiting the node does. As a context
    manager, it cancels a job that has not ended when the block is left, and waits for its end.
    """

    def __init__(self, node: Node[T_co]) -> None:
        record = record_of(node)
        tree = record.tree
        self._node = node
        # Unread text by its node, in the order of the first unread piece.
        self._unread: dict[Key, tuple[str, list[str]]] = {}
        self._waiter: Wait | None = None
        router = tree.texts = tree.texts or TextRouter(tree)
        router.readers[record.id] = self
        # An observer that is no `Wait`, because no code waits for it.
        ended = LocalFuture(loop=tree.loop)
        ended.add_done_callback(lambda _, number=record.id: router.end(number))
        record.observers = [*(record.observers or ()), ended]

    @property
    def node(self) -> Node[T_co]:
        """The job or the handler."""
        return self._node

    def cancel(self, reason: str = "") -> None:
        """Cancel the job and all nodes below it; see `Node.cancel`."""
        self._node.cancel(reason)

    async def text(self) -> AsyncGenerator[tuple[str, str], None]:
        """Yield the text of all replies below the job as it arrives, until the job has ended.

            async for agent, text in run.text():
                print(f"{agent}: {text}")

        Each item has a source and a new piece of its text. The source is the name of the agent.
        Outside of agents it is the name of the nearest job above the reply, with the key of its put
        (`Feed[7]`), or of the started node. All text since the start is yielded exactly once, also
        if the reading begins late, stops and continues: another reading after the end gets none. A
        slow reader gets the unread text of each reply as one piece. The text of one reply keeps its
        order. Replies at the same time may alternate, also those of the same agent.

        If a retried node fails in the middle of a reply, its text so far has been yielded, and the
        text of the next attempt follows. An answer that no model has streamed, as of an agent's own
        `forward`, is in the result only.

        Raises the failure of the job after the last text, `NodeCancelled` if it was cancelled.
        Cancelling the reader does not cancel the job. Raises `RuntimeError` while another task
        waits for the next text.
        """
        while True:
            while self._unread:
                source, pieces = self._unread.pop(next(iter(self._unread)))
                yield source, "".join(pieces)
            if self._node.state in DONE:
                outcome(self._node)
                return
            if self._waiter is not None:
                raise RuntimeError(f"another task reads the text of {self._node!r} already")
            require_loop(record_of(self._node), "its text on its loop")
            self._waiter = begin_wait(self._node)
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _add(self, key: Key, source: str, text: str) -> None:
        unread = self._unread.get(key)
        if unread is None:
            self._unread[key] = source, [text]
            self._wake()
        else:
            unread[1].append(text)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._node.__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._node.state in DONE:
            return
        self.cancel("the block of its start was left")
        interrupted = await wait_shielded(observe(self._node))
        if interrupted is not None:
            raise interrupted

    def __repr__(self) -> str:
        return f"<started {self._node!r}>"


class TextRouter:
    """Passes the text events of a tree to the `Started` of the nodes above.

    One for all of them, because each would otherwise look at the text of all others. A `Started`
    that the user drops receives no more text.
    """

    def __init__(self, tree: Tree) -> None:
        self.readers: WeakValueDictionary[int, Started[Any]] = WeakValueDictionary[
            int, Started[Any]
        ]()
        self._tree = tree
        # The number of the top-level node above each source, and the source's name.
        self._sources: dict[Key, tuple[int, str]] = {}
        self._tap = Tap(tree.commander, TAP_CAPACITY, self._take, ("text",))

    def end(self, number: int) -> None:
        """Let the reader of a node that has ended finish; close the tap after the last one."""
        reader = self.readers.pop(number, None)
        if reader is not None:
            reader._wake()
        if not self.readers and self._tree.texts is self:
            self._tap.close()
            self._tree.texts = None

    def _take(self) -> None:
        for event in self._tap.take():
            if isinstance(event.source, Record):
                self._route(event, event.source, event.node_id)

    def take_remote(self, event: Event, record: Record) -> None:
        """Pass on text of another machine, below the job `record`, which the tap does not do.

        Its node is not in this tree, and another machine may use the same number.
        """
        self._route(event, record, (record.id, event.node_id))

    def _route(self, event: Event, record: Record, key: Key) -> None:
        found = self._sources.get(key)
        if found is None:
            if len(self._sources) >= MAX_CACHED_SOURCES:
                self._sources.clear()
            found = self._sources[key] = _find_source(event, record)
        number, source = found
        reader = self.readers.get(number)
        if reader is not None and isinstance(event.data, str):  # a user may emit another value
            reader._add(key, source, event.data)


def _find_source(event: Event, record: Record) -> tuple[int, str]:
    """Return the number of the top-level node above `record`, and the source's name."""
    job, top = None, record
    for each in (record, *record.ancestors()):
        if each.parent_node is None:
            break
        top = each
        # A node that is done has none: a thread may emit text after that.
        if job is None and each.node is not None and each.node._node_is_queued:  # pyright: ignore
            job = each
    return top.id, event.agent or (job or top).name
