"""`run`, which creates an event loop and a commander for one job."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from types import FrameType
from typing import Any, TypeVar

from . import durable
from ._commander import Commander, Tree
from ._entry import enter
from ._failure import log_lost
from ._node import Node, require_kind
from ._options import NodeLimits
from ._policy import Policy, check_timeout
from ._record import Record, record_of
from ._report import is_a
from .context import INHERITED, set_context
from .kinds import require_no_loop
from .private import silence_unfinished
from .thread import at_cancel
from .waiting import outcome

__all__ = ["run"]

T = TypeVar("T")


def run(
    job: Node[T],
    *,
    auto_exit: bool = True,
    max_concurrency: int | None = None,
    policy: Policy | None = None,
    slow_after: float | None = 0.1,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    timeout: float | None = None,
    limits: NodeLimits | None = None,
    context: object = INHERITED,
    journal: Any = None,
    run_id: str | None = None,
    live: Mapping[str, Any] | None = None,
) -> T:
    """Create an event loop and a commander, run `job`, and return when all nodes have ended.

        print(run(Ask("...")))

    Returns the value of `commander.exit(value)` if that was called, else the job's result. Raises
    the job's failure. With `auto_exit=False` the commander stays open for thread-safe puts until
    `exit`. A failure of the job that is not raised, because of `exit` or an interrupt, is logged.
    So is a failure of another top-level job, such as the next round of a loop, unless
    `policy="fail_fast"`.

    `max_concurrency` counts jobs whose bodies run, not handlers or jobs that wait for the tree. To
    limit requests to models, use `Limits(concurrency=)`. `limits` hold for the whole tree.
    `timeout` is the job's timeout in seconds. `context` is a value that all code of the tree can
    read, see `Context`.

    With `journal`, a `Journal` or its file name, a `Durable` job is a run with the id `run_id`.
    The same call resumes an interrupted run, and returns the result of one that has ended. `live`
    has the values of live fields, by name.

    The first SIGINT cancels the tree and raises `KeyboardInterrupt` after it has ended; the second
    raises it at once. SIGTERM cancels the tree and exits with status 143, unless the program has a
    handler for it. Both only in the main thread. A `KeyboardInterrupt` or `SystemExit` that a body
    or a callback raises cancels the tree too, and propagates after it has ended. In a thread of
    `in_thread`, a cancel of that node cancels the tree. Futures of thread-safe puts are always
    completed. Raises `RuntimeError` inside a running loop.
    """
    check_timeout(timeout)
    require_no_loop("run", "'async with Commander()'")
    if not isinstance(job, Node):  # pyright: ignore[reportUnnecessaryIsInstance]
        require_kind(job, "a job or a handler")
    kept = None
    if journal is not None:
        if not auto_exit:
            raise TypeError(
                "journal= needs auto_exit=True, because a durable run ends with its job"
            )
        if durable.run_opener is None:  # the store is not imported, so the job is not `Durable`
            raise TypeError(f"{job!r} is not durable: only a Durable job can run in a journal")
        kept = durable.run_opener(job, journal, run_id, live)
    elif run_id is not None or live is not None:
        raise TypeError("run_id= and live= need journal=")
    loop = (loop_factory or asyncio.new_event_loop)()
    commander = Commander(
        max_concurrency=max_concurrency, policy=policy, slow_after=slow_after, limits=limits
    )
    tree = commander._tree
    main = asyncio.Task(_main(commander, tree, job, timeout, context, auto_exit, kept), loop=loop)
    received, stopped = _Received(), None
    # Signals end the run in the main thread; in a thread of `in_thread`, a cancel of that node.
    in_main = threading.current_thread() is threading.main_thread()
    outside = _signals(loop, main, received) if in_main else at_cancel(loop, main.cancel)
    try:
        with outside:
            while not main.done():
                try:
                    loop.run_until_complete(main)
                except BaseException as error:
                    if main.done():
                        break  # it is the outcome of `main`, which is handled below
                    # A second interrupt of the user must not wait for the tree. Interrupts that
                    # nodes raise, as by `sys.exit()`, do: there may be any number of them.
                    from_node = any(error is each for each in tree.interrupts)
                    is_second = (
                        stopped is not None
                        and not from_node
                        and isinstance(error, KeyboardInterrupt)
                    )
                    is_interrupt = isinstance(error, (KeyboardInterrupt, SystemExit))
                    if not is_interrupt or is_second or received.interrupts > 1:
                        raise
                    # It left the loop while the tree was running. Cancel the tree and run the loop
                    # again until the tree has ended.
                    stopped = error if stopped is None else stopped
                    main.cancel()
            if stopped is not None:
                if not main.cancelled():
                    main.exception()  # prevents asyncio's log entry that it was never retrieved
                raise stopped
            return main.result()
    except asyncio.CancelledError:
        if received.interrupts:
            raise KeyboardInterrupt from None
        if received.terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        try:
            # If the tree did not end, threads still wait for their futures.
            tree.requests.close()
        finally:
            # The second interrupt may end the main task while nodes are still running.
            _close(loop, abandoned=not main.done() or received.interrupts > 1)


async def _main(
    commander: Commander,
    tree: Tree,
    job: Node[T],
    timeout: float | None,
    context: object,
    auto_exit: bool,
    kept: AbstractAsyncContextManager[durable.DurableRun] | None,
) -> T:
    set_context(commander, context)  # in this task
    if kept is not None:
        async with kept as run, commander:
            await run.drive(commander, timeout=timeout)
        return run.outcome() if tree.exit_result is None else tree.exit_result[0]
    try:
        async with commander:
            record = enter(commander, job, timeout, claim=True)
            # An awaiter, so that a failure does not go to the policy: it is raised below.
            record.waiters = [tree.loop.create_future()]
            if not auto_exit and tree.exit_result is None:
                tree.exit_future = tree.loop.create_future()
                await tree.exit_future
    except BaseException as error:
        _log_failure(record_of(job), error)
        raise
    if tree.exit_result is not None:
        _log_failure(record)
        return tree.exit_result[0]
    return outcome(job)


def _log_failure(record: Record, instead: BaseException | None = None) -> None:
    error = record.failure
    if error is None or error is instead or is_a(error, KeyboardInterrupt, SystemExit):
        return  # it did not fail, or `run` raises its failure
    log_lost(record, error, "%s failed, but something else ended the run")


class _Received:
    """The signals that were received."""

    interrupts = 0
    terminated = False


@contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any], received: _Received
) -> Generator[None]:
    def cancel() -> None:
        # A plain `cancel` in a signal handler would not wake a loop that sleeps in its selector.
        loop.call_soon_threadsafe(main.cancel)

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.interrupts += 1
        if received.interrupts > 1:
            raise KeyboardInterrupt
        cancel()

    def terminate(number: int, frame: FrameType | None) -> None:
        received.terminated = True
        cancel()

    replaced: list[tuple[signal.Signals, Any]] = []
    handlers: dict[signal.Signals, Any] = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
    for number, handler in handlers.items():
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            try:
                replaced.append((number, signal.signal(number, handler)))
            except ValueError:  # in a subinterpreter: only the main one handles signals
                break
    try:
        yield
    finally:
        for number, before in replaced:
            signal.signal(number, before)


def _close(loop: asyncio.AbstractEventLoop, *, abandoned: bool) -> None:
    try:
        loop.set_task_factory(None)  # a user's factory may fail, and asyncio's own tasks need none
        tasks = asyncio.all_tasks(loop)
        if abandoned:
            for task in tasks:  # they never end: no warning for each
                silence_unfinished(task)
            _stop_threads(loop)
            return
        for task in tasks:  # the user's own tasks; those of the nodes have ended
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _stop_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Stop the worker threads of anyio, which otherwise end with the main task of the loop.

    After a second interrupt that task never ends, and Python waits for all threads at exit.
    """
    for thread in threading.enumerate():
        stop = getattr(thread, "stop", None)
        is_worker = type(thread).__module__.startswith("anyio.")
        if is_worker and getattr(thread, "loop", None) is loop and callable(stop):
            stop()
