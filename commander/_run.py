"""`run`: a loop, a commander and one job, for programs that have no loop of their own."""

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
from .private import running_loop, silence_unfinished
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
    journal: Any = None,
    run_id: str | None = None,
    live: Mapping[str, Any] | None = None,
) -> T:
    """Make a loop and a commander, run `job`, and return when the commander is empty.

    Returns the value of `commander.exit(value)` if that was called, else the job's result; raises
    the job's failure. With `auto_exit=False` it stays open for thread-safe puts until `exit`. A
    failure of the job that is not raised, because `exit` or an interrupt came after it, is logged;
    so is one of another job that was put at the commander, as the next round of a loop is, unless
    `policy="fail_fast"` lets it end the run.
    `max_concurrency` counts jobs whose bodies run, no handlers and no job that waits for the tree;
    to limit requests to models, use `Limits(concurrency=)`. `limits` are those of the commander.
    `timeout` is that of the job, in seconds, as in `commander.run`.

    With `journal`, a file's name or a `Journal`, a `Durable` job is kept there under the name
    `run_id`: the same call goes on where an earlier one was ended, by whatever it was, and gives
    the result of a run that is over. `live` brings what is never written, by its fields' names.

    The first SIGINT cancels the tree and raises `KeyboardInterrupt` when it has ended; the second
    raises it at once. SIGTERM cancels the tree and exits with status 143, unless the program
    handles it already. Both only in the main thread. `sys.exit()`, or a `KeyboardInterrupt`, that a
    body or a callback raises cancels the tree too and goes on when it has ended. In a thread of
    `in_thread`, as a plain tool's, a cancel of its node cancels the tree. Futures of other threads
    are answered in each case. Inside a running loop, a `RuntimeError`.
    """
    check_timeout(timeout)
    if running_loop() is not None:
        raise RuntimeError("a loop is running here: use 'async with Commander() as commander'")
    if not isinstance(job, Node):  # pyright: ignore[reportUnnecessaryIsInstance]
        require_kind(job, "a job or a handler")
    kept = None
    if journal is not None:
        if durable.run_opener is None or not auto_exit:
            if durable.run_opener is None:
                raise TypeError(f"journal= needs a Durable job, not {job!r}")
            raise TypeError("run(journal=...) cannot be combined with auto_exit=False")
        kept = durable.run_opener(job, journal, run_id, live)
    elif run_id is not None or live is not None:
        raise TypeError("run_id= and live= are for a run with journal=")
    loop = (loop_factory or asyncio.new_event_loop)()
    commander = Commander(
        max_concurrency=max_concurrency, policy=policy, slow_after=slow_after, limits=limits
    )
    tree = commander._tree
    main = asyncio.Task(_main(commander, tree, job, timeout, auto_exit, kept), loop=loop)
    received, stopped = _Received(), None
    # What may end it from outside: signals, or a cancel of the node whose thread this is.
    in_main = threading.current_thread() is threading.main_thread()
    outside = _signals(loop, main, received) if in_main else at_cancel(loop, main.cancel)
    try:
        with outside:
            while not main.done():
                try:
                    loop.run_until_complete(main)
                except BaseException as error:
                    if main.done():
                        break  # it is its own outcome, which is looked at below
                    # The user's second interrupt, for whom the tree takes too long to end, is
                    # immediate. Those that nodes raise, as by `sys.exit()`, may be any number.
                    own = any(error is each for each in tree.interrupts)
                    again = stopped is not None and not own and isinstance(error, KeyboardInterrupt)
                    stops = isinstance(error, (KeyboardInterrupt, SystemExit))
                    if not stops or again or received.interrupts > 1:
                        raise
                    # It has left the loop, and the tree as it was: that is told to end, and let
                    # end.
                    stopped = error if stopped is None else stopped
                    main.cancel()
            if stopped is not None:
                if not main.cancelled():
                    main.exception()  # or asyncio would say that nobody has looked
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
            # It may have been left before its end, and the pool's threads wait for an answer.
            tree.requests.close()
        finally:
            # The second interrupt may have ended the main task, and left the tree as it was.
            _close(loop, abandoned=not main.done() or received.interrupts > 1)


async def _main(
    commander: Commander,
    tree: Tree,
    job: Node[T],
    timeout: float | None,
    auto_exit: bool,
    kept: AbstractAsyncContextManager[durable.DurableRun] | None,
) -> T:
    if kept is not None:
        async with kept as run, commander:
            await run.drive(commander, timeout=timeout)
        return run.outcome() if tree.exit_result is None else tree.exit_result[0]
    try:
        async with commander:
            record = enter(commander, job, timeout, claim=True)
            record.waiters = [tree.loop.create_future()]  # the outcome is taken below
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
        return  # it has not failed, or its failure leaves `run`
    log_lost(record, error, "%s failed, but something else ended the run")


class _Received:
    """Which signals have come."""

    interrupts = 0
    terminated = False


@contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any], received: _Received
) -> Generator[None]:
    def cancel() -> None:
        # From a signal handler: the loop may sleep in its selector, so it has to be woken.
        loop.call_soon_threadsafe(main.cancel)

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.interrupts += 1
        if received.interrupts > 1:
            raise KeyboardInterrupt
        cancel()

    def terminate(number: int, frame: FrameType | None) -> None:
        received.terminated = True
        cancel()

    mine: list[tuple[signal.Signals, Any]] = []
    handlers: dict[signal.Signals, Any] = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
    for number, handler in handlers.items():
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            try:
                mine.append((number, signal.signal(number, handler)))
            except ValueError:  # in a subinterpreter: the main one gets the signals
                break
    try:
        yield
    finally:
        for number, before in mine:
            signal.signal(number, before)


def _close(loop: asyncio.AbstractEventLoop, *, abandoned: bool) -> None:
    try:
        loop.set_task_factory(None)  # a user's may fail, and what is left to do is asyncio's own
        tasks = asyncio.all_tasks(loop)
        if abandoned:
            for task in tasks:  # left as they are, without a warning for each
                silence_unfinished(task)
            _stop_threads(loop)
            return
        for task in tasks:  # the user's own; the tree's have ended
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _stop_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Let the worker threads of anyio end, which otherwise wait for the end of `run`'s main task.

    That task never ends here, and Python waits for all threads when the program exits.
    """
    for thread in threading.enumerate():
        stop = getattr(thread, "stop", None)
        is_worker = type(thread).__module__.startswith("anyio.")
        if is_worker and getattr(thread, "loop", None) is loop and callable(stop):
            stop()
