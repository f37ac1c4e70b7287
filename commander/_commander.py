"""The commander: the root of a tree, its queue, its way into an application and out of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import Context, copy_context
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from . import _blocking
from ._cancel import cancel_subtrees
from ._events import EventKind, Events, Listener, Origin
from ._failure import log_lost
from ._life import finish, spawn
from ._loop import require_loop
from ._node import Node, is_node, outcome, refuse_kind
from ._observe import observe, outlast
from ._place import On
from ._policy import Policy, Quorum, Restart, Retry, check_policy
from ._queue import Queue
from ._record import CURRENT, DONE, Callback
from ._report import is_a, raise_soon, type_name
from ._snapshot import TreeSnapshot, explain, snapshot
from ._threadsafe import Requests
from ._usage import spent
from ._watch import Watch
from .errors import NodeCancelled

__all__ = ["Commander"]

T = TypeVar("T")
N = TypeVar("N", bound=Node[Any])


class Commander(Node[Any], internal=True):
    """The root of a tree of jobs and handlers, inside an application's own event loop.

        async with Commander(max_concurrency=100) as commander:
            answer = await commander.run(Ask("..."))

    Leaving the block waits for all that was put. An exception that leaves the block, cancellation
    and the closing of an async generator included, cancels everything, waits for it and goes on as
    it was; nothing that is put meanwhile runs. The tasks of the nodes are made by the task factory
    that the loop has when the commander is entered.

    `max_concurrency` limits how many jobs run their bodies at once (default: no limit). Handlers do
    not count, nor does a job that waits for the tree, as for a handler that does its work: to limit
    requests to models, use `Limits(concurrency=)`. `policy` says what becomes of failures among the
    top-level nodes that nobody awaits; `isolate`, the default, logs them and goes on. A body that
    blocks the loop for longer than `slow_after` seconds is named in a warning; `None` turns that
    off. A commander is used once.
    """

    policy = "isolate"
    # Why no more top-level nodes run; nodes that other nodes still put are cancelled with it.
    _n_ending = ""
    # Of the last long path that was asked for: a node's id, its depth, the uppermost segments.
    _n_landmark: tuple[int, int, str] = (-1, 0, "")
    limits: Any = None
    """Limits shared by all of the tree's requests to models: a `Limits` of `anabranch.backends`."""

    def __init__(
        self,
        *,
        max_concurrency: int | None = None,
        policy: Policy | None = None,
        slow_after: float | None = 0.1,
    ) -> None:
        if max_concurrency is not None and max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1 or None, not {max_concurrency!r}")
        if policy is not None:
            check_policy(policy)
            self._n_policy = policy
        self._n_special = isinstance(self._n_policy, Quorum)
        self.max_concurrency = max_concurrency
        self.slow_after = slow_after
        # How many nodes have entered; the last one's id.
        self._n_count = 0
        self._n_listeners: list[Listener] = []
        self._n_requests = Requests(self)
        # The interrupts that nodes have raised: each stops the loop once.
        self._n_interrupts: list[BaseException] = []
        # What runs at the commander's end: callback, node, and the node's context.
        self._n_kept: list[tuple[Callback, Node[Any], Context]] = []
        # Set by `exit`; a one-element tuple, since the result may be None.
        self._n_exit: tuple[Any] | None = None
        self._n_watch: Watch | None = None
        # Waited for by a `run` that stays open until `exit`.
        self._n_exited: asyncio.Future[None] | None = None

    # --- the block

    async def __aenter__(self) -> Self:
        if self._n_state != "pending":
            raise RuntimeError("a commander is used once: make another")
        if _blocking.process_imports_main:
            raise _blocking.TreeInMain
        loop = self._n_loop = asyncio.get_running_loop()
        # Whether the loop's task factory makes the nodes' tasks.
        self._n_factory = loop.get_task_factory() is not None
        # What asyncio's own loops call; others may keep another time.
        own = type(loop).time is asyncio.BaseEventLoop.time
        self._n_clock: Callable[[], float] = time.monotonic if own else loop.time
        self._n_origin = Origin(time.time() - self._n_clock())
        self._n_spawn = spawn
        self._n_queue = Queue(self.max_concurrency, self, loop, spawn)
        self._n_commander = self
        self._n_state = "running"
        self._n_open = True
        self._n_task = cast("asyncio.Task[None]", _Host())
        if self.slow_after is not None:
            self._n_watch = Watch(self.slow_after)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and is_a(error, GeneratorExit) and not self._may_wait():
            self._close_watches()
            return  # the loop was closed under the block: there is nowhere left to wait
        host, self._n_task = cast("_Host", self._n_task), None
        # A failure under `fail_fast`, or `cancel`, has cancelled the block as a node's body.
        ended_block = self._n_abort is not None or self._n_cancel is not None
        if error is not None:
            self._end_all(f"{type_name(error)} left the commander's block")
        interrupted = await self._join()
        interrupted = await self._run_kept() or interrupted
        self._close_watches()
        if error is not None and not is_a(error, asyncio.CancelledError):
            self._log_failure_beside(error)
            return  # it goes on as it was
        cancelled = interrupted if error is None else error
        if ended_block and await host.take_back_cancels():
            cancelled = None
        if cancelled is not None:
            self._log_failure_beside(cancelled)
            raise cancelled
        if self._n_state != "completed":
            outcome(self)

    def _may_wait(self) -> bool:
        """Say whether a block that is closed, as an async generator's is, may still wait."""
        try:
            return asyncio.current_task() is not None and self._n_loop.is_running()
        except RuntimeError:
            return False

    def _end_all(self, reason: str) -> None:
        """Take no new top-level nodes, and cancel those that there are."""
        self._n_close_top(reason)
        cancel_subtrees(self.children, reason)

    def _n_close_top(self, reason: str) -> None:
        self._n_open = False
        self._n_special = True
        self._n_ending = self._n_ending or reason

    def _log_failure_beside(self, error: BaseException) -> None:
        if self._n_error is not None and self._n_error is not error:
            log_lost(self, self._n_error, "%s failed, but another exception left its block")

    async def _join(self) -> asyncio.CancelledError | None:
        """Wait for everything; return the last cancellation of the wait, which ends nothing."""
        self._n_state = "joining"
        self._n_context = copy_context()
        ended = observe(self)
        if not self._n_children:
            finish(self, at_home=True)
        return await outlast(ended, lambda: self._end_all("the commander's block was cancelled"))

    async def _run_kept(self) -> asyncio.CancelledError | None:
        interrupted = None
        while self._n_kept:
            callback, node, context = self._n_kept.pop(0)
            # No task factory of a user's comes between: none of these callbacks may be left out.
            task = asyncio.Task(_run_one(callback, node), loop=self._n_loop, context=context)
            interrupted = await outlast(task, task.cancel) or interrupted
        return interrupted

    def _close_watches(self) -> None:
        for listener in tuple(self._n_listeners):
            listener.close()
        if self._n_watch is not None:
            self._n_watch.close()
        self._n_requests.close()

    def _n_keep(self, node: Node[Any], callback: Callback) -> None:
        self._n_kept.append((callback, node, node._n_context or copy_context()))

    # --- work

    async def run(
        self,
        job: Node[T],
        *,
        priority: int = 0,
        timeout: float | None = None,
        retry: Retry | Restart | None = None,
        policy: Policy | None = None,
        on: On | None = None,
    ) -> T:
        """Put a job or start a handler, wait for it, and return its result.

        Raises the node's failure, or `NodeCancelled`. Cancelling this call cancels the node, waits
        for its end and raises `CancelledError` again. After `exit(result)`, returns that result.
        """
        self._n_put(job, priority, timeout, retry, policy, on)
        try:
            return await job
        except asyncio.CancelledError:
            cancel_subtrees((job,), "commander.run was cancelled")
            await outlast(observe(job))
            raise
        except NodeCancelled:
            if self._n_exit is None:
                raise
            return self._n_exit[0]

    def _n_put(
        self,
        node: Node[Any],
        priority: int = 0,
        timeout: float | None = None,
        retry: Retry | Restart | None = None,
        policy: Policy | None = None,
        on: On | None = None,
    ) -> None:
        if not is_node(node):
            refuse_kind(node, "a job or a handler")
        if node._n_queued or on is not None:
            self.put_job(
                node,
                priority=priority,
                timeout=timeout,
                retry=retry,
                policy=policy,
                claim=True,
                on=on,
            )
        else:
            self.call_handler(node, timeout=timeout, retry=retry, policy=policy, claim=True)

    def put_job_threadsafe(
        self,
        job: Node[T],
        *,
        parent: Node[Any] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        retry: Retry | Restart | None = None,
        policy: Policy | None = None,
        on: On | None = None,
    ) -> concurrent.futures.Future[T]:
        """Put `job` from any thread; return a future of its result.

        The future counts as an awaiter. It can be cancelled until the job is done, and that cancels
        the job; it is never `running()`. A refusal (`NodeClosed` and the other errors of `put_job`)
        arrives as the future's exception; a cancelled job gives `NodeCancelled`. Callbacks of the
        future run in the loop's thread, or in the one that cancels it. What is unanswered at the
        commander's end gets `NodeClosed`; after it, this raises `NodeClosed` at once.
        """

        def put() -> None:
            self.put_job(
                job,
                parent=parent,
                priority=priority,
                timeout=timeout,
                retry=retry,
                policy=policy,
                claim=True,
                on=on,
            )

        return self._n_requests.put(job, put)

    def call_handler_threadsafe(
        self,
        handler: Node[T],
        *,
        parent: Node[Any] | None = None,
        timeout: float | None = None,
        retry: Retry | Restart | None = None,
        policy: Policy | None = None,
    ) -> concurrent.futures.Future[T]:
        """Start `handler` from any thread; the rest is as in `put_job_threadsafe`."""

        def call() -> None:
            self.call_handler(
                handler, parent=parent, timeout=timeout, retry=retry, policy=policy, claim=True
            )

        return self._n_requests.put(handler, call)

    def exit_threadsafe(self, result: Any = None) -> None:
        """Call `exit` from any thread or signal handler; it takes effect a moment later."""
        self._n_requests.call(self.exit, result)

    def cancel_threadsafe(self, node: Node[Any] | None = None, *, reason: str = "") -> None:
        """Cancel `node` (default: the whole tree) from any thread or signal handler, as `cancel`.

        It takes effect a moment later. After the commander's end it does nothing, as `exit` does.
        """
        if node is None:
            node = self
        elif not isinstance(node, Node):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{node!r} is no node to cancel; the reason goes as reason=")
        elif node._n_commander not in (None, self):
            raise RuntimeError(f"{node!r} is not in this commander's tree")
        self._n_requests.call(node.cancel, reason)

    # --- leaving

    def exit(self, result: Any = None) -> None:
        """Take no new top-level nodes and cancel the rest, with reason "exit".

        Pending `run`s return `result`. Only the first call counts. A top-level node that another
        node still puts, as a next round, is cancelled before it runs. From another thread or loop
        it is a `RuntimeError`: there, `exit_threadsafe` is safe.
        """
        require_loop(self, "commander.exit_threadsafe(result)")
        if self._n_exit is None and self._n_state not in DONE:
            self._n_exit = (result,)
            self._end_all("exit")
            if self._n_exited is not None and not self._n_exited.done():
                self._n_exited.set_result(None)

    async def _n_until_exit(self) -> None:
        if self._n_exit is None:
            self._n_exited = self._n_loop.create_future()
            await self._n_exited

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no new top-level nodes, let what runs finish, then cancel what is left.

        What runs may still put children of its own. A top-level node that it puts, as the next
        round or along an edge, is cancelled before it runs, with reason "drain": whoever puts it
        does not fail. From elsewhere that is `NodeClosed`. `timeout` is in seconds, None waits
        without end. A node that calls this is neither waited for nor cancelled. Returns whether
        everything ended by itself; after `exit` it has not. Cancelling this call leaves the rest
        of the work running and the commander closed to new top-level nodes.
        """
        require_loop(self, "asyncio.run_coroutine_threadsafe on its loop")
        self._n_close_top("drain")
        deadline = None if timeout is None else self._n_loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._emptied()
        except TimeoutError:
            cancel_subtrees(self._others(), "drain")
            await self._emptied()
            return False
        return self._n_exit is None and self._n_cancel is None

    async def _emptied(self) -> None:
        while others := self._others():
            for child in others:
                await observe(child)

    def _others(self) -> list[Node[Any]]:
        """Return the top-level nodes but that to which the current node belongs."""
        current = CURRENT.get(None)
        own = () if current is None else (current, *current.ancestors)
        own = {each._n_id for each in own if each._n_commander is self}
        return [child for child in self.children if child._n_id not in own]

    # --- seeing it

    def tree(self) -> TreeSnapshot:
        """Return a snapshot of all unfinished nodes, frozen; `print(commander)` draws it."""
        return snapshot(self)

    def __str__(self) -> str:
        return str(snapshot(self))

    def explain(self, node: Node[Any] | None = None) -> str:
        """Say what `node` (default: the whole tree) is waiting for, down to the leaves.

        One line a node: its state, the node it awaits or the children it joins, and for a body
        the file and line where it stands. Long lists are cut and say so.
        """
        return explain(self if node is None else node)

    def usage(self, node: Node[Any] | None = None) -> dict[str, Any]:
        """Return what `node` (default: the whole tree) and all below it have spent so far.

        The keys are the models' names, the values `Usage`s: what backends charge for each reply.
        """
        return spent(self if node is None else node)

    def events(
        self, kinds: Collection[EventKind] | None = None, *, capacity: int = 10_000
    ) -> Events:
        """Listen to what happens to the nodes from now on, until the commander ends.

        An async iterator of `Event`s, in the order in which they happen; all kinds, or those
        given. `capacity` is the number of events kept for a listener that is slow: beyond it the
        oldest are dropped, and a `missed` event says how many.
        """
        return Events(self, kinds, capacity)


class _Host:
    """The task in whose block the commander is; the tree cancels it as it would a node's body."""

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        # The block may stand in the clean-up of a task that has been cancelled.
        self._cancels_before = self._task.cancelling()
        self._cancels = 0

    def cancel(self) -> None:
        self._cancels += 1
        self._task.cancel()

    async def take_back_cancels(self) -> bool:
        """Undo the cancels by which the tree ended the block; False if another one came besides."""
        for _ in range(self._cancels):
            self._task.uncancel()
        if self._task.cancelling() > self._cancels_before:
            return False
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # where it arrives if the block has awaited nothing since
        return True


async def _run_one(callback: Callback, node: Node[Any]) -> None:
    try:
        value = callback(node)
        if isawaitable(value):
            await value
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if is_a(error, GeneratorExit) and not node._n_commander._may_wait():
            raise
        # There is no node left that it could fail.
        log_lost(node, error, "a callback at the commander's end, added to %s, raised")
        raise_soon(error)
