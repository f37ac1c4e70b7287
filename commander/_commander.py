"""The commander: the root of a tree inside an application's event loop; the state of the tree."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Collection
from contextvars import Context, copy_context
from inspect import isawaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, Unpack, cast, overload

from . import _blocking
from ._block_detector import BlockDetector
from ._body import spawn, spawn_measured
from ._cancel import Sweep, cancel_subtrees
from ._end import finish
from ._entry import enter_with
from ._event import EventKind, Origin
from ._events import Events, Listener
from ._explain import Explanation, draw_explanations, explain
from ._failure import log_lost
from ._node import Node, require_kind
from ._options import HandlerOptions, JobOptions, NodeLimits, check_limits
from ._policy import Policy, Quorum, check_policy
from ._queue import Queue
from ._record import (
    CURRENT,
    DONE,
    Callback,
    Record,
    enclosing,
    node_in,
    record_of,
    require_loop,
)
from ._report import is_a, raise_soon, type_name
from ._snapshot import TreeSnapshot, snapshot
from ._started import Started, TextRouter
from ._state import advance
from ._threadsafe import Requests
from ._wait_events import WaitPublisher
from .errors import NodeCancelled
from .waiting import Host, observe, outcome, wait_shielded

if TYPE_CHECKING:
    from ..messages import Usage  # what backends charge; the engine itself adds up any type

__all__ = ["Commander", "Tree"]

T = TypeVar("T")


class Tree:
    """The state that the nodes under one commander share."""

    # Set when the commander is entered.
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    origin: Origin
    queue: Queue
    # Starts the task of a node. An attribute, because `_cancel` cannot import `_body`, and a
    # `Sweep` replaces it while it marks nodes.
    spawn: Callable[[Record, Context | None], None]
    # Whether the loop's task factory makes the nodes' tasks.
    factory: bool = False
    # Whether any node belongs to a durable run; else `enter` skips the search for the run.
    has_scopes: bool = False
    # The calls from other threads.
    requests: Requests
    # The outer node: its body entered this commander. Its limits hold here, and it is charged.
    outer: Node[Any] | None = None

    def __init__(self, commander: Commander, max_concurrency: int | None) -> None:
        self.commander = commander
        self.root: Record = record_of(commander)
        self.max_concurrency = max_concurrency
        # The number of nodes that have entered, which is the last one's id.
        self.last_id = 0
        # Replaced and never changed in place, because `publish` may be iterating over it.
        self.listeners: list[Listener] = []
        # Why the commander is closed to new top-level nodes; "" while it is open. Those that nodes
        # put after that are cancelled with this reason.
        self.closing_reason = ""
        # Whether an interrupt that a node raises stops the loop. Not in the tree of a remote node,
        # where it is a failure that the remote parent gets.
        self.stops_loop = True
        # The interrupts that nodes have raised. Each stops the loop once.
        self.interrupts: list[BaseException] = []
        # The callbacks of `at_commander_end`: callback, node, and the node's context.
        self.commander_end_callbacks: list[tuple[Callback, Node[Any], Context]] = []
        # Set by `exit`. A tuple, since the result may be None.
        self.exit_result: tuple[Any] | None = None
        # A `run` with auto_exit=False waits for it.
        self.exit_future: asyncio.Future[None] | None = None
        # A cache of `Record.path` for deep trees: the id of a node on the last long path, its
        # depth, and the top of the path.
        self.path_cache: tuple[int, int, str] = (-1, 0, "")
        # The cancellation of many nodes that is under way; `marking` is set until all are marked.
        self.sweep: Sweep | None = None
        self.marking: Sweep | None = None
        # Publishes events of kind `waiting`; None without a listener for them.
        self.wait_publisher: WaitPublisher | None = None
        # Passes text to the readers of `start`; None without one.
        self.texts: TextRouter | None = None

    @property
    def in_block(self) -> bool:
        """Whether the current task uses the block. Awaiting the tree's end in it would deadlock."""
        host = self.root.task
        return isinstance(host, Host) and host.is_current

    def observe_newest(self) -> asyncio.Future[None] | None:
        """Return a future that is done when the newest top-level node is; None if there is none."""
        children = self.root.children
        return observe(next(reversed(children.values())).node) if children else None

    def publish_waits(self) -> None:
        """Publish `waiting` events from now on; before the block, `__aenter__` starts it."""
        if self.wait_publisher is None and self.root.tree:
            self.wait_publisher = WaitPublisher(self)


class Commander(Node[Any], internal=True):
    """The root of a tree of jobs and handlers, inside an application's own event loop.

        async with Commander(max_concurrency=100) as commander:
            answer = await commander.run(Ask("..."))

    Leaving the block waits for all nodes. If an exception leaves the block, all nodes are
    cancelled, and the exception propagates after they have ended. This includes `CancelledError`
    and `GeneratorExit`. Nodes that are put during that time do not run. If the loop has a task
    factory at entry, it creates the nodes' tasks.

    `max_concurrency` limits how many jobs run their bodies at once (default: no limit). Handlers do
    not count, nor does a job while it awaits other nodes. To limit requests to
    models, use `Limits(concurrency=)`. `policy` applies to top-level nodes whose failures no code
    awaits; the default, `isolate`, logs them. A warning names a body that blocks the loop for
    longer than `slow_after` seconds; None turns that off. `cpu_time` measures the CPU seconds of
    each node's own steps, for `tree()`, `explain()` and `events()`. `limits` hold for all nodes. A
    commander is used once.
    """

    policy: ClassVar[Policy] = "isolate"

    def __init__(
        self,
        *,
        max_concurrency: int | None = None,
        policy: Policy | None = None,
        slow_after: float | None = 0.1,
        cpu_time: bool = False,
        limits: NodeLimits | None = None,
    ) -> None:
        if max_concurrency is not None and max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1 or None, not {max_concurrency!r}")
        if policy is not None:
            check_policy(policy)
        self.max_concurrency = max_concurrency
        self.slow_after = slow_after
        self.cpu_time = cpu_time
        self._tree = Tree(self, max_concurrency)
        if limits is not None:
            self.limits = limits
        root = self._tree.root
        root.policy = self.policy if policy is None else policy
        if isinstance(root.policy, Quorum):
            root.is_special = True
        self._tree.requests = Requests(self._tree)
        self._watch: BlockDetector | None = None

    @property
    def limits(self) -> NodeLimits | None:
        """The limits that all nodes share, such as `Limits(budget=...)`. May be set at any time."""
        return self._tree.root.limits

    @limits.setter
    def limits(self, limits: NodeLimits | None) -> None:
        check_limits(limits)
        if limits is not self._tree.root.limits:
            self._tree.root.limits = limits

    def __getstate__(self) -> Any:
        raise TypeError("a commander cannot be copied or pickled: create another")

    # --- the block

    async def __aenter__(self) -> Self:
        tree, root = self._tree, self._tree.root
        if root.state != "pending":
            raise RuntimeError("a commander is used once: create another")
        if _blocking.process_imports_main:
            raise _blocking.TreeInMain
        loop = tree.loop = asyncio.get_running_loop()
        tree.factory = loop.get_task_factory() is not None
        # `BaseEventLoop.time` only calls `time.monotonic`: calling that directly is faster. Other
        # loops may have another clock.
        own = type(loop).time is asyncio.BaseEventLoop.time
        tree.clock = time.monotonic if own else loop.time
        tree.origin = Origin(time.time() - tree.clock())
        tree.spawn = spawn_measured if self.cpu_time else spawn
        tree.queue = Queue(tree)
        root.node = self
        root.tree = tree
        root.is_open = True
        root.task = cast("asyncio.Task[None]", Host())
        tree.outer = next(enclosing(), None)
        tree.has_scopes = tree.outer is not None and record_of(tree.outer).tree.has_scopes
        advance(root, "opened")
        if self.slow_after is not None:
            self._watch = BlockDetector(self.slow_after)
        if any(listener.wants_waits for listener in tree.listeners):
            tree.publish_waits()
        CURRENT.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Waits for all nodes. Returns to propagate `error`, raises to propagate something else.
        tree, root = self._tree, self._tree.root
        try:
            if error is not None and is_a(error, GeneratorExit) and not self._may_wait():
                return  # the loop was closed, so nothing can be awaited
            host, root.task = cast("Host", root.task), None
            # Whether the tree cancelled the block's task: by `cancel`, or by `fail_fast`.
            ended_block = root.is_ending
            if error is not None:
                self._cancel_all(f"{type_name(error)} left the commander's block")
            # From here on a cancel of this task cancels the nodes and does not end the wait. The
            # last such `CancelledError` is raised after the wait.
            advance(root, "closing")
            root.context = copy_context()
            root.context.run(CURRENT.set, self)
            over = observe(self)
            if not root.children:
                finish(root)
            left = "the commander's block was cancelled"
            interrupted = await wait_shielded(over, lambda: self._cancel_all(left))
            while kept := tree.commander_end_callbacks:
                callback, node, context = kept.pop(0)
                # Not by the loop's task factory, which may drop a task: each of these must run.
                call = self._run_one(callback, node)
                task = asyncio.Task(call, loop=tree.loop, context=context)
                interrupted = await wait_shielded(task, task.cancel) or interrupted
            if error is not None and not is_a(error, asyncio.CancelledError):
                self._log_failure_beside(error)
                return  # `error` propagates
            cancelled = interrupted if error is None else error
            if ended_block and await host.take_back_cancels():
                cancelled = None
            if cancelled is not None:
                self._log_failure_beside(cancelled)
                raise cancelled
            if root.state != "completed":
                outcome(self)
        finally:
            for listener in tuple(tree.listeners):
                listener.close()
            if self._watch is not None:
                self._watch.close()
            if tree.wait_publisher is not None:
                tree.wait_publisher.close()
            tree.requests.close()
            # The block may be left in another context than it was entered in, as in a fixture.
            if CURRENT.get(None) is self:
                CURRENT.set(tree.outer)

    def _may_wait(self) -> bool:
        """Return whether code that gets `GeneratorExit` may still await: whether a task runs it."""
        try:
            return asyncio.current_task() is not None and self._tree.loop.is_running()
        except RuntimeError:
            return False

    def _cancel_all(self, reason: str) -> None:
        """Close the commander to new top-level nodes, and cancel the present ones."""
        self._close_top(reason)
        cancel_subtrees(self._tree.root.unfinished_children, reason)

    def _close_top(self, reason: str) -> None:
        tree = self._tree
        tree.root.is_open = False
        tree.root.is_special = True  # else `enter` does not look at `closing_reason`
        tree.closing_reason = tree.closing_reason or reason

    def _log_failure_beside(self, error: BaseException) -> None:
        failure = self._tree.root.failure
        if failure is not None and failure is not error:
            log_lost(self._tree.root, failure, "%s failed, but another exception left its block")

    async def _run_one(self, callback: Callback, node: Node[Any]) -> None:
        try:
            value = callback(node)
            if isawaitable(value):
                await value
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if is_a(error, GeneratorExit) and not self._may_wait():
                raise
            # The node has ended, so no code receives the failure.
            what = "a callback at the commander's end, added to %s, raised"
            log_lost(record_of(node), error, what)
            raise_soon(error)

    # --- work

    async def run(self, job: Node[T], **options: Unpack[JobOptions]) -> T:
        """Put a job or start a handler, wait for it, and return its result.

            answer = await commander.run(Ask("..."), timeout=60)

        Raises the node's failure, or `NodeCancelled`. Cancelling this call cancels the node, waits
        for its end and raises `CancelledError` again. After `exit(result)`, returns that result.
        """
        require_kind(job, "a job or a handler" if options.get("on") is None else "a Job")
        options["claim"] = True
        enter_with(self, job, options)
        try:
            return await job
        except asyncio.CancelledError:
            cancel_subtrees((record_of(job),), "commander.run was cancelled")
            await wait_shielded(observe(job))
            raise
        except NodeCancelled:
            if self._tree.exit_result is None:
                raise
            return self._tree.exit_result[0]

    def start(self, job: Node[T], **options: Unpack[JobOptions]) -> Started[T]:
        """Put a job or start a handler; return it with the text of all agents and replies below.

            run = commander.start(Desk("rivers"), timeout=60)
            async for agent, text in run.text():
                print(text, end="")
            report = await run

        `Started` has the guarantees. The options are those of `run`. A failure that no code
        receives follows the commander's policy at the join. The unread text is stored until the
        job ends, so use `put_job` or `run` for jobs without a reader.
        """
        require_kind(job, "a job or a handler" if options.get("on") is None else "a Job")
        options["claim"] = True
        enter_with(self, job, options)
        return Started(job)

    def put_job_threadsafe(
        self, job: Node[T], *, parent: Node[Any] | None = None, **options: Unpack[JobOptions]
    ) -> concurrent.futures.Future[T]:
        """Put `job` from any thread; return a future of its result.

            commander.put_job_threadsafe(Ask("...")).result()

        The future counts as an awaiter. Cancelling it cancels the job; it is never `running()`. The
        errors of `put_job`, such as `NodeClosed`, become the future's exception; a cancelled job
        gives `NodeCancelled`. Callbacks of the future run in the loop's thread, or in the thread
        that cancels it. Futures that are not done at the commander's end get `NodeClosed`. After
        that, this raises `NodeClosed`.
        """
        return self._tree.requests.put(self.put_job, job, parent=parent, **options)

    def call_handler_threadsafe(
        self,
        handler: Node[T],
        *,
        parent: Node[Any] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> concurrent.futures.Future[T]:
        """Start `handler` from any thread; otherwise as `put_job_threadsafe`."""
        return self._tree.requests.put(self.call_handler, handler, parent=parent, **options)

    def exit_threadsafe(self, result: Any = None) -> None:
        """Call `exit` from any thread or signal handler. It takes effect on a later turn."""
        self._tree.requests.call(self.exit, result)

    def cancel_threadsafe(self, node: Node[Any] | None = None, *, reason: str = "") -> None:
        """Cancel `node` (default: the whole tree) from any thread or signal handler.

        It takes effect on a later turn of the loop. After the commander's end it does nothing.
        """
        if node is None:
            node = self
        elif not isinstance(node, Node):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{node!r} is not a node; pass the reason as reason=")
        elif record_of(node).tree not in (None, self._tree):
            raise RuntimeError(f"{node!r} is not in this commander's tree")
        self._tree.requests.call(node.cancel, reason)

    # --- leaving

    def exit(self, result: Any = None) -> None:
        """Close the commander to new top-level nodes and cancel the others, with reason "exit".

        Pending `run`s return `result`. Only the first call counts. A top-level node that another
        node still puts, such as a next round, is cancelled before it runs. Raises `RuntimeError` in
        another thread or loop; use `exit_threadsafe` there.
        """
        require_loop(self._tree.root, "commander.exit_threadsafe(result)")
        tree = self._tree
        if tree.exit_result is None and tree.root.state not in DONE:
            tree.exit_result = (result,)
            self._cancel_all("exit")
            if tree.exit_future is not None and not tree.exit_future.done():
                tree.exit_future.set_result(None)

    async def drain(self, timeout: float | None = None) -> bool:
        """Close the commander to new top-level nodes; wait for the others, then cancel them.

            finished = await commander.drain(timeout=30)

        Unfinished nodes may still put children. A top-level node that they put, such as the next
        round, is accepted, but cancelled with reason "drain" before it runs, so that the node that
        put it does not fail. Other puts raise `NodeClosed`. `timeout` is in seconds; None waits
        without end. The top-level node that calls this is neither awaited nor cancelled. Returns
        whether all nodes ended by themselves; False after `exit`. Cancelling this call leaves the
        nodes running and the commander closed.
        """
        require_loop(self._tree.root, "asyncio.run_coroutine_threadsafe on its loop")
        self._close_top("drain")
        deadline = None if timeout is None else self._tree.loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._emptied()
        except TimeoutError:
            cancel_subtrees(self._others(), "drain")
            await self._emptied()
            return False
        return self._tree.exit_result is None and self._tree.root.cancel_reason is None

    async def _emptied(self) -> None:
        while others := self._others():
            for child in others:
                if child.state not in DONE:
                    await observe(child.node)

    def _others(self) -> list[Record]:
        """Return the top-level nodes except the one that contains the current node."""
        record = node_in(self._tree)
        own = set[Record]() if record is None else {record, *record.ancestors()}
        return [child for child in self._tree.root.unfinished_children if child not in own]

    # --- observation

    def tree(self) -> TreeSnapshot:
        """Return a snapshot of all unfinished nodes, frozen; `print(commander)` draws it."""
        return snapshot(self._tree.root)

    def __str__(self) -> str:
        return str(self.tree())

    @overload
    def explain(self, node: Node[Any] | None = None) -> str: ...
    @overload
    def explain(
        self, node: Node[Any] | None = None, *, data: Literal[True]
    ) -> tuple[Explanation, ...]: ...
    def explain(
        self, node: Node[Any] | None = None, *, data: bool = False
    ) -> str | tuple[Explanation, ...]:
        """Return what `node` (default: the whole tree) is waiting for, and what that waits for.

            print(commander.explain())

        Each node has one line: its state, the time in this state (if a second or more), the nodes
        that it awaits or joins, and the line at which its body is suspended. Long lists are cut,
        with the number of omitted entries. With `data`, returns the same as a tuple of
        `Explanation`s, each before those of the nodes that it waits for.
        """
        found = explain(record_of(self if node is None else node))
        return found if data else draw_explanations(found)

    def usage(self, node: Node[Any] | None = None) -> dict[str, Usage]:
        """Return the usage of `node` (default: the whole tree) and all nodes below it so far.

        The keys are the models' names. Backends charge the `Usage` of each reply.
        """
        return dict(record_of(self if node is None else node).charges or {})

    def events(
        self, kinds: Collection[EventKind] | None = None, *, capacity: int = 10_000
    ) -> Events:
        """Return an async iterator of the nodes' events, from now until the commander's end.

            async for event in commander.events():
                print(event)

        Events come in the order of their occurrence: all kinds, or those given. In the commander's
        own block the iterator ends once all nodes have ended. At most `capacity` unread events are
        stored. Then the oldest are dropped, and a `missed` event has their number, unless `kinds`
        excludes it. If `kinds` names "text", no text is lost: unread texts of one node are merged
        into one event. Raises `ValueError` for an unknown kind.
        """
        return Events(self._tree, kinds, capacity)
